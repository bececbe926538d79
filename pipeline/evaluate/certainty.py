"""Uncertainty of an evaluation's numbers, as text: numbers beside the effect of chance alone."""

from __future__ import annotations

from typing import Any

from calibrators.measures.certainty import Certainty
from calibrators.measures.error_bars import ErrorBars
from pipeline.evaluate.evaluation import Evaluation


def certainty_texts(evaluation: Evaluation) -> dict[str, list[str | None]]:
    """The text of each number before and after calibration; no number that neither side has."""
    sides = [
        {} if bars is None else _texts(bars, certainty)
        for bars, certainty in (
            (evaluation.bars_before, evaluation.certainty_before),
            (evaluation.bars_after, evaluation.certainty_after),
        )
    ]
    rows = {name: [side.get(name) for side in sides] for side in sides for name in side}
    return {name: texts for name, texts in rows.items() if any(texts)}


def _texts(bars: ErrorBars, certainty: Certainty | None) -> dict[str, str | None]:
    agreement, parts = _at(certainty, "agreement"), _at(certainty, "decomposition")
    distances = [_number(_at(agreement, name)) for name in ("ici", "e50", "e90")]
    of_distances = None if distances[0] is None else ", ".join(map(str, distances))
    loss, p = _at(parts, "log_loss"), bars.score_test_p
    return {
        "ratio": _with_interval(bars.ratio, (bars.ratio_low, bars.ratio_high), ".3f"),
        "ratio_z": _number(bars.ratio_z, ".2f"),
        "spiegelhalter_z": _number(bars.spiegelhalter_z, ".2f"),
        "score_test": None if p is None else f"p = {p:.3f}" if p >= 1e-3 else f"p = {p:.1e}",
        **{
            name: None
            if agreement is None
            else _with_interval(_at(agreement, name), agreement.interval(name), ".3f")
            for name in ("intercept", "slope")
        },
        "distances": _with_chance(of_distances, "ICI by chance", _at(parts, "ici_chance_95"), ".4f"),
        "smooth_ece": _number(_at(agreement, "smooth_ece")),
        "auc": _with_interval(bars.auc, (bars.auc_low, bars.auc_high), ".4f"),
        "squared_error": _number(_at(certainty, "debiased_squared_error"), ".6f"),
        "miscalibration": _with_chance(
            _number(_at(parts, "log_loss", "miscalibration"), ".5f"),
            "chance",
            _at(parts, "log_loss", "chance_95"),
            ".5f",
        ),
        "discrimination": _number(_at(loss, "discrimination"), ".5f"),
    }


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


def _with_interval(value: float | None, ends: Any, form: str) -> str | None:
    if value is None or ends is None or ends[0] is None:
        return None
    return f"{_number(value, form)} ({_number(ends[0], form)} to {_number(ends[1], form)})"


def _with_chance(text: str | None, what: str, chance: float | None, form: str) -> str | None:
    return text if text is None or chance is None else f"{text} ({what}: up to {_number(chance, form)})"
