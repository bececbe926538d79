"""How predictions spread, in narrow cells of their log-odds, and measures of calibration that need no more than that.

A cell holds the predictions whose log-odds lie in an interval of 1/512; those that are 0 or 1 have cells of their own.
Cells of parts add up exactly, so that no number depends on how the rows were cut. A cell stands for the middle of its
lowest and its highest prediction: of predictions that differ in few values, as after most methods, that is each itself.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import pava
from calibrators._kernels.accumulators import expansion_of
from calibrators._kernels.cox import line
from calibrators._kernels.logistic import logistic
from calibrators._kernels.sums import exact_sum
from calibrators.arithmetic.exact_totals import Entries
from calibrators.arithmetic.passes import Array
from calibrators.measures.assessment import Z_95

_STEPS = 512
_FARTHEST = 700
_SMOOTH_CELLS = 2000


class SpreadState(NamedTuple):
    """Cells of a part: their numbers, their lowest and highest predictions, and sums, exactly (rows of expansions)."""

    cell: npt.NDArray[np.int64]
    low: Array
    high: Array
    weight: Array
    positives: Array


class Spread(NamedTuple):
    """Cells of predictions, ascending; float64 arrays, shape (cells,).

    p : the middle of the lowest and the highest prediction of each. weight, positives : their sums, correctly rounded
    """

    p: Array
    weight: Array
    positives: Array


@functools.cache
def cell_edges() -> Array:
    """Where cells begin: behind 0, and at log-odds of whole steps; and 1."""
    steps = np.arange(-_FARTHEST, 37, 1 / _STEPS)
    edges = np.empty(steps.size)
    logistic(steps, edges)
    return np.unique(np.concatenate([[np.nextafter(0.0, 1.0)], edges[edges < 1.0], [1.0]]))


def spread_of_entries(entries: Entries) -> SpreadState:
    """The cells of a part whose predictions are known: in [0, 1], ascending."""
    p, w, k = entries[:3]
    edges = cell_edges()
    first, end = np.searchsorted(edges, p[[0, -1]], side="right").tolist()
    starts = np.append(0, np.searchsorted(p, edges[first:end]))
    cell = first + np.flatnonzero(np.diff(np.append(starts, p.size)))
    starts = starts[cell - first]
    ends = np.append(starts[1:], p.size)
    if entries.squares is not None:  # counts
        weight, positives = (np.add.reduceat(column, starts)[:, None] for column in (w, k))
    else:
        weight, positives = (_expansions(column, starts, ends) for column in (w, k))
    return SpreadState(cell, p[starts], p[ends - 1], weight, positives)


def _expansions(column: Array, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Array:
    found = [expansion_of(column[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    out = np.zeros((len(found), max(own.size for own in found)))
    for row, own in zip(out, found, strict=True):
        row[: own.size] = own
    return out


def join_spread(states: list[SpreadState]) -> Spread:
    """The cells of all parts."""
    if len(states) == 1 and states[0].weight.shape[1] == states[0].positives.shape[1] == 1:
        [(_, low, high, weight, positives)] = states
        return Spread(low + (high - low) / 2, weight[:, 0], np.minimum(positives[:, 0], weight[:, 0]))
    cell = np.concatenate([state.cell for state in states])
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
    low, high = (np.concatenate([state[i] for state in states])[order] for i in (1, 2))
    low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    sums = []
    for i in (3, 4):
        width = max(state[i].shape[1] for state in states)
        rows = np.concatenate(
            [np.pad(state[i], ((0, 0), (0, width - state[i].shape[1]))) for state in states]
        )
        rows = rows[order]
        if width == 1:
            sums.append(np.add.reduceat(rows[:, 0], starts))
        else:
            parts = np.split(rows, starts[1:])
            sums.append(np.array([exact_sum(part.reshape(-1)) for part in parts]))
    return Spread(low + (high - low) / 2, sums[0], np.minimum(sums[1], sums[0]))


@dataclass(frozen=True)
class Agreement:
    """How predictions agree with what happened; None where a number does not exist: `reasons` says why.

    Attributes
    ----------
    intercept, slope, intercept_error, slope_error : float
        Cox's: of logit P = intercept + slope * logit p, by maximum likelihood, and standard errors from the
        information. 0 and 1 if every probability is right; predictions of 0 and 1 are left out. A slope below 1:
        predictions are too extreme. Weights count rows.
    ici, e50, e90 : float in [0, 1]
        Mean, median and 90 % point of the distance between predictions and their isotonic recalibration. Chance
        inflates them, as it does `Decomposition.miscalibration`.
    smooth_ece : float in [0, 1]
        Smooth calibration error: the residuals smoothed by a Gaussian as wide as the error is large. It says little
        where positives are rare.

    References
    ----------
    Cox (1958), "Two further applications of a model for binary regression", Biometrika 45, 562-565.
    Austin & Steyerberg (2019), "The Integrated Calibration Index (ICI) and related metrics", Statistics in Medicine 38,
    4051-4065, doi:10.1002/sim.8281.
    Blasiok & Nakkiran (2024), "Smooth ECE: principled reliability diagrams via kernel smoothing", ICLR.
    """

    intercept: float | None = None
    slope: float | None = None
    intercept_error: float | None = None
    slope_error: float | None = None
    ici: float | None = None
    e50: float | None = None
    e90: float | None = None
    smooth_ece: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def interval(self, name: str) -> tuple[float, float] | None:
        """The 95 % interval of `intercept` or `slope`."""
        value, error = getattr(self, name), getattr(self, f"{name}_error")
        return None if value is None else (value - Z_95 * error, value + Z_95 * error)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def agreement(spread: Spread, rate: float = 1.0) -> Agreement:
    """The numbers from the cells.

    rate : see `calibrators.arithmetic.sampling`: of a sampled log Cox's line is taken of the rows that there are,
    at odds divided
        by it, and the rest is left out.
    """
    reasons: dict[str, str] = {}
    values: dict[str, Any] = {}
    found = cox(spread, rate)
    if found is None:
        reasons["slope"] = (
            "not defined, because it needs two different probabilities between 0 and 1, and labels that no line parts"
        )
    else:
        (values["intercept"], values["slope"]), errors = found
        values["intercept_error"], values["slope_error"] = errors
    if rate == 1.0:
        values |= dict(zip(("ici", "e50", "e90"), distances(spread), strict=True))
        values["smooth_ece"] = smooth_ece(spread)
    else:
        reasons |= dict.fromkeys(("ici", "smooth_ece"), "not taken of a log of sampled rows")
    return Agreement(**values, reasons=reasons)


def cox(spread: Spread, rate: float = 1.0) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Intercept and slope of labels on the log-odds of predictions, and their standard errors; None without them."""
    inner = (spread.p > 0) & (spread.p < 1)
    p, w, k = (column[inner] for column in spread)
    intercept, slope, *errors = line(p, w, k, math.log(rate))
    return None if math.isnan(slope) else ((intercept, slope), (errors[0], errors[1]))


def distances(spread: Spread) -> tuple[float, float, float]:
    """Mean, median and 90 % point of |p - c|, c the isotonic regression of the labels on the predictions."""
    apart = _apart(spread)
    order = np.argsort(apart, kind="stable")
    through = np.cumsum(spread.weight[order])
    points = apart[order][np.searchsorted(through, np.array([0.5, 0.9]) * through[-1])]
    return _mean(spread.weight, apart), float(points[0]), float(points[1])


def mean_distance(spread: Spread) -> float:
    """The first of `distances` alone."""
    return _mean(spread.weight, _apart(spread))


def _mean(weight: Array, values: Array) -> float:
    return math.fsum((weight * values).tolist()) / math.fsum(weight.tolist())


def _apart(spread: Spread) -> Array:
    none = np.zeros(spread.p.size)
    blocks = pava.pool(spread.p, spread.p, spread.weight, none, spread.positives, none)
    level = np.minimum(blocks[4] / blocks[2], 1.0)
    apart: Array = np.abs(spread.p - level[np.searchsorted(blocks[0], spread.p, side="right") - 1])
    return apart


def smooth_ece(spread: Spread) -> float:
    """The smooth calibration error: residuals on 2,001 cells, a Gaussian reflected at 0 and 1, as wide as it is."""
    at = np.rint(spread.p * _SMOOTH_CELLS).astype(np.int64)
    residual = np.bincount(at, spread.positives - spread.weight * spread.p, _SMOOTH_CELLS + 1)
    residual = residual / spread.weight.sum()
    # Reflected at both ends: a period of twice the interval.
    around = np.concatenate([residual, residual[-2:0:-1]])
    spectrum = np.fft.rfft(around)
    frequency = 2.0 * np.pi * np.arange(spectrum.size) / 2.0

    def error(width: float) -> float:
        smoothed = np.fft.irfft(spectrum * np.exp(-0.5 * (width * frequency) ** 2), around.size)
        inside = np.abs(smoothed[: _SMOOTH_CELLS + 1])
        # A residual at an end has no image, and counts whole.
        return float(inside[1:-1].sum() + inside[0] / 2 + inside[-1] / 2)

    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return high
