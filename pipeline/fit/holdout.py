"""Rows held out of a fit, and what predictions are worth on them: exact, from score tables, without another sort.

A share of the rows is drawn from the score table: of m rows with one score and one label floor(share * m + u) are held
out, u in [0, 1) being a hash of score and label. So the draw depends on what the rows are, not on where they lie; ties
of any weight are divided evenly; and of any part of the rows those that are held out are held out of the whole, too. A
weight of 2 is the row twice; where weights are no whole numbers, all rows of a score and label go one way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.calibration_map import CalibrationMap
from calibrators.comparison import Comparison, comparison_passes
from calibrators.error_bars import ErrorBars, error_bar_passes
from calibrators.measures import run_passes
from calibrators.passes import Array, Pass, Points

Run = Callable[[Pass], Any]
"""Carries out a pass over the parts of a score table."""

_LABELS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass(frozen=True)
class Split:
    """A share of the rows, in (0, 1), against the others."""

    share: float

    def held(self, points: Points) -> Points:
        """The points of the rows that are held out; none of them if there are none."""
        negatives, positives = self._held(points)
        return _some(points.score, negatives + positives, positives)

    def kept(self, points: Points) -> Points:
        """The points of the others."""
        negatives, positives = self._held(points)
        return _some(points.score, points.weight - (negatives + positives), points.positives - positives)

    def _held(self, points: Points) -> tuple[Array, Array]:
        score, weight, positives = points
        whole = (weight == np.floor(weight)) & (positives == np.floor(positives))
        draws = []
        for label, rows in enumerate((weight - positives, positives)):
            u = _uniform(score, _LABELS[label])
            counted = np.minimum(np.floor(rows * self.share + u), rows)
            draws.append(np.where(whole, counted, np.where(u >= 1 - self.share, rows, 0.0)))
        return draws[0], draws[1]

    def running(self, run: Run, *, held: bool) -> Run:
        """Carry passes out over the rows that are held out, or over the others."""
        return partial(_run, self.held if held else self.kept, run)


def _some(score: Array, weight: Array, positives: Array) -> Points:
    there = weight > 0
    return Points(score[there], weight[there], np.minimum(positives, weight)[there])


def _uniform(score: Array, label: np.uint64) -> Array:
    """Numbers in [0, 1) that look random and are always the same: the finaliser of SplitMix64."""
    bits: npt.NDArray[np.uint64] = (score + 0.0).view(np.uint64) + label  # -0.0 is 0.0
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _run(choose: Callable[[Points], Points], run: Run, request: Pass) -> Any:
    # Where parts begin, and how many rows lie below, is not what it was: all parts are read, and none is placed.
    chunk = partial(_chunk, choose, request.chunk)
    return run(Pass(chunk, partial(_combine, request.combine)))


def _chunk(choose: Callable[[Points], Points], chunk: Callable[[Points], Any], points: Points) -> Any:
    chosen = choose(points)
    return chunk(chosen) if chosen.score.size else None


def _combine(combine: Callable[[list[Any]], Any], states: list[Any]) -> Any:
    return combine([state for state in states if state is not None])


@dataclass(frozen=True)
class Rows:
    """How many rows there are: their weight, and that of those with label 1."""

    weight: float
    positives: float

    @property
    def rarer(self) -> float:
        """Of the rarer label."""
        return min(self.positives, self.weight - self.positives)


@dataclass(frozen=True)
class HeldOut:
    """What a map is worth on rows that it was not fitted to.

    Attributes
    ----------
    rows : that it was measured on. bars : of its probabilities. loss : its mean log loss.
    against : the current map and it, on those rows that neither was fitted to; None: not compared.
    fresh : the rows of that comparison. raw : the scores and it, where scores are probabilities.
    current : whether there is a current map.
    """

    rows: Rows
    bars: ErrorBars | None = None
    loss: float | None = None
    against: Comparison | None = None
    fresh: Rows = Rows(0.0, 0.0)
    raw: Comparison | None = None
    current: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": self.rows.weight,
            "rows_positive": self.rows.positives,
            "log_loss": self.loss if self.loss is not None and np.isfinite(self.loss) else None,
            "observed_to_expected": None if self.bars is None else self.bars.ratio,
            "auc": None if self.bars is None else self.bars.auc,
            "auc_error": None if self.bars is None else self.bars.auc_error,
            "rows_compared": self.fresh.weight,
            "against_current": None if self.against is None else self.against.as_dict(),
            "against_raw": None if self.raw is None else self.raw.as_dict(),
        }


def measure_held_out(
    new: CalibrationMap,
    run: Run,
    *,
    current: CalibrationMap | None = None,
    run_fresh: Run | None = None,
    probabilities: bool = False,
    sampling_rate: float = 1.0,
) -> HeldOut:
    """Measure a map on held-out rows.

    Parameters
    ----------
    new : the map
    run : carries passes out over the rows that it was not fitted to
    current, run_fresh : another map, and passes over those of the rows that it was not fitted to either
    probabilities : whether the scores are probabilities
    sampling_rate : share of the rows with label 0 that the log has; the maps are those of all rows

    Notes
    -----
    Three passes at most.
    """
    rows = count(run)
    if rows.rarer == 0:
        return HeldOut(rows, current=current is not None)
    predict = _of_sample(new, sampling_rate)
    bars = run_passes(error_bar_passes(predict), run) if new.monotone else None
    same = run_passes(comparison_passes(predict, predict), run)
    found = HeldOut(rows, bars, same.log_loss.new, current=current is not None)
    if probabilities:
        found = replace(found, raw=run_passes(comparison_passes(None, predict), run))
    if current is None or run_fresh is None:
        return found
    fresh = count(run_fresh)
    if fresh.rarer == 0:
        return replace(found, fresh=fresh)
    passes = comparison_passes(_of_sample(current, sampling_rate), predict)
    return replace(found, fresh=fresh, against=run_passes(passes, run_fresh))


def count(run: Run) -> Rows:
    """How many rows passes are carried out over."""
    weight, positives = run(Pass(_count, _add))
    return Rows(weight, positives)


def _count(points: Points) -> tuple[float, float]:
    return float(points.weight.sum()), float(points.positives.sum())


def _add(states: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(state[0] for state in states), sum(state[1] for state in states)


def _of_sample(one: CalibrationMap, rate: float) -> Callable[[Array], Array]:
    return one.predict_ascending if rate == 1 else partial(_sampled, one, rate)


def _sampled(one: CalibrationMap, rate: float, scores: Array) -> Array:
    """The probability among the rows of a log that has a share `rate` of those with label 0."""
    p = one.predict_ascending(scores)
    return np.asarray(p / (p + (1 - p) * rate))
