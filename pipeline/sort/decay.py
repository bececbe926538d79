"""Exponential decay: older days of a window count less.

Each row of a day counts as the day's factor, 2^(-age / half-life) with 16 significant bits. Sums of up to 2^37 rows
with one factor are then exact, so the table equals, to the last bit, that of a log whose rows have the factor as
weight. Rows with weights have the product of weight and factor, if the products are exact. Sampling weights are scaled
to Kish's effective sample size first, so equal ones decay like rows without weights.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import replace

import numpy as np

from calibrators.arithmetic.ordering import sort_pairs
from calibrators.arithmetic.passes import Points
from calibrators.arithmetic.ties import Coded
from pipeline.log.logs import Log
from pipeline.sort.day_tables import DayTable
from pipeline.sort.folding import order_tagged
from pipeline.sort.run_files import (
    CodedRows,
    Sections,
    SignedRows,
    read_run,
    write_run,
)

_BITS = 16


def factor(age: int, half_life: int) -> float:
    """Return the weight of a row of a day.

    Parameters
    ----------
    age : days before the window's last day, >= 0
    half_life : days after which a row counts half, >= 1; at least a 1000th of the age

    Returns
    -------
    float in (0, 1], with 16 significant bits, the same on every machine

    >>> factor(0, 7), factor(14, 7)
    (1.0, 0.25)
    """
    with decimal.localcontext(prec=40):
        exact = decimal.Decimal(2) ** (decimal.Decimal(-age) / decimal.Decimal(half_life))
    mantissa, exponent = math.frexp(float(exact))
    return math.ldexp(round(mantissa * 2**_BITS), exponent - _BITS)


def weigh_day(table: DayTable, last: int, half_life: int, path: str) -> DayTable:
    """A day table with its rows weighed, as runs in scratch. May run again.

    Parameters
    ----------
    last : the window's last day
    half_life : in days
    path : of the runs, without their numbers
    """
    weight = factor(last - table.day, half_life)
    made = [
        write_run(f"{path}-{i:04d}", weighed(read_run(run), weight), run.segments)
        for i, run in enumerate(table.receipt.runs)
    ]
    return replace(table, kept=table.kept._replace(receipt=replace(table.receipt, runs=made)))


def with_weights(log: Log) -> Log:
    """A log whose rows have weights by now, whether or not a column of it gives them."""
    return replace(log, columns=replace(log.columns, weight=log.columns.weight or "(half-life)"))


def weighed(sections: Sections, weight: float) -> Sections:
    """Rows and ties with their weights multiplied; a row without one has it."""
    negatives, positives = sections.negatives, sections.positives
    pairs = np.concatenate(
        [
            np.stack([negatives, np.full(negatives.size, -weight)], axis=1),
            np.stack([positives, np.full(positives.size, weight)], axis=1),
            np.stack([sections.rows.score, sections.rows.signed * weight], axis=1),
        ]
    )
    entries = sections.entries
    coded = sections.coded_entries
    return Sections(
        rows=SignedRows(*sort_pairs(pairs)) if pairs.size else SignedRows(*pairs.T),
        entries=Points(entries.score, entries.weight * weight, entries.positives * weight),
        coded_rows=_coded(sections, weight),
        coded_entries=Coded(coded.score, coded.code, coded.weight * weight, coded.positives * weight),
    )


def _coded(sections: Sections, weight: float) -> CodedRows:
    score, tag = sections.tagged
    own = sections.coded_rows
    scores = np.concatenate([score, own.score])
    codes = np.concatenate([tag >> 1, own.code])
    signed = np.concatenate([np.where(tag & 1, weight, -weight), own.signed * weight])
    order = order_tagged(scores, codes)
    return CodedRows(scores[order], codes[order], signed[order])
