"""Types of a log's columns. Writers spell one meaning in several Arrow types; columns are compared by meaning.

The same column may be `string` in a file and `large_string` or a dictionary in the next, a label `int8`, `bool` or
`double` with nulls. This module is the only one that decides which types a role takes, and which may stand together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from logcal.errors import counted, examples
from logcal.segment_types import kind_of as segment_kind
from logcal.segment_types import segment_type
from pipeline.log.decimals import DOUBLE_DIGITS

Schemas = Sequence[tuple[str, pa.Schema]]
"""Path and schema of each file, with the columns of hive folders (`folder_tree.with_keys`)."""

INTEGER, UNSIGNED, TEXT, BYTES, DATE = "integers", "unsigned integers", "text", "bytes", "dates"
"""Kinds of keys. Keys of different kinds are never equal, except signed and unsigned integers."""

_WANTED = {
    "label": "booleans, or numbers 0 and 1 (a float, integer or decimal type)",
    "segment": "strings, integers, booleans or dates (date32)",
    "key": "integers, strings, bytes or dates (date32)",
    "time": "timestamps or dates",
}
_SPELLED = {"text": "text", "whole numbers": "whole numbers"}
_NUMBERS = "numbers (a float, integer or decimal type)"


_KEY_KINDS = {
    **dict.fromkeys(("string", "large_string", "string_view"), TEXT),
    **dict.fromkeys(("binary", "large_binary", "fixed_size_binary"), BYTES),
    "date32": DATE,
}


def key_kind(arrow_type: pa.DataType) -> str | None:
    """Return the kind of keys of an Arrow type; None if it cannot be a key."""
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if isinstance(arrow_type, pa.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    if pa.types.is_uint64(arrow_type):
        return UNSIGNED
    if pa.types.is_integer(arrow_type) or pa.types.is_decimal(arrow_type):
        return INTEGER
    return _KEY_KINDS.get(str(arrow_type).partition("[")[0])


def common_kind(kind: str | None, other: str | None) -> str | None:
    """Return the kind in which keys of two columns are compared; None if they are never equal."""
    if {kind, other} == {INTEGER, UNSIGNED}:
        return UNSIGNED
    return kind if kind == other else None


def values_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, without dictionary encoding."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values are numbers: floats, integers or decimals."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def meaning(role: str, kind: pa.DataType) -> str | None:
    """Return what a role takes a column of a type for; None if it cannot take it.

    Columns with one meaning may differ in type from file to file; a column of nulls ('null') agrees with any meaning.

    role : score, label, weight, segment, key, time or day
    """
    kind = values_type(kind)
    if role == "day" and meaning("time", kind) is None:
        # Text and whole numbers may spell days.
        return None if pa.types.is_decimal(kind) else _SPELLED.get(meaning("segment", kind) or "")
    if role == "segment":
        return None if segment_type(kind) is None else segment_kind(str(kind))
    if role == "key":
        return INTEGER if pa.types.is_decimal(kind) or key_kind(kind) == UNSIGNED else key_kind(kind)
    if role in ("time", "day"):
        if pa.types.is_timestamp(kind):
            return "timestamps" if kind.tz is None else "timestamps with a time zone"
        return "dates" if pa.types.is_date(kind) else None
    if role == "label" and pa.types.is_null(kind):
        return "null"
    return "numbers" if is_number(kind) or (role == "label" and pa.types.is_boolean(kind)) else None


def check_roles(
    schemas: Schemas, roles: Sequence[tuple[str, str]], prefix: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Return the types and problems of columns, given as (role, name); prefix : of the roles' names in messages.

    The type of a column with several types is the one that its meaning has: double, string, int64, bool or date32.
    """
    types: dict[str, str] = {}
    problems = []
    labelled = any(role in ("label", "key") for role, _ in roles)
    for role, name in roles if schemas else ():
        setting = f"$[{prefix}{role}]"
        of_table = role == "segment" and not labelled  # rows to score: the table has chosen the columns
        advice = "the table has a map for each of its values" if of_table else f"set {setting}"
        found, problem = types_of(name, setting, schemas, f": {advice}")
        if problem := problem or _problem(role, name, setting, found, of_table):
            problems.append(problem)
        else:
            types[name] = _common(role, found)
    return types, problems


def _problem(
    role: str, name: str, setting: str, found: Mapping[pa.DataType, list[str]], of_table: bool = False
) -> str:
    """Return the problem with a column's types; '' if there is none. of_table : whether no setting can name another."""
    meanings = {meaning(role, kind) for kind in found}
    if None in meanings:
        other = [kind for kind in found if meaning(role, kind) is None]
        shown = str(other[0]) if len(found) == 1 else _by_type({kind: found[kind] for kind in other})
        return (
            f"column '{name}' ({setting}): expected {_WANTED.get(role, _NUMBERS)}, found {shown}: "
            f"{'' if of_table else f'set {setting} to another column or '}convert this one"
        )
    meanings.discard("null")
    if len(meanings) > 1 and not (role == "segment" and meanings == {"text", "dates"}):
        return (
            f"column '{name}' ({setting}): expected values of one kind in all files, found {_by_type(found)}: "
            "write the files with one schema"
        )
    return ""


def _by_type(found: Mapping[pa.DataType, list[str]]) -> str:
    return "; ".join(
        f"{kind} in {counted(len(paths), 'file')} ({examples(paths, 2)})" for kind, paths in found.items()
    )


def _common(role: str, found: Mapping[pa.DataType, list[str]]) -> str:
    """Return the type of a column; that of its meaning if types differ."""
    if len(found) == 1:
        return str(next(iter(found)))
    if role == "segment":
        types = {segment_type(kind) for kind in found} - {pa.null()}
        return str(pa.date32() if len(types) > 1 else types.pop())
    if role in ("key", "time"):
        return str(min(found, key=str))
    return str(pa.float64())


def how_read(role: str, found: Mapping[pa.DataType, list[str]]) -> str:
    """Say how a column's values are read where its types do not tell; '' where they do.

    found : files of each type
    """
    kinds = {values_type(kind) for kind in found}
    parts = []
    if len(found) > 1:
        common = "by file" if role == "day" else f"as {_common(role, found)}"
        parts.append(f"{_by_type(found)}: read {common}")
    if any(map(pa.types.is_decimal, kinds)):
        whole = role in ("segment", "key")
        parts.append(
            "decimals: whole numbers within int64, others are refused"
            if whole
            else f"decimals: read as the nearest doubles, which keep {DOUBLE_DIGITS} digits"
        )
    if any(pa.types.is_timestamp(kind) and kind.tz is not None for kind in kinds):
        parts.append("timestamps with a time zone: days are those of $[timezone]")
    return "; ".join(parts)


def types_of(
    name: str, setting: str, schemas: Schemas, advice: str = ""
) -> tuple[dict[pa.DataType, list[str]], str]:
    """Return the files of each type of a column, and the problem if the column is missing or repeated."""
    # Each distinct schema object is queried once: a query takes a microsecond or two, and files are many.
    distinct = {id(schema): schema for _, schema in schemas}
    occurrences = {key: schema.names.count(name) for key, schema in distinct.items()}
    if missing := [path for path, schema in schemas if not occurrences[id(schema)]]:
        columns_found = dict(schemas)[missing[0]].names
        location = "any file"
        if len(missing) < len(schemas):
            # Another column would be missing in the other files.
            location, advice = f"{len(missing)} of {len(schemas)} files", ": write these files again with it"
        return {}, (
            f"column '{name}' ({setting}) is not in {location} ({examples(missing, 3)}), which have the columns "
            f"{examples(columns_found, 12)}{advice}"
        )
    if repeated := [path for path, schema in schemas if occurrences[id(schema)] > 1]:
        return {}, (
            f"column '{name}' ({setting}): expected one column of this name, found several in "
            f"{counted(len(repeated), 'file')} ({examples(repeated, 3)}): give the others another name"
        )
    kinds = {key: schema.field(name).type for key, schema in distinct.items()}
    by_type: dict[pa.DataType, list[str]] = {}
    for path, schema in schemas:
        by_type.setdefault(kinds[id(schema)], []).append(path)
    return by_type, ""


def type_of(name: str, role: str, schemas: Schemas, advice: str = "") -> tuple[pa.DataType | None, str]:
    """Return a column's type, which must be one in all files; or None and the problem with it."""
    found, problem = types_of(name, role, schemas, advice)
    if len(found) > 1:
        problem = (
            f"column '{name}' ({role}): expected one type in all files, found {_by_type(found)}: "
            "write the files with one schema"
        )
    return (None, problem) if problem else (next(iter(found)), "")


def date_columns(schemas: Schemas, names: Sequence[str]) -> tuple[str, ...]:
    """Return the segment columns that are dates in some files; text in the others is read as dates."""
    found = {name: types_of(name, "$[segment]", schemas)[0] for name in names}
    return tuple(name for name, kinds in found.items() if pa.date32() in map(values_type, kinds))


def file_types(schemas: Schemas, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the files of each type of columns that have several types, or a type whose values doubles may not hold.

    Such are floats of 32 bits, whose values are taken as they are written, and decimals of more than 15 digits.
    """
    counts = {}
    for name in names:
        found, _ = types_of(name, "", schemas)
        if len(found) > 1 or any(map(_noted, map(values_type, found))):
            by_text = Counter({str(kind): len(paths) for kind, paths in found.items()})
            counts[name] = dict(sorted(by_text.items()))
    return counts


def _noted(kind: pa.DataType) -> bool:
    narrow = pa.types.is_float32(kind) or pa.types.is_float16(kind)
    return narrow or pa.types.is_decimal(kind)
