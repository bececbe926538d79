"""Comparison of calibrators by cross-validation: each predicts observations that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrators._kernels import sums
from calibrators.arithmetic import ordering
from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.cumulative import Layout, join_points, layout_pass
from calibrators.arithmetic.passes import Array, Pass, Points, run_in_memory, side_by_side
from calibrators.measures.assessment import Measures
from calibrators.measures.predictions import Assessment, Predict, assessment_passes
from calibrators.methods.base import Calibrator
from calibrators.methods.folded import FoldedPoints

RAW = "before"
"""The name of the scores as they are, where they are probabilities."""

LOSSES = ("log_loss", "brier")
BY_FOLD = ("ece_frequency", "auc")


@dataclass(frozen=True)
class Estimate:
    """A measure by cross-validation.

    Attributes
    ----------
    mean : float or None
        For a loss the mean over all observations; otherwise over the folds, weighted by their observations. Infinite
        if some label had probability 0; None if a fold has no value.
    error : float or None
        Its standard error: for a loss over observations, otherwise over folds. None if it is not known.
    excess, excess_error : float or None
        For a loss: the excess of the mean over the best method's, and the standard error of that paired difference.
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
        Observations whose label had probability 0.
    folds : tuple of Measures, one per fold
    """

    name: str
    estimates: dict[str, Estimate]
    infinite: float
    folds: tuple[Measures, ...]


@dataclass(frozen=True)
class CrossValidation:
    """Methods compared, in the order in which they were given; the scores as they are first, if they are probabilities.

    Attributes
    ----------
    folds, seed : int
    weight, positives : float: of all observations
    methods : tuple of MethodResult
    """

    folds: int
    seed: int
    weight: float
    positives: float
    methods: tuple[MethodResult, ...]

    def best(self, measure: str) -> str | None:
        """The name of the method with the best mean of a measure; None if no method has a value."""
        sign = -1.0 if measure == "auc" else 1.0
        found = [
            (sign * mean, i)
            for i, method in enumerate(self.methods)
            if (mean := method.estimates[measure].mean) is not None and math.isfinite(mean)
        ]
        return self.methods[min(found)[1]].name if found else None


def cross_validation_passes(
    calibrators: Mapping[str, Calibrator],
    *,
    folds: int = 5,
    seed: int = 0,
    rate: float = 1.0,
    heaviest: float = 1.0,
) -> Generator[Pass, Any, CrossValidation]:
    """Yield the passes over a score table that the comparison needs, receive their results, return it.

    Parameters
    ----------
    calibrators : by name; none is changed
    folds : int >= 2
    seed : int in [0, 2**31)
    rate : float > 0
        See `calibrators.arithmetic.sampling`; the calibrators' `sampling_rate` is the same. Measures describe all
        rows: each kept negative weighs 1 / rate, and counts as one observation in standard errors.
    heaviest : float > 0
        The largest sampling weight, or 1 where weights are counts: see `calibrators.methods.folded.FoldedPoints`.

    Raises
    ------
    ValueError
        Fewer than twice as many observations of a label as folds; scores that do not suit a calibrator.

    Notes
    -----
    Each calibrator is fitted to the observations outside each fold and measured on those inside. The folds are those
    of `calibrators.methods.folded`: a function of the scores, the numbers of observations there and the seed alone. All
    methods and folds share their passes; a part is divided once per fold and pass. Maps that decrease somewhere are
    measured on their distinct probabilities, which are gathered.

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
    folded = FoldedPoints(layout, folds, seed, heaviest)
    names = list(calibrators)
    fits = [
        folded.over(side_by_side(*(calibrators[name]._passes_for_all_rows() for name in names)), fold)
        for fold in range(folds)
    ]
    fitted: list[tuple[CalibrationMap, ...]] = list((yield from side_by_side(*fits)))
    raw = [None] if layout.probabilities else []
    maps: list[list[CalibrationMap | None]] = [[*raw, *of_fold] for of_fold in fitted]
    names = [*([RAW] if raw else []), *names]
    measured = [
        folded.over(side_by_side(*(_measuring(one, rate) for one in of_fold)), fold, inside=True)
        for fold, of_fold in enumerate(maps)
    ]
    predictions = [[None if one is None else one.predict_ascending for one in of_fold] for of_fold in maps]
    *assessments, (losses, infinite) = yield from side_by_side(
        *measured, loss_passes(folded, predictions, rate=rate)
    )
    results = _results(names, assessments, losses, infinite)
    return CrossValidation(folds, seed, _total(layout, rate), layout.positives, results)


def cross_validate(points: Points, calibrators: Mapping[str, Calibrator], **options: Any) -> CrossValidation:
    """`cross_validation_passes`, which takes the options, over points in memory."""
    return run_in_memory(cross_validation_passes(calibrators, **options), points)


def _total(layout: Layout, rate: float) -> float:
    """The weight of all rows, of which the observations are a sample."""
    return layout.weight if rate == 1.0 else layout.positives + (layout.weight - layout.positives) / rate


# Measures of a fold.


def _measuring(calibration_map: CalibrationMap | None, rate: float) -> Generator[Pass, Any, Assessment]:
    if calibration_map is None:
        return assessment_passes(rate=rate)
    if calibration_map.monotone:
        return assessment_passes(calibration_map.predict_ascending, rate=rate)
    return _gathered(calibration_map, rate)


def _gathered(calibration_map: CalibrationMap, rate: float) -> Generator[Pass, Any, Assessment]:
    """Measures of a map that decreases somewhere: its probabilities are sorted where they have come together."""
    points: Points = yield Pass(partial(_by_probability, calibration_map), _joined)
    return run_in_memory(assessment_passes(rate=rate), points)


def _by_probability(calibration_map: CalibrationMap, points: Points) -> Points:
    return _sorted(Points(calibration_map.predict_ascending(points.score), points.weight, points.positives))


def _joined(parts: list[Points]) -> Points:
    return _sorted(join_points(parts))


def _sorted(points: Points) -> Points:
    order = np.argsort(points.score, kind="stable")
    score, weight, positives = (np.ascontiguousarray(column[order]) for column in points)
    return Points(*ordering.sum_ties(score, weight, positives))


# Losses of all observations.


def loss_passes(
    folded: FoldedPoints,
    predictions: Sequence[Sequence[Predict | None]],
    losses: Sequence[str] = LOSSES,
    rate: float = 1.0,
) -> Generator[Pass, Any, tuple[dict[str, list[Estimate]], Array]]:
    """Yield the pass that estimates of mean losses need; return those of each method by loss, and what is infinite.

    predictions : of each fold, each method's for ascending scores; None for the scores. rate : see `cross_validate`
    """
    moments: Array = yield Pass(partial(_losses, folded, predictions, losses, rate), _add_up)
    layout, count = folded.layout, len(predictions[0])
    infinite, rest = moments[:count], moments[count:]
    size = count + count**2
    found = {}
    for i, loss in enumerate(losses):
        first, second = np.split(rest[i * size : (i + 1) * size], [count])
        heavy = None
        if rate != 1.0:
            squares = layout.positives + (layout.weight - layout.positives) / rate**2
            heavy = rest[len(losses) * size :].reshape(-1, count)[i], squares
        hits = infinite if loss == "log_loss" else np.zeros(count)
        own = second.reshape(count, count)
        found[loss] = _loss_estimates(first, own, _total(layout, rate), hits, heavy)
    return found, infinite


def _losses(
    folded: FoldedPoints,
    predictions: Sequence[Sequence[Predict | None]],
    losses: Sequence[str],
    rate: float,
    points: Points,
) -> list[Array]:
    """Sum a part's infinite losses of the methods, and of each loss its own and the products of each two, exactly."""
    pieces = []
    for fold, of_fold in enumerate(predictions):
        inside = folded.split(points, fold)[1]
        if inside is not None:
            pieces.append(_moments(inside, of_fold, losses, rate))
    return [sums.expansion_of(np.concatenate(column)) for column in zip(*pieces, strict=True)]


def _moments(
    points: Points, predictions: Sequence[Predict | None], losses: Sequence[str], rate: float
) -> list[Array]:
    """Sum products with squared weights for rows that weigh more than one."""
    negatives = points.weight - points.positives
    terms, pairs = [], {loss: list[tuple[Array, Array]]() for loss in losses}
    for one in predictions:
        p = points.score if one is None else one(points.score)
        never, always = p <= 0, p >= 1
        terms.append(np.where(never, points.positives, 0.0) + np.where(always, negatives, 0.0))
        # Log losses of what was said to be impossible are counted, and not added.
        logs = -np.log(np.where(never, 1.0, p)), -np.log1p(-np.where(always, 0.0, p))
        for loss, own in pairs.items():
            own.append(logs if loss == "log_loss" else ((1 - p) ** 2, p**2))
    for own in pairs.values():
        terms += [points.positives * one + negatives / rate * zero for one, zero in own]
        terms += [
            points.positives * (a[0] * b[0]) + negatives / rate**2 * (a[1] * b[1]) for a in own for b in own
        ]
    if rate != 1.0:
        for own in pairs.values():
            terms += [points.positives * one + negatives / rate**2 * zero for one, zero in own]
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
        folds = [of_fold[i] for of_fold in assessments]
        estimates = {loss: own[i] for loss, own in losses.items()}
        estimates |= {measure: _over_folds(measure, folds) for measure in BY_FOLD}
        measures = tuple(assessment.measures for assessment in folds)
        results.append(MethodResult(name, estimates, float(infinite[i]), measures))
    return tuple(results)


def _loss_estimates(
    first: Array, second: Array, weight: float, infinite: Array, heavy: tuple[Array, float] | None = None
) -> list[Estimate]:
    """Estimate one loss. heavy : its sums under squared weights, and their sum, where rows weigh more than one."""
    mean, products = first / weight, second / weight
    if heavy is not None:
        # Sum of w**2 (d - D)(e - E) over N, plus D E: what products are where weights are 1.
        own, squares = heavy
        cross = second - np.outer(mean, own) - np.outer(own, mean) + np.outer(mean, mean) * squares
        products = cross / weight + np.outer(mean, mean)
    finite = infinite == 0
    best = int(np.argmin(np.where(finite, mean, np.inf)))
    found = []
    for i in range(mean.size):
        if not finite[i]:
            found.append(Estimate(math.inf, None))
            continue
        error = _error(products[i, i] - mean[i] ** 2, weight)
        excess = float(mean[i] - mean[best])
        spread = products[i, i] + products[best, best] - 2 * products[i, best] - excess**2
        found.append(Estimate(float(mean[i]), error, excess, _error(spread, weight)))
    return found


def _error(variance: float, weight: float) -> float:
    return math.sqrt(max(float(variance), 0.0) / weight)


def _over_folds(measure: str, folds: list[Assessment]) -> Estimate:
    values = [getattr(assessment.measures, measure) for assessment in folds]
    if any(value is None for value in values):
        return Estimate(None, None)
    weights = np.array([assessment.weight for assessment in folds])
    mean = float(np.average(values, weights=weights))
    return Estimate(mean, float(np.std(values, ddof=1) / math.sqrt(len(values))))
