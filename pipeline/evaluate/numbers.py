"""Numbers of the report as text."""

from __future__ import annotations

import math

from pipeline.evaluate.page import MISSING


def measure_text(value: float | None) -> str:
    """A measure: a dash where there is none."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.2g}"


def interval_text(low: float, high: float) -> str:
    """Two shares of 1 in percent."""
    low_text, high_text = _percent(low), _percent(high)
    return f"{low_text} %" if low_text == high_text else f"{low_text} – {high_text} %"


def share_text(value: float) -> str:
    """A share of 1 in percent."""
    return f"{_percent(value)} %"


def _percent(value: float) -> str:
    """A share of 1 in percent, with more digits close to 0 and 100."""
    percent = 100 * value
    rest = min(percent, 100 - percent)
    if rest <= 0 or round(percent, 9) == round(percent):
        return f"{percent:.0f}"
    if rest < 0.001:
        return "<0.001" if percent < 50 else ">99.999"
    return f"{percent:.{1 if rest >= 1 else 1 - math.floor(math.log10(rest))}f}"


def number_text(value: float) -> str:
    """A count, or a sum of weights."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.4g}"
