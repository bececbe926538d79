"""Facts about a log's columns from footers, and their likely roles: score, label, weight, date and segments."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

import pyarrow as pa

from logcal.errors import InputRejectedError, listing
from pipeline.files.requests import together
from pipeline.log.chunks import CheckedFooter, bounds_of
from pipeline.log.column_types import Schemas, check_roles, how_read, meaning, types_of, values_type
from pipeline.log.folder_tree import hive_keys
from pipeline.log.folder_zones import FolderZone, folder_zone
from pipeline.log.log_files import LogFile, checked_footer
from pipeline.log.logs import open_files
from pipeline.log.nested import with_fields
from pipeline.log.windows import parse_day

FLOAT, INTEGER, BOOLEAN, DATE, TEXT, OTHER = "float", "integer", "boolean", "date", "text", "other"

MOST_FILES = 100
"""Most files whose statistics are read; of more files, an evenly spaced sample."""

_FEW_BYTES = 4096
"""Most dictionary bytes per row group in a column with few values."""
_FEW_VALUES = 1000

_KINDS = {"text": TEXT, "whole numbers": INTEGER, "booleans": BOOLEAN}

_FILE = resources.files(__package__) / "column_words.toml"
_WORDS = {role: words.split() for role, words in tomllib.loads(_FILE.read_text("utf-8")).items()}
"""Words in column names that suggest a role, likeliest first."""


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column from footers.

    Attributes
    ----------
    name, type : name and Arrow type in the first file
    kind : float, integer, boolean, date, text or other
    low, high : minimum and maximum; None if unknown for a row group
    nulls : number of nulls; None if unknown for a row group
    few_values : whether the column has few distinct values; None if unknown
    folders : whether the column is a key of hive folders and not in the files
    """

    name: str
    type: str
    kind: str
    low: Any = None
    high: Any = None
    nulls: int | None = None
    few_values: bool | None = None
    folders: bool = False

    @property
    def words(self) -> list[str]:
        """Lower-case words of the name: is, clicked, 2 for `isClicked_2`."""
        return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower())

    def described(self) -> str:
        """Describe the type and range in words."""
        source = "folder names" if self.folders else self.type
        if self.low is None:
            return source
        shown = f"{_formatted(self.low)} to {_formatted(self.high)}"
        return f"{source}, {shown}" + (f", {self.nulls:,} nulls" if self.nulls else "")


@dataclass(frozen=True)
class LogFacts:
    """Facts about a log from its footers.

    Attributes
    ----------
    files, rows : number of files and rows
    columns : columns in the order of the first file, then hive keys
    zone : time zone of the days in the folders' names, see `folder_zone`; None: that of UTC, or unknown
    schemas : path and schema of each file
    """

    files: int
    rows: int
    columns: tuple[ColumnFacts, ...]
    zone: FolderZone | None = None
    schemas: Schemas = ()

    def reading(self, roles: Sequence[tuple[str, str]]) -> tuple[list[str], dict[str, str]]:
        """Return what a job will refuse of columns, and how it will read those whose types do not tell, by setting.

        roles : role and name of each column; see `column_types.meaning`
        """
        inside = {column.name for column in self.columns if not column.folders}
        roles = [(role, name) for role, name in roles if name in inside or "." in name]
        names = [name for _, name in roles]
        schemas = [(path, with_fields(schema, names)) for path, schema in self.schemas]
        types, refused = check_roles(schemas, [(role, name) for role, name in roles if role != "day"])
        read: dict[str, str] = {}
        for role, name in roles:
            if role != "day" and name not in types:
                continue
            setting = "$[date]" if role == "day" else f"$[{role}]"
            text = how_read(role, types_of(name, setting, schemas)[0])
            bounds = next((column.low for column in self.columns if column.name == name), None)
            if role == "day" and bounds is None:
                unknown = "its footers tell no days (as of INT96): each job reads this column for them"
                text = f"{text}; {unknown}" if text else unknown
            if text:
                read[setting] = f"{read[setting]}; {name}: {text}" if setting in read else text
        return refused, read


@dataclass(frozen=True)
class LikelyRoles:
    """Likely columns of each role, likeliest first."""

    score: tuple[ColumnFacts, ...] = ()
    label: tuple[ColumnFacts, ...] = ()
    weight: tuple[ColumnFacts, ...] = ()
    date: tuple[ColumnFacts, ...] = ()
    segment: tuple[ColumnFacts, ...] = field(default=())

    @property
    def margin(self) -> bool:
        """True if the score is a margin (log odds), by its name and range."""
        if not self.score or self.score[0].low is None:
            return False
        score = self.score[0]
        return (score.low < 0 or score.high > 1) and _name_suggests(score, "margin")


def log_facts(paths: str | Sequence[str]) -> LogFacts:
    """Gather the facts of a log's footers, without reading rows.

    Raises
    ------
    InputRejectedError
        No files, or files whose footers cannot be read.
    """
    opened = open_files(paths)
    if opened.unreadable:
        raise InputRejectedError(f"the log cannot be used.\n{listing(opened.unreadable)}")
    files = opened.files
    sample = files[:: max(1, len(files) // MOST_FILES)]
    footers = list(together(partial(checked_footer, opened.listing.filesystem), sample))
    columns = [_column(field, footers) for field in opened.schemas[0][1]]
    names = {column.name for column in columns}
    keys = [key for key in _hive_keys(files) if key.name not in names]
    zone = folder_zone(sample, footers, [key.name for key in keys], opened.schemas[0][1])
    return LogFacts(len(files), sum(file.rows for file in files), (*columns, *keys), zone, opened.schemas)


def _rank(column: ColumnFacts, role: str) -> int:
    words = _WORDS[role]
    return min((words.index(word) for word in column.words if word in words), default=len(words))


def _name_suggests(column: ColumnFacts, role: str) -> bool:
    return not set(_WORDS[role]).isdisjoint(column.words)


def _may_be_date(column: ColumnFacts) -> bool:
    if column.kind == DATE:
        return True
    if column.kind not in (TEXT, INTEGER) or column.low is None:
        return False
    return parse_day(str(column.low)) is not None and parse_day(str(column.high)) is not None


def _may_be_label(column: ColumnFacts) -> bool:
    if column.kind == BOOLEAN:
        return True
    if column.kind not in (INTEGER, FLOAT):
        return False
    if column.low is None:
        return _name_suggests(column, "label")
    within = column.low in (0, 1) and column.high in (0, 1)
    return within and (column.kind == INTEGER or _name_suggests(column, "label"))


def _may_be_score(column: ColumnFacts) -> bool:
    if column.kind != FLOAT or _name_suggests(column, "weight"):
        return False
    in_unit_interval = column.low is None or (column.low >= 0 and column.high <= 1)
    return in_unit_interval or _name_suggests(column, "score")


def _may_be_weight(column: ColumnFacts) -> bool:
    if column.kind not in (FLOAT, INTEGER) or not _name_suggests(column, "weight"):
        return False
    return bool(column.low is None or column.low > 0)


def _may_be_segment(column: ColumnFacts) -> bool:
    if column.folders or column.kind not in (TEXT, INTEGER, BOOLEAN):
        return False
    if column.kind == INTEGER and not _name_suggests(column, "segment"):
        return False  # such as an age
    if column.few_values is not None:
        return column.few_values
    return _name_suggests(column, "segment")


_ROLES = {
    "date": _may_be_date,
    "label": _may_be_label,
    "score": _may_be_score,
    "weight": _may_be_weight,
    "segment": _may_be_segment,
}


def find_roles(columns: Sequence[ColumnFacts]) -> LikelyRoles:
    """Guess the roles of columns from names, types and ranges; a column is the first choice for at most one role.

    The columns of a role are ranked by their names; ties keep the order of the columns.
    """
    roles: dict[str, tuple[ColumnFacts, ...]] = {}
    remaining = list(columns)
    for role, qualifies in _ROLES.items():
        roles[role] = tuple(sorted(filter(qualifies, remaining), key=partial(_rank, role=role)))
        remaining = [column for column in remaining if column not in roles[role][:1]]
    return LikelyRoles(**roles)


# Footers.


def _column(column: pa.Field, footers: Sequence[CheckedFooter]) -> ColumnFacts:
    kind = _kind(column.type)
    if kind == OTHER:
        return ColumnFacts(column.name, str(column.type), kind)
    chunks = [chunk for footer in footers if footer.has(column.name) for chunk in footer.chunks(column.name)]
    statistics = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
    low = high = nulls = None
    if statistics and len(statistics) == len(chunks):
        # A row group with only nulls has no bounds.
        filled = [s for s in statistics if s.has_min_max or s.num_values]
        bounds = [pair for s in filled if s.has_min_max and (pair := bounds_of(s)) is not None]
        if bounds and len(bounds) == len(filled):
            with suppress(
                TypeError
            ):  # files of several types: text and numbers, or times with and without a zone
                low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        if all(s.has_null_count for s in statistics):
            nulls = sum(s.null_count for s in statistics)
    few = _few_values(kind, chunks, low, high)
    return ColumnFacts(column.name, str(column.type), kind, low, high, nulls, few)


def _few_values(kind: str, chunks: Sequence[Any], low: Any, high: Any) -> bool | None:
    if kind == BOOLEAN or (kind == INTEGER and low is not None and high - low < _FEW_VALUES):
        return True
    if kind == INTEGER and low is not None:
        return False
    if not chunks or not all(chunk.has_dictionary_page for chunk in chunks):
        return None
    return all(
        chunk.data_page_offset - chunk.dictionary_page_offset <= min(_FEW_BYTES, 20 + 2 * chunk.num_values)
        for chunk in chunks
    )


def _kind(arrow_type: pa.DataType) -> str:
    if meaning("time", arrow_type) is not None:
        return DATE
    if meaning("score", arrow_type) is not None and not pa.types.is_integer(values_type(arrow_type)):
        return FLOAT
    return _KINDS.get(meaning("segment", arrow_type) or "", OTHER)


def _hive_keys(files: Sequence[LogFile]) -> list[ColumnFacts]:
    values: dict[str, list[str]] = {}
    for file in files:
        for key, value in hive_keys(file.relative).items():
            values.setdefault(key, []).append(value)
    return [
        ColumnFacts(key, "text", TEXT, min(texts), max(texts), 0, len(set(texts)) < _FEW_VALUES, folders=True)
        for key, texts in values.items()
    ]


def _formatted(value: Any) -> str:
    if isinstance(value, float):
        return f"{value + 0.0:.4g}"  # a footer's smallest 0 is -0
    if isinstance(value, dt.datetime):
        return value.date().isoformat()
    return str(value)[:40]
