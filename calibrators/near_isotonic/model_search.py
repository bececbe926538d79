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

The path itself begins late, at a lambda to which each part of the points is merged (`part_blocks`). A bound of the
criteria below it shows that no model there has weight; if it does not, the path begins earlier.
"""

from __future__ import annotations

import heapq
import logging
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels import sums
from calibrators.core.passes import Pass
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.part_blocks import KEEP, blocks_pass, least_criterion, path_from
from calibrators.near_isotonic.path import NearIsotonicPath, Solution

Penalty = Callable[[Integers], Array]
"""Penalty that is added to -2 log likelihood, a monotone function of the degrees of freedom."""

ScoredModels = tuple[Array, Integers, Array, Array]
"""Lambda, degrees of freedom, log likelihood and criterion of some models, by ascending lambda."""

DROP = 1e-12
"""Models whose weight is below this fraction of the best one's are dropped."""

_COARSE = 1.3  # the first sweep scores a model each time the degrees of freedom grow by this factor
_FINER = 16  # factor of the number of blocks per part if the path began too late

log = logging.getLogger("logcal")


def late_models(
    penalty_of: Callable[[float], Penalty], *, late: bool
) -> Generator[Pass, Any, tuple[NearIsotonicPath, ScoredModels, float | None]]:
    """Score the models that may have weight, in passes.

    penalty_of : penalty for a sum of the weights
    late : whether to begin the path late, for a penalty that does not decrease

    Returns
    -------
    path : from its beginning on
    models : their scores
    bound : log of how many times less likely all models below the beginning are than the best one, or None if it is 0
    """
    keep = KEEP if late else sys.maxsize
    while True:
        blocks = yield blocks_pass(keep=keep)
        path = path_from(blocks)
        penalty = penalty_of(sums.exact_sum(np.concatenate([blocks.runs.weight, blocks.low[:, 0]])))
        models = score(path, penalty)
        if path.start == 0.0:
            return path, models, None
        best, bound = float(models[-1].min()), least_criterion(blocks, penalty)
        if path.breakpoints.size > 0 and hopeless(bound, best):
            ratio = (bound - best) / 2.0
            log.info(
                "ENIR: the path begins at lambda = %.4g with %d blocks; every model below is at least exp(%.4g) "
                "times less likely than the best",
                path.start, path.runs.weight.size, ratio,
            )  # fmt: skip
            return path, models, ratio
        keep *= _FINER


def score(path: NearIsotonicPath, penalty: Penalty) -> ScoredModels:
    """Score models, among them all that have weight."""
    if path.breakpoints.size == 0:  # no level decreases
        return score_each([(path.start, path.solution(path.start))], penalty)
    search = ModelSearch(path, penalty)
    search.run()
    i = np.flatnonzero(~np.isnan(search.log_likelihood))
    return path.breakpoints[i], search.df[i], search.log_likelihood[i], search.criterion[i]


def score_each(models: Iterable[tuple[float, Solution]], penalty: Penalty) -> ScoredModels:
    """Compute -2 L + penalty of each model, by ascending lambda."""
    rows = [(lam, x.level.size, tree.log_likelihood(x.level, x.weight, x.positives)) for lam, x in models]
    lam, df, likelihood = (np.array(column) for column in zip(*rows, strict=True))
    return lam, df, likelihood, penalty(df) - 2.0 * likelihood


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
