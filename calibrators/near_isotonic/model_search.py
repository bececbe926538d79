"""Search for ENIR's models with weight, which scores few of them; the result is that of scoring all.

Along the path L never increases: between breakpoints a block's level has the slope a = c / w in lambda (equation 7),
and k - w p = -lambda c (equation 5), so that

    dL/dlambda = sum over blocks of (k / p - (w - k) / (1 - p)) c / w = -lambda sum c^2 / (w p (1 - p)) <= 0;

at a breakpoint the blocks that merge have equal levels, so L is continuous. And the number of blocks d only decreases.
So every model strictly between the breakpoints a < b has a criterion of at least -2 L(a) + the least penalty of the d
that occur there, which is at one end since penalties are monotone in d. If this exceeds the best criterion so far by
more than 2 log(1e12), all these models are skipped. Otherwise the interval is halved. A first sweep from the last
breakpoint down, by factors of 1.3 in d, finds a good criterion; it stops where even the likelihood of the labels' own
frequencies could not outweigh the penalty.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.path import NearIsotonicPath

Penalty = Callable[[npt.NDArray[np.int64]], Array]

DROP = 1e-12
"""Models whose weight is below this fraction of the best one's are dropped."""

_COARSE = 1.3  # the first sweep scores a model each time the degrees of freedom grow by this factor


def hopeless(bound: float, best: float) -> bool:
    """Tell whether models whose criterion is at least `bound` are dropped, in spite of rounding."""
    return bool(bound > best - 2.0 * np.log(DROP) + 1e-6 + 1e-9 * abs(best))


class ModelSearch:
    """Search for the models with weight.

    log_likelihood : float64 array, shape (t,): of the models at the breakpoints; NaN for those that are skipped
    criterion : float64 array, shape (t,): infinite for those that are skipped
    """

    def __init__(self, path: NearIsotonicPath, penalty: Penalty) -> None:
        self.path = path
        self.df = path.degrees_of_freedom
        self.penalty = penalty(self.df)
        self.log_likelihood = np.full(self.df.size, np.nan)
        self.criterion = np.full(self.df.size, np.inf)
        self.best = np.inf

    def evaluate(self, i: int) -> None:
        """Score the model at breakpoint i."""
        _, weight, positives, level = self.path.blocks(float(self.path.breakpoints[i]))
        self.log_likelihood[i] = tree.log_likelihood(level, weight, positives)
        self.criterion[i] = self.penalty[i] - 2.0 * self.log_likelihood[i]
        self.best = min(self.best, self.criterion[i])

    def bound(self, log_likelihood: float, i: int, j: int) -> float:
        """Bound the criterion of the breakpoints i, ..., j from below, given L at the breakpoint before i."""
        return min(float(self.penalty[i]), float(self.penalty[j])) - 2.0 * log_likelihood

    def run(self) -> None:
        """Score the models that may have weight."""
        _, weight, positives, level = self.path.blocks(self.path.start)
        at_start = tree.log_likelihood(level, weight, positives)
        intervals: list[tuple[float, int, int]] = []
        j = self.df.size - 1
        self.evaluate(j)
        # i = -1 is the start of the path, which is not a model but has a likelihood.
        while j > 0 and not hopeless(self.bound(at_start, 0, j - 1), self.best):
            # The degrees of freedom descend.
            i = int(np.searchsorted(-self.df[:j], -_COARSE * self.df[j], side="right")) - 1
            if i >= 0:
                self.evaluate(i)
            if j - i > 1:
                above = at_start if i < 0 else self.log_likelihood[i]
                heapq.heappush(intervals, (self.bound(above, i + 1, j - 1), i, j))
            j = i
        while intervals:
            bound, i, j = heapq.heappop(intervals)
            if hopeless(bound, self.best):
                return
            middle = (i + j) // 2
            self.evaluate(middle)
            above = at_start if i < 0 else self.log_likelihood[i]
            if middle - i > 1:
                heapq.heappush(intervals, (self.bound(above, i + 1, middle - 1), i, middle))
            if j - middle > 1:
                at_middle = float(self.log_likelihood[middle])
                heapq.heappush(intervals, (self.bound(at_middle, middle + 1, j - 1), middle, j))
