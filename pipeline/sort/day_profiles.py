"""Day profiles: the counts of a day's rows in fixed cells of the score, to compare days with one another.

The cells are the same for every day, so that profiles add: a cell is a 64th of a power of two, whatever the scale of
the scores. A profile is made from a day's sorted runs and kept beside them; it holds some hundred numbers.

Older days of a window may count less. Each row of a day counts as the day's factor, 2^(-age / half-life) with 16
significant bits. Sums of up to 2^37 rows with one factor are then exact, so the table equals, to the last bit, that of
a log whose rows have the factor as weight. Rows with weights have the product of weight and factor, if the products are
exact. Sampling weights are scaled to Kish's effective sample size first, so equal ones decay like rows without weights.
"""

from __future__ import annotations

import decimal
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import Coded, sort_pairs
from calibrators.arithmetic.passes import Array, Points
from pipeline.files.folders import Folder
from pipeline.log.logs import Log
from pipeline.sort.day_files import checksum
from pipeline.sort.day_tables import DayTable
from pipeline.sort.folding import order_tagged
from pipeline.sort.run_files import (
    CodedRows,
    Sections,
    SignedRows,
    read_run,
    write_run,
)

PROFILE = "profile"
"""The file in a day table's folder."""

_SHIFT = 46
"""Bits of a score that do not count: 6 of its fraction do."""

_TOP = np.uint64(1 << 63)

Integers = npt.NDArray[np.int64]


class Profile(NamedTuple):
    """Rows by cell and label.

    Attributes
    ----------
    cell : int64 array, shape (cells,), ascending; see `cell_of`
    score : float64 array, shape (cells,)
        The middle of each cell.
    negatives, positives : float64 arrays, shape (cells,)
        Rows with label 0 and 1; with weights, what they count for.
    """

    cell: Integers
    score: Array
    negatives: Array
    positives: Array

    @property
    def weight(self) -> Array:
        """Rows of each cell."""
        return self.negatives + self.positives

    def scaled(self, rows: float) -> Profile:
        """The same shares of so many rows."""
        total = float(self.weight.sum())
        factor = rows / total if total > 0 else 1.0
        return self._replace(negatives=self.negatives * factor, positives=self.positives * factor)

    @classmethod
    def of(cls, score: Array, weight: Array, positives: Array) -> Profile:
        """Profile of points.

        Parameters
        ----------
        score, weight, positives : float64 arrays, shape (n,), in any order
        """
        cell, place = np.unique(cell_of(score), return_inverse=True)
        total = np.bincount(place, weight, cell.size).astype(np.float64)
        ones = np.bincount(place, positives, cell.size).astype(np.float64)
        return cls(cell, middle_of(cell), total - ones, ones)

    @classmethod
    def total(cls, profiles: Sequence[Profile]) -> Profile:
        """Sum of profiles."""
        cells = np.concatenate([np.empty(0, np.int64), *(own.cell for own in profiles)])
        cell, place = np.unique(cells, return_inverse=True)
        sums = [
            np.bincount(place, np.concatenate([np.empty(0), *columns]), cell.size).astype(np.float64)
            for columns in ([own.negatives for own in profiles], [own.positives for own in profiles])
        ]
        return cls(cell, middle_of(cell), *sums)


def cell_of(score: Array) -> Integers:
    """Cell of each score: equal scores have one cell, and cells ascend with the scores."""
    bits = np.ascontiguousarray(score + 0.0).view(np.uint64)
    ordinal = np.where(bits & _TOP, ~bits, bits | _TOP)
    cells: Integers = (ordinal >> np.uint64(_SHIFT)).astype(np.int64)
    return cells


def middle_of(cell: Integers) -> Array:
    """Score in the middle of each cell; the score 0 has its own."""
    ordinal = (cell.astype(np.uint64) << np.uint64(_SHIFT)) | np.uint64(1 << (_SHIFT - 1))
    bits = np.where(ordinal & _TOP, ordinal & ~_TOP, ~ordinal)
    middle: Array = np.ascontiguousarray(bits).view(np.float64)
    return np.where(np.abs(middle) < np.finfo(np.float64).tiny, 0.0, middle)


def profile_day(place: str, table: DayTable) -> Profile:
    """Profile of a day table, which is made once and kept in the table's folder. place : folder of these folders."""
    folder = f"{place}/{table.name}"
    known = _read(folder)
    if known is not None:
        return known
    found = Profile.total([of_sections(read_run(run)) for run in table.receipt.runs])
    content = io.BytesIO()
    np.save(content, np.stack([found.cell.astype(np.float64), found.negatives, found.positives]))
    numbers = content.getvalue()
    Folder.at(folder).replace(PROFILE, checksum(numbers).to_bytes(4, "little") + numbers)
    return found


def of_sections(sections: Sections) -> Profile:
    """Profile of a run's rows."""
    negatives, positives, rows, entries, tagged, coded, coded_entries = sections
    ones = np.ones
    parts: list[tuple[Any, Any, Any]] = [
        (negatives, ones(negatives.size), np.zeros(negatives.size)),
        (positives, ones(positives.size), ones(positives.size)),
        (rows.score, np.abs(rows.signed), np.maximum(rows.signed, 0.0)),
        (entries.score, entries.weight, entries.positives),
        (tagged.score, ones(tagged.score.size), (tagged.tag & 1).astype(np.float64)),
        (coded.score, np.abs(coded.signed), np.maximum(coded.signed, 0.0)),
        (coded_entries.score, coded_entries.weight, coded_entries.positives),
    ]
    return Profile.total([Profile.of(*part) for part in parts if part[0].size])


def _read(folder: str) -> Profile | None:
    content = Folder.at(folder).read(PROFILE) or b""
    if len(content) <= 4 or int.from_bytes(content[:4], "little") != checksum(content[4:]):
        return None
    cell, negatives, positives = np.load(io.BytesIO(content[4:]))
    cells = cell.astype(np.int64)
    return Profile(cells, middle_of(cells), negatives, positives)


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
