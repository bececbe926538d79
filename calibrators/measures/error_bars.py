"""Error bars of what is measured of predictions: observed over expected, tests of calibration, the AUC's error.

Computed from exact sums over the parts of a score table, in one pass, so that no number depends on how the rows were
cut into parts, or on whether repeated rows were added up.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrators._kernels import error_sums as kernels
from calibrators._kernels.accumulators import merge
from calibrators.arithmetic.exact_totals import Entries, Predict, entries_of, exact
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points
from calibrators.arithmetic.sampling import odds_divided
from calibrators.measures.assessment import Z_95, wilson_interval
from calibrators.measures.decomposition import CorpState, corp_of_entries, join_corp
from calibrators.measures.spread import Spread, SpreadState, join_spread, spread_of_entries

_SLICES = 4  # predictions that are 0, below 1/2, from 1/2, and 1
_SUMS = 11
_PLACES = 6


@dataclass(frozen=True)
class ErrorBars:
    """What chance alone would do to measures of predictions; None where a number does not exist: `reasons` says why.

    Weights count rows: one of 2 is the row twice.

    Attributes
    ----------
    observed, expected : float >= 0
        Positives, O, and the sum of the probabilities, E.
    ratio, ratio_low, ratio_high : float >= 0
        O / E, and its 95 % interval: Wilson's of O / N over E / N, with N the rows.
    ratio_z : float
        (O - E) / sqrt(V), V the sum of p (1 - p): standard normal if every probability is right.
    spiegelhalter_z : float
        Spiegelhalter's statistic: standard normal if every probability is right.
    score_test, score_test_p : float
        Of logit P = a + b logit p, the score test of (a, b) = (0, 1), chi-square with 2 degrees of freedom, and its
        p-value. Rows with p of 0 or 1 are left out.
    left_out : float >= 0
        Those rows.
    auc, auc_error, auc_low, auc_high : float
        Area under the ROC curve, DeLong's standard error, and 1.96 errors to either side, within [0, 1].

    References
    ----------
    Cox (1958), "Two further applications of a model for binary regression", Biometrika 45, 562-565.
    Spiegelhalter (1986), "Probabilistic prediction in patient management and clinical trials", Statistics in Medicine
    5, 421-433, doi:10.1002/sim.4780050506.
    DeLong, DeLong & Clarke-Pearson (1988), "Comparing the areas under two or more correlated receiver operating
    characteristic curves", Biometrics 44, 837-845, doi:10.2307/2531595.
    """

    observed: float
    expected: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_z: float | None = None
    spiegelhalter_z: float | None = None
    score_test: float | None = None
    score_test_p: float | None = None
    left_out: float | None = None
    auc: float | None = None
    auc_error: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: finite numbers, strings and None."""
        return asdict(self)


def error_bar_passes(
    predict: Predict | None = None, *, scale: float = 1.0, rate: float = 1.0
) -> Generator[Pass, Any, ErrorBars]:
    """Yield the one pass over a score table that `ErrorBars` need, receive its result, return them.

    Parameters
    ----------
    predict : callable, optional
        Applied to the scores first; must not decrease with the score. None: the scores are the predictions; if any
        lies outside [0, 1], only the AUC and its error are taken.
    scale : float > 0
        Each weight counts so many rows.
    rate : float > 0
        The share of negatives that the log holds over that of positives: tests count the rows that there are, so that
        probabilities of all rows are compared with them at odds divided by it.

    Raises
    ------
    ValueError
        From the pass, if predict decreases.

    Notes
    -----
    O(m). Exact up to one rounding of each sum where weights are whole numbers or span fewer than some eight decades.
    State: some 50 sums a part.
    """
    totals = yield Pass(partial(bar_chunk, predict, rate), add_bars)
    return error_bars_of(totals, scale)


def assurance_passes(
    predict: Predict | None = None, *, rate: float = 1.0, tests: bool = True
) -> Generator[Pass, Any, tuple[ErrorBars, tuple[Blocks, Array] | None, Spread | None]]:
    """The same in one pass with what `calibrators.measures.decomposition.decompose` takes, and the cells of
    `calibrators.measures.spread`; None for scores.

    The decomposition takes the log as it is, whatever `rate`. Without `tests` Spiegelhalter's and the score test are
    left out, which halves the time.
    """
    bars, corp, spread = yield Pass(partial(_assured_chunk, predict, rate, tests), _assured)
    if not tests and bars.expected is not None:
        none = dict.fromkeys(("spiegelhalter_z", "score_test", "score_test_p", "left_out"))
        why = dict.fromkeys(("spiegelhalter_z", "score_test"), "not taken of predictions before calibration")
        bars = replace(bars, **none, reasons={**bars.reasons, **why})
    return bars, corp, spread


def _assured_chunk(
    predict: Predict | None, rate: float, tests: bool, points: Points
) -> tuple[BarState, tuple[CorpState, SpreadState] | None]:
    entries = entries_of(predict, points)
    bars = bars_of_entries(entries, rate, tests=tests)
    if entries.p[0] < 0 or entries.p[-1] > 1:
        return bars, None
    return bars, (corp_of_entries(entries), spread_of_entries(entries))


def _assured(
    states: list[tuple[BarState, tuple[CorpState, SpreadState] | None]],
) -> tuple[ErrorBars, tuple[Blocks, Array] | None, Spread | None]:
    bars = error_bars_of(add_bars([state for state, _ in states]))
    found = [own for _, own in states if own is not None]
    if len(found) < len(states):
        return bars, None, None
    return bars, join_corp([corp for corp, _ in found]), join_spread([spread for _, spread in found])


class BarState(NamedTuple):
    """What the pass keeps of a part; sums as expansions, padded with zeros.

    low, high : the first and the last prediction. low_tie, high_tie : (2, components), weight and positives of the
    points tied with them; the latter empty where there is one prediction only. sums : (slices, sums, components), empty
    where a prediction is no probability. places : (6, components) of the points between the two ties.
    """

    low: float
    high: float
    low_tie: Array
    high_tie: Array
    sums: Array
    places: Array


class Placements(NamedTuple):
    """See `_kernels.error_sums.placement_sums`."""

    hits: Fraction = Fraction(0)
    hit_places: Fraction = Fraction(0)
    hit_squares: Fraction = Fraction(0)
    misses: Fraction = Fraction(0)
    miss_places: Fraction = Fraction(0)
    miss_squares: Fraction = Fraction(0)

    def above(self, below: Placements) -> Placements:
        """What comes of both, the others standing above the ones below."""
        hits = _moved(self[:3], 2 * below.misses)
        misses = _moved(self[3:], 2 * below.hits)
        return Placements(*(a + b for a, b in zip(below, (*hits, *misses), strict=True)))


def _moved(sums: tuple[Fraction, ...], by: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    weight, places, squares = sums
    return weight, places + by * weight, squares + 2 * by * places + by * by * weight


class BarTotals(NamedTuple):
    """Sums over all parts: of the slices (None for scores that are no probabilities), and of the ranking."""

    slices: list[list[Fraction]] | None
    places: Placements


def bar_chunk(predict: Predict | None, rate: float, points: Points) -> BarState:
    """The pass on a part."""
    return bars_of_entries(entries_of(predict, points), rate)


def bars_of_entries(entries: Entries, rate: float = 1.0, *, tests: bool = True) -> BarState:
    """The pass on a part whose predictions are known; tests: with the sums that tests take."""
    p, w, k = entries[:3]
    counts = entries.squares is not None
    start, stop = int(np.searchsorted(p, p[0], side="right")), int(np.searchsorted(p, p[-1]))
    places = kernels.placements_of_counts if counts else kernels.placement_sums
    sums = np.empty((0, 0, 0))
    if p[0] >= 0 and p[-1] <= 1:
        sums = (
            _slices(p, w, k, counts, tests)
            if rate == 1.0
            else _slices(*_with_odds(p, w, k, 1 / rate), counts, tests)
        )
    return BarState(
        low=float(p[0]),
        high=float(p[-1]),
        low_tie=entries.of(slice(start)).sums(np.empty(0), products=False)[0, :2],
        high_tie=entries.of(slice(stop, None)).sums(np.empty(0), products=False)[0, :2]
        if stop > 0
        else np.empty((2, 0)),
        sums=sums,
        places=places(p[start:stop], w[start:stop], k[start:stop]),
    )


def _with_odds(p: Array, w: Array, k: Array, rate: float) -> tuple[Array, Array, Array]:
    """Points with other odds, ascending: rounding may put neighbours out of order."""
    q = odds_divided(p, rate)
    order = np.argsort(q, kind="stable")
    return q[order], w[order], k[order]


def _slices(p: Array, w: Array, k: Array, counts: bool, tests: bool) -> Array:
    bounds = [0, *np.searchsorted(p, [np.nextafter(0.0, 1.0), 0.5, 1.0]).tolist(), p.size]
    found = [kernels.calibration_sums(p[a:b], w[a:b], k[a:b], counts, tests) for a, b in pairwise(bounds)]
    out = np.zeros((_SLICES, _SUMS, max(sums.shape[1] for sums in found)))
    for j, sums in enumerate(found):
        out[j, :, : sums.shape[1]] = sums
    return out


def add_bars(states: list[BarState]) -> BarTotals:
    """The totals of parts in ascending order of their predictions."""
    places = Placements()
    tie, tied = Placements(), -math.inf
    for state in states:
        if state.low < tied:
            raise ValueError("expected predictions that do not decrease from part to part")
        low = _tie(state.low_tie)
        if state.low == tied:
            tie = _same_place(tie, low)
        else:
            places, tie, tied = tie.above(places), low, state.low
        if state.high_tie.size:
            places = Placements(*(exact(row) for row in state.places)).above(tie.above(places))
            tie, tied = _tie(state.high_tie), state.high
    places = tie.above(places)
    if any(state.sums.size == 0 for state in states):
        return BarTotals(None, places)
    rows = merge(np.concatenate([state.sums.reshape(_SLICES * _SUMS, -1) for state in states], axis=1))
    sums = [exact(row) for row in rows]
    return BarTotals([sums[_SUMS * j : _SUMS * (j + 1)] for j in range(_SLICES)], places)


def _tie(sums: Array) -> Placements:
    weight, hits = exact(sums[0]), exact(sums[1])
    return _tie_of(hits, weight - hits)


def _tie_of(hits: Fraction, misses: Fraction) -> Placements:
    return Placements(hits, hits * misses, hits * misses**2, misses, misses * hits, misses * hits**2)


def _same_place(one: Placements, other: Placements) -> Placements:
    return _tie_of(one.hits + other.hits, one.misses + other.misses)


def error_bars_of(totals: BarTotals, scale: float = 1.0) -> ErrorBars:
    """The numbers from the sums."""
    size = Fraction(scale)
    reasons: dict[str, str] = {}
    values: dict[str, float | None] = {"observed": float(totals.places.hits * size)}
    values |= _auc(totals.places, size, reasons)
    if totals.slices is None:
        why = "not taken, because the scores are not probabilities"
        names = ("expected", "ratio", "ratio_z", "spiegelhalter_z", "score_test")
        reasons |= dict.fromkeys(names, why)
        return ErrorBars(**values, reasons=reasons)  # type: ignore[arg-type]
    values |= _in_the_large(totals.slices, size, reasons)
    values |= _tests(totals.slices, size, reasons)
    return ErrorBars(**values, reasons=reasons)  # type: ignore[arg-type]


def _auc(places: Placements, size: Fraction, reasons: dict[str, str]) -> dict[str, float | None]:
    hits, misses = places.hits, places.misses
    if hits == 0 or misses == 0:
        reasons["auc"] = f"not defined, because all rows have label {0 if hits == 0 else 1}"
        return {}
    auc = places.hit_places / (2 * hits * misses)
    found: dict[str, float | None] = {"auc": float(auc)}
    if hits * size <= 1 or misses * size <= 1:
        reasons["auc_error"] = "not defined, because one of the labels has one row only"
        return found
    spread = places.hit_squares / (4 * misses**2) - hits * auc**2
    spread_misses = places.miss_squares / (4 * hits**2) - misses * (1 - auc) ** 2
    variance = spread / (hits * (hits * size - 1)) + spread_misses / (misses * (misses * size - 1))
    error = math.sqrt(variance)
    low, high = max(0.0, float(auc) - Z_95 * error), min(1.0, float(auc) + Z_95 * error)
    return found | {"auc_error": error, "auc_low": low, "auc_high": high}


def _in_the_large(
    slices: list[list[Fraction]], size: Fraction, reasons: dict[str, str]
) -> dict[str, float | None]:
    weight, observed, expected, variance = (sum(s[j] for s in slices) * size for j in range(4))
    found: dict[str, float | None] = {"expected": float(expected)}
    if expected > 0:
        low, high = wilson_interval(float(observed / weight), float(weight))
        mean = float(expected / weight)
        found |= {"ratio": float(observed / expected), "ratio_low": low / mean, "ratio_high": high / mean}
    else:
        reasons["ratio"] = "not defined, because every probability is 0"
    if variance > 0:
        found["ratio_z"] = float(observed - expected) / math.sqrt(variance)
    else:
        reasons["ratio_z"] = "not defined, because every probability is 0 or 1"
    return found


def _tests(slices: list[list[Fraction]], size: Fraction, reasons: dict[str, str]) -> dict[str, float | None]:
    zero, low, high, one = slices
    found: dict[str, float | None] = {"left_out": float((zero[0] + one[0]) * size)}
    signed = sum(s[4] - s[5] for s in (zero, low)) - sum(s[4] - s[5] for s in (high, one))
    variance = low[6] + high[6]
    if variance > 0:
        found["spiegelhalter_z"] = float(signed * size) / math.sqrt(variance * size)
    else:
        reasons["spiegelhalter_z"] = "not defined, because every probability is 0, 1/2 or 1"
    u = (low[1] - low[2] + high[1] - high[2], (high[7] - high[8]) - (low[7] - low[8]))
    a, b, c = low[3] + high[3], high[9] - low[9], low[10] + high[10]
    determinant = a * c - b * b
    # Two distinct probabilities that rounding has not made one.
    if a > 0 and float(determinant) > 1e-12 * float(a * c):
        test = (u[0] ** 2 * c - 2 * u[0] * u[1] * b + u[1] ** 2 * a) / determinant * size
        found |= {"score_test": float(test), "score_test_p": math.exp(-float(test) / 2)}
    else:
        reasons["score_test"] = "not defined, because it needs two different probabilities between 0 and 1"
    return found
