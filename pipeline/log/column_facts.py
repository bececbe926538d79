"""Facts of footers about a log's columns, and likely roles: score, label, weight, date and segments."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from logcal.errors import InputRejectedError, listing
from pipeline.files.requests import together
from pipeline.log.chunks import CheckedFooter, bounds_of
from pipeline.log.log_files import LogFile, checked_footer
from pipeline.log.logs import open_files
from pipeline.log.windows import parse_day

FLOAT, INTEGER, BOOLEAN, DATE, TEXT, OTHER = "float", "integer", "boolean", "date", "text", "other"

MOST_FILES = 100
"""Files whose statistics are read; of more, these are spread over all."""

_FEW_BYTES = 4096
"""Dictionary bytes of a column of few values, in a row group."""
_FEW_VALUES = 1000

_FILE = resources.files(__package__) / "column_words.toml"
_WORDS = {role: words.split() for role, words in tomllib.loads(_FILE.read_text("utf-8")).items()}
"""Whole words of the names of columns by role, the likeliest first."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column as the footers describe it.

    Attributes
    ----------
    name, type : as the first file has them
    kind : float, integer, boolean, date, text or other
    low, high : of all row groups; None where some footer does not say
    nulls : of all row groups; None where some footer does not say
    few_values : whether it is of few distinct values; None where nothing tells
    folders : whether it is the key of hive folders, and no column of the files
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
        """The words of its name in small letters: `isClicked_2` is is, clicked, 2."""
        return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower())

    def described(self) -> str:
        """Type and range, for people."""
        where = "folder names" if self.folders else self.type
        if self.low is None:
            return where
        shown = f"{_shown(self.low)} to {_shown(self.high)}"
        return f"{where}, {shown}" + (f", {self.nulls:,} nulls" if self.nulls else "")


@dataclass(frozen=True)
class LogFacts:
    """Facts of the footers of a log.

    Attributes
    ----------
    files, rows : of the whole log
    columns : in the files' order, hive keys last
    """

    files: int
    rows: int
    columns: tuple[ColumnFacts, ...]


@dataclass(frozen=True)
class Roles:
    """Likely columns for each role, the likeliest first."""

    score: tuple[ColumnFacts, ...] = ()
    label: tuple[ColumnFacts, ...] = ()
    weight: tuple[ColumnFacts, ...] = ()
    date: tuple[ColumnFacts, ...] = ()
    segment: tuple[ColumnFacts, ...] = field(default=())

    @property
    def margin(self) -> bool:
        """True if the score's name says that it is a margin (log odds)."""
        if not self.score or self.score[0].low is None:
            return False
        score = self.score[0]
        return (score.low < 0 or score.high > 1) and _named(score, "margin")


def log_facts(paths: str | Sequence[str]) -> LogFacts:
    """Look at a log's footers; no row is read.

    Raises
    ------
    InputRejectedError
        No files, or files whose footers cannot be read.
    """
    opened = open_files(paths, "log.path")
    if opened.unreadable:
        raise InputRejectedError(f"the log cannot be used.\n{listing(opened.unreadable)}")
    files = opened.files
    some = files[:: max(1, len(files) // MOST_FILES)]
    footers = list(together(partial(checked_footer, opened.found.filesystem), some))
    columns = [_column(field, footers) for field in opened.schemas[0][1]]
    names = {column.name for column in columns}
    columns += [key for key in _hive_keys(files) if key.name not in names]
    return LogFacts(len(files), sum(file.rows for file in files), tuple(columns))


def _rank(column: ColumnFacts, role: str) -> int:
    words = _WORDS[role]
    return min((words.index(word) for word in column.words if word in words), default=len(words))


def _named(column: ColumnFacts, role: str) -> bool:
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
        return _named(column, "label")
    within = column.low in (0, 1) and column.high in (0, 1)
    return within and (column.kind == INTEGER or _named(column, "label"))


def _may_be_score(column: ColumnFacts) -> bool:
    if column.kind != FLOAT or _named(column, "weight"):
        return False
    in_unit_interval = column.low is None or (column.low >= 0 and column.high <= 1)
    return in_unit_interval or _named(column, "score")


def _may_be_weight(column: ColumnFacts) -> bool:
    if column.kind not in (FLOAT, INTEGER) or not _named(column, "weight"):
        return False
    return bool(column.low is None or column.low > 0)


def _may_be_segment(column: ColumnFacts) -> bool:
    if column.folders or column.kind not in (TEXT, INTEGER, BOOLEAN):
        return False
    if column.kind == INTEGER and not _named(column, "segment"):
        return False  # such as an age
    if column.few_values is not None:
        return column.few_values
    return _named(column, "segment")


_ROLES = {
    "date": _may_be_date,
    "label": _may_be_label,
    "score": _may_be_score,
    "weight": _may_be_weight,
    "segment": _may_be_segment,
}


def find_roles(columns: Sequence[ColumnFacts]) -> Roles:
    """Guess each column's role from its name, type and range; a column is the first choice for one role at most.

    The columns of a role are ranked by how likely their names are, and by their order where names say nothing.
    """
    found: dict[str, tuple[ColumnFacts, ...]] = {}
    left = list(columns)
    for role, suits in _ROLES.items():
        found[role] = tuple(sorted(filter(suits, left), key=partial(_rank, role=role)))
        left = [column for column in left if column not in found[role][:1]]
    return Roles(**found)


# Footers.


def _column(column: pa.Field, footers: Sequence[CheckedFooter]) -> ColumnFacts:
    kind = _kind(column.type)
    if kind == OTHER:
        return ColumnFacts(column.name, str(column.type), kind)
    chunks = [chunk for footer in footers if footer.has(column.name) for chunk in footer.chunks(column.name)]
    statistics = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
    low = high = nulls = None
    if statistics and len(statistics) == len(chunks):
        # A row group of nulls alone has no bounds, and needs none.
        filled = [s for s in statistics if s.has_min_max or s.num_values]
        bounds = [pair for s in filled if s.has_min_max and (pair := bounds_of(s)) is not None]
        if bounds and len(bounds) == len(filled):
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


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        (FLOAT, pa.types.is_floating),
        (INTEGER, pa.types.is_integer),
        (BOOLEAN, pa.types.is_boolean),
        (DATE, pa.types.is_date),
        (DATE, pa.types.is_timestamp),
        (TEXT, pa.types.is_string),
        (TEXT, pa.types.is_large_string),
    )
    return next((name for name, test in tests if test(kind)), OTHER)


def _hive_keys(files: Sequence[LogFile]) -> list[ColumnFacts]:
    values: dict[str, list[str]] = {}
    for file in files:
        for part in file.relative.split("/")[:-1]:
            key, equals, value = part.partition("=")
            if equals:
                values.setdefault(unquote(key), []).append(unquote(value))
    return [
        ColumnFacts(key, "text", TEXT, min(found), max(found), 0, len(set(found)) < _FEW_VALUES, folders=True)
        for key, found in values.items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dt.datetime):
        return value.date().isoformat()
    return str(value)[:40]
