"""What is measured of one segment: numbers from its points, in memory or in passes over its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrators._kernels.accumulators import expansion_of
from calibrators.assessment import MEASURES, Assessment
from calibrators.decomposition import chance_error, debiased_squared_error, decompose
from calibrators.error_bars import ErrorBars, assurance_passes, error_bar_passes
from calibrators.measures import assessment_passes, side_by_side
from calibrators.passes import Array, Blocks, Pass, Points, run_in_memory, run_passes
from calibrators.sampling import weighing_negatives
from calibrators.spread import Spread, cox, distances
from pipeline import schema
from pipeline.sort.exchange import Slices
from pipeline.sort.segment_visits import Visit

ENOUGH = 100
"""Rows of either label from which on a segment has Cox's line, the ICI, and what its losses are made of."""

FIELDS = (
    *(*MEASURES, "mean_prediction", "weight", "positives", "gap", "variance", "largest"),
    *schema.SEGMENT_CERTAINTY,
)
"""In this order; gap, variance and largest are what `beyond_chance` takes."""


def visit_of(bins: int, weighted: bool, sampling_rate: float, *, tests: bool) -> Visit[Array]:
    """What measures segments: a row of numbers each, in the order of `FIELDS`.

    weighted : whether the log has weights. sampling_rate, tests : see `pipeline.evaluate.evaluation.evaluate`
    """
    # No total weight is 0: weights, where a log has them, are not taken for counts.
    passes = partial(_passes, bins, 0 if weighted or sampling_rate != 1 else None, sampling_rate, tests)
    numbers = partial(_numbers, sampling_rate)
    return Visit(
        partial(_measure_small, passes, numbers), next(passes()), partial(_measure_large, passes, numbers)
    )


def _passes(
    bins: int,
    rows: int | None,
    sampling_rate: float,
    tests: bool,
    parts: Sequence[tuple[float, Array]] = (),
    enough: bool = True,
) -> Any:
    """Passes to an assessment, and with `tests` what is sure of it: error bars alone where rows are not `enough`."""
    if sampling_rate == 1.0:
        measured: Any = assessment_passes(bins=bins, histogram_bins=1, rows=rows, parts=parts)
    else:
        measured = weighing_negatives(
            assessment_passes(bins=bins, histogram_bins=1, rows=rows), sampling_rate
        )
    if not tests:
        return side_by_side(measured)
    sure = assurance_passes(None, rate=sampling_rate) if enough else _bars_alone(sampling_rate)
    return side_by_side(measured, sure)


def _bars_alone(rate: float) -> Any:
    return (yield from error_bar_passes(rate=rate)), None, None


Numbers = Callable[..., list[float]]


def _measure_small(passes: Callable[..., Any], numbers: Numbers, segments: Slices) -> Array:
    return np.array([_measure_points(passes, numbers, points) for points in segments.points()])


def _measure_points(passes: Callable[..., Any], numbers: Numbers, points: Points) -> list[float]:
    # The weight is known: one pass may be enough.
    parts = [(float(points.score[0]), expansion_of(points.weight))]
    weight, positives = float(points.weight.sum()), float(points.positives.sum())
    enough = min(positives, weight - positives) >= ENOUGH
    return numbers(*run_in_memory(passes(parts=parts, enough=enough), points))


def _measure_large(
    passes: Callable[[], Any], numbers: Numbers, points: int, run: Callable[[Pass], Any]
) -> Array:
    return np.array([numbers(*run_passes(passes(), run))])


_Sure = tuple[ErrorBars, tuple[Blocks, Array] | None, Spread | None]
"""As `assurance_passes` returns it."""


def _numbers(rate: float, found: Assessment, sure: _Sure | None = None) -> list[float]:
    """An assessment in the order of `FIELDS`. rate : see `evaluate`."""
    measures = [getattr(found.measures, name) for name in MEASURES]
    groups = [
        (group.weight, group.frequency, group.mean_prediction, group.weight / group.effective_size)
        for group in found.by_frequency
        if group.frequency is not None and group.mean_prediction is not None
    ]
    values = [*measures, found.mean_prediction, found.weight, found.positives]
    spread: list[float | None] = [None, None, None]
    if groups:
        # The variance within a group is largest if all its probabilities are the mean.
        spread = [
            math.fsum(weight * abs(frequency - p) for weight, frequency, p, _ in groups),
            math.fsum(weight * row * p * (1 - p) for weight, _, p, row in groups),
            max(row for *_, row in groups),
        ]
    certain = {} if sure is None else _certainty(rate, found, sure, groups=bool(groups))
    numbers = [*values, *spread, *(certain.get(name) for name in schema.SEGMENT_CERTAINTY)]
    return [math.nan if value is None else value for value in numbers]


def _certainty(rate: float, found: Assessment, sure: _Sure, *, groups: bool) -> dict[str, float | None]:
    """What is known of `SEGMENT_CERTAINTY`, by name."""
    bars, corp, cells = sure
    values: dict[str, float | None] = {
        name: getattr(bars, name) for name in ("auc_error", "spiegelhalter_z", "score_test_p")
    }
    if groups:
        values["chance_error"] = chance_error(found.by_frequency)
        values["debiased_squared_error"] = debiased_squared_error(found.by_frequency)
    if min(found.positives, found.weight - found.positives) < ENOUGH or cells is None:
        return values
    line = cox(cells, rate)
    if line is not None:
        (intercept, slope), errors = line
        values |= zip(schema.SEGMENT_LINE, (intercept, errors[0], slope, errors[1]), strict=True)
    if rate != 1.0 or corp is None:  # of sampled rows neither is taken
        return values
    values["ici"] = distances(cells)[0]
    parts = decompose(corp[0], _NOTHING_DRAWN, found)
    if parts is not None:
        losses = (parts.brier, parts.log_loss)
        own = [value for loss in losses for value in (loss.miscalibration, loss.discrimination)]
        values |= zip(schema.SEGMENT_PARTS, own, strict=True)
    return values


_NOTHING_DRAWN = np.empty((0, 2))
"""What chance would show takes hundreds of draws a segment; `chance_error` says it of groups."""
