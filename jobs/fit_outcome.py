"""Outcome of a published fit, as text for the terminal and as JSON."""

from __future__ import annotations

from typing import Any

from jobs.gate.requirements import held_out_line
from jobs.outcome import Outcome
from logcal.errors import counted
from pipeline.table.published import Version, same_table
from pipeline.table.segment_maps import SOURCES


def _choice_line(data: dict[str, Any]) -> str:
    """Describe the choice of method auto, and its gain."""
    isotonic = 100 * data["isotonic_share"]
    percent = isotonic if isotonic == 100 else min(isotonic, 99.9)  # not 100 while some rows use the curve
    share = f"auto: isotonic steps for {percent:.3g} % of the log's rows, the smooth curve for the rest"
    losses = data["cross_validated_log_loss"]
    if len(losses) < 2:
        return f"{share}: too few rows to compare them"
    curve, steps = losses["smooth"], losses["isotonic"]
    return f"{share} (held-out log loss: curve alone {curve:.4f}, steps alone {steps:.4f})"


_LEFT_OUT = {"set_aside": "set aside", "damaged": "with damaged files", "unlabelled": "with too few labels"}
"""Reasons why a day is left out, in words, where they are not the manifest's."""


def _days_line(window: dict[str, Any]) -> str:
    """Describe a window's days: used, left out by reason, without rows."""
    days = window.get("days", ())
    counts = {"used": sum(day["rows_used"] > 0 for day in days)}
    counts |= {
        _LEFT_OUT.get(reason, reason): row["days"] for reason, row in window.get("left_out", {}).items()
    }
    counts["without usable rows"] = len(days) - sum(counts.values())
    counts["without rows"] = len(window["days_missing"])
    parts = [f"{counted(n, 'day')} {state}" for state, n in counts.items() if n]
    return f"{window['first']} to {window['last']}: {', '.join(parts)}; {window['days_sorted']:,} sorted now"


def segments_line(segments: dict[str, Any]) -> str:
    """Describe the segments: their number, the sources of their maps, and those that contradict the others."""
    sources = ", ".join(f"{count:,} {SOURCES[name]}" for name, count in segments["fitted_on"].items())
    alike = segments.get("reasons", {}).get("no_bend")
    sources += f" (enough for {alike:,} that could have their own)" if alike else ""
    sources += "".join(f"; {line}" for line in _outlying_lines(segments))
    return f"{counted(segments['count'], 'segment')} of {', '.join(segments['columns'])}: {sources}"


def _outlying_lines(segments: dict[str, Any]) -> list[str]:
    """Describe the segments that contradict the others, a line for each level that has some."""
    lines = []
    for level in segments.get("outlying", ()):
        if count := level["count"]:
            names = [
                "/".join("null" if value is None else value for value in name) for name in level["names"]
            ]
            more = ", ..." if count > len(names) else ""
            verb = "contradicts" if count == 1 else "contradict"
            columns = ", ".join(segments["columns"][: level["level"]])
            lines.append(
                f"{counted(count, 'segment')} of {columns} {verb} the others: {', '.join(names)}{more}"
            )
    return lines


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
"""Keys of the manifest that the outcome repeats."""


def outcome_of(facts: dict[str, Any], version: Version) -> Outcome:
    """Return the outcome of a published version. facts : its counts of rows."""
    manifest = version.manifest
    segments, window, data = manifest.get("segments"), manifest.get("window"), manifest["data"]
    summary = {
        "version": version.name,
        "published_as": manifest["publish"],
        "lookup_path": version.lookup_path,
        **{key: manifest.get(key) for key in _SHOWN},
        **facts,
        **{key: manifest[key] for key in ("labels", "segments") if manifest.get(key) is not None},
    }
    details = [f"method {summary['method']}, a table of {summary['lookup_rows']:,} rows"]
    details[0] += ", monotone" if summary["monotone"] else ", not monotone"
    left_out = 0
    if window is not None:
        summary["window"] = {key: value for key, value in window.items() if key != "days"}
        details.append(_days_line(window))
        left_out = sum(entry["rows"] for entry in window.get("left_out", {}).values())
    if "isotonic_share" in data:
        details.append(_choice_line(data))
    elif "chosen" in data:
        details.append(f"auto chose {data['chosen']}")
    if (move := facts.get("largest_score_move")) is not None:
        grid = manifest["config"]["score_table"]["grid"]
        details.append(f"scores were rounded to {grid}: the largest change is {move:.3g}")
    if segments is not None:
        details.append(segments_line(segments))
    waiting = f", {facts['rows_waiting']:,} waiting for their label" if facts.get("rows_waiting") else ""
    details.append(
        f"from {facts['rows_used']:,} of {facts['rows_read'] + left_out:,} rows, {facts['rows_positive']:,} of them "
        f"positive{waiting}, {facts['distinct_scores']:,} distinct scores"
    )
    previous = summary["previous_version"] or ""
    if same_table(previous, version.name):
        details.append(f"the same table as version {previous}")
    if held_out := held_out_line(manifest.get("gate") or {}):
        details.append(held_out)
    status = "saved as a candidate:" if version.candidate else "published"
    lines = [f"{status} {summary['table']} version {version.name}", *details, version.lookup_path]
    return Outcome(summary, [lines[0], *(f"  {line}" for line in lines[1:])])
