"""Traces of every attempt of a job: a record, metrics for Prometheus, events for OpenLineage."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jobs import interrupts
from pipeline.files.storage import redacted, without_secrets

if TYPE_CHECKING:
    from jobs.config.jobs import JobConfig, RecordConfig
    from jobs.outcome import Outcome, Plan

log = logging.getLogger("logcal")

RUNS = "runs"
"""The folder of records beside a table's versions."""

DONE, NOTHING, FAILED = "done", "nothing to do", "failed"
_NOTHING_TO_DO = 99
_CONFIG = 2
_CHECK = 4

_ROWS = (
    "rows", "rows_read", "rows_used", "rows_positive", "rows_quarantined", "null_rows", "unseen_rows",
    "rows_below_range", "rows_above_range",
)  # fmt: skip


@dataclass
class Attempt:
    """One attempt of a job, from its configuration to its exit code."""

    job: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    config: JobConfig | SimpleNamespace | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None
    message: str | None = None
    refused: str | None = None

    @property
    def settings(self) -> RecordConfig | None:
        """Traces to leave; None for jobs that leave nothing."""
        return getattr(self.config, "record", None)

    def misread(self, values: Mapping[str, Any]) -> None:
        """The configuration is not good: of what was read, take what says where to leave a record."""
        from jobs.config.jobs import RecordConfig

        try:
            record = RecordConfig.model_validate(values.get("record") or {})
        except ValueError:
            record = RecordConfig()
        self.config = SimpleNamespace(record=record)
        for section, keys in (("store", ("path", "table")), ("output", ("path",)), ("report", ("path",))):
            given = values.get(section)
            found = {key: given.get(key) for key in keys} if isinstance(given, dict) else {}
            if found and all(isinstance(value, str) for value in found.values()):
                setattr(self.config, section, SimpleNamespace(**found))

    def of_table(self, store: str, table: str) -> None:
        """A published table is changed by hand."""
        from jobs.config.jobs import RecordConfig

        self.config = SimpleNamespace(record=RecordConfig(), store=SimpleNamespace(path=store, table=table))

    def begin(self, config: JobConfig) -> None:
        """The configuration is good."""
        self.config = config
        if self.settings is not None:
            self._trying("openlineage", lambda where: self._emit(where, None), self.settings.openlineage)

    def end(self, code: int) -> None:
        """Leave everything behind; what fails is a warning, and so is a signal: the exit code stands."""
        try:
            with interrupts.catching():
                self._leave(code)
        except KeyboardInterrupt:
            log.warning("interrupted: what is left behind of this attempt may not be complete")
        except Exception as error:  # noqa: BLE001 - such as for want of memory
            log.warning("record.path: no record can be made of this attempt (%s)", type(error).__name__)

    def _leave(self, code: int) -> None:
        settings = self.settings
        if settings is None or getattr(getattr(self.config, "follow", None), "status", False):
            return
        from jobs.exports import update
        from pipeline.files.records import write_record

        record = self.record(code)
        folder = settings.path or self._folder(code)
        self._trying("path", lambda where: write_record(where, record), None if folder == "none" else folder)
        self._trying("prometheus", lambda where: update(Path(where), record), settings.prometheus)
        self._trying("openlineage", lambda where: self._emit(where, record), settings.openlineage)

    def _emit(self, where: str, record: dict[str, Any] | None) -> None:
        from jobs.exports import emit

        at = self.start if record is None else datetime.now(UTC)
        emit(where, self.job, self.id, at, self._table(), record)

    def _trying(self, key: str, action: Callable[[str], object], where: str | None) -> None:
        """Write something where the configuration says, if it says so."""
        try:
            if where is not None:
                action(where)
        except Exception as error:  # noqa: BLE001 - the job itself is done
            said = f"record.{key}: cannot write to {where} ({type(error).__name__}: {error})"
            log.warning("%s", without_secrets(said))

    def _table(self) -> dict[str, Any]:
        store = getattr(self.config, "store", None)
        return {} if store is None else {"store": store.path, "table": store.table}

    def _folder(self, code: int) -> str | None:
        """Default folder of the record: no store or table is made for it, which would only be mistyped."""
        where = self._table()
        if not where:
            written = getattr(self.config, "output", None) or getattr(self.config, "report", None)
            from jobs.rows import page_folder

            path = page_folder(getattr(written, "path", None), self.job)
            return None if path is None or code == _CONFIG else f"{path.rstrip('/')}.logcal"
        place = f"{where['store'].rstrip('/')}/{where['table']}"
        # A fit makes them anyway.
        there = "://" in place or Path(place).is_dir() or (self.job == "fit" and code != _CONFIG)
        return f"{place}/{RUNS}" if there else None

    def record(self, code: int) -> dict[str, Any]:
        """The attempt as JSON values."""
        from pipeline.files.records import jsonable
        from pipeline.table.published import software

        assert self.config is not None
        facts = {} if self.plan is None else self.plan.facts
        summary = {} if self.outcome is None else self.outcome.summary
        known = facts | summary
        section = getattr(self.config, "log", None) or getattr(self.config, "data", None)
        after = summary.get("after")
        found: dict[str, Any] = {
            "job": self.job,
            "attempt": self.id,
            "run_id": known.get("run_id"),
            "start": self.start.isoformat(timespec="milliseconds"),
            "end": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - self.clock, 3),
            "exit_code": code,
            "outcome": {0: DONE, _NOTHING_TO_DO: NOTHING}.get(code, FAILED),
            "message": self.message,
            **self._table(),
            "version": self.refused
            or known.get("version")
            or (None if code == _CHECK else known.get("current_version")),
            "inputs": {
                "path": list(getattr(section, "path", ())),
                **{key: facts[key] for key in ("files", "rows", "bytes") if key in facts},
            },
            "outputs": [] if self.plan is None or code else self.plan.places,
            "rows": {key: known[key] for key in _ROWS if isinstance(known.get(key), int)},
            # Of an evaluation, after calibration.
            "measures": {k: v for k, v in after.items() if k != "reasons"} if isinstance(after, dict) else {},
            "result": summary,
            "host": {"name": socket.gethostname(), "user": _user(), "pid": os.getpid()},
            "software": software(),
        }
        checked: dict[str, Any] = redacted(jsonable(found))
        return checked


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return None
