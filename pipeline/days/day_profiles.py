"""Day profiles: histograms of a day's scores by label, to compare days; and exponential decay of older days.

All days have the same cells, so that profiles can be added: a cell is a 64th of a power of two, at any scale of the
scores. A profile is computed from a day's sorted runs and stored next to them; it has some hundred numbers.

With a half-life, each row of a day counts as the day's factor, 2^(-age / half-life) with 16 significant bits. Sums of
up to 2^37 rows with one factor are then exact, so the table equals, to the last bit, that of a log whose rows have the
factor as weight. Rows with weights get the product of weight and factor, if the products are exact. Sampling weights
are scaled to Kish's effective sample size first, so equal ones decay like rows without weights.
"""

from __future__ import annotations

import decimal
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.sorting import ordinals
from pipeline.days.day_files import checksum
from pipeline.days.day_tables import DayTable
from pipeline.files.folders import Folder
from pipeline.log.logs import Log
from pipeline.sort.run_files import Run, read_run, write_run
from pipeline.sort.sections import Sections, WeightedRows

PROFILE = "profile"
"""Name of the file in a day table's folder."""

_DROPPED_BITS = 46
"""Low bits of a score that its cell ignores; 6 bits of the fraction remain."""

_SIGN_BIT = np.uint64(1 << 63)


class Profile(NamedTuple):
    """Numbers of rows by cell and label.

    Attributes
    ----------
    cell : int64 array, shape (cells,), ascending; see `cell_of`
    score : float64 array, shape (cells,): middle of each cell
    negatives, positives : float64 arrays, shape (cells,): rows, or their weights, with label 0 and 1
    """

    cell: Integers
    score: Array
    negatives: Array
    positives: Array

    @property
    def weight(self) -> Array:
        """Number of rows, or their weight, by cell."""
        return self.negatives + self.positives

    def scaled(self, rows: float) -> Profile:
        """Scale the profile to a total of `rows`."""
        total = float(self.weight.sum())
        factor = rows / total if total > 0 else 1.0
        return self._replace(negatives=self.negatives * factor, positives=self.positives * factor)

    @classmethod
    def of(cls, score: Array, weight: Array, positives: Array) -> Profile:
        """Return the profile of points.

        Parameters
        ----------
        score, weight, positives : float64 arrays, shape (n,), in any order
        """
        cell, index = np.unique(cell_of(score), return_inverse=True)
        total = np.bincount(index, weight, cell.size).astype(np.float64)
        ones = np.bincount(index, positives, cell.size).astype(np.float64)
        return cls(cell, middle_of(cell), total - ones, ones)

    @classmethod
    def total(cls, profiles: Sequence[Profile]) -> Profile:
        """Add up profiles."""
        cells = np.concatenate([np.empty(0, np.int64), *(day.cell for day in profiles)])
        cell, index = np.unique(cells, return_inverse=True)
        sums = [
            np.bincount(index, np.concatenate([np.empty(0), *columns]), cell.size).astype(np.float64)
            for columns in ([day.negatives for day in profiles], [day.positives for day in profiles])
        ]
        return cls(cell, middle_of(cell), *sums)


def cell_of(score: Array) -> Integers:
    """Return the cell of each score; a monotone function of the score."""
    return (ordinals(score) >> np.uint64(_DROPPED_BITS)).astype(np.int64)


def middle_of(cell: Integers) -> Array:
    """Return the score in the middle of each cell; the cell of 0 has the score 0."""
    ordinal = (cell.astype(np.uint64) << np.uint64(_DROPPED_BITS)) | np.uint64(1 << (_DROPPED_BITS - 1))
    bits = np.where(ordinal & _SIGN_BIT, ordinal & ~_SIGN_BIT, ~ordinal)
    middle: Array = np.ascontiguousarray(bits).view(np.float64)
    return np.where(np.abs(middle) < np.finfo(np.float64).tiny, 0.0, middle)


def profile_day(days_folder: str, table: DayTable) -> Profile:
    """Return the profile of a day table, computed once and stored in the table's folder below `days_folder`."""
    folder = f"{days_folder}/{table.name}"
    stored = stored_profile(folder)
    if stored is not None:
        return stored
    profile = Profile.total([Profile.of(*_points(run)) for run in table.receipt.runs])
    content = io.BytesIO()
    np.save(content, np.stack([profile.cell.astype(np.float64), profile.negatives, profile.positives]))
    numbers = content.getvalue()
    Folder.at(folder).write(PROFILE, checksum(numbers).to_bytes(4, "little") + numbers)
    return profile


def _points(run: Run) -> tuple[Array, Array, Array]:
    """Return score, weight and positives of a run's rows and sums."""
    score, _, weight, positives = read_run(run).as_sums()
    return score, weight, positives


def stored_profile(folder: str) -> Profile | None:
    """Return the profile that a day table's folder holds; None if there is none, or it is damaged."""
    content = Folder.at(folder).read(PROFILE) or b""
    if len(content) <= 4 or int.from_bytes(content[:4], "little") != checksum(content[4:]):
        return None
    cell, negatives, positives = np.load(io.BytesIO(content[4:]))
    cells = cell.astype(np.int64)
    return Profile(cells, middle_of(cells), negatives, positives)


_FACTOR_BITS = 16


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
    return math.ldexp(round(mantissa * 2**_FACTOR_BITS), exponent - _FACTOR_BITS)


def weigh_day(table: DayTable, last: int, half_life: int, path: str) -> DayTable:
    """Multiply a day table's weights by the day's factor; return the table with new runs in scratch. May run again.

    Parameters
    ----------
    last : the window's last day
    half_life : in days
    path : path of the runs, without their numbers
    """
    weight = factor(last - table.day, half_life)
    runs = [
        write_run(f"{path}-{i:04d}", scale_weights(read_run(run), weight), run.segments)
        for i, run in enumerate(table.receipt.runs)
    ]
    return replace(table, stored=table.stored._replace(receipt=replace(table.receipt, runs=runs)))


def with_weights(log: Log) -> Log:
    """Return the log with a weight column, if need be a nominal one: decayed rows have weights."""
    return replace(log, columns=replace(log.columns, weight=log.columns.weight or "(half-life)"))


def scale_weights(sections: Sections, weight: float) -> Sections:
    """Multiply the weights of all rows and sums by `weight`; rows without weights count as 1."""
    rows, weighted, sums = sections
    scores, tags = np.concatenate([rows.score, weighted.score]), np.concatenate([rows.tag, weighted.tag])
    weights = np.concatenate([np.full(rows.score.size, weight), weighted.weight * weight])
    scaled = sums._replace(weight=sums.weight * weight, positives=sums.positives * weight)
    return Sections(weighted=WeightedRows(scores, tags, weights), sums=scaled).sorted()
