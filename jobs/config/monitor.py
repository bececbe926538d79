"""The configuration of monitor."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import _CLUSTER, _RECORD, _STORAGE, JobConfig, RecordConfig, Scratch, StorageConfig
from jobs.config.log import MeasuredLogConfig
from jobs.config.section import Section
from jobs.config.table import PublishedConfig
from jobs.config.types import Text
from jobs.config.window import WindowConfig


class MonitorSection(Section):
    """When an alarm is given."""

    alpha: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="The chance, at most, that a table whose odds are right within the tolerance ever gives an alarm, "
        "however long it is watched. Of segments it is the share of false alarms.",
    )
    tolerance: float = Field(
        1.05, ge=1, description="Factor by which odds may be wrong, either way, without being an alarm."
    )


class PageConfig(Section):
    """Where the page goes."""

    path: Text | None = Field(
        None,
        description="Folder to write report.html and run.json to, anew each time. null: the history is only kept in "
        "the store.",
    )


class MonitorConfig(JobConfig):
    """Configuration of monitor."""

    log: MeasuredLogConfig = Field(
        description="The log with the days that have arrived, their labels complete. Rows are counted: no weights."
    )
    store: PublishedConfig = Field(description="The published table to watch.")
    window: WindowConfig = Field(
        description="column dates the rows. Days that were looked at, and those that the table was fitted to, are "
        "passed over."
    )
    monitor: MonitorSection = Field(MonitorSection(), description="When an alarm is given.")
    page: PageConfig = Field(PageConfig(), description="Where the page goes.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Days need a date, and evidence needs rows."""
        if self.window.column is None:
            yield "window.column", "expected the column that dates the rows, found null"
        if self.log.weight is not None:
            yield (
                "log.weight",
                f"expected null, found '{self.log.weight}': drift is told from independent rows, and weights are none",
            )
