"""Shared part of all pages: the template that they extend, its style, and how facts are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.files.records import jsonable

if TYPE_CHECKING:
    from markupsafe import Markup

MISSING = "–"
_WHOLE = re.compile(r"\d{4}-\d\d-\d\d|\d{6}-[0-9a-f]{12}|[\d.,]+ %|e-value")
"""Dates, versions, percentages, and the one hyphen."""


def render_page(
    template: str, filters: Mapping[str, Callable[..., str]] | None = None, **content: Any
) -> str:
    """A page as text: HTML without references to anything outside; the same text for the same content.

    template : of pipeline/evaluate/templates, one that extends page.html.j2
    filters : the page's own
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline.evaluate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "whole": _whole,
        "fact": fact_text,
        "measure": measure_text,
        "change": change_text,
        "share": share_text,
        "number": number_text,
        **(filters or {}),
    }
    return environment.get_template(template).render(missing=MISSING, **content)


def _whole(text: str) -> Markup:
    """Text whose dates, versions, percentages and e-values are not broken across lines."""
    from markupsafe import Markup, escape

    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', str(escape(text))))  # noqa: S704 - it is escaped


def fact_groups(facts: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of facts as (heading, rows); facts outside groups come first, without a heading."""
    loose = [
        (_spaced(name), fact_text(value)) for name, value in facts.items() if not isinstance(value, Mapping)
    ]
    groups = [
        (_spaced(name), [(_spaced(key), fact_text(item)) for key, item in value.items()])
        for name, value in facts.items()
        if isinstance(value, Mapping)
    ]
    return ([("", loose)] if loose else []) + groups


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def fact_text(value: Any) -> str:
    """A fact for people."""
    value = jsonable(value)
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {fact_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(fact_text(item) for item in value) or "none"
    return str(value)


# Numbers of the report as text.


def measure_text(value: float | None) -> str:
    """A measure: a dash where there is none."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.2g}"


def change_text(value: float | None) -> str:
    """A difference of measures, with its sign."""
    text = MISSING if value is None else f"{value:+.4f}"
    return "0.0000" if text in ("+0.0000", "-0.0000") else text.replace("-", "−")


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
