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
from calibrators.arithmetic.cumulative import Layout, layout_pass
from calibrators.arithmetic.passes import Array, Pass, Points, run_in_memory
from calibrators.measures.assessment import Measures
from calibrators.measures.predictions import Assessment, assessment_passes, side_by_side
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
        folded.training(side_by_side(*(calibrators[name]._passes_for_all_rows() for name in names)), fold)
        for fold in range(folds)
    ]
    fitted: list[tuple[CalibrationMap, ...]] = list((yield from side_by_side(*fits)))
    probabilities = layout.first[0] >= 0 and layout.last <= 1
    maps: list[list[CalibrationMap | None]] = [
        [*([None] if probabilities else []), *of_fold] for of_fold in fitted
    ]
    names = [*([RAW] if probabilities else []), *names]
    measured = [
        folded.held_out(side_by_side(*(_measuring(one, rate) for one in of_fold)), fold)
        for fold, of_fold in enumerate(maps)
    ]
    losses = _one_pass(Pass(partial(_losses, folded, maps, rate), _add_up))
    *assessments, moments = yield from side_by_side(*measured, losses)
    negatives = layout.weight - layout.positives
    weight = layout.weight if rate == 1.0 else layout.positives + negatives / rate
    squares = layout.positives + negatives / rate**2
    results = _results(names, assessments, moments, weight, None if rate == 1.0 else squares)
    return CrossValidation(folds, seed, weight, layout.positives, results)


def cross_validate(
    points: Points,
    calibrators: Mapping[str, Calibrator],
    *,
    folds: int = 5,
    seed: int = 0,
    rate: float = 1.0,
    heaviest: float = 1.0,
) -> CrossValidation:
    """`cross_validation_passes` over points in memory."""
    passes = cross_validation_passes(calibrators, folds=folds, seed=seed, rate=rate, heaviest=heaviest)
    found: CrossValidation = run_in_memory(passes, points)
    return found


def _one_pass(request: Pass) -> Generator[Pass, Any, Any]:
    return (yield request)


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
    found: Assessment = run_in_memory(assessment_passes(rate=rate), points)
    return found


def _by_probability(calibration_map: CalibrationMap, points: Points) -> Points:
    return _sorted(Points(calibration_map.predict_ascending(points.score), points.weight, points.positives))


def _joined(parts: list[Points]) -> Points:
    return _sorted(Points(*(np.concatenate(column) for column in zip(*parts, strict=True))))


def _sorted(points: Points) -> Points:
    order = np.argsort(points.score, kind="stable")
    score, weight, positives = (np.ascontiguousarray(column[order]) for column in points)
    return Points(*ordering.sum_ties(score, weight, positives))


# Losses of all observations.


def _losses(
    folded: FoldedPoints, maps: Sequence[Sequence[CalibrationMap | None]], rate: float, points: Points
) -> list[Array]:
    """Sum a part's losses of the methods, the products of each two, and the infinite ones, exactly."""
    pieces = []
    for fold, of_fold in enumerate(maps):
        inside = folded.split(points, fold)[1]
        if inside is not None:
            pieces.append(_moments(inside, of_fold, rate))
    return [sums.expansion_of(np.concatenate(column)) for column in zip(*pieces, strict=True)]


def _moments(points: Points, maps: Sequence[CalibrationMap | None], rate: float) -> list[Array]:
    """Sum products with squared weights for rows that weigh more than one."""
    negatives = points.weight - points.positives
    logs, squares, infinite = [], [], []
    for one in maps:
        p = points.score if one is None else one.predict_ascending(points.score)
        never, always = p <= 0, p >= 1
        # Log losses of what was said to be impossible are counted, and not added.
        logs.append((-np.log(np.where(never, 1.0, p)), -np.log1p(-np.where(always, 0.0, p))))
        squares.append(((1 - p) ** 2, p**2))
        infinite.append(np.where(never, points.positives, 0.0) + np.where(always, negatives, 0.0))
    terms = list(infinite)
    for losses in (logs, squares):
        terms += [points.positives * one + negatives / rate * zero for one, zero in losses]
        terms += [
            points.positives * (a[0] * b[0]) + negatives / rate**2 * (a[1] * b[1])
            for a in losses
            for b in losses
        ]
    if rate != 1.0:
        for losses in (logs, squares):
            terms += [points.positives * one + negatives / rate**2 * zero for one, zero in losses]
    return [sums.expansion_of(term) for term in terms]


def _add_up(parts: list[list[Array]]) -> Array:
    columns = zip(*(part for part in parts if part), strict=True)
    return np.array([sums.exact_sum(np.concatenate(column)) for column in columns])


# From sums to results.


def _results(
    names: list[str],
    assessments: list[tuple[Assessment, ...]],
    moments: Array,
    weight: float,
    squares: float | None = None,
) -> tuple[MethodResult, ...]:
    """Turn the sums into results. squares : of the rows' weights, summed, where weights are not 1."""
    count = len(names)
    size = 2 * (count + count**2)
    infinite, rest = moments[:count], moments[count : count + size].reshape(2, count + count**2)
    # Of each loss the sums under squared weights.
    heavy = rest[:, :count] if squares is None else moments[count + size :].reshape(2, count)
    by_loss = {
        loss: _loss_estimates(
            row[:count],
            row[count:].reshape(count, count),
            weight,
            hits,
            None if squares is None else (own, squares),
        )
        for loss, row, own, hits in zip(LOSSES, rest, heavy, (infinite, np.zeros(count)), strict=True)
    }
    results = []
    for i, name in enumerate(names):
        folds = [of_fold[i] for of_fold in assessments]
        estimates = {loss: by_loss[loss][i] for loss in LOSSES}
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
