"""The configuration of the generate job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, create_model

from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import _CLUSTER, _RECORD, _STORAGE, JobConfig, RecordConfig, Scratch, StorageConfig
from jobs.config.section import Section
from jobs.config.types import Names, Packages, Paths, Text


class DataConfig(Section):
    """Labelled data."""

    path: Paths = Field(
        description="Where the data is: a folder, a Parquet file, a glob or an fsspec URL such as s3://bucket/data/; "
        "or a list of these. One row an example; numbers, booleans and text, nulls where values are missing."
    )
    label: Text = Field("label", description="Column of the label: booleans, or the numbers 0 and 1.")
    features: Names | None = Field(
        None, description="Columns to learn from. null: all but those that are named here for something else."
    )
    exclude: Names = Field((), description="With features null: columns not to learn from.")
    categories: Names = Field(
        (), description="Features that are categories although they are whole numbers. Text always is."
    )
    keep: Names = Field(
        (),
        description="Columns to copy to the log, such as segments. They are features only if features names them.",
    )
    row_id: Text | None = Field(
        None,
        description="Column that tells the rows apart: whole numbers or text. A row then has the same part in every "
        "fold wherever it lies. null: its place in the data, files by name.",
    )
    group: Text | None = Field(None, description="With generate.split=group: column of the group.")
    time: Text | None = Field(
        None, description="With generate.split=time: column of the time, or of any number that grows with it."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A label is no feature, and no column is two things at once."""
        roles = {"label": self.label, "row_id": self.row_id, "group": self.group}
        for role, name in roles.items():
            if name is not None and name in (self.features or ()):
                yield (
                    "features",
                    f"expected no column of another meaning, found '{name}', which is data.{role}",
                )
        if self.time == self.label:
            yield "time", f"expected another column than data.label, found '{self.time}' for both"
        for role in ("row_id", "group"):
            if roles[role] == self.label:
                yield role, f"expected another column than data.label, found '{self.label}' for both"
        if self.features is not None:
            twice = [name for i, name in enumerate(self.features) if name in self.features[:i]]
            if twice:
                yield "features", f"expected different columns, found '{twice[0]}' twice"
            if self.exclude:
                yield "exclude", "only goes with data.features=null"


_ESTIMATOR: dict[str, Any] = {
    "class": (
        Text,
        Field(
            "sklearn.naive_bayes.GaussianNB",
            description="Dotted path of a classifier's class in one of the packages below; it needs predict_proba "
            "or decision_function.",
        ),
    ),
    "params": (
        dict[str, Any],
        Field(
            {},
            description="Its parameters, such as {max_iter: 500}. A random_state that is not given here comes from "
            "generate.seed; threads are held to one a task.",
        ),
    ),
    "packages": (
        Packages,
        Field(
            ("sklearn",),
            description="Packages that the class may come from: sklearn, xgboost, lightgbm, catboost. Nothing else "
            "is ever imported.",
        ),
    ),
    "categories": (
        Literal["one_hot", "none"],
        Field(
            "one_hot",
            description="one_hot: a column a category, and one for null where there are nulls. none: the features "
            "must be numbers.",
        ),
    ),
    "imputation": (
        Literal["median", "mean", "most_frequent", "none"],
        Field(
            "median",
            description="What stands in for a missing number, computed from the rows trained on. none: the "
            "estimator takes missing values itself.",
        ),
    ),
    "scaling": (
        Literal["standard", "min_max", "none"],
        Field(
            "none",
            description="standard: numbers to mean 0 and variance 1. min_max: to [0, 1]. none: as they are.",
        ),
    ),
}

# Not written as a class: `class`, its first key, is a word of Python.
EstimatorConfig: Any = create_model("EstimatorConfig", __base__=Section, **_ESTIMATOR)
EstimatorConfig.__doc__ = "How to make the classifier."


class GenerateSection(Section):
    """How to generate the log."""

    target_rows: int = Field(
        5000,
        ge=1,
        description="Repeat until at least so many rows are scored; the last repeat is kept whole.",
    )
    train_fraction: float = Field(
        0.7, gt=0, lt=1, description="Share of the rows that a repeat is trained on; it scores the others."
    )
    repeats: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Number of repeats; goes over target_rows. null: as target_rows needs.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=1 << 64,
        description="Of all random numbers: a row's part in a repeat depends on the seed, the repeat and the row's id.",
    )
    split: Literal["row", "group", "time"] = Field(
        "row",
        description="row: each row on its own. group: all rows of a group in the same part. time: train on the past: "
        "the last (1 - train_fraction) of the rows in `repeats` blocks (null: 5), each scored by a classifier trained "
        "on all rows before it.",
    )
    stratified: bool = Field(
        False, description="With row: give both parts the same share of positives, as nearly as can be."
    )
    training: Literal["in_memory", "partial_fit"] = Field(
        "in_memory",
        description="in_memory: each task holds all rows. partial_fit: batch by batch, for estimators that have it and "
        "data that a worker cannot hold.",
    )
    batch_rows: int = Field(10_000, ge=1, description="With partial_fit: rows a step.")
    on_failure: Literal["stop", "skip"] = Field(
        "stop",
        description="What to do when a repeat fails, as when the estimator does not converge or a part has one class. "
        "stop: write nothing. skip: go on without it and, where target_rows counts, with one more.",
    )


class GeneratedConfig(Section):
    """Where the log and the classifier go."""

    path: Text = Field(
        description="Folder to write to: log/, a prediction log for the other jobs; classifier/, the classifier "
        "trained on all rows, which `logcal score` takes."
    )


class GenerateConfig(JobConfig):
    """Configuration of generate."""

    data: DataConfig = Field(description="The labelled data to learn from.")
    estimator: EstimatorConfig = Field(
        EstimatorConfig(), description="The classifier, and what comes before it."
    )
    generate: GenerateSection = Field(GenerateSection(), description="How to generate the log.")
    output: GeneratedConfig = Field(description="Where the results go.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A key that goes with a way to split is given exactly with it."""
        for role in ("group", "time"):
            given = getattr(self.data, role) is not None
            if self.generate.split == role and not given:
                yield f"data.{role}", f"REQUIRED with generate.split={role}"
            elif given and self.generate.split != role:
                yield f"data.{role}", f"only goes with generate.split={role}, found {self.generate.split}"
        if self.generate.stratified and self.generate.split != "row":
            yield "generate.stratified", f"only goes with generate.split=row, found {self.generate.split}"
        if self.generate.training == "partial_fit" and self.data.row_id is not None:
            yield (
                "data.row_id",
                "does not go with generate.training=partial_fit, which takes the rows as they lie: leave it out",
            )
