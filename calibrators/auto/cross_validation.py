"""Comparison of calibrators by cross-validation: each is evaluated on observations that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrators.auto.folded import FoldedPoints
from calibrators.base import NOT_SAMPLED, Calibrator, Sampling
from calibrators.core import sorting
from calibrators.core.arrays import Array
from calibrators.core.cumulative import Layout, join_points, layout_pass
from calibrators.core.kernels import sums
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Points, run_in_memory, share_sweeps
from calibrators.measures.assessment import Assessment, Measures
from calibrators.measures.engine import Predict
from calibrators.measures.predictions import assessment_passes

RAW = "before"
"""Name of the uncalibrated scores among the methods, if they are probabilities."""

LOSSES = ("log_loss", "brier")
BY_FOLD = ("ece_frequency", "auc")


@dataclass(frozen=True)
class Estimate:
    """Cross-validated estimate of a measure.

    Attributes
    ----------
    mean : float or None
        For a loss the mean over all observations; otherwise over the folds, weighted by their observations. Infinite
        if some label had probability 0; None if a fold has no value.
    error : float or None
        Standard error of the mean: for a loss over observations, otherwise over folds. None if it does not exist.
    excess, excess_error : float or None
        For a loss: the excess of the mean over the best method's, and the standard error of this paired difference.
    """

    mean: float | None
    error: float | None
    excess: float | None = None
    excess_error: float | None = None


@dataclass(frozen=True)
class MethodResult:
    """Result of the cross-validation of a method.

    Attributes
    ----------
    name : str
    estimates : dict of Estimate: log_loss, brier, ece_frequency, auc
    infinite : float >= 0
        Number of observations whose label had probability 0.
    folds : tuple of Measures, one per fold
    """

    name: str
    estimates: dict[str, Estimate]
    infinite: float
    folds: tuple[Measures, ...]


@dataclass(frozen=True)
class CrossValidation:
    """Result of the comparison of methods by cross-validation.

    Attributes
    ----------
    folds, seed : int
    weight, positives : float: sums over all observations
    methods : tuple of MethodResult, in the given order, after the uncalibrated scores if these are probabilities
    """

    folds: int
    seed: int
    weight: float
    positives: float
    methods: tuple[MethodResult, ...]

    def best(self, measure: str) -> str | None:
        """Return the name of the first method with the best mean of a measure; None if no method has a value."""
        return next(iter(self.all_best(measure)), None)

    def all_best(self, measure: str) -> list[str]:
        """Return the names of the methods with the best mean of a measure, to the 12 digits that are written."""
        sign = -1.0 if measure == "auc" else 1.0
        means = {
            method.name: float(f"{sign * mean:.12g}")
            for method in self.methods
            if (mean := method.estimates[measure].mean) is not None and math.isfinite(mean)
        }
        return [name for name, mean in means.items() if mean == min(means.values())]


def cross_validation_passes(
    calibrators: Mapping[str, Calibrator],
    *,
    folds: int = 5,
    seed: int = 0,
    sampling: Sampling = NOT_SAMPLED,
) -> Generator[Pass, Any, CrossValidation]:
    """Yield the passes over a score table that the comparison needs, receive their results, return it.

    Parameters
    ----------
    calibrators : mapping of names to calibrators, which are not modified
    folds : int >= 2
    seed : int in [0, 2**31)
    sampling : Sampling
        How the observations were sampled. Measures describe all rows: each kept negative weighs 1 / rate, and counts
        as one observation in standard errors.

    Raises
    ------
    ValueError
        For fewer observations of a label than twice the folds, and for scores that a calibrator rejects.

    Notes
    -----
    Each calibrator is fitted to the observations outside each fold and evaluated on those inside. The folds
    (`calibrators.auto.folded`) depend only on the scores, their numbers of observations and the seed. All methods
    and folds share their passes; a part is divided once per fold and pass. For maps that decrease somewhere, the
    distinct probabilities are gathered and sorted.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and regression trees", section 3.4.3: standard errors of
    cross-validated losses.
    """
    layout: Layout = yield layout_pass()
    rarer = min(layout.positives, layout.weight - layout.positives)
    if rarer < 2 * folds:
        raise ValueError(
            f"folds: expected at least twice as many observations of each label as folds, found {rarer:g} for {folds}"
        )
    rate, folded = sampling.rate, FoldedPoints(layout, folds, seed, sampling.heaviest)
    names = list(calibrators)
    fits = [
        folded.over(share_sweeps(*(calibrators[name].passes(sampling) for name in names)), fold)
        for fold in range(folds)
    ]
    fitted: list[tuple[CalibrationMap, ...]] = list((yield from share_sweeps(*fits)))
    raw = [None] if layout.probabilities else []
    maps: list[list[CalibrationMap | None]] = [[*raw, *fold_maps] for fold_maps in fitted]
    names = [*([RAW] if raw else []), *names]
    evaluations = [
        folded.over(share_sweeps(*(_measure_passes(m, rate) for m in fold_maps)), fold, inside=True)
        for fold, fold_maps in enumerate(maps)
    ]
    predictions = [[None if m is None else m.predict_ascending for m in fold_maps] for fold_maps in maps]
    *assessments, (losses, infinite) = yield from share_sweeps(
        *evaluations, loss_passes(folded, predictions, rate=rate)
    )
    results = _results(names, assessments, losses, infinite)
    return CrossValidation(folds, seed, _total(layout, rate), layout.positives, results)


def cross_validate(points: Points, calibrators: Mapping[str, Calibrator], **options: Any) -> CrossValidation:
    """Compare calibrators over points in memory. options : see `cross_validation_passes`."""
    return run_in_memory(cross_validation_passes(calibrators, **options), points)


def _total(layout: Layout, rate: float) -> float:
    """Compute the weight of all rows, from which the observations were sampled."""
    return layout.weight if rate == 1.0 else layout.positives + (layout.weight - layout.positives) / rate


# Measures of a fold.


def _measure_passes(calibration_map: CalibrationMap | None, rate: float) -> Generator[Pass, Any, Assessment]:
    if calibration_map is None:
        return assessment_passes(rate=rate)
    if calibration_map.monotone:
        return assessment_passes(calibration_map.predict_ascending, rate=rate)
    return _gathering_passes(calibration_map, rate)


def _gathering_passes(calibration_map: CalibrationMap, rate: float) -> Generator[Pass, Any, Assessment]:
    """Assess a map that decreases somewhere: gather and sort its probabilities."""
    points: Points = yield Pass(partial(_by_probability, calibration_map), _join_sorted)
    return run_in_memory(assessment_passes(rate=rate), points)


def _by_probability(calibration_map: CalibrationMap, points: Points) -> Points:
    return _sorted(Points(calibration_map.predict_ascending(points.score), points.weight, points.positives))


def _join_sorted(parts: list[Points]) -> Points:
    return _sorted(join_points(parts))


def _sorted(points: Points) -> Points:
    order = np.argsort(points.score, kind="stable")
    score, weight, positives = (np.ascontiguousarray(column[order]) for column in points)
    return Points(*sorting.sum_ties(score, weight, positives))


# Losses of all observations.


def loss_passes(
    folded: FoldedPoints,
    predictions: Sequence[Sequence[Predict | None]],
    losses: Sequence[str] = LOSSES,
    rate: float = 1.0,
) -> Generator[Pass, Any, tuple[dict[str, list[Estimate]], Array]]:
    """Yield the pass that mean losses need; return the methods' estimates by loss, and their infinite losses.

    predictions : for each fold, the methods' functions from ascending scores to probabilities; None for the scores
    rate : see `cross_validation_passes`
    """
    moments: Array = yield Pass(partial(_losses, folded, predictions, losses, rate), _add_up)
    layout, count = folded.layout, len(predictions[0])
    infinite, loss_moments = moments[:count], moments[count:]
    size = count + count**2
    estimates = {}
    for i, loss in enumerate(losses):
        first, second = np.split(loss_moments[i * size : (i + 1) * size], [count])
        weighted = None
        if rate != 1.0:
            squares = layout.positives + (layout.weight - layout.positives) / rate**2
            weighted = loss_moments[len(losses) * size :].reshape(-1, count)[i], squares
        hits = infinite if loss == "log_loss" else np.zeros(count)
        products = second.reshape(count, count)
        estimates[loss] = _loss_estimates(first, products, _total(layout, rate), hits, weighted)
    return estimates, infinite


def _losses(
    folded: FoldedPoints,
    predictions: Sequence[Sequence[Predict | None]],
    losses: Sequence[str],
    rate: float,
    points: Points,
) -> list[Array]:
    """Sum exactly over a part: the methods' infinite losses, their losses, and the products of every two losses."""
    pieces = []
    for fold, functions in enumerate(predictions):
        inside = folded.split(points, fold)[1]
        if inside is not None:
            pieces.append(_moments(inside, functions, losses, rate))
    return [sums.expansion_of(np.concatenate(column)) for column in zip(*pieces, strict=True)]


def _moments(
    points: Points, predictions: Sequence[Predict | None], losses: Sequence[str], rate: float
) -> list[Array]:
    """Sum losses and their products over points; with `rate`, products have squared weights."""
    negatives = points.weight - points.positives
    terms, pairs = [], {loss: list[tuple[Array, Array]]() for loss in losses}
    for predict in predictions:
        p = points.score if predict is None else predict(points.score)
        never, always = p <= 0, p >= 1
        terms.append(np.where(never, points.positives, 0.0) + np.where(always, negatives, 0.0))
        # Infinite log losses are counted instead of added.
        logs = -np.log(np.where(never, 1.0, p)), -np.log1p(-np.where(always, 0.0, p))
        for loss, pair in pairs.items():
            pair.append(logs if loss == "log_loss" else ((1 - p) ** 2, p**2))
    for pair in pairs.values():
        terms += [points.positives * hit + negatives / rate * miss for hit, miss in pair]
        terms += [
            points.positives * (a[0] * b[0]) + negatives / rate**2 * (a[1] * b[1]) for a in pair for b in pair
        ]
    if rate != 1.0:
        for pair in pairs.values():
            terms += [points.positives * hit + negatives / rate**2 * miss for hit, miss in pair]
    return [sums.expansion_of(term) for term in terms]


def _add_up(parts: list[list[Array]]) -> Array:
    columns = zip(*(part for part in parts if part), strict=True)
    return np.array([sums.exact_sum(np.concatenate(column)) for column in columns])


# From sums to results.


def _results(
    names: list[str],
    assessments: list[tuple[Assessment, ...]],
    losses: dict[str, list[Estimate]],
    infinite: Array,
) -> tuple[MethodResult, ...]:
    results = []
    for i, name in enumerate(names):
        folds = [fold[i] for fold in assessments]
        estimates = {loss: by_method[i] for loss, by_method in losses.items()}
        estimates |= {measure: _mean_over_folds(measure, folds) for measure in BY_FOLD}
        measures = tuple(assessment.measures for assessment in folds)
        results.append(MethodResult(name, estimates, float(infinite[i]), measures))
    return tuple(results)


def _loss_estimates(
    first: Array, second: Array, weight: float, infinite: Array, weighted: tuple[Array, float] | None = None
) -> list[Estimate]:
    """Estimate one loss. weighted : the sums of losses with squared weights, and the sum of squared weights."""
    mean, products = first / weight, second / weight
    if weighted is not None:
        # Sum of w**2 (d - D)(e - E) over N, plus D E; with weights of 1 this is the mean of products.
        linear, squares = weighted
        cross = second - np.outer(mean, linear) - np.outer(linear, mean) + np.outer(mean, mean) * squares
        products = cross / weight + np.outer(mean, mean)
    finite = infinite == 0
    best = int(np.argmin(np.where(finite, mean, np.inf)))
    estimates = []
    for i in range(mean.size):
        if not finite[i]:
            estimates.append(Estimate(math.inf, None))
            continue
        error = _error(products[i, i] - mean[i] ** 2, weight)
        excess = float(mean[i] - mean[best])
        spread = products[i, i] + products[best, best] - 2 * products[i, best] - excess**2
        estimates.append(Estimate(float(mean[i]), error, excess, _error(spread, weight)))
    return estimates


def _error(variance: float, weight: float) -> float:
    return math.sqrt(max(float(variance), 0.0) / weight)


def _mean_over_folds(measure: str, folds: list[Assessment]) -> Estimate:
    values = [getattr(assessment.measures, measure) for assessment in folds]
    if any(value is None for value in values):
        return Estimate(None, None)
    weights = np.array([assessment.weight for assessment in folds])
    mean = float(np.average(values, weights=weights))
    return Estimate(mean, float(np.std(values, ddof=1) / math.sqrt(len(values))))
