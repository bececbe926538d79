"""Counting of rows with repeated scores in a hash table, instead of sorting them.

Many models give few different scores: trees with few leaves, scores of four digits. If a sample of a batch shows this,
its rows are summed by score in a hash table, into the sums that sorting and folding would give, and the rows that
these would leave.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Integers
from calibrators.core.sorting import Coded
from pipeline._kernels import rows as kernels
from pipeline.log.logs import Rows
from pipeline.sort.sections import SHORTEST_FOLDED_TIE, UnitRows

_SLOTS = 1 << 17
"""Slots of the table (2 MB). It holds at most half as many scores."""

MOST_RETURNED = _SLOTS // 2 * (SHORTEST_FOLDED_TIE - 1)
"""Most counted rows that are returned as rows."""

_MOST_ROWS = 1 << 31
"""Largest count: counts have 32 bits."""

_SAMPLE = 2048
_MANY = 16
"""Repeated scores in a sample above which rows are counted: the batch then has at most some hundred thousand scores.
A single score that a tenth of the rows share is quicker to sort."""

_TRIAL = 1 << 17
"""Rows after which counting stops unless most of them had scores that were already in the table."""

_NO_CODES = np.empty(0, np.int32)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class RowCounter:
    """Counter of rows of weight 1 by score.

    coded : whether rows are also counted by their segments' codes

    Attributes
    ----------
    rows : number of rows counted
    """

    def __init__(self, coded: bool) -> None:
        self.coded = coded
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._table: npt.NDArray[np.uint64] = np.zeros((1, 2), np.uint64)
        self._codes = _NO_CODES
        self._stopped = False

    def count(self, rows: Rows) -> Rows:
        """Count rows if that is less work than sorting them; return the uncounted rows, in their order.

        Uncounted are all rows of a batch whose scores mostly differ, and rows for whose scores the table has no room.
        """
        if self._stopped or self.rows + rows.score.size > _MOST_ROWS or not _scores_repeat(rows):
            return rows
        uncounted = np.empty(rows.score.size, np.int64)
        remaining = self._count(rows, uncounted)
        self.rows += rows.score.size - remaining
        total = self.rows + remaining
        self._stopped = total >= _TRIAL and 2 * (self.rows - int(self._table[-1, 0])) < total
        return rows if remaining == rows.score.size else rows.some(uncounted[:remaining])

    def _count(self, rows: Rows, uncounted: Integers) -> int:
        if self._table.shape[0] == 1:
            self._table = np.zeros((_SLOTS + 1, 2), np.uint64)
            self._codes = np.empty(_SLOTS if self.coded else 0, np.int32)
        code = _NO_CODES if rows.code is None else rows.code
        columns = rows.score, rows.label, code
        return int(kernels.count_rows(*columns, self._table, self._codes, uncounted))

    def take(self) -> tuple[UnitRows, Coded]:
        """Return the counted rows, in any order, and clear the table.

        Returns
        -------
        rows : of ties that are not shorter as sums; at most `MOST_RETURNED`
        sums : of the others, by score and code
        """
        slots = np.flatnonzero(self._table[:-1, 0])
        key, counts = self._table[slots].T
        code = self._codes[slots] if self.coded and slots.size else np.zeros(slots.size, np.int32)
        self._clear()
        score = (key - np.uint64(1)).view(np.float64)
        positives = (counts >> np.uint64(32)).astype(np.int64)
        weight = (counts & np.uint64(0xFFFFFFFF)).astype(np.int64) + positives
        few = weight < SHORTEST_FOLDED_TIE
        labels = np.stack([weight - positives, positives], axis=1)[few]
        tag = np.repeat((2 * code[few, np.newaxis] + np.arange(2)).astype(np.int32), labels.reshape(-1))
        sums = (score, code, weight.astype(np.float64), positives.astype(np.float64))
        return UnitRows(np.repeat(score[few], weight[few]), tag), Coded(*(column[~few] for column in sums))


def _scores_repeat(rows: Rows) -> bool:
    """Tell whether a batch's scores, with their codes, repeat so often that counting is less work than sorting."""
    step = max(1, rows.score.size // _SAMPLE)
    sample = rows.score[::step].view(np.uint64)
    if rows.code is not None:
        sample = sample ^ (rows.code[::step].astype(np.uint64) << np.uint64(32)) * _MULTIPLIER
    sample = np.sort(sample)
    same = sample[1:] == sample[:-1]
    repeated = np.count_nonzero(same[1:] < same[:-1]) + (same.size > 0 and bool(same[-1]))
    return bool(repeated >= _MANY or 2 * np.count_nonzero(same) >= sample.size)
