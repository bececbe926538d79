"""Records of every attempt of a job: a run record, metrics for Prometheus, events for OpenLineage."""

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
from logcal.storage import is_name
from pipeline.files.storage import redacted, without_secrets

if TYPE_CHECKING:
    from jobs.config.jobs import JobConfig, RecordConfig
    from jobs.outcome import Outcome, Plan

log = logging.getLogger("logcal")

RUNS = "runs"
"""Name of the folder of run records, beside a table's versions."""

DONE, NOTHING, FAILED = "done", "nothing to do", "failed"
_NOTHING_TO_DO = 99
_CONFIG = 2
_CHECK = 4

_ROWS = (
    "rows", "rows_read", "rows_used", "rows_positive", "rows_quarantined", "rows_waiting", "null_rows", "unseen_rows",
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
        """Configuration of the records; None for jobs without records."""
        return getattr(self.config, "record", None)

    def keep_record_keys(self, values: Mapping[str, Any]) -> None:
        """Keep the keys of an invalid configuration that say where to write the record."""
        from jobs.config.jobs import RecordConfig

        try:
            record = RecordConfig.model_validate(values.get("record") or {})
        except ValueError:
            record = RecordConfig()
        self.config = SimpleNamespace(record=record)
        for section, keys in (("store", ("path", "table")), ("output", ("path",)), ("report", ("path",))):
            section_values = values.get(section)
            texts = {key: section_values.get(key) for key in keys} if isinstance(section_values, dict) else {}
            if texts and all(isinstance(value, str) for value in texts.values()):
                setattr(self.config, section, SimpleNamespace(**texts))

    def set_table(self, store: str, table: str) -> None:
        """Record a command that changes a published table."""
        from jobs.config.jobs import RecordConfig

        self.config = SimpleNamespace(record=RecordConfig(), store=SimpleNamespace(path=store, table=table))

    def begin(self, config: JobConfig) -> None:
        """Take the valid configuration, and send the START event."""
        self.config = config
        if self.settings is not None:
            self._write("openlineage", lambda target: self._emit(target, None), self.settings.openlineage)

    def end(self, code: int) -> None:
        """Write all records. Errors and signals are only logged: the exit code stays the same."""
        try:
            with interrupts.catching():
                self._write_all(code)
        except KeyboardInterrupt:
            log.warning("interrupted: the records of this attempt may be incomplete")
        except Exception as error:  # noqa: BLE001 - such as a lack of memory
            log.warning("record.path: no record can be made of this attempt (%s)", type(error).__name__)

    def _write_all(self, code: int) -> None:
        settings = self.settings
        if settings is None or getattr(getattr(self.config, "follow", None), "status", False):
            return
        from jobs.record_exports import update
        from pipeline.files.records import write_record

        record = self.record(code)
        folder = settings.path or self._folder(code)
        self._write("path", lambda target: write_record(target, record), None if folder == "none" else folder)
        self._write("prometheus", lambda target: update(Path(target), record), settings.prometheus)
        self._write("openlineage", lambda target: self._emit(target, record), settings.openlineage)

    def _emit(self, target: str, record: dict[str, Any] | None) -> None:
        from jobs.record_exports import emit

        at = self.start if record is None else datetime.now(UTC)
        emit(target, self.job, self.id, at, self._table(), record)

    def _write(self, key: str, action: Callable[[str], object], target: str | None) -> None:
        """Write one kind of record to its target, if it has one; log errors."""
        try:
            if target is not None:
                action(target)
        except Exception as error:  # noqa: BLE001 - the job itself is done
            message = f"record.{key}: cannot write to {target} ({type(error).__name__}: {error})"
            log.warning("%s", without_secrets(message))

    def _table(self) -> dict[str, Any]:
        store = getattr(self.config, "store", None)
        return {} if store is None else {"store": store.path, "table": store.table}

    def _folder(self, code: int) -> str | None:
        """Default folder of the record; None rather than create a store or table whose name may be mistyped."""
        table = self._table()
        if not table:
            written = getattr(self.config, "output", None) or getattr(self.config, "report", None)
            from jobs.rows import page_folder
            from pipeline.files.storage import records_beside

            path = page_folder(getattr(written, "path", None), self.job)
            return None if path is None or code == _CONFIG else records_beside(path)
        folder = f"{table['store'].rstrip('/')}/{table['table']}"
        if not is_name(table["table"]):
            return None
        # A fit creates them anyway.
        exists = "://" in folder or Path(folder).is_dir() or (self.job == "fit" and code != _CONFIG)
        return f"{folder}/{RUNS}" if exists else None

    def record(self, code: int) -> dict[str, Any]:
        """Return the attempt as JSON values."""
        from pipeline.files.records import jsonable
        from pipeline.table.published import software

        assert self.config is not None
        facts = {} if self.plan is None else self.plan.facts
        summary = {} if self.outcome is None else self.outcome.summary
        results = facts | summary
        section = getattr(self.config, "log", None) or getattr(self.config, "data", None)
        after = summary.get("after")
        record: dict[str, Any] = {
            "job": self.job,
            "attempt": self.id,
            "run_id": results.get("run_id"),
            "start": self.start.isoformat(timespec="milliseconds"),
            "end": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - self.clock, 3),
            "exit_code": code,
            "outcome": {0: DONE, _NOTHING_TO_DO: NOTHING}.get(code, FAILED),
            "message": self.message,
            **self._table(),
            "version": self.refused
            or results.get("version")
            or (None if code == _CHECK else results.get("current_version")),
            "inputs": {
                "path": list(getattr(section, "path", ())),
                **{key: facts[key] for key in ("files", "rows", "bytes") if key in facts},
            },
            "outputs": [] if self.plan is None or code else self.plan.outputs,
            "rows": {
                **{key: results[key] for key in _ROWS if isinstance(results.get(key), int)},
                **(results.get("quarantined_by_reason") or {}),
            },
            # An evaluation's measures after calibration.
            "measures": {k: v for k, v in after.items() if k != "reasons"} if isinstance(after, dict) else {},
            "result": summary,
            "host": {"name": socket.gethostname(), "user": _user(), "pid": os.getpid()},
            "software": software(),
        }
        checked: dict[str, Any] = redacted(jsonable(record))
        return checked


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return None
