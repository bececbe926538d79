"""Evaluation: measures of a log's predictions before and after calibration, and their changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.passes import Pass, share_sweeps
from calibrators.measures.assessment import Assessment
from calibrators.measures.certainty import Certainty, ErrorBars, certainty_passes
from calibrators.measures.comparison import Comparison
from calibrators.measures.decomposition import chance_error
from calibrators.measures.engine import Predict
from pipeline.evaluate.significance import HIGHER_IS_BETTER, UNSURE, percentage_points, significance_facts
from pipeline.sort.score_table import ScoreTable

Run = Callable[[Pass], Any]
"""Function that runs a pass over the parts of a score table: `ScoreTable.run` with its executor."""

SAME_ROWS = 1e-9
"""Largest relative difference between the totals of two tables of the same rows: rounding depends on ties."""

UNCHANGED = 5e-5
"""Changes below this are 0 in four decimals."""


def _error_facts(side: Assessment, bars: ErrorBars | None, certainty: Certainty | None) -> dict[str, Any]:
    facts = {} if certainty is None else {"certainty": asdict(certainty)}
    return {"significance": significance_facts(side, bars), **facts}


@dataclass(frozen=True)
class Evaluation:
    """Predictions before and after calibration, on the same rows.

    Attributes
    ----------
    rows : int or None: number of rows, if known
    before, after : Assessment
    bars_before, bars_after : ErrorBars or None
    certainty_before, certainty_after : Certainty or None: further measures with their errors
    comparison : Comparison or None: comparison with the table named `against`, on the same rows
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
        """Return a dict for JSON: finite numbers, strings, lists and None."""
        after = significance_facts(self.after, self.bars_after)
        facts = {
            "rows": self.rows,
            "weight": self.weight,
            "positives": self.positives,
            "verdict": after["verdict"],
            "headline": headline(self),
            "before": self.before.as_dict()
            | _error_facts(self.before, self.bars_before, self.certainty_before),
            "after": self.after.as_dict() | _error_facts(self.after, self.bars_after, self.certainty_after),
        }
        if self.comparison is not None:
            facts["comparison"] = {"against": self.against, **asdict(self.comparison)}
        return facts


_HISTOGRAM_BINS = 50

Side = tuple[Assessment, ErrorBars, Certainty]


class Sizes(NamedTuple):
    """Settings of the measures.

    Attributes
    ----------
    bins : number of bins of the reliability tables and calibration errors, >= 1
    sampling_rate : share of the negatives that were sampled over that of the positives, > 0. Measures, Cox's line and
        observed over expected describe the log before sampling: a negative has the weight 1 / sampling_rate. The tests
        of single predictions (Spiegelhalter's z and the score test) and the AUC's error count the sampled rows.
    """

    bins: int = 10
    sampling_rate: float = 1.0


def both_sides(sizes: Sizes, predict: Predict, table: ScoreTable) -> Generator[Pass, Any, tuple[Side, Side]]:
    """Yield the passes that measure a score table's scores and calibrated probabilities together, in two sweeps.

    predict : predictions of a map; ValueError if it decreases somewhere
    """
    return share_sweeps(side_passes(sizes, table, tests=False), side_passes(sizes, table, predict))


def side_passes(
    sizes: Sizes, table: ScoreTable, predict: Predict | None = None, *, tests: bool = True
) -> Generator[Pass, Any, Side]:
    """Yield the passes that measure one column of predictions: the scores, or `predict` of the scores.

    tests : whether to take the tests of single predictions
    """
    rate, rows = sizes.sampling_rate, (table.used, table.weights)
    return certainty_passes(predict, sizes.bins, _HISTOGRAM_BINS, *rows, rate=rate, tests=tests)


def evaluation_of(rows: int | None, before: Side, after: Side) -> Evaluation:
    """Combine the results of both sides. rows : number of rows, if known.

    Raises
    ------
    ValueError
        The sides have different rows.
    """
    for name in ("weight", "positives"):
        total_before, total_after = getattr(before[0], name), getattr(after[0], name)
        if not math.isclose(total_before, total_after, rel_tol=SAME_ROWS):
            raise ValueError(
                f"expected two tables of the same rows, found {name} {total_before!r} before and {total_after!r} "
                "after: build both from the same log"
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
"""Labels of all measures, in the order of display."""


@dataclass(frozen=True)
class Change:
    """A measure before and after.

    Attributes
    ----------
    name : attribute of Measures
    label : name for display
    before, after : float or None (infinite for some log losses)
    difference : float or None: after - before, if both are finite
    verdict : "better" or "worse" (beyond the error), "may be chance", "unchanged", or "" if a side has no value
    """

    name: str
    label: str
    before: float | None
    after: float | None
    difference: float | None
    verdict: str


def changes(evaluation: Evaluation) -> list[Change]:
    """Return the change of each measure, in the order of `MEASURE_LABELS`."""
    before, after, errors = evaluation.before.measures, evaluation.after.measures, change_errors(evaluation)
    return [
        _change(name, getattr(before, name), getattr(after, name), errors.get(name, 0.0))
        for name in MEASURE_LABELS
    ]


def change_errors(evaluation: Evaluation) -> dict[str, float]:
    """Estimate the standard errors of the changes, by measure.

    Both sides have the same rows. The errors of the losses' paired differences come from the groups of equally many
    rows: in a group with mean predictions b (before) and a (after) and frequency f of label 1, each row adds
    4 (a - b)**2 f (1 - f) to the variance of N times the Brier score's change, and the squared difference of the
    log-odds times f (1 - f) to the variance of N times the log loss's change. The AUC has DeLong's error of one side,
    which exceeds that of the change. ECE has half the error expected by chance alone, MCE the largest error of a group.
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
    distance = f"{percentage_points(after.ece_frequency)} percentage points"
    if before.ece_frequency is None:
        return (
            "The scores are not probabilities; calibrated, they are probabilities that lie "
            f"{distance} from the observed frequencies on average."
        )
    old_distance = f"{percentage_points(before.ece_frequency)} percentage points"
    verdict = next(change.verdict for change in changes(evaluation) if change.name == "ece_frequency")
    if verdict in ("unchanged", "may be chance"):
        return f"Calibration changed little: the probabilities lie {distance} from the observed frequencies on average."
    if verdict == "worse":
        return (
            "Calibration made the probabilities worse: they lie "
            f"{distance} from the observed frequencies on average, {old_distance} before."
        )
    return (
        f"Before calibration the predicted probabilities were off by {old_distance} on average; "
        f"after calibration, by {percentage_points(after.ece_frequency)}."
    )


def ranking(evaluation: Evaluation) -> str:
    """Describe the effect of calibration on the ranking in one plain sentence; empty without a ranking."""
    before, after = evaluation.before.measures, evaluation.after.measures
    if before.auc is None or after.auc is None:
        return ""
    verdict = next(change.verdict for change in changes(evaluation) if change.name == "auc")
    if verdict in ("unchanged", "may be chance"):
        beyond = "" if verdict == "unchanged" else " beyond chance"
        return f"The ranking did not change{beyond} (AUC {after.auc:.3f})."
    direction = "rose" if verdict == "better" else "fell"
    digits = 3 if f"{before.auc:.3f}" != f"{after.auc:.3f}" else 4
    return f"The quality of the ranking (AUC) {direction} from {before.auc:.{digits}f} to {after.auc:.{digits}f}."
