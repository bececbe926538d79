"""What is measured of one segment: numbers from its points, in memory or in passes over its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrators._kernels.accumulators import expansion_of
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points, run_in_memory, run_passes
from calibrators.arithmetic.sampling import weighing_negatives
from calibrators.measures.assessment import MEASURES, Assessment
from calibrators.measures.decomposition import (
    Decomposition,
    chance_error,
    debiased_squared_error,
    decompose,
)
from calibrators.measures.error_bars import ErrorBars, assurance_passes, error_bar_passes
from calibrators.measures.many import (
    agreements_of_columns,
    all_counts,
    assess_columns,
    chances_of_columns,
    error_bars_of_columns,
)
from calibrators.measures.predictions import assessment_passes, side_by_side
from calibrators.measures.spread import Spread, cox, mean_distance
from pipeline import schema
from pipeline.execution import tasks
from pipeline.sort.exchange import Slices
from pipeline.sort.run_files import Integers
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
    counts = not weighted and sampling_rate == 1
    passes = partial(_passes, bins, None if counts else 0, sampling_rate, tests)
    numbers = partial(_numbers, sampling_rate)
    small = partial(_measure_small, passes, numbers)
    if counts:
        small = partial(_measure_counts, bins, tests, small)
    return Visit(small, next(passes()), partial(_measure_large, passes, numbers))


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


# Rows without weights: all small segments of a task at once, in compiled code.


def _measure_counts(bins: int, tests: bool, otherwise: Callable[[Slices], Array], segments: Slices) -> Array:
    points = Points(*segments.columns)
    if not all_counts(points):
        return otherwise(segments)
    out = np.full((segments.starts.size - 1, len(FIELDS)), np.nan)
    for first in range(0, out.shape[0], _BLOCK):
        tasks.check()
        starts = segments.starts[first : first + _BLOCK + 1]
        here = Points(*(column[starts[0] : starts[-1]] for column in points))
        rows = out[first : first + _BLOCK]
        numbers, groups = assess_columns(here, starts - starts[0], bins)
        rows[:, : numbers.shape[1]] = numbers
        if tests:
            _sure_of_counts(here, starts - starts[0], groups, rows)
    return out


_BLOCK = 256
"""Segments between two looks at whether the command has ended."""


def _sure_of_counts(points: Points, starts: Integers, groups: Array, rows: Array) -> None:
    """Write `SEGMENT_CERTAINTY` of segments behind their measures. groups : see `assess_columns`."""
    rows[:, _AT["auc_error"] : _AT["score_test_p"] + 1] = error_bars_of_columns(points, starts)
    rows[:, _AT["chance_error"] : _AT["debiased_squared_error"] + 1] = chances_of_columns(groups)
    losses = np.ascontiguousarray(rows[:, [_AT["brier"], _AT["log_loss"]]])
    rows[:, _AT[_BEHIND[0]] :] = agreements_of_columns(points, starts, losses, ENOUGH)


_BEHIND = (*schema.SEGMENT_PARTS, *schema.SEGMENT_LINE, "ici")
"""What `agreements_of_columns` returns: the last of the fields."""
_AT = {name: i for i, name in enumerate(FIELDS)}
"""The place of each field."""


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
    values |= _line(cox(cells, rate))
    if rate != 1.0 or corp is None:  # of sampled rows neither is taken
        return values
    values["ici"] = mean_distance(cells)
    parts = decompose(corp[0], _NOTHING_DRAWN, found)
    return values if parts is None else values | _parts(parts)


def _line(line: tuple[tuple[float, float], tuple[float, float]] | None) -> dict[str, float | None]:
    if line is None:
        return {}
    (intercept, slope), errors = line
    return dict(zip(schema.SEGMENT_LINE, (intercept, errors[0], slope, errors[1]), strict=True))


def _parts(parts: Decomposition) -> dict[str, float | None]:
    losses = (parts.brier, parts.log_loss)
    own = [value for loss in losses for value in (loss.miscalibration, loss.discrimination)]
    return dict(zip(schema.SEGMENT_PARTS, own, strict=True))


_NOTHING_DRAWN = np.empty((0, 2))
"""What chance would show takes hundreds of draws a segment; `chance_error` says it of groups."""
