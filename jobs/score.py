"""The score job: a log with the calibrated probability of each row added, from a published table."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.config import ScoreConfig
from jobs.run import Outcome, Plan
from pipeline.execution import Executor
from pipeline.identity import run_id
from pipeline.logs import Columns, Log, open_log
from pipeline.output import Output
from pipeline.scored import check_output, score_log
from pipeline.scored_file import Scoring
from pipeline.store import TableStore, Version


def prepare(config: ScoreConfig) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store = TableStore(config.store.path, config.store.table)
    version = store.version(config.store.version)
    store.verify(version)
    log = open_log(config.log.path, Columns(config.log.score))
    settings = {
        "score": config.log.score,
        "column": config.output.column,
        "table": config.store.table,
        "version": version.name,
        "fingerprint": version.manifest["fingerprint"],
    }
    identity = run_id("score", log, settings)
    check_output(log, config.output.path, identity)
    return Prepared(config, log, version, identity)


@dataclass(frozen=True)
class Prepared:
    """A scoring that can start."""

    config: ScoreConfig
    log: Log
    version: Version
    identity: str

    @property
    def plan(self) -> Plan:
        """What the scoring would do."""
        log = self.log
        return Plan(
            job="score",
            stages=(
                f"score: copy each file and add the probability ({len(log.files)} tasks)",
                "publish: rename the finished folder to its place",
            ),
            reads=(
                f"{', '.join(self.config.log.path)}: {len(log.files)} files, {log.rows:,} rows, {log.size:,} bytes",
                self.version.lookup_path,
            ),
            writes=(Output(self.config.output.path).root,),
            facts={
                "files": len(log.files),
                "rows": log.rows,
                "bytes": log.size,
                "table": self.config.store.table,
                "version": self.version.name,
                "method": self.version.manifest["method"],
                "run_id": self.identity,
            },
        )

    def execute(self, executor: Executor) -> Outcome:
        """Score."""
        config = self.config
        scoring = Scoring(config.log.score, self.version.lookup_path, config.output.column)
        scored = score_log(
            self.log, scoring, config.output.path, executor, run_id=self.identity, table=config.store.table
        )
        summary = {
            "path": scored.path,
            "table": scored.table,
            "version": scored.version,
            "column": config.output.column,
            "files": len(scored.files),
            "rows": scored.rows,
            "null_rows": scored.null_rows,
            "bytes": scored.size,
            "run_id": self.identity,
        }
        without = f", {scored.null_rows:,} of them without a score and so without a probability"
        lines = [
            f"scored {scored.rows:,} rows in {len(scored.files)} files{without if scored.null_rows else ''}",
            f"  with {scored.table} version {scored.version}",
            f"  {scored.path}",
        ]
        return Outcome(summary=summary, lines=lines)
