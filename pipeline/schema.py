"""Columns, types and meanings of tables that are not published.

`logcal.schema` defines the published tables.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from calibrators.measures.assessment import MEASURES

SCORE_TABLE = pa.schema(
    [
        pa.field("score", pa.float64(), nullable=False),  # ascending, distinct over all parts
        pa.field("weight", pa.float64(), nullable=False),  # > 0: sum over the rows at the score
        pa.field("positives", pa.float64(), nullable=False),  # the same sum over the rows with label 1
    ]
)
"""One row for each distinct score. The score tables of disjoint logs can be added."""


def segmented_score_table(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """Return the schema with one row for each distinct score of a segment, sorted by score and segment (null first).

    columns : names and types of the segment columns
    """
    return pa.schema([*(pa.field(name, kind) for name, kind in columns), *SCORE_TABLE])


RATIOS = ("ratio", "ratio_low", "ratio_high", "ratio_z")
"""Ratio of a segment's observed and expected positives, its 95 % interval, and its z-score."""

SEGMENT_MEASURES = (*MEASURES, "mean_prediction", "beyond_chance", *RATIOS)
"""Measures of each segment, before and after calibration."""


SEGMENT_DIFFERENCES = ("log_loss_difference", "log_loss_difference_error")
"""Difference of a segment's log loss between two tables, and its standard error; below 0 the table is better."""


SEGMENT_PARTS = (
    "brier_miscalibration",
    "brier_discrimination",
    "log_loss_miscalibration",
    "log_loss_discrimination",
)
"""Parts of a segment's losses (CORP): loss = loss of the base rate + miscalibration - discrimination."""

SEGMENT_LINE = ("intercept", "intercept_error", "slope", "slope_error")
"""Cox's logistic regression of a segment's labels on the log-odds of its probabilities."""

SEGMENT_CERTAINTY = (
    "auc_error",
    "spiegelhalter_z",
    "score_test_p",
    "chance_error",
    "debiased_squared_error",
    *SEGMENT_PARTS,
    *SEGMENT_LINE,
    "ici",
)
"""Uncertainty of a segment's measures after calibration, and agreement of its probabilities with outcomes."""


def evaluated_segments(columns: Iterable[tuple[str, pa.DataType]], *, compared: bool = True) -> pa.Schema:
    """Return the schema with one row for each segment of an evaluated log, sorted (null first).

    columns : names and types of the segment columns
    compared : whether the table is compared with another
    """
    measures = [f"{name}_{side}" for name in SEGMENT_MEASURES for side in ("before", "after")]
    return pa.schema(
        [
            *(pa.field(name, kind) for name, kind in columns),
            pa.field("rows", pa.int64(), nullable=False),  # rows used
            pa.field("rows_positive", pa.int64(), nullable=False),  # rows used with label 1
            pa.field("fitted_on", pa.string(), nullable=False),  # see `logcal.schema.segments`; or "unseen"
            # A measure is null if it does not exist.
            *(pa.field(name, pa.float64()) for name in measures),
            *(pa.field(f"{name}_after", pa.float64()) for name in SEGMENT_CERTAINTY),
            *(pa.field(name, pa.float64()) for name in (SEGMENT_DIFFERENCES if compared else ())),
        ]
    )


TABLE_VERSION_COLUMN = "table_version"

QUARANTINE = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # number within the file, from 0
        pa.field("reason", pa.string(), nullable=False),  # one of REASONS
        pa.field("score", pa.float64()),
        pa.field("label", pa.float64()),
        pa.field("weight", pa.float64()),
    ]
)
"""Rows that were not used, and why."""

REASONS = (
    "score_null",
    "score_nan",
    "score_infinite",
    "label_not_0_or_1",
    "weight_null",
    "weight_nan",
    "weight_infinite",
    "weight_not_positive",
    "weight_out_of_range",
    "date_null",
    "date_invalid",
    "day_out_of_range",
)
"""Reason codes of bad rows, in order of precedence: a row has the first code that applies."""

RELIABILITY = pa.schema(
    [
        pa.field("side", pa.string(), nullable=False),
        pa.field("groups", pa.string(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        *(
            pa.field(name, pa.float64())
            for name in (
                "lower", "upper", "weight", "positives", "mean_prediction", "frequency", "effective_size",
                "interval_low", "interval_high",
            )
        ),
    ]
)  # fmt: skip
"""Reliability table of an evaluation."""
