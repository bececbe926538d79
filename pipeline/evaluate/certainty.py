"""How sure an evaluation's numbers are, as rows of a table: numbers beside what chance alone would do."""

from __future__ import annotations

from collections.abc import Callable

from calibrators.measures.certainty import Certainty
from calibrators.measures.decomposition import LossParts
from calibrators.measures.error_bars import ErrorBars
from pipeline.evaluate.evaluation import Evaluation
from pipeline.evaluate.page import MISSING

_Text = Callable[[ErrorBars, Certainty | None], str | None]


def certainty_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Label, meaning, and the text before and after calibration of each row; none where nothing is known."""
    sides = (
        (evaluation.bars_before, evaluation.certainty_before),
        (evaluation.bars_after, evaluation.certainty_after),
    )
    rows = []
    for label, meaning, text in _ROWS:
        before, after = (None if bars is None else text(bars, certainty) for bars, certainty in sides)
        if before or after:
            rows.append(
                {"label": label, "meaning": meaning, "before": before or MISSING, "after": after or MISSING}
            )
    return rows


def _number(value: float | None, form: str = ".4f") -> str | None:
    if value is None:
        return None
    text = f"{value:{form}}"
    if value != 0 and float(text) == 0:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def _ratio(bars: ErrorBars, _: Certainty | None) -> str | None:
    if bars.ratio is None:
        return None
    return f"{bars.ratio:.3f} ({bars.ratio_low:.3f} to {bars.ratio_high:.3f})"


def _auc(bars: ErrorBars, _: Certainty | None) -> str | None:
    if bars.auc is None or bars.auc_low is None:
        return None
    return f"{bars.auc:.4f} ({bars.auc_low:.4f} to {bars.auc_high:.4f})"


def _score_test(bars: ErrorBars, _: Certainty | None) -> str | None:
    p = bars.score_test_p
    return None if p is None else (f"p = {p:.3f}" if p >= 1e-3 else f"p = {p:.1e}")


def _log_loss(certainty: Certainty | None) -> LossParts | None:
    found = None if certainty is None else certainty.decomposition
    return None if found is None else found.log_loss


def _miscalibration(_: ErrorBars, certainty: Certainty | None) -> str | None:
    parts = _log_loss(certainty)
    if parts is None or parts.miscalibration is None:
        return None
    text = _number(parts.miscalibration, ".5f") or ""
    return text if parts.chance_95 is None else f"{text} (chance: up to {_number(parts.chance_95, '.5f')})"


def _discrimination(_: ErrorBars, certainty: Certainty | None) -> str | None:
    parts = _log_loss(certainty)
    return None if parts is None else _number(parts.discrimination, ".5f")


def _debiased(_: ErrorBars, certainty: Certainty | None) -> str | None:
    return None if certainty is None else _number(certainty.debiased_squared_error, ".6f")


def _line(name: str) -> _Text:
    def text(_: ErrorBars, certainty: Certainty | None) -> str | None:
        found = None if certainty is None else certainty.agreement
        interval = None if found is None else found.interval(name)
        if found is None or interval is None:
            return None
        low, high = (_number(end, ".3f") for end in interval)
        return f"{_number(getattr(found, name), '.3f')} ({low} to {high})"

    return text


def _distances(_: ErrorBars, certainty: Certainty | None) -> str | None:
    found = None if certainty is None else certainty.agreement
    if found is None or found.ici is None:
        return None
    text = ", ".join(str(_number(value)) for value in (found.ici, found.e50, found.e90))
    parts = None if certainty is None else certainty.decomposition
    chance = None if parts is None else parts.ici_chance_95
    return text if chance is None else f"{text} (ICI by chance: up to {_number(chance)})"


def _smooth(_: ErrorBars, certainty: Certainty | None) -> str | None:
    found = None if certainty is None else certainty.agreement
    return None if found is None else _number(found.smooth_ece)


_ROWS: tuple[tuple[str, str, _Text], ...] = (
    (
        "Observed over expected",
        "Positives over the sum of the probabilities, with its 95 % interval; 1 is right on average",
        _ratio,
    ),
    (
        "z of observed less expected",
        "Beyond −2 and 2 it is more than chance explains",
        lambda bars, _: _number(bars.ratio_z, ".2f"),
    ),
    (
        "Spiegelhalter's z",
        "The same of each probability by itself, not of their sum",
        lambda bars, _: _number(bars.spiegelhalter_z, ".2f"),
    ),
    (
        "Test of intercept 0 and slope 1",
        "Of the line between log odds and probabilities (Cox); a small p says that it is another line",
        _score_test,
    ),
    (
        "Calibration intercept",
        "Of that line, with its 95 % interval; 0 is right. Above 0 the probabilities are too low where they are 1/2",
        _line("intercept"),
    ),
    (
        "Calibration slope",
        "1 is right; below 1 the probabilities are too extreme, above 1 not extreme enough",
        _line("slope"),
    ),
    (
        "Distance to the recalibrated probability",
        "Mean (ICI), median (E50), 90 % point (E90) over the rows; right ones rarely show more than in brackets",
        _distances,
    ),
    (
        "Smooth calibration error",
        "Residuals smoothed as wide as the error is large: no bins; says little of rare positives",
        _smooth,
    ),
    ("AUC with its 95 % interval", "By DeLong's standard error", _auc),
    (
        "Squared calibration error, debiased",
        "Over equal-count groups, less what chance adds on average; around 0, also below, it is none",
        _debiased,
    ),
    (
        "Miscalibration (part of the log loss)",
        "What the best non-decreasing map would still take away; right ones rarely show more than in brackets",
        _miscalibration,
    ),
    (
        "Discrimination (part of the log loss)",
        "What the predictions, perfectly calibrated, gain over the base rate for every row",
        _discrimination,
    ),
)
