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

from calibrators._kernels import near_isotonic_tree as tree
from calibrators._kernels import sums
from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.label_runs import Runs, runs_pass
from calibrators.arithmetic.passes import Pass, Passes, check_choice
from calibrators.methods.base import Calibrator
from calibrators.methods.near_isotonic_regression import KEEP, blocks_pass, least_criterion, path_from
from calibrators.methods.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.methods.solution_path import NearIsotonicPath, Solution

Array = npt.NDArray[np.float64]
Penalty = Callable[[npt.NDArray[np.int64]], Array]

_DROP = 1e-12  # models whose weight is below this fraction of the best one's are dropped
_COARSE = 1.3  # the first pass scores a model each time the degrees of freedom grow by this factor
_FINER = 16  # times as many blocks a part, where the path began too late
_AUTHORS_MODELS = 100

log = logging.getLogger("logcal")


class Models(NamedTuple):
    """The models of an ensemble, ascending in lambda.

    Attributes
    ----------
    lam : float64 array, shape (models,): the breakpoint of the near-isotonic path
    degrees_of_freedom : int64 array, shape (models,): blocks of neighbours with equal level
    log_likelihood : float64 array, shape (models,): natural logarithm, of all observations, <= 0
    criterion : float64 array, shape (models,): BIC (or what the parameter `criterion` says); smaller is better
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
        "authors" does what the authors' released research code does: of the T breakpoints (lambda = 0 counted)
        only those of rank round(k (T - 1) / 99), k = 0, ..., 99; levels rounded to 6 decimals and clipped to
        [0, 1], neighbours with equal levels then being one block; models with an infinite criterion dropped and
        lambda = 0 too (unless it is the only one); BIC = -2 L + d (log N + log 2 pi). After scoring, each model's
        each block of level p over n observations gets the level (p n + e (1 - c)) / (n + 1 - c), where e is their
        mean score, o their frequency of positives, and c = |o - e|. All models count. Scores must lie in [0, 1].
    shrink : float >= 0, default 1
        Probabilities are shrunk into [shrink / (2 N), 1 - shrink / (2 N)], so that none is 0 or 1: p becomes
        shrink / (2 N) + (1 - shrink / N) p. 0 leaves them unchanged; so does reference="authors".

    Attributes
    ----------
    models_ : Models
        lambda, degrees of freedom, log likelihood, criterion and weight of each model kept.
    calibration_map_, n_observations_
        As for every calibrator.

    Notes
    -----
    One pass merges in each part the blocks that have surely merged at some lambda, and gathers some thousand per part;
    the path begins there (`near_isotonic_regression`), close to O(blocks), and the models cost O(blocks) each. Models
    below that lambda are shown to have no weight; where that fails, the pass is repeated with more
    blocks. With the other criteria, and for "authors", the path begins at 0, with all runs of points with equal y
    (for labels of frequency p in random order about 2 p (1 - p) a point, 32 bytes each; 40 for "authors").

    Most models are not scored, and that is exact. Along the path L never increases: between breakpoints a block's
    level has the slope c / w in lambda, and k - w p = -lambda c, so that

        dL/dlambda = sum over blocks of (k / p - (w - k) / (1 - p)) c / w = -lambda sum c^2 / (w p (1 - p)) <= 0;

    at a breakpoint the blocks that merge have equal levels, so L is continuous. And d only decreases. So every
    model strictly between the breakpoints a < b has a criterion of at least -2 L(a) + the least penalty of the d
    that occur there, which is at one end as penalties are monotone in d. If that exceeds the best criterion found
    so far by more than 2 log(1e12), none of them can be kept, and none is looked at. Otherwise the interval is
    halved. A first pass from the last breakpoint down, by factors of 1.3 in d, gives a good best; it stops where
    even the likelihood of the labels' own frequencies could not make up for the penalty.

    References
    ----------
    Naeini & Cooper (2016), "Binary classifier calibration using an ensemble of near isotonic regression models",
    ICDM.

    Examples
    --------
    >>> from calibrators.methods.enir import ENIR
    >>> enir = ENIR(shrink=0).fit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 1, 0, 1, 1])
    >>> enir.models_.lam
    array([0.5])
    >>> enir.predict([0.2, 0.3, 0.35, 0.5])
    array([0. , 0.5, 0.5, 1. ])
    """

    single_pass = True

    models_: Models
    _start: tuple[float, int, float | None]

    def __init__(self, criterion: str = "bic", reference: str = "paper", shrink: float = 1) -> None:
        self.criterion = criterion
        self.reference = reference
        self.shrink = shrink

    def facts(self) -> dict[str, Any]:
        """Number of models that the map averages."""
        return {"models_averaged": int(self.models_.weight.size)}

    def path_facts(self) -> dict[str, Any]:
        """Start of the path, its blocks, and the likelihood of the best earlier model relative to the best one.

        As the natural logarithm of the factor at least; None where there are none, since the path began at 0.
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
        """Score the models from some lambda on, below which none can matter; return the path from there."""
        # The other criteria choose among the first models of the path.
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
            below = least_criterion(blocks, penalty)
            if path.breakpoints.size > 0 and hopeless(below, best):
                self._start = (path.start, path.runs.weight.size, (below - best) / 2.0)
                log.info(
                    "ENIR: the path begins at lambda = %.4g with %d blocks; every model below is at least exp(%.4g) "
                    "times less likely than the best",
                    path.start, path.runs.weight.size, (below - best) / 2.0,
                )  # fmt: skip
                return path
            keep *= _FINER


def hopeless(bound: float, best: float) -> bool:
    """Tell whether models with at least this criterion are dropped, rounding of log likelihoods considered."""
    return bool(bound > best - 2.0 * np.log(_DROP) + 1e-6 + 1e-9 * abs(best))


def penalty_of(criterion: str, n: float, extra: float = 0.0) -> Penalty:
    """Return a criterion's addition to -2 log likelihood, as a monotone function of the degrees of freedom.

    n : sum of the weights; extra : what BIC adds to log(n).
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
    """The models to average: those within a factor of 1e-12 of the best."""
    if path.breakpoints.size == 0:
        return _weighted(*_one_model(path.start, path.solution(path.start), penalty))
    search = _Search(path, penalty)
    search.run()
    seen = np.flatnonzero(~np.isnan(search.log_likelihood))
    if not np.isfinite(search.criterion[seen]).any():
        last = float(path.breakpoints[-1])
        return _weighted(*_one_model(last, path.solution(last), penalty))
    return _weighted(
        path.breakpoints[seen],
        path.degrees_of_freedom[seen],
        search.log_likelihood[seen],
        search.criterion[seen],
        _DROP,
    )


class _Search:
    """Scores the breakpoints that may matter (see the notes of `ENIR`)."""

    def __init__(self, path: NearIsotonicPath, penalty: Penalty) -> None:
        self.path = path
        self.df = path.degrees_of_freedom
        self.penalty = penalty(self.df)
        self.log_likelihood = np.full(self.df.size, np.nan)
        self.criterion = np.full(self.df.size, np.inf)
        self.best = np.inf

    def look_at(self, i: int) -> None:
        _, weight, positives, level = self.path.blocks(float(self.path.breakpoints[i]))
        self.log_likelihood[i] = tree.log_likelihood(level, weight, positives)
        self.criterion[i] = self.penalty[i] - 2.0 * self.log_likelihood[i]
        self.best = min(self.best, self.criterion[i])

    def bound(self, log_likelihood: float, i: int, j: int) -> float:
        """The least criterion that the breakpoints i, ..., j can have, given L at the breakpoint before i."""
        return min(float(self.penalty[i]), float(self.penalty[j])) - 2.0 * log_likelihood

    def run(self) -> None:
        _, weight, positives, level = self.path.blocks(self.path.start)
        before = tree.log_likelihood(level, weight, positives)
        intervals: list[tuple[float, int, int]] = []
        j = self.df.size - 1
        self.look_at(j)
        # -1 stands for the start of the path, which is not a model but has a likelihood.
        while j > 0 and not hopeless(self.bound(before, 0, j - 1), self.best):
            # The degrees of freedom descend.
            i = int(np.searchsorted(-self.df[:j], -_COARSE * self.df[j], side="right")) - 1
            if i >= 0:
                self.look_at(i)
            if j - i > 1:
                above = before if i < 0 else self.log_likelihood[i]
                heapq.heappush(intervals, (self.bound(above, i + 1, j - 1), i, j))
            j = i
        while intervals:
            bound, i, j = heapq.heappop(intervals)
            if hopeless(bound, self.best):
                return
            middle = (i + j) // 2
            self.look_at(middle)
            above = before if i < 0 else self.log_likelihood[i]
            if middle - i > 1:
                heapq.heappush(intervals, (self.bound(above, i + 1, middle - 1), i, middle))
            if j - middle > 1:
                here = float(self.log_likelihood[middle])
                heapq.heappush(intervals, (self.bound(here, middle + 1, j - 1), middle, j))


def _one_model(
    lam: float, solution: Solution, penalty: Penalty
) -> tuple[Array, npt.NDArray[np.int64], Array, Array]:
    df = np.array([solution.level.size])
    likelihood = np.array([tree.log_likelihood(solution.level, solution.weight, solution.positives)])
    return np.array([lam]), df, likelihood, penalty(df) - 2.0 * likelihood


def _weighted(
    lam: Array, df: npt.NDArray[np.int64], likelihood: Array, criterion: Array, drop: float = 0.0
) -> Models:
    """Models with their weights; without those whose weight is below `drop` times the best one's (or zero)."""
    with np.errstate(under="ignore"):
        relative = np.exp((criterion.min() - criterion) / 2.0) if lam.size > 1 else np.ones(1)
    keep = (relative >= drop) & (relative > 0)
    weight = relative[keep] / relative[keep].sum()
    return Models(lam[keep], df[keep], likelihood[keep], criterion[keep], weight)


def average(
    path: NearIsotonicPath, models: Models, solve: Callable[[float], Solution]
) -> tuple[Solution, Array]:
    """The finest model's blocks, and the models' weighted mean level on each.

    Blocks only merge along the path, so those of every model are unions of the finest one's.
    """
    finest = path.solution(float(models.lam[0]))
    level = np.zeros(finest.level.size)
    for lam, weight in zip(models.lam, models.weight, strict=True):
        solution = solve(float(lam))
        level += weight * solution.level[np.searchsorted(solution.last_score, finest.last_score)]
    return finest, np.minimum(level, 1.0)


def score_authors(path: NearIsotonicPath, penalty: Penalty) -> Models:
    """The models of `reference="authors"`: at most 99, all that have a finite criterion."""
    lam = np.concatenate([[0.0], path.breakpoints])
    ranks = np.rint(np.arange(_AUTHORS_MODELS) * (lam.size - 1) / (_AUTHORS_MODELS - 1))
    lam = lam[np.unique(ranks).astype(np.int64)][1 if lam.size > 1 else 0 :]
    rows = [_one_model(float(x), _rounded(path, float(x))[0], penalty) for x in lam]
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    finite = np.isfinite(columns[3])
    if not finite.any():
        # Rounding put a level onto 0 or 1 against the labels in every model: the isotonic one remains.
        finite[-1] = True
    return _weighted(*(column[finite] for column in columns))


def smoothed_levels(path: NearIsotonicPath, lam: float) -> Solution:
    """`_rounded` levels, each drawn to the block's mean score, the more so the better the two agree."""
    solution, first_run = _rounded(path, lam)
    n = solution.weight
    expected = np.add.reduceat(path.runs.moment, first_run) / n
    agreement = 1.0 - np.abs(solution.positives / n - expected)
    level = (solution.level * n + expected * agreement) / (n + agreement)
    return solution._replace(level=np.clip(level, 0.0, 1.0))


def _rounded(path: NearIsotonicPath, lam: float) -> tuple[Solution, npt.NDArray[np.int64]]:
    """The solution with levels rounded to 6 decimals, equal neighbours joined; and the first run of each."""
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
            f"{runs.first[0]} to {runs.last[-1]}; put scores through the sigmoid 1 / (1 + exp(-score)) first"
        )
