"""The configuration of compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import _CLUSTER, _RECORD, _STORAGE, JobConfig, RecordConfig, Scratch, StorageConfig
from jobs.config.log import LogConfig
from jobs.config.section import Section
from jobs.config.types import Text, as_tuple

METHODS = ("isotonic", "platt", "histogram", "enir", "bbq", "abb")

Methods = Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1)]


class CompareSection(Section):
    """What is compared, and how."""

    methods: Methods = Field(
        METHODS,
        description="The methods, by their names in calibrator.method. bbq is left out for scores outside [0, 1]. "
        "The scores as they are come first, if they are probabilities.",
    )
    params: dict[str, Any] = Field(
        {}, description="Parameters of methods, such as {histogram: {bins: 20}, abb: {max_cuts: 500}}."
    )
    folds: int = Field(
        5,
        ge=2,
        le=100,
        description="Parts of the log: each is predicted by calibrators that were fitted to the others.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of the folds: another one deals the rows otherwise.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A method is compared once; parameters are those of a method that is."""
        if len(set(self.methods)) < len(self.methods):
            yield "methods", f"expected each method once, found {', '.join(self.methods)}"
        for name in self.params:
            if name not in self.methods:
                yield "params", f"expected names of compare.methods, found {name}"


class ComparisonOutputConfig(Section):
    """Where the page goes."""

    path: Text | None = Field(
        None,
        description="Folder to write report.html and run.json to. null: the table is only printed.",
    )


class CompareConfig(JobConfig):
    """Configuration of compare."""

    log: LogConfig = Field(
        description="The prediction log to read. Segments are not told apart: log.segment is passed over."
    )
    compare: CompareSection = Field(CompareSection(), description="What is compared, and how.")
    output: ComparisonOutputConfig = Field(ComparisonOutputConfig(), description="Where the page goes.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER
