"""Columns, types and meanings of published tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array
from logcal.errors import ConfigError, InputRejectedError

FORMAT_VERSION = "1"
"""Version of everything that logcal writes. Readers refuse another one."""

SEGMENTS, INTERVAL, ADJUSTMENTS, SIGMOIDS, BENT = "segments", "interval", "adjustments", "sigmoids", "bent"
FEATURES = (SEGMENTS, INTERVAL, ADJUSTMENTS, SIGMOIDS, BENT)
"""Parts that a table may have beside a map of all rows; its manifest and metadata list them. Readers refuse features
that they do not know, so that a later version can add one without another format version.

segments: maps of segments; interval: an interval in each row; adjustments: segments adjust maps of others (partial
pooling); sigmoids: segments have sigmoids of the score in the place of maps; bent: segments adjust maps of all rows
that are bent, whose levels are below 0
"""

_NEWER = "a newer version of logcal wrote it: use that version"


def check_format(path: str, version: object, remedy: str) -> None:
    """Check the format version of a file.

    path : of the file, for messages
    remedy : what to do with a file that no newer version of logcal wrote

    Raises
    ------
    InputRejectedError
        It has another version.
    """
    if version == FORMAT_VERSION:
        return
    text = "none" if version is None else str(version)
    newer = text.isdecimal() and int(text) > int(FORMAT_VERSION)
    raise InputRejectedError(
        f"{path}: expected format_version {FORMAT_VERSION}, found {text}: {_NEWER if newer else remedy}"
    )


def check_features(path: str, features: Iterable[object]) -> None:
    """Check that all of a table's features are known; InputRejectedError names those that are not."""
    if unknown := [str(feature) for feature in features if feature not in FEATURES]:
        raise InputRejectedError(
            f"{path}: expected features among {', '.join(FEATURES)}, found {', '.join(unknown)}: {_NEWER}"
        )


LOOKUP_METADATA_PREFIX = "logcal."
"""Prefix of the keys in a lookup table's Parquet metadata: format_version, version, method, parameters, ..."""

LOOKUP_TABLE = pa.schema(
    [
        pa.field("score_lo", pa.float64(), nullable=False),  # inclusive; the first is -inf
        pa.field("score_hi", pa.float64(), nullable=False),  # exclusive; the last is +inf
        pa.field("prob_lo", pa.float64(), nullable=False),  # probability at the anchor
        pa.field("slope", pa.float64(), nullable=False),  # probability per unit of score; 0 in constant rows
        pa.field("anchor", pa.float64(), nullable=False),  # p = prob_lo + slope * (score - anchor)
        pa.field(
            "weight", pa.float64(), nullable=False
        ),  # weight of the calibration rows in [score_lo, score_hi)
        pa.field("positives", pa.float64(), nullable=False),  # weight of those with label 1
    ]
)
"""A calibration map; one row per range of scores."""

INTERVAL_TABLE = pa.schema(
    [
        *LOOKUP_TABLE,
        # Interval of the probability of the row's scores; the metadata's interval names its kind.
        pa.field("prob_lower", pa.float64(), nullable=False),
        pa.field("prob_upper", pa.float64(), nullable=False),
    ]
)
"""A calibration map with an interval for each row."""

SEGMENT_LEVEL = "segment_level"


def segmented_lookup(columns: Iterable[tuple[str, pa.DataType]], *, interval: bool = False) -> pa.Schema:
    """Return the columns of segments' calibration maps; rows are sorted by level, segment (null first) and score.

    columns : names and types of the segment columns; null beyond a row's level
    interval : whether rows have intervals
    """
    keys = [pa.field(name, kind) for name, kind in columns]
    maps = INTERVAL_TABLE if interval else LOOKUP_TABLE
    # The level is the number of leading segment columns in the map's key; 0: the map of all rows; below 0: the same,
    # bent, for segments that adjust it.
    return pa.schema([*keys, pa.field(SEGMENT_LEVEL, pa.int32(), nullable=False), *maps])


LOGIT_FROM = ("map", "score", "log_odds")
"""Origin of the adjusted log-odds: a map's probability, the score itself, or the score's own log-odds."""


def segments(columns: Iterable[tuple[str, pa.DataType]], features: Collection[str] = ()) -> pa.Schema:
    """Return the columns of the table of segments: one row per segment of the log, sorted (null first).

    With adjustments it has a row per segment of each level. A row's probability is then
    sigma(logit_shift + logit_slope * logit(q)), q the probability of the map of the first fitted_level columns (of the
    bent map of this level, if it is below 0), clipped to [prob_min, prob_max]; with shift 0 and slope 1 it is q.

    With sigmoids it also has logit_from, one of LOGIT_FROM. With score, a row's probability is
    sigma(logit_shift + logit_slope * score); with log_odds it is
    sigma(logit_shift + logit_slope * logit(score clipped to [prob_min, prob_max])), with map as with adjustments.

    columns : names and types of the segment columns
    features : the table's features
    """
    adjusted = ADJUSTMENTS in features
    level = [pa.field(SEGMENT_LEVEL, pa.int32(), nullable=False)]
    numbers = ("logit_shift", "logit_slope", "prob_min", "prob_max")
    return pa.schema(
        [
            *(pa.field(name, kind) for name, kind in columns),
            *(level if adjusted else ()),
            pa.field("rows", pa.int64(), nullable=False),  # rows used
            pa.field("rows_positive", pa.int64(), nullable=False),  # rows used with label 1
            # segment, adjusted, parent, global or identity
            pa.field("fitted_on", pa.string(), nullable=False),
            # segment_level of the map's rows in the lookup table
            pa.field("fitted_level", pa.int32(), nullable=False),
            # Why the map was not fitted to the segment's rows; null if it was.
            pa.field("reason", pa.string()),
            *(pa.field(name, pa.float64(), nullable=False) for name in (numbers if adjusted else ())),
            *([pa.field("logit_from", pa.string(), nullable=False)] if SIGMOIDS in features else ()),
        ]
    )


# Transforms of scores, applied before calibration and again before a lookup table is used.


TRANSFORMS = ("none", "sigmoid")


def apply_transform(scores: npt.ArrayLike, name: str) -> Array:
    """Transform scores for the calibrator.

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
        The name is unknown.
    """
    array = np.asarray(scores, dtype=np.float64)
    if name == "none":
        return array
    if name != "sigmoid":
        raise ConfigError(f"log.score_transform: expected one of {', '.join(TRANSFORMS)}, found {name!r}")
    # Compiled code is not imported for tables without a transform.
    from calibrators.core.kernels import log_odds

    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(flat.size)
    log_odds.logistic(flat, out)
    return out.reshape(array.shape)
