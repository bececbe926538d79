"""Check of a fitted map against the observations that it was fitted to, by ranges of scores.

A map that is right for its observations expects as many positives in each range of scores as were observed, or as
isotonic regression of the same observations expects, up to chance: no rising map can follow a rate that falls. So a
range counts against a map by the smaller of these two differences, if they have one sign.

The ranges are all unions of neighbouring 64ths of the observations by information (the sum of w p (1 - p)), and single
128ths, ..., 1024ths and heavy ties. The limits are those of so many tests of normal numbers (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.fine_cells import FineCells
from calibrators.core.kernels.likelihood import isotonic_fit
from calibrators.core.map import CalibrationMap
from calibrators.core.sampling import odds_divided
from calibrators.measures import dispersion as over_dispersion

ERROR_RATE = 5e-4
"""Largest probability that any range of a right map is reported."""

LEAST_DIFFERENCE = 0.05
"""Least difference in log-odds that is reported."""

_PARTS, _FINEST = 64, 1024
_LEAST_INFORMATION = 10.0
"""Least information of a range narrower than the 64ths."""

_MOST_MISFITS, _PROFILE = 5, 32


class CheckCells(NamedTuple):
    """Neighbouring cells of observations, ascending, with a map's expected positives; float64 arrays, shape (cells,).

    first, last : first and last score of each cell
    weight, positives, expected : sums over its observations, as they are in the log
    """

    first: Array
    last: Array
    weight: Array
    positives: Array
    expected: Array


class Misfit(NamedTuple):
    """Range of scores in which a map and its observations differ.

    first, last : first and last score
    weight, positives : sums over the observations
    expected, possible : positives that the map and isotonic regression expect
    difference : log-odds of the map's mean minus those of the nearer of observed and possible mean
    root : signed root of the deviance, a number of standard errors: negative if the map expects too many positives
    limit : significant if the root is beyond it
    """

    first: float
    last: float
    weight: float
    positives: float
    expected: float
    possible: float
    difference: float
    root: float
    limit: float

    @property
    def excess(self) -> float:
        """Root over limit."""
        return abs(self.root) / self.limit

    @property
    def significant(self) -> bool:
        """True if chance does not explain the difference."""
        return self.excess > 1


class FitCheck(NamedTuple):
    """Result of the check of a map.

    tests : number of ranges
    dispersion : variance of the observations over that of independent labels; from 1 to 10
    largest : the range with the largest excess among those that differ by more than `LEAST_DIFFERENCE`
    misfits : significant ranges without overlap, largest first, at most 5
    profile : 32nds of the observations by information: first and last score, weight, positives, expected, possible
    over_dispersion : the dispersion that chance does not explain, see `dispersion.proven`; of a map constant in its
        cells it is 1
    """

    tests: int
    dispersion: float
    largest: Misfit | None
    misfits: tuple[Misfit, ...]
    profile: Array
    over_dispersion: float = 1.0

    def facts(self) -> dict[str, Any]:
        """Return a dict for JSON; scores beyond all observations are None."""
        return {
            "tests": self.tests,
            "dispersion": round(self.dispersion, 12),
            "largest": None if self.largest is None else misfit_facts(self.largest),
            "misfits": [misfit_facts(misfit) for misfit in self.misfits],
            "profile": {
                _NAMES.get(name, name): [_number(name, x) for x in column]
                for name, column in zip(_COLUMNS, self.profile, strict=True)
            },
        }


_COLUMNS = ("first", "last", "weight", "positives", "expected", "possible")
_NAMES = {"first": "first_score", "last": "last_score", "possible": "isotonic", "root": "deviance_residual"}


def misfit_facts(misfit: Misfit) -> dict[str, Any]:
    """Return a dict for JSON."""
    return {_NAMES.get(name, name): _number(name, value) for name, value in misfit._asdict().items()}


def _number(name: str, value: float) -> float | None:
    """Round to 12 significant digits what is not a score."""
    if not math.isfinite(value):
        return None
    return float(value) if name in ("first", "last") else float(f"{value:.12g}")


def cells_of_rows(fitted: CalibrationMap, rate: float = 1.0) -> CheckCells:
    """Return a map's rows with observations as cells; within each the map must be constant or nearly so.

    rate : sampling rate of the log, see `calibrators.base.Sampling`; cells have the observations of the log
    """
    rows = fitted.weight > 0
    low, high = (column[rows] for column in fitted.ends())
    last = np.nextafter(fitted.score_hi[rows], -np.inf)
    weight = fitted.weight[rows]
    return CheckCells(
        fitted.score_lo[rows], last, weight, fitted.positives[rows], weight * _in_log((low + high) / 2, rate)
    )


def cells_of_scores(fine: FineCells, predict: Callable[[Array], Array], rate: float = 1.0) -> CheckCells:
    """Return cells with the positives that a map expects: within a cell, by the mean of its values at both ends.

    predict : the map, for ascending scores
    rate : see `cells_of_rows`
    """
    level = _in_log((predict(fine.first) + predict(fine.last)) / 2, rate)
    return CheckCells(*fine, fine.weight * level)


def _in_log(probability: Array, rate: float) -> Array:
    return probability if rate == 1.0 else np.asarray(odds_divided(probability, 1.0 / rate))


def check_fit(cells: CheckCells, ends: float = 1.0, heaviest: float = 1.0) -> FitCheck:
    """Check a map. O(cells).

    ends : positives and negatives that isotonic regression adds below and above all scores, see `Isotonic`
    heaviest : see `calibrators.base.Sampling`
    """
    weight = cells.weight
    observed = np.concatenate([[1.0], cells.positives / weight, [0.0]])
    level = isotonic_fit(observed, np.concatenate([[ends], weight, [ends]]))[1:-1] if ends > 0 else None
    level = np.asarray(isotonic_fit(observed[1:-1], weight)) if level is None else np.asarray(level)
    information = weight * level * (1 - level)
    columns = (weight, cells.positives, cells.expected, weight * level)
    sums = np.stack([np.append(0.0, np.cumsum(column)) for column in columns])
    dispersion, proven = _dispersion(cells, sums, information)
    families = [_unions(information), _narrow(information)]
    total = np.append(0.0, np.cumsum(information))
    found = [_compare(sums, *family, dispersion, total, heaviest) for family in families if family[0].size]
    start, stop, difference, root, limit = (np.concatenate(x) for x in zip(*found, strict=True))
    excess = np.where(np.abs(difference) > LEAST_DIFFERENCE, np.abs(root) / limit, 0.0)

    def misfit(i: int) -> Misfit:
        w, k, e, possible = (sums[:, stop[i]] - sums[:, start[i]]).tolist()
        first, last = float(cells.first[start[i]]), float(cells.last[stop[i] - 1])
        return Misfit(first, last, w, k, e, possible, float(difference[i]), float(root[i]), float(limit[i]))

    largest = int(np.argmax(excess))
    misfits = tuple(misfit(i) for i in _disjoint(start, stop, excess))
    return FitCheck(
        start.size,
        dispersion,
        misfit(largest) if excess[largest] > 0 else None,
        misfits,
        _profile(cells, sums, information),
        proven,
    )


def roots(weight: Array, observed: Array, expected: Array) -> Array:
    """Compute signed roots of the binomial deviance; observed and expected numbers of positives need not be whole."""
    k = np.clip(observed, 0.0, weight)
    # The deviance is finite with any weights.
    e = np.clip(expected, 1e-300 * np.maximum(weight, 1.0), weight * (1 - 2.0**-53))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(k > 0, k * np.log(k / e), 0.0)
        gain += np.where(k < weight, (weight - k) * np.log((weight - k) / (weight - e)), 0.0)
    return np.asarray(np.sign(k - e) * np.sqrt(2 * np.maximum(gain, 0.0)))


def smaller(weight: Array, positives: Array, expected: Array, possible: Array) -> tuple[Array, Array]:
    """Compare expected positives with observed and with possible ones.

    Returns
    -------
    difference of the log-odds, and signed root of the deviance: each the smaller of both, 0 if their signs differ
    """
    of_observed, of_possible = roots(weight, positives, expected), roots(weight, possible, expected)
    root = np.where(np.abs(of_observed) <= np.abs(of_possible), of_observed, of_possible)
    root = np.where(of_observed * of_possible > 0, root, 0.0)
    odds, observed, pooled = (
        np.log(np.maximum(x, 0.5) / np.maximum(weight - x, 0.5)) for x in (expected, positives, possible)
    )
    nearer = np.where(np.abs(odds - observed) <= np.abs(odds - pooled), observed, pooled)
    return odds - nearer, root


def normal_limit(tests: float, rate: float = ERROR_RATE) -> float:
    """Compute the two-sided limit that any of so many normal numbers exceeds with at most this probability."""
    return -NormalDist().inv_cdf(rate / 2 / max(tests, 1.0))


def edges(information: Array, parts: int) -> Integers:
    """Divide cells into at most so many parts of nearly equal information; return the ends of the parts."""
    if not information.sum() > 0:
        return np.array([0, information.size])
    share = np.cumsum(information)
    share = (share - information / 2) / share[-1]
    ends = np.searchsorted(share, np.arange(1, parts) / parts)
    return np.unique(np.concatenate([[0], ends, [information.size]]))


def _unions(information: Array) -> tuple[Integers, Integers]:
    ends = edges(information, _PARTS)
    i, j = np.triu_indices(ends.size, 1)
    return ends[i], ends[j]


def _narrow(information: Array) -> tuple[Integers, Integers]:
    """Return the ranges that are narrower than the 64ths and have enough information."""
    parts, found = 2 * _PARTS, [np.empty((0, 2), np.int64)]
    while parts <= _FINEST:
        ends = edges(information, parts)
        found.append(np.column_stack([ends[:-1], ends[1:]]))
        parts *= 2
    ties = np.flatnonzero(information >= information.sum() / _FINEST)
    spans = np.unique(np.concatenate([*found, np.column_stack([ties, ties + 1])]), axis=0)
    inside = np.append(0.0, np.cumsum(information))
    enough = inside[spans[:, 1]] - inside[spans[:, 0]] >= _LEAST_INFORMATION
    return spans[enough, 0], spans[enough, 1]


def _compare(
    sums: Array, start: Integers, stop: Integers, dispersion: float, information: Array, heaviest: float
) -> tuple[Any, ...]:
    """Compare ranges; `information` is cumulative."""
    difference, root = smaller(*(sums[:, stop] - sums[:, start]))
    root = tempered(root, information[stop] - information[start], dispersion, heaviest)
    limit = normal_limit(start.size, ERROR_RATE / 2)
    return start, stop, difference, root, np.full(start.size, limit)


def tempered(root: Array, information: Array, dispersion: float, heaviest: float) -> Array:
    """Reduce roots for over-dispersion, and for single rows of large weight.

    A row of weight h adds a heavy tail: Bernstein's inequality has 2 (V + h t / 3) in place of 2 V.
    """
    root = root / math.sqrt(dispersion)
    deviation = np.sqrt(np.maximum(information * dispersion, 1e-300))
    return np.asarray(root / np.sqrt(1 + max(0.0, heaviest - 1) * np.abs(root) / (3 * deviation)))


def _disjoint(start: Integers, stop: Integers, excess: Array) -> list[int]:
    """Select significant ranges without overlap, by excess."""
    chosen: list[int] = []
    for i in np.argsort(-excess, kind="stable").tolist():
        if excess[i] <= 1 or len(chosen) == _MOST_MISFITS:
            break
        if all(stop[i] <= start[j] or stop[j] <= start[i] for j in chosen):
            chosen.append(i)
    return chosen


def _dispersion(cells: CheckCells, sums: Array, information: Array) -> tuple[float, float]:
    """Estimate the over-dispersion, and the one that chance does not explain."""
    groups = min(over_dispersion.MOST_GROUPS, int(information.sum() / over_dispersion.GROUP_INFORMATION))
    ends = edges(information, groups) if groups >= over_dispersion.FEWEST_GROUPS else np.empty(0, np.int64)
    number, by_groups = ends.size - 1, 1.0
    if number >= over_dispersion.FEWEST_GROUPS:
        by_groups = over_dispersion.of_groups(np.diff(sums[:, ends]))
    # Fine cells end at sampled observations, half of which are positive: only many together are unbiased.
    points = bool((cells.first == cells.last).all())
    parts = max(1, min(over_dispersion.MOST_PARTS, int(information.sum() / over_dispersion.PART_INFORMATION)))
    ends = np.arange(information.size + 1) if points else edges(information, parts)
    proven = over_dispersion.proven(np.diff(sums[:, ends]), number, by_groups)
    return over_dispersion.combined(by_groups, number, proven), proven


def _profile(cells: CheckCells, sums: Array, information: Array) -> Array:
    ends = edges(information, _PROFILE)
    return np.stack([cells.first[ends[:-1]], cells.last[ends[1:] - 1], *np.diff(sums[:, ends])])
