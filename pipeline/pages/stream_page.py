"""Page of a stream: its files, the last batches, and observed over expected positives day by day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from logcal.errors import counted
from pipeline.pages.day_pages import DAYS_SHOWN, DayRatio, excess_sentence, ratio_figure
from pipeline.pages.figures import fact_text, render_page

_REFUSED_SHOWN = 50
_BATCH_COLUMNS = {
    "files": "Files",
    "rows": "Rows",
    "null_rows": "Null rows",
    "unseen_rows": "Unseen rows",
    "refused": "Refused",
    "waiting": "Not readable yet",
    "files_left": "Left",
    "seconds": "Seconds",
}
_ALWAYS = ("files", "rows", "seconds")


def render_stream(
    title: str,
    facts: Mapping[str, Any],
    refused: Mapping[str, str],
    batches: Sequence[tuple[str, Mapping[str, Any]]],
    days: Sequence[Mapping[str, Any]],
    troubles: Sequence[str] = (),
    stale: dt.datetime | None = None,
) -> str:
    """Render the page of a stream: HTML without external references.

    Parameters
    ----------
    facts : state of the stream by name: counts of files, the last batch, the table. Zeros and None are not shown.
    refused : reasons by refused file
    batches : end and counts of each of the last batches, the oldest first
    days : as in `render_drift`
    troubles : sentences about what is wrong besides refused files and the last day's positives
    stale : time after which the page says nothing, since a running follower would have renewed it; None: the follower
        has ended
    """
    latest = list(days[-DAYS_SHOWN:])
    ratios = [DayRatio.of(day) for day in latest]
    deviates = bool(ratios) and ratios[-1].beyond
    rows = [{**report, "at": at, "refused": len(report["refused"])} for at, report in reversed(batches)]
    columns = {
        name: label
        for name, label in _BATCH_COLUMNS.items()
        if name in _ALWAYS or any(row[name] for row in rows)
    }
    return render_page(
        "stream.html.j2",
        title=title,
        headline=troubles[0] if troubles else _state(facts, len(refused)),
        details=[
            *troubles[1:],
            *([_state(facts, len(refused))] if troubles else []),
            *_details(refused, ratios[-1] if deviates else None),
        ],
        kind="high" if refused or deviates or troubles else "within",
        stale=stale,
        facts=[(name, fact_text(value)) for name, value in facts.items() if value not in (0, None, "")],
        figure=ratio_figure(ratios) if ratios else "",
        days=list(zip(ratios, latest, strict=True))[::-1],
        count=len(days),
        batches=rows,
        batch_columns=columns,
        refused=sorted(refused.items())[:_REFUSED_SHOWN] if len(refused) > 1 else [],
        refused_count=len(refused),
    )


def _state(facts: Mapping[str, Any], refused: int) -> str:
    """State in one sentence how many files are scored and how many are not."""
    counts = [f"{counted(facts.get('files scored') or 0, 'file')} scored"]
    for count, state in (
        (facts.get("files to score") or 0, "to score"),
        (facts.get("files not readable yet") or 0, "not readable yet"),
        (refused, "refused"),
    ):
        if count:
            counts.append(f"{count:,} {state}")
    return f"{', '.join(counts)}{'' if len(counts) > 1 else '; nothing is waiting'}."


def _details(refused: Mapping[str, str], deviating: DayRatio | None) -> list[str]:
    sentences = []
    if len(refused) == 1:
        sentences += [f"Refused: {name}: {reason}" for name, reason in refused.items()]
    if deviating is not None:
        excess = excess_sentence(deviating.observed, deviating.expected)
        sentences.append(f"On {deviating.day} there were {excess}, which chance does not explain.")
    return sentences
