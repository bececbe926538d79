"""The configuration of what jobs write: reports, scored logs, and what they require of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from jobs.config.section import Section
from jobs.config.types import Packages, Text
from jobs.config.window import OwnDays


class EvaluateSection(Section):
    """How to evaluate."""

    bins: int = Field(10, ge=1, le=1000, description="Number of bins of ECE, MCE and the reliability table.")
    last: OwnDays = Field(
        None,
        description="With window.column: the number of last days to measure, such as 1d. null: window.last.",
    )
    against: Text | None = Field(
        None,
        description="What to compare the table with, on the same rows: another version's name, previous (the version "
        "before it), or raw (the scores themselves). The difference of the losses is given with its standard error.",
    )
    require: dict[str, float] = Field(
        {},
        description="Limits of measures, such as {ece_frequency: 0.01, calibration_in_the_large: 0.02, auc: 0.7}: the "
        "largest absolute value; of auc and accuracy the smallest. Where one is not kept the report is written and the "
        "exit code is 4. Beside the measures: calibration_in_the_large (mean prediction less the share of label 1), "
        "log_ratio (the logarithm of observed over expected), ratio_z and spiegelhalter_z (standard normal by chance).",
    )
    allow_in_sample: bool = Field(
        True,
        description="Whether the log may hold rows that the table was fitted to, which make it look better than it is. "
        "false: that is exit code 4. Where it does, the report says so in any case.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Only what is measured can be required."""
        for name in self.require:
            if name not in REQUIRABLE:
                yield "require", f"expected names among {', '.join(REQUIRABLE)}, found {name!r}"


REQUIRABLE = (
    "auc", "accuracy", "brier", "rmse", "log_loss", "ece_frequency", "mce_frequency", "ece_width", "mce_width",
    "calibration_in_the_large", "log_ratio", "ratio_z", "spiegelhalter_z",
)  # fmt: skip
"""What evaluate.require takes."""


class ScoredConfig(Section):
    """Where the scored log goes."""

    path: Text = Field(
        description="Folder to write the scored log to, in the layout of the log; outside the log. With a window "
        "{day} in it is the window's last day."
    )
    mode: Literal["new", "replace"] = Field(
        "new",
        description="What to do where output.path holds an earlier result. new: refuse. replace: put the new output, "
        "whole, in its place.",
    )
    column: Text = Field("probability", description="Name of the column with the calibrated probability.")
    version_column: Text = Field(
        "table_version", description="Name of the column with the version of the table that was used."
    )
    interval: bool = Field(
        False,
        description="Whether to add the columns prob_lower and prob_upper too, from a table with intervals "
        "(calibrator.interval of fit).",
    )
    decision_column: Text = Field(
        "decision",
        description="With a classifier: name of the column with the decision, true where the probability reaches the "
        "threshold that maximises the classification rate on the rows the classifier was trained on.",
    )


class ClassifierConfig(Section):
    """A classifier that `logcal generate` trained."""

    path: Text | None = Field(
        None,
        description="Its folder, or that of the generated log. The log then has features: their score is added as "
        "log.score, with the probability and the decision. null: the log has scores.",
    )
    packages: Packages = Field(
        ("sklearn",),
        description="Packages whose types may be loaded with it: sklearn, xgboost, lightgbm, catboost.",
    )
    allow_other: bool = Field(
        False,
        description="Whether to score with a table that was fitted on another classifier's generated log.",
    )


class ScoreSection(Section):
    """What is scored, and what is not."""

    last: OwnDays = Field(
        None,
        description="With window.column: the number of last days to score, such as 1d. null: window.last.",
    )
    max_outside_range: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The largest share of rows, in [0, 1], whose score may lie below or above all scores that the "
        "table was fitted to. Above it nothing is written (exit code 4): such scores are often of another model, or in "
        "percent. From 0.01 on there is a warning.",
    )
    max_unseen: float = Field(
        1.0,
        ge=0,
        le=1,
        description="With a table of segments: the largest share of rows, in [0, 1], that may be of segments that it "
        "does not know. Above it nothing is written (exit code 4). From 0.01 on there is a warning.",
    )


class ReportConfig(Section):
    """Where the report goes."""

    path: Text = Field(
        description="Folder to write report.html, run.json and the reliability table to. With a window {day} in it is "
        "the window's last day. Where it is not given, output.path is taken for it."
    )
    mode: Literal["new", "replace"] = Field(
        "new",
        description="What to do where report.path holds another report. new: refuse. replace: put the new one, "
        "whole, in its place.",
    )


class DemoOutputConfig(Section):
    """Where the demo goes."""

    path: Text = Field("demo-output", description="Folder to write the log, the tables and the report to.")
