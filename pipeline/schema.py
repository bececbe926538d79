"""Every table's columns, types and meanings: the only place that spells them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from calibrators.assessment import MEASURES

FORMAT_VERSION = "1"
"""Of lookup tables and manifests; readers refuse a version that they do not know."""

SCORE_TABLE = pa.schema(
    [
        pa.field("score", pa.float64(), nullable=False),  # ascending, distinct over all parts
        pa.field("weight", pa.float64(), nullable=False),  # > 0: sum over the rows at the score
        pa.field("positives", pa.float64(), nullable=False),  # the same over rows with label 1
    ]
)
"""One row a distinct score. Tables of disjoint logs add."""

LOOKUP_TABLE = pa.schema(
    [
        pa.field("score_lo", pa.float64(), nullable=False),  # inclusive; the first is -inf
        pa.field("score_hi", pa.float64(), nullable=False),  # exclusive; the last is +inf
        pa.field("prob_lo", pa.float64(), nullable=False),  # probability at the anchor
        pa.field("slope", pa.float64(), nullable=False),  # probability per unit of score; 0 in constant rows
        pa.field("anchor", pa.float64(), nullable=False),  # p = prob_lo + slope * (score - anchor)
        pa.field("weight", pa.float64(), nullable=False),  # of the calibration rows in [score_lo, score_hi)
        pa.field("positives", pa.float64(), nullable=False),  # the same over rows with label 1
    ]
)
"""A calibration map; one row an interval of scores."""

SEGMENT_LEVEL = "segment_level"


def segmented_lookup(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """Calibration maps of segments; sorted by level, segment (null first) and score.

    columns : names and types of the segment columns; null beyond a row's level.
    """
    own = [pa.field(name, kind) for name, kind in columns]
    # The number of leading segment columns that a map is for; 0: the map of all rows.
    return pa.schema([*own, pa.field(SEGMENT_LEVEL, pa.int32(), nullable=False), *LOOKUP_TABLE])


def segments(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """One row a segment of the calibration log, sorted (null first)."""
    return pa.schema(
        [
            *(pa.field(name, kind) for name, kind in columns),
            pa.field("rows", pa.int64(), nullable=False),  # used
            pa.field("rows_positive", pa.int64(), nullable=False),  # of them with label 1
            pa.field("fitted_on", pa.string(), nullable=False),  # segment, parent, global, identity
            pa.field(
                "fitted_level", pa.int32(), nullable=False
            ),  # segment_level of its rows in the lookup table
            pa.field("reason", pa.string()),  # why not on the segment itself; null where it is
        ]
    )


SEGMENT_MEASURES = (*MEASURES, "mean_prediction", "beyond_chance")
"""What is measured of each segment, before and after calibration."""


def evaluated_segments(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
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
        ]
    )


LOOKUP_METADATA_PREFIX = "logcal."
"""Of the keys in a lookup table's Parquet metadata: format_version, version, method, parameters, ..."""

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
    "label_null",
    "label_not_0_or_1",
    "weight_null",
    "weight_nan",
    "weight_infinite",
    "weight_not_positive",
    "date_null",
    "date_invalid",
)
"""Reason codes of bad rows, in order of precedence: a row counts under its first."""
