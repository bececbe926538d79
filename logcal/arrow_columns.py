"""Arrow columns as numpy arrays and back. Arrow's own conversions import pandas, which takes 0.2 s per process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Mask

_DTYPES = {
    pa.from_numpy_dtype(dtype): dtype
    for dtype in map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return numpy's type of numbers."""
    found = _DTYPES.get(kind)
    return np.dtype(kind.to_pandas_dtype()) if found is None else found


def as_numpy(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the values of a column of numbers or booleans, with the column's type.

    They are copied only if there are several chunks or the values are boolean. The value at a null is undefined.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [as_numpy(chunk) for chunk in column.chunks]
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate([np.empty(0, dtype_of(column.type)), *chunks])
    if pa.types.is_boolean(column.type):
        return as_numpy(column.cast(pa.uint8())).view(np.bool_)
    kind = dtype_of(column.type)
    if len(column) == 0:
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind, count=len(column), offset=column.offset * kind.itemsize)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of a column."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def null_mask(column: pa.Array) -> Mask:
    """Return a mask of the nulls of a column."""
    mask: Mask = as_numpy(column.is_null())
    return mask


def as_column(values: npt.NDArray[Any]) -> pa.Array:
    """Convert an array of numbers or booleans, shape (n,), to a column of its type; numbers are not copied."""
    if values.dtype == np.bool_:
        return as_column(values.view(np.uint8)).cast(pa.bool_())
    array = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), array.size, [None, pa.py_buffer(array)])


def nullable_column(values: npt.NDArray[np.floating[Any]]) -> pa.Array:
    """Convert an array of numbers, shape (n,), to a column of its type; NaN becomes null."""
    valid = ~np.isnan(values)
    if valid.all():
        return as_column(values)
    numbers = np.where(valid, values, 0)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(numbers.dtype), numbers.size, [bitmap, pa.py_buffer(numbers)]
    )


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert Python texts, numbers, booleans or dates to a column of type `kind`; None becomes null."""
    valid = np.array([value is not None for value in values], np.bool_)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_string(kind):
        texts = [b"" if value is None else value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)])
        buffers = [bitmap, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(kind, len(texts), buffers)
    if pa.types.is_boolean(kind):
        bits = np.array([bool(value) for value in values], np.bool_)
        return pa.Array.from_buffers(
            kind, bits.size, [bitmap, pa.py_buffer(np.packbits(bits, bitorder="little"))]
        )
    if pa.types.is_date32(kind):
        values = [None if value is None else (value - dt.date(1970, 1, 1)).days for value in values]
        dtype = np.dtype(np.int32)
    else:
        dtype = dtype_of(kind)
    numbers = np.array([0 if value is None else value for value in values], dtype)
    return pa.Array.from_buffers(kind, numbers.size, [bitmap, pa.py_buffer(numbers)])
