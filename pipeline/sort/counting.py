"""Rows whose scores repeat, counted instead of sorted.

Many models know few scores: trees with few leaves, scores of four digits. Where a sample of a batch shows that, its
rows are added up by score in a hash table, and leave it as the entries that sorting and folding would make of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ties import Coded
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


class Counted:
    """Rows of weight 1, added up by score, on their way into a run.

    coded : whether by their segments' codes, too

    Attributes
    ----------
    rows : how many are held
    """

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

        These are all rows of a batch whose scores mostly differ; unusable ones; and scores that the table has no room
        for.
        """
        if self._stopped or self.rows + rows.score.size > _MOST_ROWS or not _repeat(rows):
            return rows
        if self._table.shape[0] == 1:
            self._table = np.zeros((_SLOTS + 1, 2), np.uint64)
            self._codes = np.empty(_SLOTS if self.coded else 0, np.int32)
        left = np.empty(rows.score.size, np.int64)
        code = _NO_CODES if rows.code is None else rows.code
        count = kernels.count_rows(rows.score, rows.label, code, self._table, self._codes, left)
        self.rows += rows.score.size - count
        seen = self.rows + count
        self._stopped = seen >= _TRIAL and 2 * (self.rows - int(self._table[-1, 0])) < seen
        return rows if count == rows.score.size else rows.some(left[:count])

    def take(self) -> Coded:
        """Hand over the held rows, in any order, and begin anew."""
        there = np.flatnonzero(self._table[:-1, 0])
        key, counts = self._table[there].T
        code = self._codes[there].astype(np.int64) if self.coded and there.size else np.empty(0, np.int64)
        self._clear()
        positives = (counts >> np.uint64(32)).astype(np.float64)
        weight = (counts & np.uint64(0xFFFFFFFF)).astype(np.float64) + positives
        return Coded((key - np.uint64(1)).view(np.float64), code, weight, positives)


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
