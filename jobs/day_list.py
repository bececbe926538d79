"""The days of a log as text and as JSON values: what happened to each, and why not more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logcal.errors import counted
from pipeline.days.files import LogDays
from pipeline.days.records import DONE, EVALUATE, FAILED, FIT, MONITOR, SCORE, SET_ASIDE, STEPS, DayRecord
from pipeline.days.states import BEFORE, MISSING, DayState, DayStates
from pipeline.log.windows import day_of

_PAST = {EVALUATE: "evaluated", MONITOR: "monitored", FIT: "fitted", SCORE: "scored"}


def state_text(entry: DayState) -> str:
    """Return a day's state, with the reason for it and a person's decision."""
    text = entry.state.replace("_", " ")
    if entry.state == BEFORE:
        text = "before the beginning"
    text += f": {entry.reason}" if entry.reason else ""
    if entry.decision is not None and entry.state != "excluded":
        text += f" ({entry.decision.decision}d on {entry.decision.at}: {entry.decision.reason})"
    return text


def day_line(record: DayRecord, last: DayRecord | None = None) -> str:
    """Return a record as a line.

    last : the earlier record of the same step, if the day is done again
    """
    if record.outcome == DONE:
        again = ""
        if last is not None and last.outcome == DONE and last.files != record.files:
            rows = f"{last.facts['rows']:,} rows " if "rows" in last.facts else ""
            again = f" again, since its files changed (before: {rows}with {last.version})"
        rows = f" {record.facts['rows']:,} rows" if "rows" in record.facts else ""
        return f"{record.day} {_PAST[record.step]}{rows} with {record.version}{again}"
    words = {FAILED: "failed", SET_ASIDE: "set aside by the fit"}.get(record.outcome, "not done")
    return f"{record.day} {record.step} {words}: {record.message}"


def day_facts(entry: DayState) -> dict[str, Any]:
    """Return a day as JSON values: its state, rows and measures, and the last record of each step."""
    measured = entry.last[EVALUATE].facts if EVALUATE in entry.last else {}
    scored = entry.last[SCORE].facts if SCORE in entry.last else {}
    rows = measured.get("rows", scored.get("rows", entry.files.rows))
    decision = entry.decision
    return {
        "day": entry.name,
        "state": entry.state,
        "reason": entry.reason or None,
        "attention": entry.attention,
        "files": len(entry.files.files),
        "rows": rows,
        "labelled": measured.get("labelled", entry.files.labelled),
        "positives": measured.get("positives"),
        "observed_over_expected": measured.get("ratio"),
        "observed_over_expected_low": measured.get("ratio_low"),
        "observed_over_expected_high": measured.get("ratio_high"),
        "decision": None if decision is None else {"decision": decision.decision, "reason": decision.reason},
        "steps": {step: _step_facts(entry.last[step]) for step in STEPS if step in entry.last},
        "steps_left": list(entry.todo),
    }


def newest_measured(days: Sequence[DayState]) -> dict[str, Any] | None:
    """Return the newest day that was evaluated, with its observed over expected positives; None without one."""
    for entry in reversed(days):
        ratio = day_facts(entry)["observed_over_expected"]
        if ratio is not None:
            return {"day": entry.name, "observed_over_expected": ratio}
    return None


def _step_facts(record: DayRecord) -> dict[str, Any]:
    names = ("outcome", "version", "message", "at")
    return {name: getattr(record, name) for name in names if getattr(record, name) is not None}


def listed_line(entry: DayState) -> str:
    """Return a day as a line of `logcal days list`."""
    facts = day_facts(entry)
    parts = [entry.name, f"{state_text(entry)}"]
    for name, word in (("rows", "rows"), ("labelled", "labelled"), ("positives", "positive")):
        parts += [f"{facts[name]:,} {word}"] if facts[name] is not None else []
    if facts["observed_over_expected"] is not None:
        low, high = facts["observed_over_expected_low"], facts["observed_over_expected_high"]
        band = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
        version = entry.last[EVALUATE].version
        parts.append(f"observed/expected {facts['observed_over_expected']:.2f}{band} under {version}")
    tested = entry.last.get(MONITOR)
    if tested is not None and tested.outcome == DONE and tested.message:
        parts.append(tested.message)
    for step in (EVALUATE, FIT, SCORE):
        record = entry.last.get(step)
        if record is not None and record.outcome == DONE:
            parts.append(f"{_PAST[step]} with {record.version}")
        elif record is not None and record.outcome != FAILED:
            parts.append(f"not {_PAST[step]}: {record.message}")
    return "  ".join(parts)


_FEWEST = 3
"""Number of missing days in a row from which on they are one line."""


def grouped(entries: Sequence[DayState]) -> list[list[DayState]]:
    """Group days in a row without files that no person has decided on; every other day is a group of its own."""
    groups: list[list[DayState]] = []
    for entry in entries:
        if groups and _alike(groups[-1][-1], entry):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return [
        part for group in groups for part in ([group] if len(group) >= _FEWEST else [[day] for day in group])
    ]


def _alike(last: DayState, entry: DayState) -> bool:
    missing = all(each.state == MISSING and each.decision is None and not each.last for each in (last, entry))
    return missing and entry.day == last.day + 1 and entry.reason == last.reason


def group_name(group: Sequence[DayState]) -> str:
    """Return the name of a day, or the first and the last one and the number of days."""
    if len(group) == 1:
        return group[0].name
    return f"{group[0].name} to {group[-1].name}, {len(group)} days"


def listing(states: DayStates, log: LogDays) -> tuple[dict[str, Any], list[str]]:
    """Return all days as JSON values and as lines; days before the beginning are one line.

    log : files of the days; those whose days cannot be told, or that are excluded, have lines of their own
    """
    shown = [entry for entry in states.days if entry.state != BEFORE]
    before = len(states.days) - len(shown)
    summary = {
        "begin": None if states.begin is None else day_of(states.begin).isoformat(),
        "newest": None if states.newest is None else day_of(states.newest).isoformat(),
        "states": states.counts(),
        "days": [day_facts(entry) for entry in shown],
        "files_without_day": dict(log.unplaced),
        "files_excluded": dict(log.excluded),
    }
    lines = [
        listed_line(group[0]) if len(group) == 1 else f"{group_name(group)}  {state_text(group[0])}"
        for group in grouped(shown)
    ]
    if before:
        lines.insert(0, f"{counted(before, 'day')} before the beginning, {summary['begin']}")
    lines += [f"{name}  its days cannot be told: {reason}" for name, reason in log.unplaced.items()]
    lines += [f"{name}  excluded: {reason}" for name, reason in log.excluded.items()]
    return summary, lines or ["the log has no day"]
