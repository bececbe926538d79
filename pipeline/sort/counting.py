"""Rows whose scores repeat, counted instead of sorted.

Many models give few different scores: trees with few leaves, scores of four digits. If a sample of a batch shows this,
its rows are summed by score in a hash table, into the entries that sorting and folding would give.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import Coded, without_codes
from pipeline._kernels import rows as kernels
from pipeline.log.logs import Rows

_SLOTS = 1 << 17
"""Slots of the table: 2 MB. It takes half as many scores."""

_MOST_ROWS = 1 << 31
"""Counts are numbers of 32 bits."""

_SAMPLE = 2048
_MANY = 16
"""Scores of a sample that repeat where many do: of less than some hundred thousand scores;
one score that a tenth of the rows has is less work to sort."""

_TRIAL = 1 << 17
"""Rows after which it is asked whether most of them had scores that were there."""

_NO_CODES = np.empty(0, np.int32)

_ROOM = 22
"""Bits of the number of weights that are added up."""

_HEADROOM = 8
"""As many times the first batch's largest weight later ones may have."""


class Counted:
    """Rows of weight 1, added up by score, on their way into a run.

    coded : whether by their segments' codes, too

    Attributes
    ----------
    rows : how many are held
    """

    most_rows = _MOST_ROWS

    def __init__(self, coded: bool) -> None:
        self.coded = coded
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._table: npt.NDArray[np.uint64] = np.zeros((1, 2), np.uint64)
        self._codes = _NO_CODES
        self._stopped = False

    def rest(self, rows: Rows) -> Rows:
        """Count rows where that is less work than sorting them; return those that are left, in their order.

        These are all rows of a batch whose scores mostly differ; and scores that the table has no room
        for.
        """
        if self._stopped or self.rows + rows.score.size > self.most_rows or not _repeat(rows):
            return rows
        left = np.empty(rows.score.size, np.int64)
        count = self._count(rows, left)
        self.rows += rows.score.size - count
        seen = self.rows + count
        self._stopped = seen >= _TRIAL and 2 * (self.rows - int(self._table[-1, 0])) < seen
        return rows if count == rows.score.size else rows.some(left[:count])

    def _count(self, rows: Rows, left: npt.NDArray[np.int64]) -> int:
        if self._table.shape[0] == 1:
            self._table = np.zeros((_SLOTS + 1, 2), np.uint64)
            self._codes = np.empty(_SLOTS if self.coded else 0, np.int32)
        code = _NO_CODES if rows.code is None else rows.code
        count: int = kernels.count_rows(rows.score, rows.label, code, self._table, self._codes, left)
        return count

    def take(self) -> tuple[Coded, int]:
        """Hand over the held rows, in any order, and how many are positive; begin anew."""
        there = np.flatnonzero(self._table[:-1, 0])
        key, counts = self._table[there].T
        code = self._codes[there].astype(np.int64) if self.coded and there.size else np.empty(0, np.int64)
        self._clear()
        positives = (counts >> np.uint64(32)).astype(np.float64)
        weight = (counts & np.uint64(0xFFFFFFFF)).astype(np.float64) + positives
        found = Coded((key - np.uint64(1)).view(np.float64), code, weight, positives)
        return found, int(positives.sum())


class CountedWeights(Counted):
    """Rows with weights, added up exactly by score, on their way into a run."""

    most_rows = 1 << _ROOM

    def _count(self, rows: Rows, left: npt.NDArray[np.int64]) -> int:
        assert rows.weight is not None
        if self._table.shape[0] == 1:
            self._table = np.zeros((_SLOTS + 1, 1), np.uint64)
            self._sums = np.zeros((_SLOTS, 6))
            # Each part of a weight is a multiple of what its cutter's last bit is, and so is their sum.
            self._positive = 0
            exponent = int(np.frexp(_HEADROOM * rows.weight.max())[1])
            cutters = np.ldexp(1.5, [exponent + _ROOM - k * (52 - _ROOM) for k in range(3)])
            self._cutters = np.append(cutters, np.ldexp(1.0, exponent))
        given = rows.score, rows.label, rows.weight
        count, hits = kernels.count_weights(given, self._table[:, 0], self._sums, self._cutters, left)
        self._positive += hits
        return int(count)

    def take(self) -> tuple[Coded, int]:
        """As `Counted.take`: of each score up to three entries, the components of its sums."""
        there = np.flatnonzero(self._table[:-1, 0])
        if not there.size:
            return super().take()
        score = (self._table[there, 0] - np.uint64(1)).view(np.float64)
        parts = [without_codes(score, *self._sums[there, k::3].T) for k in range(3)]
        found = Coded(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        some = (found.weight != 0) | (found.positives != 0)
        self._clear()
        return Coded(found.score[some], found.code, found.weight[some], found.positives[some]), self._positive


def _repeat(rows: Rows) -> bool:
    """Tell whether a batch's scores, with their codes, repeat so often that counting is less work than sorting."""
    step = max(1, rows.score.size // _SAMPLE)
    some = rows.score[::step].view(np.uint64)
    if rows.code is not None:
        some = some ^ (rows.code[::step].astype(np.uint64) << np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
    some = np.sort(some)
    same = some[1:] == some[:-1]
    repeated = np.count_nonzero(same[1:] < same[:-1]) + (same.size > 0 and bool(same[-1]))
    return bool(repeated >= _MANY or 2 * np.count_nonzero(same) >= some.size)
