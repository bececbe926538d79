"""One job for each of several configuration files, in one process and on one cluster."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import interrupts
from jobs.registry import Job
from jobs.run import Member, begin_process, guarded, run_values
from logcal.errors import ConfigError, counted, examples
from logcal.storage import is_url

if TYPE_CHECKING:
    from jobs.config.loading import Values

log = logging.getLogger("logcal")

_WORST_FIRST = (1, 2, 3, 4, 75, 0, 99)
"""Exit codes of runs; the command's is the worst."""


def run_each(
    job: Job,
    each: Sequence[str],
    files: Sequence[str],
    settings: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run a job once for each file, print each result, and return the worst exit code.

    An error of one run does not stop the others; an interrupt does.

    each : files, of which each overrides `files` and is overridden by `settings`
    """
    codes: list[int] = []

    def run() -> None:
        begin_process()
        from jobs.cluster.starting import SharedCluster

        inputs = [_Input.read(file, files, settings) for file in each]
        _refuse_shared_tables(inputs)
        _refuse_other_storage(inputs)
        with SharedCluster() as cluster:
            try:
                while inputs:
                    interrupts.resume()
                    config = inputs.pop(0)
                    log.info("%s (%d of %d)", config.file, len(codes) + 1, len(each))
                    member = Member(config.file, cluster)
                    code = run_values(job, config.load, dry_run=dry_run, as_json=as_json, member=member)
                    codes.append(code)
                    if code > interrupts.SIGNALLED:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                left = counted(len(each) - len(codes), "file")
                raise KeyboardInterrupt(f"interrupted; {left} not begun") from None
            interrupts.ignore()
        by_code = ", ".join(f"{number} with {code}" for code, number in sorted(Counter(codes).items()))
        log.info("%s by exit code: %s", counted(len(each), "file"), by_code)

    return guarded(f"logcal {job.command or job.name}", run, as_json) or min(codes, key=_WORST_FIRST.index)


@dataclass
class _Input:
    """Values of one run's configuration, or the error of reading them."""

    file: str
    values: Values | None = None
    error: Exception | None = None

    @classmethod
    def read(cls, file: str, files: Sequence[str], settings: Sequence[str]) -> _Input:
        from jobs.config.loading import read_values

        try:
            return cls(file, read_values([*files, file], settings))
        except Exception as error:  # noqa: BLE001 - raised by the run
            return cls(file, error=error)

    def load(self) -> Values:
        """Return the values, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.values is not None
        return self.values

    def get(self, section: str, key: str) -> Any:
        """Return the value of a key, or None."""
        return None if self.values is None else self.values.get((section, key))

    @property
    def table(self) -> tuple[str, str] | None:
        """Folder and name of the run's table; None if the configuration lacks them."""
        path, name = self.get("store", "path"), self.get("store", "table")
        if not (isinstance(path, str) and path and name):
            return None
        folder = path.rstrip("/") if is_url(path) else str(Path(path.removeprefix("file://")).resolve())
        return folder, str(name)


def _refuse_shared_tables(inputs: Sequence[_Input]) -> None:
    """Give all runs an error that write the table of another run: which of them is meant is not known."""
    writers: dict[tuple[str, str], list[_Input]] = {}
    for config in inputs:
        if config.table is not None:
            writers.setdefault(config.table, []).append(config)
    for (path, name), several in writers.items():
        if len(several) > 1:
            found = examples([config.file for config in several])
            error = ConfigError(
                f"store.table: expected another table for each file, found table {name} in {path} for {found}: "
                "correct store.path or store.table"
            )
            for config in several:
                config.error = error


def _refuse_other_storage(inputs: Sequence[_Input]) -> None:
    """Give runs an error whose options of object stores differ from the first run's: a process has one set of them."""
    readable = [config for config in inputs if config.values is not None]
    for config in readable[1:]:
        if (config.get("storage", "options") or {}) != (readable[0].get("storage", "options") or {}):
            config.error = ConfigError(
                f"storage.options: expected those of {readable[0].file}, found others: runs of --each share them, so "
                "give this file a command of its own"
            )
