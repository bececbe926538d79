"""Uncertainty of an evaluation's numbers, as rows of a table: numbers beside the effect of chance alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrators.measures.certainty import Certainty
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


def _at(found: Any, *names: str) -> Any:
    """Follow a chain of attributes; None if one of them is None."""
    for name in names:
        found = None if found is None else getattr(found, name)
    return found


def _with_interval(value: float | None, low: float | None, high: float | None, form: str) -> str | None:
    if value is None or low is None:
        return None
    return f"{_number(value, form)} ({_number(low, form)} to {_number(high, form)})"


def _with_chance(text: str | None, what: str, chance: float | None, form: str) -> str | None:
    return text if text is None or chance is None else f"{text} ({what}: up to {_number(chance, form)})"


def _score_test(bars: ErrorBars, _: Certainty | None) -> str | None:
    p = bars.score_test_p
    return None if p is None else (f"p = {p:.3f}" if p >= 1e-3 else f"p = {p:.1e}")


def _miscalibration(_: ErrorBars, certainty: Certainty | None) -> str | None:
    parts = _at(certainty, "decomposition", "log_loss")
    text = _number(_at(parts, "miscalibration"), ".5f")
    return _with_chance(text, "chance", _at(parts, "chance_95"), ".5f")


def _line(name: str) -> _Text:
    def text(_: ErrorBars, certainty: Certainty | None) -> str | None:
        found = _at(certainty, "agreement")
        interval = None if found is None else found.interval(name)
        low, high = interval or (None, None)
        return _with_interval(_at(found, name), low, high, ".3f")

    return text


def _distances(_: ErrorBars, certainty: Certainty | None) -> str | None:
    found = _at(certainty, "agreement")
    if found is None or found.ici is None:
        return None
    text = ", ".join(str(_number(value)) for value in (found.ici, found.e50, found.e90))
    return _with_chance(text, "ICI by chance", _at(certainty, "decomposition", "ici_chance_95"), ".4f")


_ROWS: tuple[tuple[str, str, _Text], ...] = (
    (
        "Observed over expected",
        "Positives over the sum of the probabilities, with its 95 % interval; 1 is right on average",
        lambda bars, _: _with_interval(bars.ratio, bars.ratio_low, bars.ratio_high, ".3f"),
    ),
    (
        "z of observed less expected",
        "Values beyond −2 and 2 are more than chance explains",
        lambda bars, _: _number(bars.ratio_z, ".2f"),
    ),
    (
        "Spiegelhalter's z",
        "The same test for each probability instead of their sum",
        lambda bars, _: _number(bars.spiegelhalter_z, ".2f"),
    ),
    (
        "Test of intercept 0 and slope 1",
        "Cox's line from predicted to observed log odds; a small p rejects that it is the diagonal",
        _score_test,
    ),
    (
        "Calibration intercept",
        "Cox's line, with its 95 % interval; 0 is right. Above 0, probabilities near 1/2 are too low",
        _line("intercept"),
    ),
    (
        "Calibration slope",
        "Cox's line; 1 is right; below 1 probabilities are too extreme, above 1 not extreme enough",
        _line("slope"),
    ),
    (
        "Distance to the recalibrated probability",
        "Mean (ICI), median (E50) and 90 % point (E90) over the rows. Right probabilities rarely exceed the bracket",
        _distances,
    ),
    (
        "Smooth calibration error",
        "Residuals smoothed by a kernel as wide as the error, without bins; uninformative with rare positives",
        lambda _, certainty: _number(_at(certainty, "agreement", "smooth_ece")),
    ),
    (
        "AUC with its 95 % interval",
        "By DeLong's standard error",
        lambda bars, _: _with_interval(bars.auc, bars.auc_low, bars.auc_high, ".4f"),
    ),
    (
        "Squared calibration error, debiased",
        "Over equal-count groups, less the average effect of chance; around or below 0 there is no error",
        lambda _, certainty: _number(_at(certainty, "debiased_squared_error"), ".6f"),
    ),
    (
        "Miscalibration (part of the log loss)",
        "Part that the best non-decreasing map would remove. Right probabilities rarely exceed the bracket",
        _miscalibration,
    ),
    (
        "Discrimination (part of the log loss)",
        "Gain of the perfectly calibrated predictions over the base rate",
        lambda _, certainty: _number(_at(certainty, "decomposition", "log_loss", "discrimination"), ".5f"),
    ),
)
