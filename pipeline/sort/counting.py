"""Rows whose scores repeat, counted instead of sorted.

Many models know few scores: trees with few leaves, scores of four digits. Where a sample of a batch shows that, its
rows are added up by score in a hash table, and leave it as the entries that sorting and folding would make of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ties import Coded, without_codes
from pipeline._kernels import rows as kernels
from pipeline.log.logs import Rows

_SLOTS = 1 << 18
"""Of the table: 8 MB. It takes half as many scores."""

_SAMPLE = 2048
_MANY = 16
"""Scores of a sample that repeat where many do: of less than some hundred thousand scores, as many as the table takes;
one score that a tenth of the rows has is less work to sort."""

_TRIAL = 1 << 17
"""Rows after which it is asked whether most of them had scores that were there."""

_NO_CODES = np.empty(0, np.int32)
_NO_WEIGHTS = np.empty(0)


class Counted:
    """Rows added up by score, on their way into a run.

    coded : whether by their segments' codes, too
    """

    def __init__(self, coded: bool) -> None:
        self.coded = coded
        self._clear()

    def _clear(self) -> None:
        self._table: npt.NDArray[np.uint64] = np.zeros((1, 4), np.uint64)
        self._stopped = False

    def rest(self, rows: Rows) -> Rows:
        """Count rows where that is less work than sorting them; return those that are left, in their order.

        These are all rows of a batch whose scores mostly differ; unusable ones; scores that the table has no room for;
        and weights that are no whole numbers.
        """
        if self._stopped or not _repeat(rows):
            return rows
        if self._table.shape[0] == 1:
            self._table = np.zeros((_SLOTS + 1, 4), np.uint64)
        left = np.empty(rows.score.size, np.int64)
        code = _NO_CODES if rows.code is None else rows.code
        weight = _NO_WEIGHTS if rows.weight is None else rows.weight
        count = kernels.count_rows(rows.score, rows.label, code, weight, self._table, left)
        seen = self.rows + count
        self._stopped = seen >= _TRIAL and 2 * (self.rows - int(self._table[-1, 0])) < seen
        return rows if count == rows.score.size else rows.some(left[:count])

    @property
    def rows(self) -> int:
        """How many are held."""
        return int(self._table[-1, 1])

    @property
    def positive(self) -> int:
        """How many of them have label 1."""
        return int(self._table[-1, 2])

    def take(self) -> Coded:
        """What is held, in any order; nothing is held then, and counting begins anew."""
        table = self._table[:-1]
        table = table[np.flatnonzero(table[:, 0])]
        self._clear()
        score = (table[:, 0] - np.uint64(1)).view(np.float64)
        _, code, negatives, positives = table.T.astype(np.int64)
        weight = (negatives + positives).astype(np.float64)
        found = without_codes(score, weight, positives.astype(np.float64))
        return found._replace(code=code) if self.coded else found


def _repeat(rows: Rows) -> bool:
    """Whether a batch's scores, with their codes, repeat so that counting them is less work than sorting them."""
    step = max(1, rows.score.size // _SAMPLE)
    some = rows.score[::step].view(np.uint64)
    if rows.code is not None:
        some = some ^ (rows.code[::step].astype(np.uint64) << np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
    some = np.sort(some)
    same = some[1:] == some[:-1]
    repeated = np.count_nonzero(same[1:] < same[:-1]) + (same.size > 0 and bool(same[-1]))
    return bool(repeated >= _MANY or 2 * np.count_nonzero(same) >= some.size)
