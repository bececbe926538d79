"""A run that was here before: what is left to do of it, and whether its table may still become the current one."""

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
"""The rule that `--force` sets aside."""


def left_to_do(store: TableStore, identity: str, config: FitConfig) -> Version | None:
    """The version that a run made before and that is to be made current now; None: the run is new.

    identity : the run's id

    Raises
    ------
    NothingToDoError
        It is live, or as the run would leave it, or it was rolled back, or replaced by one of newer data.
    CheckFailedError
        It was refused, and would be again, or its data end before those of the live version.
    """
    made = store.find_run(identity)
    if made is None:
        return None
    now = store.current_name()
    entries = store.journal.entries()
    stand = status_of(made, entries, now)
    said = f"the same log and configuration were published as version {made.name}"
    if stand is Status.CURRENT:
        raise NothingToDoError(f"{said}: nothing to do", lambda: prune(store, config.retention.versions))
    if stand is Status.TAKEN_BACK:
        rollback = taken_back(entries, made.name, now)
        when = "" if rollback is None else f" on {rollback.at}"
        raise NothingToDoError(
            f"{said}, which was rolled back{when} (the live version is {now}): nothing to do; "
            "`logcal tables promote` makes it live again"
        )
    if made.candidate:
        store.enter_candidate(made)
    if stand is Status.REFUSED:
        refuse([own for own in made.refusals if own["rule"] != OLDER_DATA or not config.store.force], made)
    if config.store.publish == "candidate":
        raise NothingToDoError(
            f"{said} (live: {now or 'none'}), and store.publish is candidate: nothing to do"
        )
    refusals = older_data(made.manifest, store.current(), now, config)
    if refusals and stand is Status.REPLACED:
        raise NothingToDoError(
            f"{said}, which {now} with newer days has replaced: nothing to do; --force makes it live again"
        )
    refuse(refusals, made)
    return made


def refuse(refusals: list[dict[str, Any]], version: Version) -> None:
    """Say why a version is not made current.

    Raises
    ------
    CheckFailedError
        Unless there is no reason.
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
    """Remove old versions after a new one is published, as far as that can be done now. keep : None keeps all."""
    try:
        if keep is not None and (gone := store.prune(keep, lambda: needed_versions(store.folder))):
            log.info("removed old versions: %s", ", ".join(gone))
    except LogcalError as error:
        log.warning("old versions stay: %s", error)


def older_data(
    run: dict[str, Any], current: Version | None, seen: str | None, config: FitConfig
) -> list[dict[str, Any]]:
    """Why a run's table must not replace the current one, if its data end earlier: at most one refusal.

    Only where that is sure to be wrong: CURRENT has moved while the run was under way, or the run was told to end on an
    earlier day.

    Parameters
    ----------
    run : what the run's manifest says: window, log, started
    current : the current version
    seen : what CURRENT held when the run began
    """
    if current is None or config.store.force:
        return []
    moved = current.name != seen
    mine, other = _data_end(run), _data_end(current.manifest)
    if mine[0] != other[0] or mine[0] == "unknown":
        mine, other = (("start", str(manifest.get("started", ""))) for manifest in (run, current.manifest))
    kind, end = mine
    if end >= other[1] or not (moved or (config.window.until is not None and kind == "day")):
        return []
    what = {
        "day": f"its data end on {end}, and those of the current version {current.name} on {other[1]}",
        "file": f"its log's newest file is older than that of the current version {current.name}",
        "start": f"it began before the current version {current.name} was fitted",
    }[kind]
    meanwhile = ", which was published meanwhile" if moved else ""
    message = f"{what}{meanwhile}: --force publishes it anyway"
    return [{"rule": OLDER_DATA, "message": message}]


def _data_end(manifest: dict[str, Any]) -> tuple[str, Any]:
    """End of a version's data: its window's last day, or its newest file's modification, if the log tells it."""
    if manifest.get("window"):
        return "day", manifest["window"]["last"]
    try:
        return "file", max(float(file["stamp"]) for file in manifest["log"]["files"])
    except (ValueError, KeyError):
        return "unknown", ""


@dataclass(frozen=True)
class Finishing(Startable):
    """A fit that has been done before: all that is left is to make its version current."""

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
        """Make it current."""
        self.store.make_current(self.version)
        prune(self.store, self.keep)
        outcome = self.outcome(self.version.manifest["data"], self.version)
        lines = [*outcome.lines, "  fitted before, with the same log and configuration; made current now"]
        return Outcome(summary=outcome.summary, lines=lines)
