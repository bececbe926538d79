"""The fit job: a log's rows, sorted into a score table; a calibrator fitted to it; its lookup table published."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.config import FitConfig
from jobs.run import Outcome, Plan
from pipeline import score_table
from pipeline.calibration import Fit, fit_log, keep_monotone, make_calibrator
from pipeline.errors import NothingToDoError
from pipeline.execution import Executor
from pipeline.identity import run_id, software
from pipeline.logs import Columns, Log, cut, open_log
from pipeline.lookup_table import fingerprint, lookup_bytes
from pipeline.output import Output
from pipeline.quarantine import RowRules, check_place, keep_parts
from pipeline.score_table import SortPlan, scratch_bytes
from pipeline.scratch import check_space, scratch_folder
from pipeline.store import TableStore, Version


def prepare(config: FitConfig) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    calibrator = make_calibrator(config.calibrator.method, config.calibrator.params)
    columns = Columns(config.log.score, config.log.label, config.log.weight)
    log = open_log(config.log.path, columns)
    store = TableStore(config.store.path, config.store.table)
    Output(config.store.path, "store.path").check_apart(log)
    store.check_writable()
    store.current()
    # The log's files count, not how they were named.
    settings = config.model_dump(
        mode="json", exclude={"store": True, "scratch": True, "cluster": True, "log": {"path"}}
    )
    identity = run_id("fit", log, settings)
    _check_new(store, identity)
    quarantine = None
    if config.log.quarantine_path is not None:
        quarantine = Output(f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path")
        quarantine.check_apart(log)
        check_place(quarantine, identity)
    needed = scratch_bytes(log, write=config.score_table.keep or not calibrator.single_pass)
    check_space(config.scratch, needed)
    return Prepared(config, log, store, identity, quarantine, needed)


def _check_new(store: TableStore, identity: str) -> None:
    published = store.find_run(identity)
    if published is not None:
        now = store.current_name()
        current = "" if published.name == now else f" (CURRENT names {now})"
        raise NothingToDoError(
            f"the same log and configuration were published as version {published.name}{current}: nothing to do"
        )


@dataclass(frozen=True)
class Prepared:
    """A fit that can start."""

    config: FitConfig
    log: Log
    store: TableStore
    identity: str
    quarantine: Output | None
    needed: int

    @property
    def plan(self) -> Plan:
        """What the fit would do."""
        log = self.log
        runs = len(cut(log, score_table.RUN_ROWS))
        config = self.config
        return Plan(
            job="fit",
            stages=(
                f"sort: read {', '.join(log.columns.names)} and write sorted runs to scratch ({runs} tasks)",
                f"merge: add up ties and fit {config.calibrator.method} (about {self._buckets} tasks)",
                "publish: write a new version, then point CURRENT to it",
            ),
            reads=(
                f"{', '.join(config.log.path)}: {len(log.files)} files, {log.rows:,} rows, {log.size:,} bytes",
            ),
            writes=(
                f"{self.store.root}/versions/",
                *((self.quarantine.root,) if self.quarantine else ()),
                f"scratch ({config.scratch or 'temporary folder'}): up to {self.needed:,} bytes, removed after",
            ),
            facts={
                "files": len(log.files),
                "rows": log.rows,
                "bytes": log.size,
                "columns": log.types,
                "method": config.calibrator.method,
                "params": config.calibrator.params,
                "run_id": self.identity,
                "current_version": self.store.current_name(),
            },
        )

    @property
    def _buckets(self) -> int:
        return max(1, self.needed // score_table.BUCKET_BYTES)

    def execute(self, executor: Executor) -> Outcome:
        """Fit and publish."""
        started = time.perf_counter()
        config = self.config
        calibrator = make_calibrator(config.calibrator.method, config.calibrator.params)
        rules = RowRules(
            quarantine=config.log.on_bad_rows == "quarantine",
            max_fraction=config.log.max_bad_fraction,
            keep=self.quarantine is not None,
        )
        with scratch_folder(config.scratch) as scratch:
            sort = SortPlan(scratch, transform=config.log.score_transform, rules=rules)
            sort = sort.within(config.cluster.memory_bytes)
            keep = scratch / "kept" if config.score_table.keep else None
            fit = fit_log(calibrator, self.log, sort, executor, keep=keep)
            if self.quarantine is not None and fit.table.bad.total:
                keep_parts(scratch, self.quarantine, self.identity)
            _free_runs(scratch)
            version = self._publish(fit, keep, time.perf_counter() - started)
        return _outcome(fit, version)

    def _publish(self, fit: Fit, keep: Path | None, seconds: float) -> Version:
        config = self.config
        calibration_map, repair = keep_monotone(fit.calibrator.calibration_map_, config.calibrator.monotone)
        content: dict[str, Any] = {
            "method": config.calibrator.method,
            "parameters": config.calibrator.params,
            "score_transform": config.log.score_transform,
            "data": {**fit.table.facts(), "largest_monotone_repair": repair, **fit.calibrator.facts()},
        }
        manifest = {
            "run_id": self.identity,
            **content,
            "monotone": calibration_map.monotone,
            "lookup_rows": len(calibration_map),
            "log": {
                "path": list(config.log.path),
                "columns": self.log.types,
                "files": [
                    {"path": f.path, "bytes": f.size, "rows": f.rows, "stamp": f.stamp}
                    for f in self.log.files
                ],
            },
            "quarantine": self.quarantine.root if self.quarantine and fit.table.bad.total else None,
            "config": config.model_dump(mode="json"),
            "seconds": round(seconds, 3),
            "software": software(),
        }
        return self.store.publish(
            fingerprint(calibration_map, **content),
            lambda name: lookup_bytes(calibration_map, version=name, **content),
            manifest,
            keep,
        )


def _free_runs(scratch: Path) -> None:
    """Give the space of the runs back before the version is written."""
    for run in scratch.glob("run-*"):
        run.unlink()
    shutil.rmtree(scratch / "score_table", ignore_errors=True)


def _outcome(fit: Fit, version: Version) -> Outcome:
    facts = fit.table.facts()
    summary = {
        "table": version.manifest["table"],
        "version": version.name,
        "previous_version": version.manifest["previous_version"],
        "lookup_path": version.lookup_path,
        "method": version.manifest["method"],
        "monotone": version.manifest["monotone"],
        "lookup_rows": version.manifest["lookup_rows"],
        "fingerprint": version.manifest["fingerprint"],
        "run_id": version.manifest["run_id"],
        **facts,
    }
    shape = "monotone" if summary["monotone"] else "not monotone"
    used = (
        f"{facts['rows_used']:,} of {facts['rows_read']:,} rows, {facts['rows_positive']:,} of them positive"
    )
    lines = [
        f"published {summary['table']} version {version.name}",
        f"  {summary['method']}: {summary['lookup_rows']:,} rows, {shape}",
        f"  from {used}, {facts['distinct_scores']:,} distinct scores",
        f"  {version.lookup_path}",
    ]
    return Outcome(summary=summary, lines=lines)
