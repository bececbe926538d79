"""The configuration of follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from jobs.config.cluster import ClusterConfig, parse_bytes
from jobs.config.gate import GateConfig, RetentionConfig
from jobs.config.jobs import _CLUSTER, _RECORD, _STORAGE, JobConfig, RecordConfig, Scratch, StorageConfig
from jobs.config.log import LogConfig
from jobs.config.monitor import MonitorSection
from jobs.config.results import ClassifierConfig, ScoredConfig
from jobs.config.section import Section
from jobs.config.table import CalibratorConfig, PublishedConfig, ScoreTableConfig, SegmentsConfig
from jobs.config.types import Paths, Text
from jobs.config.window import WindowConfig, check_days

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as '500ms', '30s', '5m', '24h' or '3d'. Raises ValueError.

    >>> parse_duration("1.5m")
    90.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise ValueError(f"expected a duration such as 500ms, 30s, 5m, 24h or 3d, found {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


def _check_size(text: str) -> str:
    parse_bytes(text)
    return text


Duration = Annotated[Text, AfterValidator(_check_duration)]
Size = Annotated[Text, AfterValidator(_check_size)]
Days = Annotated[Text, AfterValidator(check_days)]


def _check_optional_days(text: str) -> str:
    return text if text == "0d" else check_days(text)


OptionalDays = Annotated[Text, AfterValidator(_check_optional_days)]


class FollowSection(Section):
    """How the log's files are followed."""

    once: bool = Field(
        False,
        description="Take what is there at the start, then end: 0, or 99 where nothing was new, or 3 where files "
        "were refused. For cron and Airflow. false: go on until stopped.",
    )
    poll: Duration = Field("1s", description="Time between listings.")
    relist: Duration = Field(
        "1h", description="Time between listings of all days; between them `lookback` is listed."
    )
    partition: Text = Field(
        "date", description="Key of hive folders that give the day of a file, such as date=2026-01-31."
    )
    lookback: Days = Field(
        "3d",
        description="Days before today whose folders are listed each time. Files outside dated folders, and in folders "
        "of days to come, always are.",
    )
    max_files: int = Field(1000, ge=1, description="Files of a batch at most.")
    max_bytes: Size = Field("4GiB", description="Bytes of a batch's files at most; it has one file at least.")
    changed: Literal["rescore", "ignore", "fail"] = Field(
        "rescore",
        description="What to do with a file that was scored and has another size or modification time now. rescore: "
        "write its scored file again. ignore: leave that. fail: stop with exit code 4.",
    )
    deleted: Literal["keep", "remove"] = Field(
        "keep", description="What becomes of the scored file of a file that is gone from the log."
    )
    give_up: Duration = Field(
        "5m",
        description="Time after which a file that cannot be read is refused; until then it may be half-written.",
    )
    lifetime: Duration = Field(
        "24h",
        description="Time after which the command ends with 0, to be started again by whatever supervises it.",
    )
    status: bool = Field(False, description="Say how the stream stands, and do nothing.")
    retry: Text | None = Field(
        None,
        description="Name of a refused file, below the log's folder, that was mended and is to be tried again.",
    )
    rebuild: bool = Field(
        False,
        description="Make a lost ledger from the log and the output before following: a scored file that is there, "
        "with as many rows, and not older than its source, is kept.",
    )

    @property
    def seconds(self) -> dict[str, float]:
        """The durations, in seconds."""
        return {key: parse_duration(getattr(self, key)) for key in ("poll", "relist", "give_up", "lifetime")}

    @property
    def lookback_days(self) -> int:
        """Days to list each time."""
        return int(self.lookback.removesuffix("d"))

    @property
    def most_bytes(self) -> int:
        """Of a batch."""
        return parse_bytes(self.max_bytes)


class LabelledConfig(Section):
    """Where rows with labels are."""

    path: Paths | None = Field(
        None,
        description="A log with labels, such as one that joins outcomes to predictions. null: log.path has them; rows "
        "without a label wait.",
    )


class RefitSection(Section):
    """When the table is fitted anew: the fit job runs as it would by itself, with the sections that it knows."""

    every: Duration | None = Field(
        None, description="Time after the last refit, such as 24h. null: not by the clock."
    )
    rows: int | None = Field(
        None, ge=1, description="Rows scored since the last refit. null: not by their number."
    )
    alarm: Duration | None = Field(
        None,
        description="Time between looks at the table as `logcal monitor` does (with window.column, and the section "
        "monitor); its alarm is a reason for a refit. null: not looked at.",
    )
    mature_after: OptionalDays = Field(
        "0d",
        description="With window.column: days after which a day's labels are taken to be complete; later days are left "
        "out. Positives and negatives become known at different speeds, so that what is known early is biased.",
    )

    @property
    def wanted(self) -> bool:
        """Whether there are refits at all."""
        return not (self.every is None and self.rows is None and self.alarm is None)

    @property
    def every_seconds(self) -> float | None:
        """Seconds between refits."""
        return None if self.every is None else parse_duration(self.every)

    @property
    def alarm_seconds(self) -> float | None:
        """Seconds between looks."""
        return None if self.alarm is None else parse_duration(self.alarm)

    @property
    def mature_days(self) -> int:
        """Days that a day's labels take."""
        return int(self.mature_after.removesuffix("d"))


class RetentionSection(RetentionConfig):
    """What is forgotten, and when."""

    ledger: Days | None = Field(
        None,
        description="Days after which dated folders of the log are neither listed nor known any more, such as 90d. "
        "null: nothing is forgotten.",
    )

    @property
    def ledger_days(self) -> int | None:
        """Days, or None."""
        return None if self.ledger is None else int(self.ledger.removesuffix("d"))


class StreamPageConfig(Section):
    """Where the page goes."""

    path: Text | None = Field(
        None,
        description="Local folder to write report.html to: how the stream stands, its last batches, what was refused, "
        "and whether the probabilities of the last days came true (where the table is watched: refit.alarm, or "
        "`logcal monitor`). Written anew once a minute, and at the end. null: no page.",
    )


class FollowConfig(JobConfig):
    """Configuration of follow."""

    log: LogConfig = Field(description="The prediction log to follow: one folder that files arrive in.")
    store: PublishedConfig = Field(
        description="The published table to score with. version null: the one that is current as each batch begins."
    )
    classifier: ClassifierConfig = Field(
        ClassifierConfig(), description="A classifier to score with, for logs of features."
    )
    output: ScoredConfig = Field(
        description="Where the scored files go, each under its own name. The ledger lies beside it, in <path>.logcal/."
    )
    follow: FollowSection = Field(FollowSection(), description="How files are followed.")
    labelled: LabelledConfig = Field(LabelledConfig(), description="With refits: where rows with labels are.")
    refit: RefitSection = Field(RefitSection(), description="When the table is fitted anew.")
    calibrator: CalibratorConfig = Field(CalibratorConfig(), description="With refits: how to calibrate.")
    segments: SegmentsConfig = Field(
        SegmentsConfig(), description="With refits and log.segment: which segments get a map of their own."
    )
    window: WindowConfig = Field(
        WindowConfig(), description="With refits: which days of the log to use: all, or the last ones."
    )
    score_table: ScoreTableConfig = Field(ScoreTableConfig(), description="With refits: the sorted log.")
    gate: GateConfig = Field(
        GateConfig(), description="With refits: what the table must pass before it is used."
    )
    monitor: MonitorSection = Field(MonitorSection(), description="With refit.alarm: when an alarm is given.")
    retention: RetentionSection = Field(RetentionSection(), description="What is forgotten, and when.")
    page: StreamPageConfig = Field(
        StreamPageConfig(), description="The page that shows how the stream stands."
    )
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A version that is named does not change."""
        if self.refit.wanted and self.store.version is not None:
            yield "store.version", "expected null with refits, which publish new versions, found one"
        if self.refit.mature_days and self.window.column is None:
            yield "refit.mature_after", "only goes with window.column, found window.column=null"
        if self.refit.alarm is not None and self.window.column is None:
            yield "refit.alarm", "only goes with window.column, found window.column=null"
        if self.refit.alarm is not None and self.log.weight is not None:
            yield (
                "refit.alarm",
                "only goes with rows without weights, found log.weight: set refit.every instead",
            )
