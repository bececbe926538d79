"""Columns, types and meanings of all tables that are not published.

`logcal.schema` defines the published ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from calibrators.measures.assessment import MEASURES

SCORE_TABLE = pa.schema(
    [
        pa.field("score", pa.float64(), nullable=False),  # ascending, distinct over all parts
        pa.field("weight", pa.float64(), nullable=False),  # > 0: sum over the rows at the score
        pa.field("positives", pa.float64(), nullable=False),  # the same over rows with label 1
    ]
)
"""One row a distinct score. Tables of disjoint logs add."""


def segmented_score_table(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """One row a distinct score of a segment, ascending by score, and by segment (null first) where scores are equal."""
    return pa.schema([*(pa.field(name, kind) for name, kind in columns), *SCORE_TABLE])


RATIOS = ("ratio", "ratio_low", "ratio_high", "ratio_z")
"""Observed over expected positives of a segment, its 95 % interval, and in standard errors of chance."""

SEGMENT_MEASURES = (*MEASURES, "mean_prediction", "beyond_chance", *RATIOS)
"""Measures of each segment, before and after calibration."""


SEGMENT_DIFFERENCES = ("log_loss_difference", "log_loss_difference_error")
"""Differences of each segment between two tables: below 0 the table is better."""


SEGMENT_PARTS = (
    "brier_miscalibration",
    "brier_discrimination",
    "log_loss_miscalibration",
    "log_loss_discrimination",
)
"""Parts of a segment's losses (CORP): the loss of its base rate, plus the first, less the second."""

SEGMENT_LINE = ("intercept", "intercept_error", "slope", "slope_error")
"""Cox's line of a segment's labels on the log-odds of its probabilities."""

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
    """One row a segment of an evaluated log, sorted (null first)."""
    measures = [f"{name}_{side}" for name in SEGMENT_MEASURES for side in ("before", "after")]
    return pa.schema(
        [
            *(pa.field(name, kind) for name, kind in columns),
            pa.field("rows", pa.int64(), nullable=False),  # used
            pa.field("rows_positive", pa.int64(), nullable=False),  # of them with label 1
            pa.field("fitted_on", pa.string(), nullable=False),  # as in `segments`, or unseen
            # Null where a measure does not exist.
            *(pa.field(name, pa.float64()) for name in measures),
            *(pa.field(f"{name}_after", pa.float64()) for name in SEGMENT_CERTAINTY),
            *(pa.field(name, pa.float64()) for name in (SEGMENT_DIFFERENCES if compared else ())),
        ]
    )


TABLE_VERSION_COLUMN = "table_version"

QUARANTINE = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # from 0, within the file
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
)
"""Reason codes of bad rows, in order of precedence: a row counts under its first."""

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
"""The reliability table of an evaluation."""
