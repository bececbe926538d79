"""The evaluation: the measures of a log's predictions before and after calibration, and what changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrators.arithmetic.passes import Pass
from calibrators.measures.certainty import Certainty, ErrorBars, certainty_passes
from calibrators.measures.comparison import Comparison
from calibrators.measures.decomposition import chance_error
from calibrators.measures.predictions import (
    Assessment,
    Predict,
    share_sweeps,
)
from pipeline.evaluate.significance import HIGHER_IS_BETTER, UNSURE, points, significance_facts
from pipeline.sort.score_table import ScoreTable

Run = Callable[[Pass], Any]
"""Carries out a pass over the parts of a score table: `ScoreTable.run` with its executor."""

SAME_ROWS = 1e-9
"""Relative difference up to which the totals of two tables of the same rows may differ: ties round sums."""

UNCHANGED = 5e-5
"""A change below it shows as 0 in four decimals."""


def _certainly(found: Assessment, bars: ErrorBars | None, certainty: Certainty | None) -> dict[str, Any]:
    own = {} if certainty is None else {"certainty": asdict(certainty)}
    return {"judgement": significance_facts(found, bars), **own}


@dataclass(frozen=True)
class Evaluation:
    """Predictions before and after calibration, on the same rows.

    Attributes
    ----------
    rows : int or None: rows behind the weights, where known
    before, after : Assessment
    bars_before, bars_after : ErrorBars or None: what chance alone would do to them
    certainty_before, certainty_after : Certainty or None: the same of other measures
    comparison : Comparison or None: with another table on the same rows, whose name is `against`
    """

    rows: int | None
    before: Assessment
    after: Assessment
    bars_before: ErrorBars | None = None
    bars_after: ErrorBars | None = None
    certainty_before: Certainty | None = None
    certainty_after: Certainty | None = None
    comparison: Comparison | None = None
    against: str | None = None

    @property
    def weight(self) -> float:
        """Total weight."""
        return self.before.weight

    @property
    def positives(self) -> float:
        """Weight of the rows with label 1."""
        return self.before.positives

    def as_dict(self) -> dict[str, Any]:
        """For JSON: finite numbers, strings, lists and None."""
        after = significance_facts(self.after, self.bars_after)
        found = {
            "rows": self.rows,
            "weight": self.weight,
            "positives": self.positives,
            "verdict": after["verdict"],
            "headline": headline(self),
            "before": self.before.as_dict()
            | _certainly(self.before, self.bars_before, self.certainty_before),
            "after": self.after.as_dict() | _certainly(self.after, self.bars_after, self.certainty_after),
        }
        if self.comparison is not None:
            found["comparison"] = {"against": self.against, **asdict(self.comparison)}
        return found


_HISTOGRAM_BINS = 50

Side = tuple[Assessment, ErrorBars, Certainty]


class Sizes(NamedTuple):
    """Settings of measures, beside the rows.

    Attributes
    ----------
    bins : of the reliability tables and calibration errors, >= 1
    sampling_rate : the kept share of the negatives over the kept share of the positives, > 0. Measures, Cox's line and
        observed over expected describe all rows: a negative weighs as many rows as it stands for. The tests of single
        predictions (Spiegelhalter's z and the score test) and the AUC's error count the rows that there are.
    """

    bins: int = 10
    sampling_rate: float = 1.0


def both_sides(sizes: Sizes, predict: Predict, table: ScoreTable) -> Generator[Pass, Any, tuple[Side, Side]]:
    """Yield the passes over a score table for its scores and for what a map makes of them, in the same two sweeps.

    predict : of a map that does not decrease, else ValueError
    """
    return share_sweeps(side_passes(sizes, table, tests=False), side_passes(sizes, table, predict))


def side_passes(
    sizes: Sizes, table: ScoreTable, predict: Predict | None = None, *, tests: bool = True
) -> Generator[Pass, Any, Side]:
    """Yield the passes for one column of predictions: the scores, or what `predict` makes of them."""
    known = (table.used, table.weights)
    return certainty_passes(
        predict, sizes.bins, _HISTOGRAM_BINS, *known, rate=sizes.sampling_rate, tests=tests
    )


def evaluation_of(rows: int | None, before: Side, after: Side) -> Evaluation:
    """Put both sides' results together. rows : behind the weights, where known.

    Raises
    ------
    ValueError
        They are of different rows.
    """
    for name in ("weight", "positives"):
        one, other = getattr(before[0], name), getattr(after[0], name)
        if not math.isclose(one, other, rel_tol=SAME_ROWS):
            raise ValueError(
                f"expected two tables of the same rows, found {name} {one!r} before and {other!r} after: "
                "build both from the same log"
            )
    return Evaluation(rows, before[0], after[0], before[1], after[1], before[2], after[2])


MEASURE_LABELS = {
    "ece_frequency": "Calibration error (ECE), equal-count groups",
    "mce_frequency": "Largest calibration error (MCE), equal-count groups",
    "ece_width": "Calibration error (ECE), equal-width bins",
    "mce_width": "Largest calibration error (MCE), equal-width bins",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "rmse": "RMSE",
    "auc": "AUC",
    "accuracy": "Accuracy at 0.5",
}
"""Labels of all measures, in the order in which to show them."""


@dataclass(frozen=True)
class Change:
    """A measure before and after.

    Attributes
    ----------
    name : attribute of Measures. label : its name for people.
    before, after : float or None (infinite for some log losses)
    difference : float or None: after - before, where both are finite
    verdict : "better" or "worse" beyond its error, "may be chance", "unchanged", or "" where it cannot be said
    """

    name: str
    label: str
    before: float | None
    after: float | None
    difference: float | None
    verdict: str


def changes(evaluation: Evaluation) -> list[Change]:
    """Every measure's change, in the order of `MEASURE_LABELS`."""
    before, after, errors = evaluation.before.measures, evaluation.after.measures, change_errors(evaluation)
    return [
        _change(name, getattr(before, name), getattr(after, name), errors.get(name, 0.0))
        for name in MEASURE_LABELS
    ]


def change_errors(evaluation: Evaluation) -> dict[str, float]:
    """Standard errors of changes, by measure.

    Both sides are of the same rows. The errors of the paired differences of the losses come from the groups of equally
    many rows: a row of a group with the mean predictions b and a and the frequency f of label 1 adds
    4 (a - b)**2 f (1 - f) to the variance of N times the Brier score's change, and the square of the difference of
    the log-odds times f (1 - f) to that of the log loss. The AUC's is DeLong's of one side, which is larger than that
    of the change; those of calibration errors are half of what chance alone would show, or a group's.
    """
    before, after = evaluation.before, evaluation.after
    rows = [
        (b.mean_prediction, a.mean_prediction, a.frequency, a.weight, a.weight / a.effective_size)
        for b, a in zip(before.by_frequency, after.by_frequency, strict=False)
        if b.mean_prediction is not None and a.mean_prediction is not None and a.frequency is not None
    ]
    bars = [side for side in (evaluation.bars_before, evaluation.bars_after) if side is not None]
    errors = {"auc": max((side.auc_error or 0.0 for side in bars), default=0.0)}
    if not rows or not after.weight:
        return errors
    b, a, f, weight, row = np.array(rows).T
    odds = [np.log(p / (1 - p)) for p in (np.clip(side, 1e-9, 1 - 1e-9) for side in (a, b))]
    noise = weight * row * f * (1 - f)
    errors["brier"] = 2 * math.sqrt((noise * (a - b) ** 2).sum()) / after.weight
    errors["log_loss"] = math.sqrt((noise * (odds[0] - odds[1]) ** 2).sum()) / after.weight
    if after.measures.rmse:
        errors["rmse"] = errors["brier"] / (2 * after.measures.rmse)
    if after.measures.accuracy is not None:
        share = after.measures.accuracy
        errors["accuracy"] = math.sqrt(share * (1 - share) * row.max() / after.weight)
    for kind in ("frequency", "width"):
        sides = [groups for side in (before, after) if (groups := getattr(side, f"by_{kind}"))]
        errors[f"ece_{kind}"] = max(map(chance_error, sides), default=0.0) / 2
        means = [
            (group.mean_prediction, group.effective_size)
            for groups in sides
            for group in groups
            if group.weight
        ]
        errors[f"mce_{kind}"] = max(
            (math.sqrt(max(p * (1 - p), 0.0) / size) for p, size in means), default=0.0
        )
    return errors


def _change(name: str, before: float | None, after: float | None, error: float = 0.0) -> Change:
    label = MEASURE_LABELS[name]
    if before is None or after is None:
        return Change(name, label, before, after, None, "")
    # Two infinite losses differ by NaN, which is neither finite nor below or above 0.
    difference = after - before
    if before == after or abs(difference) < UNCHANGED:
        verdict = "unchanged"
    elif abs(difference) <= UNSURE * error:
        verdict = "may be chance"
    else:
        verdict = "better" if (difference > 0) == (name in HIGHER_IS_BETTER) else "worse"
    return Change(name, label, before, after, difference if math.isfinite(difference) else None, verdict)


def headline(evaluation: Evaluation) -> str:
    """Describe the effect of calibration in one plain sentence."""
    before, after = evaluation.before.measures, evaluation.after.measures
    if after.ece_frequency is None:
        return "The calibrated predictions are not probabilities."
    now = f"{points(after.ece_frequency)} percentage points"
    if before.ece_frequency is None:
        return (
            "The scores are not probabilities; calibrated, they are probabilities that lie "
            f"{now} from the observed frequencies on average."
        )
    was = f"{points(before.ece_frequency)} percentage points"
    verdict = next(change.verdict for change in changes(evaluation) if change.name == "ece_frequency")
    if verdict in ("unchanged", "may be chance"):
        return f"Calibration changed little: the probabilities lie {now} from the observed frequencies on average."
    if verdict == "worse":
        return (
            "Calibration made the probabilities worse: they lie "
            f"{now} from the observed frequencies on average, {was} before."
        )
    return (
        f"Before calibration the predicted probabilities were off by {was} on average; "
        f"after calibration, by {points(after.ece_frequency)}."
    )


def ranking(evaluation: Evaluation) -> str:
    """Describe the effect of calibration on the ranking in one plain sentence; empty without a ranking."""
    before, after = evaluation.before.measures, evaluation.after.measures
    if before.auc is None or after.auc is None:
        return ""
    verdict = next(change.verdict for change in changes(evaluation) if change.name == "auc")
    if verdict in ("unchanged", "may be chance"):
        return f"The ranking did not change (AUC {after.auc:.3f})."
    way = "rose" if verdict == "better" else "fell"
    digits = 3 if f"{before.auc:.3f}" != f"{after.auc:.3f}" else 4
    return f"The quality of the ranking (AUC) {way} from {before.auc:.{digits}f} to {after.auc:.{digits}f}."
