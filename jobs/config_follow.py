"""The configuration of follow."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from jobs.config import (
    _CLUSTER,
    ClassifierConfig,
    ClusterConfig,
    JobConfig,
    LogConfig,
    PublishedConfig,
    ScoredConfig,
    Scratch,
    Section,
    Text,
    _check_days,
    parse_bytes,
)

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
Days = Annotated[Text, AfterValidator(_check_days)]


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


class RetentionSection(Section):
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
    retention: RetentionSection = Field(RetentionSection(), description="What is forgotten, and when.")
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER
