"""Types of segment columns. Writers spell one meaning in several Arrow types; tables have one type for each meaning."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logcal.arrow_columns import as_numpy
from logcal.errors import InputRejectedError

TEXT, WHOLE, BOOLEANS, DATES = "text", "whole numbers", "booleans", "dates"

_STARTS = {
    TEXT: ("string", "large_string"),
    WHOLE: ("int", "uint", "decimal"),
    BOOLEANS: ("bool",),
    DATES: ("date32",),
}
_TYPES = {TEXT: pa.string(), WHOLE: pa.int64(), BOOLEANS: pa.bool_(), DATES: pa.date32(), "null": pa.null()}


def kind_of(type_: str) -> str:
    """Return the kind of values of an Arrow type, given as text; other types than those of segments are themselves."""
    if type_.startswith("dictionary<values="):
        type_ = type_.removeprefix("dictionary<values=").partition(",")[0]
    return next((kind for kind, starts in _STARTS.items() if type_.startswith(starts)), type_)


def segment_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type of a table's column for a segment column: string, int64, bool, date32, or null (nulls only).

    None if a column of the given type cannot be a segment column.
    """
    return _TYPES.get(kind_of(str(arrow_type)))


def segment_problems(fitted: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Compare the kinds of segment columns with those that a table was fitted to; return a message per difference.

    Text may stand for dates, since `segment_column` converts it and refuses other text.

    fitted, actual : Arrow types of the columns, as text
    """
    problems = []
    for name, type_ in fitted.items():
        kinds = [kind_of(type_), kind_of(actual[name])] if name in actual else []
        if len(set(kinds)) == 2 and "null" not in kinds and kinds != [DATES, TEXT]:
            problems.append(
                f"column '{name}': expected {kinds[0]} as the table's segments have ({type_}), found {kinds[1]} "
                f"({actual[name]}): convert it, or fit to such a log"
            )
    return problems


def segment_column(column: pa.Array, name: str, wanted: pa.DataType | None = None) -> pa.Array:
    """Convert a segment column to a type that hash tables of values take; a dictionary stays one.

    Strings, integers, booleans and dates are returned as they are. String views become strings, decimals int64.

    Parameters
    ----------
    column : column of a type that `segment_type` knows
    name : name of the column, for messages
    wanted : date32: text is converted to dates

    Raises
    ------
    InputRejectedError
        A decimal is not a whole number within int64; or a text is not an ISO date, where dates are wanted.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = segment_column(column.dictionary, name, wanted)
        if values is column.dictionary:
            return column
        return pa.DictionaryArray.from_arrays(column.indices, values)
    if pa.types.is_decimal(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise InputRejectedError(
                f"column '{name}': expected whole numbers within int64, found {_first(column, _is_whole)} ({kind}): "
                "convert the column to text or whole numbers"
            ) from None
    if pa.types.is_string_view(kind):
        column = column.cast(pa.string())
    if wanted is not None and pa.types.is_date32(wanted) and segment_type(kind) == pa.string():
        try:
            return column.cast(pa.date32())
        except pa.ArrowInvalid:
            raise InputRejectedError(
                f"column '{name}': expected dates such as 2026-01-31, as others of the column are, found "
                f"{_first(column, _is_date)!r}: convert the column to one type"
            ) from None
    return column


def _is_whole(value: object) -> bool:
    return value == int(value) and -(2**63) <= int(value) < 2**63  # type: ignore[call-overload, no-any-return]


def _is_date(value: object) -> bool:
    try:
        return dt.date.fromisoformat(str(value)).isoformat() == value
    except ValueError:
        return False


def _first(column: pa.Array, fits: object) -> object:
    """Return the first value that does not fit."""
    return next(value for value in column.to_pylist() if value is not None and not fits(value))  # type: ignore[operator]


def unified(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Convert the parts of a segment column, whose types may differ, to one type.

    The type depends on the values alone: string, int64 (uint64 if a number is larger), bool or date32; null without
    values.

    Raises
    ------
    InputRejectedError
        The parts have values of different kinds; or numbers below 0 and above the largest int64.
    """
    filled = [column for column in columns if column.null_count < len(column)]
    types = {segment_type(column.type) for column in filled or columns} - {pa.null()}
    if types == {pa.string(), pa.date32()}:
        types = {pa.date32()}
    if len(types) > 1:
        found = ", ".join(sorted(kind_of(str(kind)) for kind in types))
        raise InputRejectedError(
            f"log.segment: expected values of one kind in a column, found {found}: write one type"
        )
    wanted = types.pop() if types else pa.null()
    if wanted == pa.int64() and any(_has_large(column) for column in filled):
        if any(_has_negative(column) for column in filled):
            raise mixed_signs()
        wanted = pa.uint64()
    return [_cast(segment_column(column, "log.segment", wanted), wanted) for column in columns]


def mixed_signs() -> InputRejectedError:
    """Return the error for whole numbers that no type of 64 bits holds."""
    return InputRejectedError(
        "log.segment: expected whole numbers of a column that fit one type of 64 bits, found some below 0 and some "
        "from 2^63 on: convert the column to text"
    )


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    return pa.nulls(len(column), wanted) if column.null_count == len(column) else column.cast(wanted)


def _has_large(column: pa.Array) -> bool:
    """Tell whether a column has whole numbers from 2^63 on."""
    if not pa.types.is_uint64(column.type):
        return False
    return bool((as_numpy(column.drop_null()) >= np.uint64(2**63)).any())


def _has_negative(column: pa.Array) -> bool:
    return pa.types.is_signed_integer(column.type) and bool((as_numpy(column.drop_null()) < 0).any())
