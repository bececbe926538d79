"""The time zone of a log's folders: whose days those of a timestamp column are, as footers tell."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipeline.log.calendars import DAY, UTC, local_bounds
from pipeline.log.chunks import CheckedFooter
from pipeline.log.folder_tree import hive_value
from pipeline.log.log_files import LogFile
from pipeline.log.windows import day_number, parse_day, time_bounds

_USUAL = (
    "Europe/London", "Europe/Berlin", "America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles",
    "America/Sao_Paulo", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney",
)  # fmt: skip
"""Zones that are tried first, since others have the same days."""


class FolderZone(NamedTuple):
    """Column of timestamps whose days in a zone are those of the folders, and the number of other such zones."""

    column: str
    zone: str
    others: int


def folder_zone(
    files: Sequence[LogFile], footers: Sequence[CheckedFooter], keys: Iterable[str], schema: pa.Schema
) -> FolderZone | None:
    """Return the zone, other than UTC, in which a column's days are those of hive folders; None without one.

    The column's own zone is preferred, then those of `_USUAL`.

    keys : keys of the folders. schema : columns of the files
    """
    columns = [field for field in schema if pa.types.is_timestamp(field.type) and field.type.tz is not None]
    for key in keys:
        for field in columns:
            spans = _spans(files, footers, key, field.name)
            if not spans or _agree(spans, UTC):
                continue
            own, known = field.type.tz, zoneinfo.available_timezones() - {"localtime", "Factory"}
            order = [zone for zone in (own, *_USUAL) if zone in known]
            zones = [zone for zone in dict.fromkeys([*order, *sorted(known)]) if _agree(spans, zone)]
            if zones:
                return FolderZone(field.name, zones[0], len(zones) - 1)
    return None


_Span = tuple[int, int, int]
"""Day of a folder, and the first and the last time of a row group in it."""


def _spans(files: Sequence[LogFile], footers: Sequence[CheckedFooter], key: str, column: str) -> list[_Span]:
    """Return the spans of all row groups; none if a folder is no day, or a footer does not tell."""
    spans = []
    for file, footer in zip(files, footers, strict=True):
        day = parse_day(hive_value(file.path, key) or "")
        if day is None or not footer.has(column):
            return []
        logical = footer.logical_type(column)
        bounds = [time_bounds(chunk, logical) for chunk in footer.chunks(column)]
        if any(pair is None for pair in bounds):
            return []
        spans += [(day_number(day), *pair) for pair in bounds if pair is not None]
    return spans


def _agree(spans: Sequence[_Span], zone: str) -> bool:
    """Tell whether all times of each span are of its day."""
    for day, *bounds in spans:
        low, high = local_bounds(bounds[0], bounds[1], zone)
        if not low // DAY == high // DAY == day:
            return False
    return True
