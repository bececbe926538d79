"""Words of a published fit: for the terminal, and as JSON."""

from __future__ import annotations

from typing import Any

from jobs.gate.requirements import held_out_line
from jobs.outcome import Outcome
from logcal.errors import counted
from pipeline.table.published import Version
from pipeline.table.segment_maps import SOURCES


def _choice_line(data: dict[str, Any]) -> str:
    """Line about the choice of auto, and its gain."""
    isotonic = 100 * data["isotonic_share"]
    some = isotonic if isotonic == 100 else min(isotonic, 99.9)  # few are not none
    share = f"auto: isotonic steps for {some:.3g} % of the log's rows, the smooth curve for the rest"
    losses = data["cross_validated_log_loss"]
    if len(losses) < 2:
        return f"{share}: too few rows to compare them"
    curve, steps = losses["smooth"], losses["isotonic"]
    return f"{share} (held-out log loss of the curve alone {curve:.4f}, of steps alone {steps:.4f})"


def _days_line(window: dict[str, Any]) -> str:
    """Line about a window's days: used, left out by reason, without rows."""
    days = window.get("days", ())
    counts = {"used": sum(day["rows_used"] > 0 for day in days)}
    counts |= {reason.replace("_", " "): own["days"] for reason, own in window.get("left_out", {}).items()}
    counts["without usable rows"] = len(days) - sum(counts.values())
    counts["without rows"] = len(window["days_missing"])
    said = [f"{counted(n, 'day')} {what}" for what, n in counts.items() if n]
    return f"{window['first']} to {window['last']}: {', '.join(said)}; {window['days_sorted']:,} sorted now"


def _grid_line(facts: dict[str, Any], version: Version) -> str | None:
    if (move := facts.get("largest_score_move")) is None:
        return None
    return f"scores were rounded to {version.manifest['config']['score_table']['grid']}: the largest move is {move:.3g}"


def _segments_line(segments: dict[str, Any]) -> str:
    sources = ", ".join(f"{count:,} {SOURCES[name]}" for name, count in segments["fitted_on"].items())
    alike = segments.get("reasons", {}).get("no_bend")
    sources += f" ({alike:,} of them differ from it only by chance)" if alike else ""
    return f"{segments['count']:,} segments of {', '.join(segments['columns'])}: {sources}"


_SHOWN = (
    "table",
    "previous_version",
    "method",
    "monotone",
    "lookup_rows",
    "fingerprint",
    "run_id",
    "gate",
)
"""Keys of the manifest in the outcome."""


def outcome_of(facts: dict[str, Any], version: Version) -> Outcome:
    """The outcome of a published version, as JSON and as lines. facts : counts of its rows."""
    summary = {
        "version": version.name,
        "published_as": version.manifest.get("publish", "current"),
        "lookup_path": version.lookup_path,
        **{key: version.manifest.get(key) for key in _SHOWN},
        **facts,
    }
    segments, window = version.manifest.get("segments"), version.manifest.get("window")
    if "labels" in version.manifest:
        summary["labels"] = version.manifest["labels"]
    if window is not None:
        summary["window"] = {key: value for key, value in window.items() if key != "days"}
    if segments is not None:
        summary["segments"] = segments
    shape, data = "monotone" if summary["monotone"] else "not monotone", version.manifest["data"]
    left_out = sum(own["rows"] for own in (window or {}).get("left_out", {}).values())
    waiting = f", {facts['rows_waiting']:,} waiting for their label" if facts.get("rows_waiting") else ""
    used = (
        f"from {facts['rows_used']:,} of {facts['rows_read'] + left_out:,} rows, {facts['rows_positive']:,} of them "
        f"positive{waiting}, {facts['distinct_scores']:,} distinct scores"
    )
    previous = summary["previous_version"] or ""
    same = previous.partition("-")[2] == version.name.partition("-")[2]
    said = [
        f"method {summary['method']}, a table of {summary['lookup_rows']:,} rows, {shape}",
        None if window is None else _days_line(window),
        _choice_line(data) if "isotonic_share" in data else None,
        _grid_line(facts, version),
        None if segments is None else _segments_line(segments),
        used,
        f"the same table as version {previous}" if same else None,
        held_out_line(version.manifest.get("gate") or {}),
        version.lookup_path,
    ]
    how = "saved as a candidate:" if version.candidate else "published"
    lines = [f"{how} {summary['table']} version {version.name}", *(f"  {line}" for line in said if line)]
    return Outcome(summary=summary, lines=lines)
