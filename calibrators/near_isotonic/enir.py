"""ENIR: an ensemble of near-isotonic regressions, weighted by an information criterion."""

from __future__ import annotations

import heapq
import logging
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.base import Calibrator
from calibrators.core.kernels import sums
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Passes, check_choice
from calibrators.core.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.near_isotonic.calibrator import KEEP, blocks_pass, least_criterion, path_from
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.label_runs import Runs, runs_pass
from calibrators.near_isotonic.path import NearIsotonicPath, Solution

Array = npt.NDArray[np.float64]
Penalty = Callable[[npt.NDArray[np.int64]], Array]

_DROP = 1e-12  # models whose weight is below this fraction of the best one's are dropped
_COARSE = 1.3  # the first pass scores a model each time the degrees of freedom grow by this factor
_FINER = 16  # factor of the number of blocks per part if the path began too late
_AUTHORS_MODELS = 100

log = logging.getLogger("logcal")


class Models(NamedTuple):
    """Models of an ensemble, by ascending lambda.

    Attributes
    ----------
    lam : float64 array, shape (models,): the breakpoint of the near-isotonic path
    degrees_of_freedom : int64 array, shape (models,): number of blocks
    log_likelihood : float64 array, shape (models,): natural logarithm, of all observations, <= 0
    criterion : float64 array, shape (models,): BIC, or the one of the parameter `criterion`; smaller is better
    weight : float64 array, shape (models,), > 0, adding up to 1
    """

    lam: Array
    degrees_of_freedom: npt.NDArray[np.int64]
    log_likelihood: Array
    criterion: Array
    weight: Array


class ENIR(Calibrator):
    """ENIR: the weighted mean of near-isotonic regressions along their path.

    The models are the solutions at the breakpoints lambda > 0 of the near-isotonic path, the last of them isotonic
    regression. (lambda = 0 would reproduce the labels; if there is no breakpoint, because no level decreases, the
    isotonic solution is the only model.) A model with log likelihood L and d blocks has the criterion -2 L + d log N
    (N is the sum of the weights) and a weight proportional to exp(-criterion / 2). Models with less than 1e-12 of
    the best one's weight are dropped. The map is the weighted mean of the models' maps: constant on each block of
    the finest model, linear in the gaps between blocks. It need not be monotone. Weights count as repeated rows,
    ties as one point; scores may be any finite numbers (except with `reference="authors"`).

    Best if the truth falls somewhere and there are many positives. In simulations its excess loss is 2.8 times the best
    method's in the median (docs/methods.md).

    Parameters
    ----------
    criterion : {"bic", "aic", "aicc"}, default "bic"
        BIC: -2 L + d log N. AIC: -2 L + 2 d. AICc: AIC + 2 d (d + 1) / (N - d - 1); models with d >= N - 1, where
        it is not defined, are excluded.
    reference : {"paper", "authors"}, default "paper"
        "authors" reproduces the authors' released research code: of the T breakpoints (including lambda = 0) it uses
        only those of rank round(k (T - 1) / 99), k = 0, ..., 99; it rounds levels to 6 decimals, clips them to [0, 1]
        and joins neighbours of equal level; it drops models with an infinite criterion, and lambda = 0 (unless it is
        the only one); BIC = -2 L + d (log N + log 2 pi). After scoring, a block of level p with n observations gets the
        level (p n + e (1 - c)) / (n + 1 - c), where e is their mean score, o their frequency of positives, and
        c = |o - e|. All models are averaged. Scores must lie in [0, 1].
    shrink : float >= 0, default 1
        Probabilities are shrunk into [shrink / (2 N), 1 - shrink / (2 N)], so that none is 0 or 1: p becomes
        shrink / (2 N) + (1 - shrink / N) p. 0 leaves them unchanged; so does reference="authors".

    Attributes
    ----------
    models_ : Models
        lambda, degrees of freedom, log likelihood, criterion and weight of each averaged model.
    calibration_map_, n_observations_
        As for every calibrator.

    Notes
    -----
    One pass merges in each part the blocks that have certainly merged at some lambda, and gathers some thousand per
    part. The path begins there (`near_isotonic_regression`), close to O(blocks); each model takes O(blocks). A bound
    shows that models below this lambda have no weight; if it does not, the pass is repeated with more blocks. With the
    other criteria, and for "authors", the path begins at 0, with all runs of points with equal y (for labels of
    frequency p in random order about 2 p (1 - p) per point, 32 bytes each; 40 for "authors").

    Most models need not be scored, and the result is still exact. Along the path L never increases: between breakpoints
    a block's level has the slope c / w in lambda, and k - w p = -lambda c, so that

        dL/dlambda = sum over blocks of (k / p - (w - k) / (1 - p)) c / w = -lambda sum c^2 / (w p (1 - p)) <= 0;

    at a breakpoint the blocks that merge have equal levels, so L is continuous. And d only decreases. So every
    model strictly between the breakpoints a < b has a criterion of at least -2 L(a) + the least penalty of the d
    that occur there, which is at one end since penalties are monotone in d. If this exceeds the best criterion so far
    by more than 2 log(1e12), all these models are skipped. Otherwise the interval is halved. A first sweep from the
    last breakpoint down, by factors of 1.3 in d, finds a good criterion; it stops where even the likelihood of the
    labels' own frequencies could not outweigh the penalty.

    References
    ----------
    Naeini & Cooper (2016), "Binary classifier calibration using an ensemble of near isotonic regression models",
    ICDM.

    Examples
    --------
    >>> from calibrators.near_isotonic.enir import ENIR
    >>> enir = ENIR(shrink=0).fit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 1, 0, 1, 1])
    >>> enir.models_.lam
    array([0.5])
    >>> enir.predict([0.2, 0.3, 0.35, 0.5])
    array([0. , 0.5, 0.5, 1. ])
    """

    single_pass = constant_rows = True

    models_: Models
    _start: tuple[float, int, float | None]

    def __init__(self, criterion: str = "bic", reference: str = "paper", shrink: float = 1) -> None:
        self.criterion = criterion
        self.reference = reference
        self.shrink = shrink

    def facts(self) -> dict[str, Any]:
        """Return the number of models that the map averages."""
        return {"models_averaged": int(self.models_.weight.size)}

    def path_facts(self) -> dict[str, Any]:
        """Return the start of the path, its number of blocks, and a bound for the models below the start.

        The bound is the log of how many times less likely these are than the best model; None if the path began at 0.
        """
        lam, blocks, factor = self._start
        return {"path_begins_at": lam, "blocks": blocks, "log_likelihood_ratio_before": factor}

    def check_parameters(self) -> None:
        """Raise ValueError if `criterion` or `reference` is not one of the names allowed."""
        check_choice("criterion", self.criterion, "bic", "aic", "aicc")
        check_choice("reference", self.reference, "paper", "authors")
        check_shrink(self.shrink)

    def _passes(self) -> Passes:
        if self.reference == "authors":
            runs = yield runs_pass(moments=True)
            _check_unit_interval(runs)
            path = NearIsotonicPath.of_runs(runs)
            self._start = (0.0, runs.weight.size, None)
            n = sums.exact_sum(runs.weight)
            self.models_ = score_authors(path, penalty_of(self.criterion, n, float(np.log(2 * np.pi))))
            finest, level = average(path, self.models_, partial(smoothed_levels, path))
        else:
            path = yield from self._score_late_models()
            finest, level = average(path, self.models_, path.solution)
        fitted = CalibrationMap.from_blocks(
            finest.first_score, finest.last_score, level, finest.weight, finest.positives
        )
        shrink = 0.0 if self.reference == "authors" else float(self.shrink)
        return shrunk_map(fitted, floor_of(shrink, float(fitted.weight.sum())))

    def _score_late_models(self) -> Generator[Pass, Any, NearIsotonicPath]:
        """Score the models above a lambda below which none can have weight; return the path from there."""
        # The other criteria may choose models at the beginning of the path.
        keep = KEEP if self.criterion == "bic" else sys.maxsize
        while True:
            blocks = yield blocks_pass(keep=keep)
            path = path_from(blocks)
            n = sums.exact_sum(np.concatenate([blocks.runs.weight, blocks.low[:, 0]]))
            penalty = penalty_of(self.criterion, n)
            self.models_ = score(path, penalty)
            self._start = (path.start, path.runs.weight.size, None)
            if path.start == 0.0:
                return path
            best = float(self.models_.criterion.min())
            bound = least_criterion(blocks, penalty)
            if path.breakpoints.size > 0 and hopeless(bound, best):
                self._start = (path.start, path.runs.weight.size, (bound - best) / 2.0)
                log.info(
                    "ENIR: the path begins at lambda = %.4g with %d blocks; every model below is at least exp(%.4g) "
                    "times less likely than the best",
                    path.start, path.runs.weight.size, (bound - best) / 2.0,
                )  # fmt: skip
                return path
            keep *= _FINER


def hopeless(bound: float, best: float) -> bool:
    """Tell whether models whose criterion is at least `bound` are dropped, in spite of rounding."""
    return bool(bound > best - 2.0 * np.log(_DROP) + 1e-6 + 1e-9 * abs(best))


def penalty_of(criterion: str, n: float, extra: float = 0.0) -> Penalty:
    """Return the penalty that a criterion adds to -2 log likelihood, as a function of the degrees of freedom.

    n : sum of the weights. extra : added to log(n) in BIC. The function is monotone.
    """

    def penalty(df: npt.NDArray[np.int64]) -> Array:
        d: Array = df.astype(np.float64)
        if criterion == "bic":
            return d * float(np.log(n) + extra)
        if criterion == "aic":
            return d * 2.0
        spare: Array = n - 1.0 - d
        with np.errstate(divide="ignore"):
            values: Array = np.where(spare > 0, 2.0 * d + 2.0 * d * (d + 1.0) / np.abs(spare), np.inf)
        return values

    return penalty


def score(path: NearIsotonicPath, penalty: Penalty) -> Models:
    """Score models; return those whose weight is at least 1e-12 of the best one's."""
    if path.breakpoints.size == 0:
        return _weighted(*_one_model(path.start, path.solution(path.start), penalty))
    search = _Search(path, penalty)
    search.run()
    scored = np.flatnonzero(~np.isnan(search.log_likelihood))
    if not np.isfinite(search.criterion[scored]).any():
        last = float(path.breakpoints[-1])
        return _weighted(*_one_model(last, path.solution(last), penalty))
    return _weighted(
        path.breakpoints[scored],
        path.degrees_of_freedom[scored],
        search.log_likelihood[scored],
        search.criterion[scored],
        _DROP,
    )


class _Search:
    """Search for the models with weight, which scores few breakpoints (see the notes of `ENIR`)."""

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


def _one_model(
    lam: float, solution: Solution, penalty: Penalty
) -> tuple[Array, npt.NDArray[np.int64], Array, Array]:
    df = np.array([solution.level.size])
    likelihood = np.array([tree.log_likelihood(solution.level, solution.weight, solution.positives)])
    return np.array([lam]), df, likelihood, penalty(df) - 2.0 * likelihood


def _weighted(
    lam: Array, df: npt.NDArray[np.int64], likelihood: Array, criterion: Array, drop: float = 0.0
) -> Models:
    """Weight models; drop those whose weight is zero or below `drop` times the best one's."""
    with np.errstate(under="ignore"):
        relative = np.exp((criterion.min() - criterion) / 2.0) if lam.size > 1 else np.ones(1)
    selected = (relative >= drop) & (relative > 0)
    weight = relative[selected] / relative[selected].sum()
    return Models(lam[selected], df[selected], likelihood[selected], criterion[selected], weight)


def average(
    path: NearIsotonicPath, models: Models, solve: Callable[[float], Solution]
) -> tuple[Solution, Array]:
    """Average the models' levels on the blocks of the finest model; return this model and the levels.

    Blocks only merge along the path, so each model's blocks are unions of the finest model's.
    """
    finest = path.solution(float(models.lam[0]))
    level = np.zeros(finest.level.size)
    for lam, weight in zip(models.lam, models.weight, strict=True):
        solution = solve(float(lam))
        level += weight * solution.level[np.searchsorted(solution.last_score, finest.last_score)]
    return finest, np.minimum(level, 1.0)


def score_authors(path: NearIsotonicPath, penalty: Penalty) -> Models:
    """Score the models of `reference="authors"`: at most 99, with finite criteria."""
    lam = np.concatenate([[0.0], path.breakpoints])
    ranks = np.rint(np.arange(_AUTHORS_MODELS) * (lam.size - 1) / (_AUTHORS_MODELS - 1))
    lam = lam[np.unique(ranks).astype(np.int64)][1 if lam.size > 1 else 0 :]
    rows = [_one_model(float(x), _rounded(path, float(x))[0], penalty) for x in lam]
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    finite = np.isfinite(columns[3])
    if not finite.any():
        # In every model rounding moved a level to 0 or 1 against the labels: use the isotonic one.
        finite[-1] = True
    return _weighted(*(column[finite] for column in columns))


def smoothed_levels(path: NearIsotonicPath, lam: float) -> Solution:
    """Smooth `_rounded` levels towards the blocks' mean scores, by the agreement of the two."""
    solution, first_run = _rounded(path, lam)
    n = solution.weight
    expected = np.add.reduceat(path.runs.moment, first_run) / n
    agreement = 1.0 - np.abs(solution.positives / n - expected)
    level = (solution.level * n + expected * agreement) / (n + agreement)
    return solution._replace(level=np.clip(level, 0.0, 1.0))


def _rounded(path: NearIsotonicPath, lam: float) -> tuple[Solution, npt.NDArray[np.int64]]:
    """Round a solution's levels to 6 decimals and join equal neighbours; return also the first run of each block."""
    last, weight, positives, level = path.blocks(lam)
    level = np.clip(np.round(level, 6), 0.0, 1.0)
    start = np.concatenate([[0], np.flatnonzero(level[1:] != level[:-1]) + 1])
    end = np.append(start[1:], level.size) - 1
    first_run = np.where(start == 0, 0, last[start - 1] + 1)
    weight, positives = np.add.reduceat(weight, start), np.add.reduceat(positives, start)
    solution = Solution(
        path.runs.first[first_run], path.runs.last[last[end]], weight, positives, level[start]
    )
    return solution, first_run


def _check_unit_interval(runs: Runs) -> None:
    if runs.first[0] < 0 or runs.last[-1] > 1:
        raise ValueError(
            'scores: expected numbers in [0, 1] for reference="authors", which averages levels with scores, found '
            f"{runs.first[0]} to {runs.last[-1]}; apply the sigmoid 1 / (1 + exp(-score)) to scores first"
        )
