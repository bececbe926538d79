"""Day profiles: the counts of a day's rows in fixed cells of the score, to compare days with one another.

The cells are the same for every day, so that profiles add: a cell is a 64th of a power of two, whatever the scale of
the scores. A profile is made from a day's sorted runs and kept beside them; it holds some hundred numbers.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Array
from pipeline.files.folders import Folder
from pipeline.sort.day_files import checksum
from pipeline.sort.day_tables import DayTable
from pipeline.sort.run_files import Sections, read_run

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
