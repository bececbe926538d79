"""A stream as a page: its state, observed over expected positives by day, its last batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluate.day_ratios import DayRatio, excess_sentence, ratio_figure
from pipeline.evaluate.page import fact_text, render_page

TEMPLATE = "stream.html.j2"
_DAYS_SHOWN = 60
_REFUSED_SHOWN = 50
_BATCH_COLUMNS = {
    "files": "Files",
    "rows": "Rows",
    "null_rows": "Null rows",
    "unseen_rows": "Unseen rows",
    "refused": "Refused",
    "waiting": "Not readable yet",
    "left": "Left",
    "seconds": "Seconds",
}
_ALWAYS = ("files", "rows", "seconds")


def render_stream(
    title: str,
    facts: Mapping[str, Any],
    refused: Mapping[str, str],
    batches: Sequence[tuple[str, Mapping[str, Any]]],
    days: Sequence[Mapping[str, Any]],
) -> str:
    """Render the page: HTML without references to anything outside.

    Parameters
    ----------
    facts : the stream's state by name: counts of files, the last batch, the table. Zeros and None are left out.
    refused : the reason for each refused file.
    batches : the last ones, when each ended and its counts, the oldest first.
    days : each with `day`, `version`, `rows`, and `observed` and `expected` positives, in order.
    """
    latest = list(days[-_DAYS_SHOWN:])
    ratios = [DayRatio.of(day) for day in latest]
    strange = bool(ratios) and ratios[-1].beyond
    rows = [{**report, "at": at, "refused": len(report["refused"])} for at, report in reversed(batches)]
    columns = {
        name: label
        for name, label in _BATCH_COLUMNS.items()
        if name in _ALWAYS or any(row[name] for row in rows)
    }
    return render_page(
        TEMPLATE,
        title=title,
        headline=_state(facts, len(refused)),
        details=_details(refused, ratios[-1] if strange else None),
        kind="high" if refused or strange else "within",
        facts=[(name, fact_text(value)) for name, value in facts.items() if value not in (0, None, "")],
        figure=ratio_figure(ratios) if ratios else "",
        days=list(zip(ratios, latest, strict=True))[::-1],
        count=len(days),
        batches=rows,
        batch_columns=columns,
        refused=sorted(refused.items())[:_REFUSED_SHOWN] if len(refused) > 1 else [],
        refused_count=len(refused),
    )


def _files(count: int) -> str:
    return f"{count:,} {'file' if count == 1 else 'files'}"


def _state(facts: Mapping[str, Any], refused: int) -> str:
    """Say in one sentence how many files are scored, and how many are not."""
    said = [f"{_files(facts.get('files scored') or 0)} scored"]
    for count, state in (
        (facts.get("files to score") or 0, "to score"),
        (facts.get("files not readable yet") or 0, "not readable yet"),
        (refused, "refused"),
    ):
        if count:
            said.append(f"{count:,} {state}")
    return f"{', '.join(said)}{'' if len(said) > 1 else '; nothing is waiting'}."


def _details(refused: Mapping[str, str], strange: DayRatio | None) -> list[str]:
    said = []
    if len(refused) == 1:
        said += [f"Refused: {name}: {reason}" for name, reason in refused.items()]
    if strange is not None:
        excess = excess_sentence(strange.observed, strange.expected)
        said.append(f"On {strange.day} there were {excess}, which chance does not explain.")
    return said
