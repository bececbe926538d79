"""The configuration of the log: its files, columns and rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from jobs.config.section import Section
from jobs.config.types import Names, Paths, Text

_PATH = (
    "Where the log is: a folder (its hive partitions too), a Parquet file, a glob or an fsspec URL such as "
    "s3://bucket/log/; or a list of these."
)


_SCORE = "Column of the score: floats or integers, finite; a higher score means more likely positive."


class LogConfig(Section):
    """A log with labels."""

    path: Paths = Field(description=_PATH)
    score: Text = Field("score", description=_SCORE)
    label: Text = Field(
        "label",
        description="Column of the label: booleans, or the numbers 0 and 1; null: not known yet, the row waits.",
    )
    weight: Text | None = Field(
        None,
        description="Column of the row's weight: a number from 1e-100 to 1e100. null: every row weighs 1.",
    )
    weights: Literal["counts", "sampling"] = Field(
        "counts",
        description="What a weight says. counts: how often the row counts; 2 is the row twice. sampling: how "
        "many others it stands for, whatever its label, because rows were drawn with different probabilities: then the "
        "rows count as Kish's effective size, (sum w)^2 / sum w^2, and it does not matter what weights are multiplied "
        "by.",
    )
    negative_sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the rows with label 0 that the log holds, chosen by chance, such as 0.01: probabilities "
        "are then those of all rows. Do not give sampled rows weights for it.",
    )
    positive_sampling_rate: float = Field(1.0, gt=0, le=1, description="The same of the rows with label 1.")
    segment: Names = Field(
        (),
        description="Columns whose values tell segments apart, such as [model_id, country]: strings, integers, "
        "booleans or dates; null is a segment too. fit makes a map for each; score and evaluate use those of the "
        "table. []: one map for all rows.",
    )
    score_transform: Literal["none", "sigmoid"] = Field(
        "none",
        description="none: the score as it is. sigmoid: 1 / (1 + exp(-score)), for scores that are margins "
        "(log odds).",
    )
    on_bad_rows: Literal["fail", "quarantine"] = Field(
        "fail",
        description="What to do with rows whose score, label or weight cannot be used. fail: stop and say which. "
        "quarantine: leave them out, and count them by reason.",
    )
    max_bad_fraction: float = Field(
        0.01,
        ge=0,
        le=1,
        description="With quarantine: the largest fraction of bad rows, in [0, 1], that is still accepted.",
    )
    quarantine_path: Text | None = Field(
        None,
        description="With quarantine: folder to write the bad rows to, as Parquet. null: they are only counted.",
    )

    @property
    def sampling(self) -> bool:
        """Whether weights say how many others a row stands for."""
        return self.weights == "sampling"

    @property
    def sampling_rate(self) -> float:
        """The share of negatives that were kept over that of positives: what odds are multiplied by."""
        return self.negative_sampling_rate / self.positive_sampling_rate

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """One column cannot be two things; what is not quarantined is not written."""
        roles = [("score", self.score), ("label", self.label), ("weight", self.weight)]
        seen: dict[str, str] = {}
        for role, column in [*roles, *(("segment", column) for column in self.segment)]:
            if column in seen:
                yield role, f"expected another column than log.{seen[column]}, found '{column}' for both"
            elif column is not None:
                seen[column] = role
        if self.sampling and self.weight is None:
            yield "weights", "expected log.weight with log.weights=sampling, found log.weight=null"
        if self.quarantine_path is not None and self.on_bad_rows != "quarantine":
            yield (
                "quarantine_path",
                "is only written with log.on_bad_rows=quarantine, found log.on_bad_rows=fail",
            )


_SAME_TRANSFORM = Field(
    None,
    description="What the scores go through first: the table's own transform, whatever is given here. none or sigmoid: "
    "an error if it is not the table's. null: not compared.",
)


class MeasuredLogConfig(LogConfig):
    """A log with labels, to measure a table on."""

    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM  # type: ignore[assignment]


class ScoreLogConfig(Section):
    """A log to be scored: labels and weights are not read."""

    path: Paths = Field(description=_PATH)
    score: Text = Field(
        "score",
        description="Column of the score: floats or integers. A score that is null or NaN gets a null probability. "
        "With a classifier: the column to write it to.",
    )
    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM
