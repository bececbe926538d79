"""Sections of a run and of a bucket: rows of weight 1, rows with weights, and sums of tied rows.

A row has a score and a tag (`calibrators.core.keys`); a sum is of rows with one score and one segment's code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core import sorting
from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.keys import Tags, add_rows, sort_rows
from calibrators.core.passes import Points
from calibrators.core.sorting import Coded

SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as a sum than as rows."""

_NUMBERS, _CODES = np.empty(0), np.empty(0, np.int32)
_NO_SUMS = Coded(_NUMBERS, _CODES, _NUMBERS, _NUMBERS)


class UnitRows(NamedTuple):
    """Rows of weight 1. tag : int32 array: twice the code of the row's segment, 0 without segments, plus its label."""

    score: Array
    tag: Tags

    def as_sums(self) -> Coded:
        """Return each row as a sum."""
        return Coded(self.score, self.tag >> 1, np.ones(self.score.size), (self.tag & 1).astype(np.float64))


class WeightedRows(NamedTuple):
    """Rows with weights. tag : see `UnitRows`."""

    score: Array
    tag: Tags
    weight: Array

    def as_sums(self) -> Coded:
        """Return each row as a sum."""
        return Coded(self.score, self.tag >> 1, self.weight, self.weight * (self.tag & 1))


class Sections(NamedTuple):
    """Rows in sections; those of a run ascend by score, and equal scores by tag.

    Attributes
    ----------
    rows, weighted : rows without and with weights
    sums : sums of tied rows; several of one score and code are components of an exact sum
    """

    rows: UnitRows = UnitRows(_NUMBERS, _CODES)
    weighted: WeightedRows = WeightedRows(_NUMBERS, _CODES, _NUMBERS)
    sums: Coded = _NO_SUMS

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns, section after section."""
        return (*self.rows, *self.weighted, *self.sums)

    @property
    def score_range(self) -> tuple[float, float]:
        """The lowest and the highest score of sorted sections."""
        scores = [section.score for section in self if section.score.size]
        lowest = min((float(score[0]) for score in scores), default=math.inf)
        return lowest, max((float(score[-1]) for score in scores), default=-math.inf)

    @property
    def unweighted(self) -> bool:
        """True if there are only rows of weight 1."""
        return self.weighted.score.size == 0 and self.sums.score.size == 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows, or sums, of each section."""
        return tuple(section.score.size for section in self)

    def renumbered(self, codes: int) -> tuple[Sections, Integers]:
        """Renumber the segments that have rows, of `codes` ones, as 0, 1, ...; return their old codes, too."""
        (score, tag), weighted, sums = self
        present = np.zeros(codes, np.bool_)
        for code in (tag >> 1, weighted.tag >> 1, sums.code):
            present[code] = True
        if present.all():
            return self, np.arange(codes)
        new = np.cumsum(present, dtype=np.int32) - 1
        renumbered = Sections(
            UnitRows(score, (new[tag >> 1] << 1) | (tag & 1)),
            weighted._replace(tag=(new[weighted.tag >> 1] << 1) | (weighted.tag & 1)),
            sums._replace(code=new[sums.code]),
        )
        return renumbered, np.flatnonzero(present)

    def sorted(self) -> Sections:
        """Sort all sections, and fold longer ties of rows into sums; arrays of rows are overwritten."""
        sort_rows(*self.rows)
        sort_rows(*self.weighted)
        rows, of_rows = _fold(self.rows)
        weighted, of_weighted = _fold(self.weighted)
        sums = _concatenated([self.sums, of_rows, of_weighted])
        return Sections(rows, weighted, sorting.expand_coded(_in_order(sums)))

    def as_sums(self) -> Coded:
        """Return all rows and sums as sums, in any order."""
        return _concatenated([self.rows.as_sums(), self.weighted.as_sums(), self.sums])

    def sorted_sums(self) -> Coded:
        """Return all rows and sums as sums, sorted by score and code; arrays are overwritten."""
        return _in_order(self.as_sums())

    def segment_points(self) -> Coded:
        """Return the points of each segment, sorted by score and code; arrays are overwritten."""
        if self.unweighted:
            return add_rows(*self.rows, by_code=True)
        return sorting.sum_coded(self.sorted_sums())

    def points(self) -> Points:
        """Return the points of all segments together; arrays are overwritten."""
        unweighted = add_rows(*self.rows, by_code=False)
        sort_rows(*self.weighted)
        score, _, *numbers = self.weighted.as_sums()
        sums, columns = _in_order(self.sums), [score, *numbers]
        if sums.score.size:
            positions = np.searchsorted(score, sums.score)
            others = (sums.score, sums.weight, sums.positives)
            columns = [
                np.insert(column, positions, other) for column, other in zip(columns, others, strict=True)
            ]
        folded = Points(*sorting.sum_ties(*columns))
        if not unweighted.score.size:
            return folded
        # Without weights the sums are whole numbers, which add exactly.
        return _merge_points([unweighted.score, unweighted.weight, unweighted.positives], folded)


def _concatenated(parts: Sequence[Coded]) -> Coded:
    filled = [part for part in parts if part.score.size] or [_NO_SUMS]
    columns: Any = zip(*filled, strict=True)
    return filled[0] if len(filled) == 1 else Coded(*map(np.concatenate, columns))


def _in_order(sums: Coded) -> Coded:
    """Return sums sorted by score and code; arrays of scores and codes are overwritten."""
    order = np.arange(sums.score.size)
    sort_rows(sums.score, sums.code, order)
    return Coded(sums.score, sums.code, sums.weight[order], sums.positives[order])


def _fold(rows: Any) -> tuple[Any, Coded]:
    """Split sorted rows into those outside longer ties, and the exact sums of the longer ties.

    Ties whose sums take more memory than their rows stay.
    """
    tied = _long_ties(rows.score, rows.tag)
    if tied is None:
        return rows, _NO_SUMS
    positions = np.flatnonzero(tied)
    rows_as_sums = type(rows)(*(column[positions] for column in rows)).as_sums()
    sums = sorting.expand_coded(rows_as_sums)
    tie_rows = np.diff(sorting.tie_starts(*rows_as_sums[:2]), append=positions.size)
    tie_sums = np.diff(sorting.tie_starts(*sums[:2]), append=sums.score.size)
    # Sums have one column more than weighted rows, and two more than rows without weights.
    shorter = 4 * tie_sums < len(rows) * tie_rows
    tied[positions] = np.repeat(shorter, tie_rows)
    folded, kept = np.repeat(shorter, tie_sums), ~tied
    return type(rows)(*(column[kept] for column in rows)), type(sums)._make(column[folded] for column in sums)


def _long_ties(score: Array, tag: Tags) -> Mask | None:
    """Find the sorted rows in ties of at least `SHORTEST_FOLDED_TIE` rows of a segment; None if there are none."""
    reach = SHORTEST_FOLDED_TIE - 1
    same = score[reach:] == score[:-reach]
    candidates = np.flatnonzero(same)
    same[candidates] = tag[candidates] >> 1 == tag[candidates + reach] >> 1
    if not same.any():
        return None
    tied = np.zeros(score.size, np.bool_)
    for i in range(SHORTEST_FOLDED_TIE):
        tied[i : i + same.size] |= same
    return tied


def _merge_points(columns: list[Array], others: Points) -> Points:
    """Merge two sorted sets of points with whole-number weights; fast if `others` are few.

    columns : first set, overwritten
    """
    score = columns[0]
    positions = np.searchsorted(score, others.score)
    matched = score[np.minimum(positions, score.size - 1)] == others.score
    for column, sums in zip(columns[1:], others[1:], strict=True):
        column[positions[matched]] += sums[matched]
    del score, column
    if not matched.all():
        for i, sums in enumerate(others):  # one column at a time saves some MB
            columns[i] = np.insert(columns[i], positions[~matched], sums[~matched])
    return Points(*columns)
