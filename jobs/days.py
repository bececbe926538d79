"""The commands `logcal days`: days of a table's log that a person leaves out of fits, or lets in."""

from __future__ import annotations

from typing import Any

from jobs.run import Outcome
from logcal.errors import ConfigError, InputRejectedError
from pipeline.log.windows import parse_day
from pipeline.table.day_decisions import Decision, decide, read_decisions
from pipeline.table.published import PublishedTable


def list_days(store: str, table: str) -> Outcome:
    """Days that persons decided on, and those that the newest version's fit set aside."""
    found = PublishedTable(store, table)
    decisions = read_decisions(found.folder)
    versions = found.versions()
    if not versions and not decisions:
        raise InputRejectedError(
            f"expected a published table '{table}', found none in {found.url}: see `logcal fit`"
        )
    window = versions[-1].manifest.get("window") if versions else None
    aside = (window or {}).get("days_set_aside", [])
    lines = [f"{day}  {own.decision}d on {own.at}: {own.reason}" for day, own in decisions.items()]
    lines += [
        f"{own['day']}  set aside by version {versions[-1].name}: {'; '.join(own['reasons'])}"
        for own in aside
    ]
    summary: dict[str, Any] = {"table": table, "decisions": _as_rows(decisions), "set_aside": aside}
    return Outcome(summary=summary, lines=lines or ["no day was excluded, included or set aside"])


def change(store: str, table: str, day: str, decision: str | None, reason: str) -> Outcome:
    """Exclude or include a day, or with None let it be judged again."""
    parsed = parse_day(day)
    if parsed is None:
        raise ConfigError(f"DAY: expected a date such as 2026-01-31, found {day!r}")
    found = PublishedTable(store, table)
    if not found.folder.names():
        raise InputRejectedError(
            f"expected a published table '{table}', found none in {found.url}: see `logcal fit`"
        )
    decisions = decide(found.folder, parsed.isoformat(), decision, reason)
    said = "is judged again" if decision is None else f"is {decision}d from now on"
    lines = [f"{parsed.isoformat()} {said}: the next fit follows it"]
    return Outcome(summary={"table": table, "decisions": _as_rows(decisions)}, lines=lines)


def _as_rows(decisions: dict[str, Decision]) -> list[dict[str, Any]]:
    return [
        {"day": day, "decision": own.decision, "reason": own.reason, "at": own.at}
        for day, own in decisions.items()
    ]
