"""A start for Newton's method that is all but the end: the optimum of the points in narrow bins.

An evaluation of a loss over all points is a sweep over them; over bins it is nothing. From the optimum of the bins, a
step or two are left to that of the points.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from calibrators._kernels import bin_moments as kernel
from calibrators.arithmetic.cumulative import Layout
from calibrators.arithmetic.passes import Pass, Points, blocks_of, run_in_memory
from calibrators.methods.sigmoid import Scale

_BINS = 1 << 15

FEWEST_POINTS = 1 << 17
"""Below this many, sweeps over the points cost less than what they are left for."""

T = TypeVar("T")


class _Moments(NamedTuple):
    """The sums of `kernel.add_moments` for the bins from `first` on."""

    first: int
    sums: npt.NDArray[np.int64]


def binned_pass(layout: Layout, scale: Scale) -> Pass:
    """The pass that yields, for each bin and label, one point at the mean place of the points there: `Points` whose
    scores repeat and do not ascend. What is smooth on the scale differs by squares of a bin's width, however many
    points share a score.
    """
    unit = 2.0 ** (60 - math.frexp(layout.weight)[1])
    return Pass(partial(_moments, scale, unit), partial(_points, scale, unit))


def _moments(scale: Scale, unit: float, points: Points) -> _Moments:
    ends = (scale.x(points.score[[0, -1]]) + 1.0) * (_BINS / 2)
    first, last = np.clip(ends.astype(np.int64), 0, _BINS - 1).tolist()
    sums = np.zeros((last - first + 1, kernel.SUMS), np.int64)
    for some in blocks_of(points):
        kernel.add_moments(scale.x(some.score), some.weight, some.positives, _BINS, first, unit, sums)
    return _Moments(first, sums)


def _points(scale: Scale, unit: float, parts: list[_Moments]) -> Points:
    sums = np.zeros((_BINS, kernel.SUMS), np.int64)
    for part in parts:
        sums[part.first : part.first + len(part.sums)] += part.sums
    weight, distance = sums[:, [0, 2]] / unit, sums[:, [1, 3]] / unit
    some = weight > 0
    middle = (np.arange(_BINS)[:, np.newaxis] + 0.5) * (2 / _BINS) - 1.0
    x = (middle + np.divide(distance, weight, out=np.zeros(weight.shape), where=some) / _BINS)[some]
    positives = np.where([False, True], weight, 0.0)
    return Points(scale.scores(x), weight[some], positives[some])


def solved(passes: Generator[Pass, Any, T], points: Points) -> T:
    """What a generator of passes returns for points in memory; that it found no optimum is not said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: T = run_in_memory(passes, points)
    return found
