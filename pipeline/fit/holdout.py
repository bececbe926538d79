"""What predictions are worth on rows that were held out of a fit: exact, with segments and without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.measures.comparison import Comparison, comparison_passes
from calibrators.measures.error_bars import ErrorBars, error_bar_passes
from calibrators.measures.predictions import run_passes
from pipeline.execution import Executor
from pipeline.sort.segment_predictions import compare_predictions, order_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.table.predictor import Predictor

Run = Callable[[Pass], Any]
"""Carries out a pass over the parts of a score table."""

Predict = Callable[[Array], Array]


@dataclass(frozen=True)
class Rows:
    """How many rows there are: their weight, and that of those with label 1."""

    weight: float
    positives: float

    @property
    def rarer(self) -> float:
        """Of the rarer label."""
        return min(self.positives, self.weight - self.positives)


class Measured(Protocol):
    """Rows that predictions are measured on."""

    def count(self) -> Rows:
        """How many there are."""
        ...

    def bars(self, new: Any) -> ErrorBars | None:
        """Of probabilities, where they can be had."""
        ...

    def compare(self, old: Any, new: Any) -> tuple[Comparison, list[dict[str, Any]]]:
        """Two predictions of the rows, None for the scores; and the segments in which the new one is worse."""
        ...


@dataclass(frozen=True)
class PlainRows:
    """Rows without segments.

    run : carries passes out over their score table. monotone : whether what is measured never decreases with the score
    """

    run: Run
    monotone: bool = True

    def count(self) -> Rows:
        """How many there are."""
        return count(self.run)

    def bars(self, new: Predict) -> ErrorBars | None:
        """Of probabilities; None where their order is not that of the scores."""
        return run_passes(error_bar_passes(new), self.run) if self.monotone else None

    def compare(self, old: Predict | None, new: Predict) -> tuple[Comparison, list[dict[str, Any]]]:
        """Two predictions of the rows."""
        return run_passes(comparison_passes(old, new), self.run), []


@dataclass(frozen=True)
class SegmentedRows:
    """Rows with segments: each goes through its segment's map. folder : for what is sorted in another order."""

    rows: SegmentRows
    folder: str
    executor: Executor

    def count(self) -> Rows:
        """How many there are."""
        return Rows(self.rows.table.weight, self.rows.table.positives)

    def bars(self, new: Predictor) -> ErrorBars:
        """Of probabilities."""
        table = order_predictions(self.rows, new, self.folder, self.executor)
        run = partial(table.run, executor=self.executor, stage="holdout")
        found: ErrorBars = run_passes(error_bar_passes(), run)
        return found

    def compare(self, old: Predictor | None, new: Predictor) -> tuple[Comparison, list[dict[str, Any]]]:
        """Two predictions of the rows, and the segments in which the new one is worse beyond chance."""
        found = compare_predictions(self.rows, old or Predictor(), new, self.executor)
        return found.whole, found.worse()


@dataclass(frozen=True)
class HeldOut:
    """What a table is worth on rows that it was not fitted to.

    Attributes
    ----------
    rows : that it was measured on. bars : of its probabilities; None where they cannot be had. loss : its mean log
        loss. expected : the sum of its probabilities.
    against : the current table and it, on those rows that neither was fitted to; None: not compared.
    fresh : the rows of that comparison. raw : the scores and it, where scores are probabilities.
    current : whether there is a current table. worse : segments in which it is worse than that one beyond chance.
    """

    rows: Rows
    bars: ErrorBars | None = None
    loss: float | None = None
    expected: float | None = None
    against: Comparison | None = None
    fresh: Rows = Rows(0.0, 0.0)
    raw: Comparison | None = None
    current: bool = False
    worse: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        loss = (
            self.loss
            if self.loss is None or math.isfinite(self.loss)
            else str(self.loss).replace("inf", "Infinity")
        )
        return {
            "rows": self.rows.weight,
            "rows_positive": self.rows.positives,
            "log_loss": loss,
            "observed_to_expected": self.rows.positives / self.expected if self.expected else None,
            "auc": None if self.bars is None else self.bars.auc,
            "auc_error": None if self.bars is None else self.bars.auc_error,
            "rows_compared": self.fresh.weight,
            "against_current": None if self.against is None else self.against.as_dict(),
            "against_raw": None if self.raw is None else self.raw.as_dict(),
            "segments_worse": self.worse,
        }


def measure_held_out(
    new: Any,
    rows: Measured,
    *,
    current: Any = None,
    fresh: Measured | None = None,
    probabilities: bool = False,
) -> HeldOut:
    """Measure a table on held-out rows.

    Parameters
    ----------
    new : what predicts with it, as the rows take it
    rows : that it was not fitted to
    current, fresh : another table's, and those rows that neither was fitted to
    probabilities : whether the scores are probabilities
    """
    held = rows.count()
    if held.rarer == 0:
        return HeldOut(held, current=current is not None)
    same, _ = rows.compare(new, new)
    found = HeldOut(held, rows.bars(new), same.log_loss.new, same.expected_new, current=current is not None)
    if probabilities:
        found = replace(found, raw=rows.compare(None, new)[0])
    if current is None or fresh is None:
        return found
    both = fresh.count()
    if both.rarer == 0:
        return replace(found, fresh=both)
    against, worse = fresh.compare(current, new)
    return replace(found, fresh=both, against=against, worse=worse)


def count(run: Run) -> Rows:
    """How many rows passes are carried out over."""
    weight, positives = run(Pass(_count, _add))
    return Rows(weight, positives)


def _count(points: Points) -> tuple[float, float]:
    return float(points.weight.sum()), float(points.positives.sum())


def _add(states: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(state[0] for state in states), sum(state[1] for state in states)
