"""Repeated runs of a fit: the steps that remain, and whether its version may still become the current one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobs.config.jobs import FitConfig
from jobs.outcome import Outcome, Plan, Startable
from logcal.errors import CheckFailedError, LogcalError, NothingToDoError
from pipeline.execution import Executor
from pipeline.follow.ledger import needed_versions
from pipeline.table.journal import taken_back
from pipeline.table.published import Status, Version, status_of
from pipeline.table.store import TableStore

log = logging.getLogger("logcal")

OLDER_DATA = "older_data"
"""Name of the rule that `--force` overrides."""


def unfinished_version(store: TableStore, identity: str, config: FitConfig) -> Version | None:
    """Find the version that the same run made before and that still has to become current; None for a new run.

    identity : the run's id

    Raises
    ------
    NothingToDoError
        The version is live, is the requested candidate, was rolled back, or was replaced by one with newer data.
    CheckFailedError
        The version was refused and would be again, or its data end before those of the live version.
    """
    version = store.find_run(identity)
    if version is None:
        return None
    live = store.current_name()
    entries = store.journal.entries()
    status = status_of(version, entries, live)
    published = f"the same log and configuration were published as version {version.name}"
    if status is Status.CURRENT:
        raise NothingToDoError(f"{published}: nothing to do", lambda: prune(store, config.retention.versions))
    if status is Status.TAKEN_BACK:
        rollback = taken_back(entries, version.name, live)
        when = "" if rollback is None else f" on {rollback.at}"
        raise NothingToDoError(
            f"{published}, which was rolled back{when} (the live version is {live}): nothing to do; "
            "`logcal tables promote` makes it live again"
        )
    if version.candidate:
        store.enter_candidate(version)
    if status is Status.REFUSED:
        refuse([r for r in version.refusals if r["rule"] != OLDER_DATA or not config.store.force], version)
    if config.store.publish == "candidate":
        raise NothingToDoError(
            f"{published} (live: {live or 'none'}), and store.publish is candidate: nothing to do"
        )
    refusals = older_data(version.manifest, store.current(), live, config)
    if refusals and status is Status.REPLACED:
        raise NothingToDoError(
            f"{published}, which {live} with newer days has replaced: nothing to do; --force makes it live again"
        )
    refuse(refusals, version)
    return version


def refuse(refusals: list[dict[str, Any]], version: Version) -> None:
    """Raise an error that explains why a version does not become current.

    Raises
    ------
    CheckFailedError
        There are refusals.
    """
    if refusals:
        reasons = ". ".join(refusal["message"] for refusal in refusals)
        error = CheckFailedError(
            f"version {version.name} was saved as a candidate; "
            f"{'the live version is unchanged' if version.manifest['previous_version'] else 'no version is live'}. "
            f"{reasons}. `logcal tables promote` makes the candidate live anyway"
        )
        error.version = version.name
        raise error


def prune(store: TableStore, keep: int | None) -> None:
    """Remove old versions after a new one is published; log errors. keep : number of versions; None keeps all."""
    try:
        if keep is not None and (removed := store.prune(keep, lambda: needed_versions(store.folder))):
            log.info("removed old versions: %s", ", ".join(removed))
    except LogcalError as error:
        log.warning("old versions stay: %s", error)


def older_data(
    run: dict[str, Any], current: Version | None, live_at_start: str | None, config: FitConfig
) -> list[dict[str, Any]]:
    """Refuse a run's table if its data end before the current version's: return at most one refusal.

    Only if CURRENT changed during the run, or window.until ends the run's data on an earlier day.

    Parameters
    ----------
    run : the run's manifest: window, log, started
    current : the current version
    live_at_start : name of the version that was current when the run began
    """
    if current is None or config.store.force:
        return []
    moved = current.name != live_at_start
    run_end, live_end = _data_end(run), _data_end(current.manifest)
    if run_end[0] != live_end[0] or run_end[0] == "unknown":
        run_end, live_end = (("start", str(m["started"])) for m in (run, current.manifest))
    kind, end = run_end
    if end >= live_end[1] or not (moved or (config.window.until is not None and kind == "day")):
        return []
    reason = {
        "day": f"The data end on {end}, those of the current version {current.name} on {live_end[1]}",
        "file": f"The log's newest file is older than that of the current version {current.name}",
        "start": f"The run began before the current version {current.name} was fitted",
    }[kind]
    meanwhile = ", which was published meanwhile" if moved else ""
    message = f"{reason}{meanwhile}"
    return [{"rule": OLDER_DATA, "message": message}]


def _data_end(manifest: dict[str, Any]) -> tuple[str, Any]:
    """Return the end of a version's data: its window's last day, or the newest file's modification time, if known."""
    if manifest.get("window"):
        return "day", manifest["window"]["last"]
    try:
        return "file", max(float(file["stamp"]) for file in manifest["log"]["files"])
    except (ValueError, KeyError):
        return "unknown", ""


@dataclass(frozen=True)
class Finishing(Startable):
    """Fit that was run before: its version only has to become current."""

    store: TableStore
    version: Version
    outcome: Callable[[dict[str, Any], Version], Outcome]
    keep: int | None

    @property
    def plan(self) -> Plan:
        """Plan of the job."""
        return Plan(
            job="fit",
            stages=(
                f"publish: point CURRENT to version {self.version.name}, which the same run made before",
            ),
            reads=(),
            writes=(f"{self.store.url}/CURRENT",),
            facts={
                "run_id": self.version.manifest["run_id"],
                "version": self.version.name,
                "current_version": self.store.current_name(),
            },
        )

    def execute(self, executor: Executor) -> Outcome:
        """Make the version current."""
        self.store.make_current(self.version)
        prune(self.store, self.keep)
        summary = self.outcome(self.version.manifest["data"], self.version).summary
        line = f"version {self.version.name} of table {summary['table']}, fitted before, is live"
        return Outcome(summary | {"published_as": "current"}, [line, f"  {self.version.lookup_path}"])
