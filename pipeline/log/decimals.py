"""Decimals as doubles and as labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import as_numpy

DOUBLE_DIGITS = 15
"""Number of significant digits that every double keeps."""

_EXACT_UNSCALED, _EXACT_SCALE = 1 << 53, 22
"""Largest whole number, and largest power of ten, up to which all are doubles: their quotient is rounded once."""


def doubles_of(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return the nearest double to each decimal; the value at a null is undefined."""
    if len(column) == 0:
        return np.empty(0)
    low, high = _words(column)
    if low is None or not 0 <= column.type.scale <= _EXACT_SCALE:
        return _parsed(column)
    values = low / 10.0**column.type.scale
    long = np.flatnonzero((high != low >> 63) | (low > _EXACT_UNSCALED) | (low < -_EXACT_UNSCALED))
    if long.size:
        values[long] = _parsed(column.take(pa.array(long)))
    return values


def are(column: pa.Array, value: int) -> npt.NDArray[np.bool_]:
    """Tell which decimals equal a whole number exactly; undefined at nulls."""
    low, high = _words(column)
    scale = column.type.scale
    if low is None or scale < 0:
        return np.array([number is not None and number == value for number in column.to_pylist()], np.bool_)
    wanted = value * 10**scale
    words = np.frombuffer(wanted.to_bytes(16, "little", signed=True), np.int64)
    equal: npt.NDArray[np.bool_] = (low == words[0]) & (high == words[1])
    return equal


def _words(column: pa.Array) -> tuple[Any, Any]:
    """Return the low and the high 64 bits of unscaled decimals, as int64; None for decimals of other widths."""
    kind = column.type
    if kind.bit_width < 128:
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    elif kind.bit_width > 128:
        return None, None
    words = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
    return words[::2], words[1::2]


def _parsed(column: pa.Array) -> npt.NDArray[np.float64]:
    # Arrow's parser of text rounds to the nearest double, its cast of decimals does not.
    return as_numpy(column.cast(pa.string()).cast(pa.float64())).copy()
