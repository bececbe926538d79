"""Columns, types and meanings of published tables, defined here alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.errors import ConfigError

FORMAT_VERSION = "1"
"""Format version of lookup tables and manifests; readers refuse a version that they do not know."""

SECOND_FORMAT_VERSION = "2"
"""Format version of tables with adjusted maps or intervals, which readers of the first would ignore."""

THIRD_FORMAT_VERSION = "3"
"""Format version of tables whose segments have sigmoids of the score instead of maps."""

FOURTH_FORMAT_VERSION = "4"
"""Format version of tables with segments and intervals, without adjusted maps."""

FORMAT_VERSIONS = (FORMAT_VERSION, SECOND_FORMAT_VERSION, THIRD_FORMAT_VERSION, FOURTH_FORMAT_VERSION)


def other_format(found: object) -> str:
    """Describe a format version that is not among FORMAT_VERSIONS."""
    text = "none" if found is None else str(found)
    newer = text.isdecimal() and int(text) > int(FORMAT_VERSIONS[-1])
    advice = "a newer version of logcal wrote it: use that version" if newer else "publish it again"
    expected = f"{', '.join(FORMAT_VERSIONS[:-1])} or {FORMAT_VERSIONS[-1]}"
    return f"expected format_version {expected}, found {text}: {advice}"


LOOKUP_METADATA_PREFIX = "logcal."
"""Prefix of the keys in a lookup table's Parquet metadata: format_version, version, method, parameters, ..."""

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

INTERVAL_TABLE = pa.schema(
    [
        *LOOKUP_TABLE,
        pa.field(
            "prob_lower", pa.float64(), nullable=False
        ),  # of the scores of the row; see the metadata's interval
        pa.field("prob_upper", pa.float64(), nullable=False),
    ]
)
"""A calibration map with an interval for each row."""

SEGMENT_LEVEL = "segment_level"


def segmented_lookup(columns: Iterable[tuple[str, pa.DataType]], *, interval: bool = False) -> pa.Schema:
    """Calibration maps of segments; sorted by level, segment (null first) and score.

    columns : names and types of the segment columns; null beyond a row's level. interval : whether rows have intervals
    """
    own = [pa.field(name, kind) for name, kind in columns]
    maps = INTERVAL_TABLE if interval else LOOKUP_TABLE
    # The number of leading segment columns that a map is for; 0: the map of all rows.
    return pa.schema([*own, pa.field(SEGMENT_LEVEL, pa.int32(), nullable=False), *maps])


def segments(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """One row a segment of the calibration log, sorted (null first)."""
    return pa.schema(
        [
            *(pa.field(name, kind) for name, kind in columns),
            pa.field("rows", pa.int64(), nullable=False),  # used
            pa.field("rows_positive", pa.int64(), nullable=False),  # of them with label 1
            # segment, moved, parent, global, identity
            pa.field("fitted_on", pa.string(), nullable=False),
            pa.field(
                "fitted_level", pa.int32(), nullable=False
            ),  # segment_level of its rows in the lookup table
            pa.field("reason", pa.string()),  # why not on the segment itself; null where it is
        ]
    )


def adjusted_segments(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """Segments with partial pooling: one row per segment of each level, sorted by level and segment.

    A row's probability is sigma(logit_shift + logit_slope * logit(q)), q the probability of the map of the first
    fitted_level columns, clipped to [prob_min, prob_max]; with shift 0 and slope 1 it is q.
    """
    plain = segments(columns)
    at = plain.get_field_index("rows")
    fields = list(plain)
    fields.insert(at, pa.field(SEGMENT_LEVEL, pa.int32(), nullable=False))
    names = ("logit_shift", "logit_slope", "prob_min", "prob_max")
    return pa.schema([*fields, *(pa.field(name, pa.float64(), nullable=False) for name in names)])


LOGIT_FROM = ("map", "score", "log_odds")
"""Origin of the adjusted log-odds: a map's probability, the score itself, or the score's own log-odds."""


def sigmoid_segments(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """The same where segments have sigmoids: logit_from says, of LOGIT_FROM, what shift and slope are applied to.

    Of score a row's probability is sigma(logit_shift + logit_slope * score); of log_odds it is
    sigma(logit_shift + logit_slope * logit(score held in [prob_min, prob_max])), and of map as in `adjusted_segments`.
    """
    return adjusted_segments(columns).append(pa.field("logit_from", pa.string(), nullable=False))


# What a log's scores go through before they are calibrated, and again before a lookup table is applied.

Array = npt.NDArray[np.float64]

TRANSFORMS = ("none", "sigmoid")


def apply_transform(scores: npt.ArrayLike, name: str) -> Array:
    """Scores as the calibrator sees them.

    Parameters
    ----------
    scores : array-like of numbers, any shape; NaN stays NaN
    name : 'none', or 'sigmoid' for margins (log-odds): 1 / (1 + exp(-score)), in [0, 1]

    Returns
    -------
    float64 array of the same shape
        With 'sigmoid', within two units in the last place, without overflow, and the same on every machine.

    Raises
    ------
    ConfigError
        For another name.
    """
    array = np.asarray(scores, dtype=np.float64)
    if name == "none":
        return array
    if name != "sigmoid":
        raise ConfigError(f"log.score_transform: expected one of {', '.join(TRANSFORMS)}, found {name!r}")
    # Compiled: tables that transform nothing are read without.
    from calibrators._kernels import log_odds

    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(flat.size)
    log_odds.logistic(flat, out)
    return out.reshape(array.shape)
