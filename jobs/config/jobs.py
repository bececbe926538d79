"""The configuration of every job: its keys, their types, defaults and meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from jobs.config.cluster import ClusterConfig
from jobs.config.gate import GateConfig, RetentionConfig
from jobs.config.log import LogConfig, MeasuredLogConfig, ScoreLogConfig
from jobs.config.results import (
    ClassifierConfig,
    DemoOutputConfig,
    EvaluateSection,
    ReportConfig,
    ScoredConfig,
    ScoreSection,
)
from jobs.config.section import Section
from jobs.config.table import CalibratorConfig, PublishedConfig, ScoreTableConfig, SegmentsConfig, StoreConfig
from jobs.config.types import Text
from jobs.config.window import WindowConfig

Scratch = Annotated[
    Text | None,
    Field(
        description="Folder for temporary files, which all workers must see, or a URL of an object store. null: the "
        "system's temporary folder."
    ),
]
_LOG = Field(description="The prediction log to read.")
_CLUSTER = Field(ClusterConfig(), description="Where the work runs.")


class StorageConfig(Section):
    """How object stores are reached. Never written to manifests, records or reports."""

    options: dict[str, dict[str, Any]] = Field(
        {},
        description="By protocol, what fsspec's file system is made with, for all paths of the job, such as {s3: "
        "{endpoint_url: https://minio:9000, key: someone, secret: '${MINIO_SECRET}'}}. Text that is ${NAME} is the "
        "environment variable NAME. Workers of a cluster that is running need them in their own environment.",
    )


_STORAGE = Field(StorageConfig(), description="How object stores are reached.", exclude=True)


class RecordConfig(Section):
    """What every attempt leaves behind, also one that fails."""

    path: Text | None = Field(
        None,
        description="Folder of the run records, a JSON file an attempt: job, time, exit code, message, inputs, "
        "outputs, rows, measures, software, host. null: <store.path>/<store.table>/runs, where that store is; without "
        "a store, <output.path>.logcal. none: no records. Where one cannot be written there is a warning.",
    )
    prometheus: Text | None = Field(
        None,
        description="File such as /var/lib/node_exporter/logcal.prom for Prometheus' textfile collector: last success, "
        "duration, rows and measures, by job and table. Several jobs share one file.",
    )
    openlineage: Text | None = Field(
        None,
        description="URL of an OpenLineage server, or a file: a START event, and COMPLETE, FAIL or ABORT. Needs "
        "`pip install 'logcal[lineage]'`.",
    )


_RECORD = Field(RecordConfig(), description="What every attempt leaves behind, also one that fails.")


class JobConfig(Section):
    """What every job's configuration has; declared in each, so that these keys come last."""

    stand_ins: ClassVar[Mapping[tuple[str, ...], tuple[str, ...]]] = {}
    """Keys that stand for others where these are not given: the other's path to this one's."""

    if TYPE_CHECKING:
        scratch: str | None
        cluster: ClusterConfig
        storage: StorageConfig


_WINDOW: WindowConfig = Field(
    WindowConfig(), description="Which days of the log to use: all, or the last ones."
)


class FitConfig(JobConfig):
    """Configuration of fit."""

    log: LogConfig = _LOG
    store: StoreConfig = Field(description="Where to publish the lookup table.")
    calibrator: CalibratorConfig = Field(CalibratorConfig(), description="How to calibrate.")
    segments: SegmentsConfig = Field(
        SegmentsConfig(), description="With log.segment: which segments get a map of their own."
    )
    window: WindowConfig = _WINDOW
    score_table: ScoreTableConfig = Field(
        ScoreTableConfig(),
        description="The sorted log, one row a distinct score, which the calibrator is fitted to.",
    )
    gate: GateConfig = Field(GateConfig(), description="What the table must pass before it is used.")
    retention: RetentionConfig = Field(RetentionConfig(), description="What is kept of earlier versions.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


class ScoreConfig(JobConfig):
    """Configuration of score."""

    log: ScoreLogConfig = _LOG
    store: PublishedConfig = Field(description="The published table to score with.")
    classifier: ClassifierConfig = Field(
        ClassifierConfig(), description="A classifier to score with, for logs of features."
    )
    window: WindowConfig = Field(
        WindowConfig(),
        description="Which days of the log to score: all, or the last ones. The files that may hold rows of these "
        "days are scored whole.",
    )
    score: ScoreSection = Field(ScoreSection(), description="What is scored, and what is not.")
    output: ScoredConfig = Field(description="Where the scored log goes.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


class EvaluateConfig(JobConfig):
    """Configuration of evaluate."""

    stand_ins: ClassVar[Mapping[tuple[str, ...], tuple[str, ...]]] = {("report", "path"): ("output", "path")}

    log: MeasuredLogConfig = Field(
        description="The prediction log to read. Or path is the folder score_table that a version kept "
        "(score_table.keep of fit): the log it was fitted to, sorted already; the other keys then mean nothing."
    )
    store: PublishedConfig = Field(description="The published table to measure.")
    window: WindowConfig = Field(
        WindowConfig(), description="Which days of the log to measure: all, or the last ones."
    )
    report: ReportConfig = Field(description="Where the report goes.")
    evaluate: EvaluateSection = Field(EvaluateSection(), description="How to measure.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


DEMO_TABLE = "adult-income"


class DemoConfig(JobConfig):
    """Configuration of demo."""

    output: DemoOutputConfig = Field(DemoOutputConfig(), description="Where the demo's files go.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER

    @property
    def store(self) -> PublishedConfig:
        """Where its tables go."""
        return PublishedConfig(path=f"{self.output.path.rstrip('/')}/store", table=DEMO_TABLE)
