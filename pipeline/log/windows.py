"""Windows: the days of a log that a job uses, and the days of each row group.

The days of a row group are known without reading it, from the hive folder of its file (`date=2026-01-31/`) or from the
column's minimum and maximum in the footer. Only rows of row groups with several days are assigned to days one by one.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers
from logcal.arrow_columns import as_numpy, null_mask
from logcal.errors import ConfigError, InputRejectedError, LabelsWaitingError, examples, listing
from logcal.storage import parse_json
from pipeline.files import clock
from pipeline.files.requests import together
from pipeline.log import nested
from pipeline.log.calendars import DAY, UTC, Calendar, local_bounds, local_times, time_zone
from pipeline.log.chunks import bounds_of
from pipeline.log.column_types import meaning
from pipeline.log.folder_tree import NO_VALUE, hive_value
from pipeline.log.log_files import LogFile, checked_footer
from pipeline.log.logs import DAY_INVALID, DAY_NULL, Columns, Log, open_log, read_piece

_EPOCH = dt.date(1970, 1, 1).toordinal()
_FIRST, _LAST = (day.toordinal() - _EPOCH for day in (dt.date.min, dt.date.max))
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)([T ].*)?", re.DOTALL)
_DIGITS = re.compile(r"(\d{4})(\d\d)(\d\d)")
_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
_TO_MICROSECONDS = {"milliseconds": (1000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1000)}
_DAY_FORMATS = "dates, timestamps, integers such as 20260131 or text such as 2026-01-31"


def day_number(day: dt.date) -> int:
    """Return the number of days since 1970-01-01."""
    return day.toordinal() - _EPOCH


def day_of(number: int) -> dt.date:
    """Return the day with a number; see `day_number`."""
    return dt.date.fromordinal(number + _EPOCH)


def parse_day(text: str) -> dt.date | None:
    """Parse a day: 2026-01-31, 20260131, or an ISO date and time, whose time zone is ignored."""
    match = _ISO.fullmatch(text) or _DIGITS.fullmatch(text)
    if match is None:
        return None
    try:
        return dt.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None


UNPLACED = -(1 << 40)
"""Day of the row groups of a file in which no row has a possible day."""

Days = tuple[int, int, bool]
"""First and last day of rows (since 1970-01-01), and whether the day of each row must be read from the column."""


class DayLimits(NamedTuple):
    """First and last day that a row may have; a row of another day is a bad row and moves no window."""

    first: int
    last: int

    def contain(self, day: int) -> bool:
        """Tell whether a row may have a day."""
        return self.first <= day <= self.last


class ImpossibleDays(NamedTuple):
    """Number of rows with days that cannot be, the first of them (its number in the file), and its day."""

    rows: int
    row: int
    day: int

    def text(self) -> str:
        """Return the day of the first row as text."""
        possible = _FIRST <= self.day <= _LAST
        return day_of(self.day).isoformat() if possible else f"{self.day:,} days since 1970-01-01"


_OLDEST = dt.date(1990, 1, 1)


def day_limits(calendar: Calendar) -> DayLimits | None:
    """Return the days that rows may have; None: any."""
    newest = calendar.newest
    if newest == "any":
        return None
    today = clock.now().astimezone(time_zone(calendar.zone)).date()
    last = today + dt.timedelta(1) if newest == "tomorrow" else dt.date.fromisoformat(newest)
    return DayLimits(day_number(_OLDEST), day_number(last))


class GroupDays(NamedTuple):
    """Row group and the days of its rows.

    position : index among the file's row groups
    start : number of rows before it in the file
    first, last : days since 1970-01-01
    mixed : whether the day of each row must be read from the column
    limits : days that its rows may have, if some have others, which count for the first day; None: all may be used
    impossible : these rows, if there are any
    """

    position: int
    start: int
    rows: int
    first: int
    last: int
    mixed: bool
    limits: DayLimits | None = None
    impossible: ImpossibleDays | None = None


class DatedFile(NamedTuple):
    """File of a log, and the days of its row groups except empty ones."""

    file: LogFile
    groups: tuple[GroupDays, ...]


EXCLUDED, DAMAGED = "excluded", "damaged"
"""Reasons why a day's files are not opened: a person excluded it, or they cannot be used."""


class ClosedDay(NamedTuple):
    """Day whose files are not opened.

    kind : EXCLUDED or DAMAGED
    reason : text for people
    """

    day: int
    kind: str
    reason: str


Close = Callable[[Sequence[LogFile]], tuple[Collection[str], Sequence[ClosedDay]]]
"""Function from a log's listed files to the relative paths of those that are not opened, and their days."""


def close_none(files: Sequence[LogFile]) -> tuple[Collection[str], Sequence[ClosedDay]]:
    """Close no file."""
    return (), ()


KnownDays = Callable[[Sequence[LogFile]], Mapping[str, tuple[int, int]]]
"""Function from a log's listed files to the first and the last day of those whose days are known without opening them,
by relative path."""


@dataclass(frozen=True)
class Window:
    """Window: a range of days of a log.

    Attributes
    ----------
    column : date column of the log, or key of its hive folders
    first, last : first and last day (inclusive), as days since 1970-01-01
    log : the log restricted to files that may have rows of these days
    files : these files, with the days of their row groups
    closed : days whose files were not opened
    """

    column: str
    first: int
    last: int
    log: Log
    files: tuple[DatedFile, ...]
    closed: tuple[ClosedDay, ...] = ()

    @property
    def days(self) -> range:
        """The days, as days since 1970-01-01."""
        return range(self.first, self.last + 1)

    @property
    def mixed(self) -> bool:
        """True if the column must be read for some row groups."""
        return any(group.mixed for file in self.files for group in file.groups)

    def limits_of(self, day: int | None = None) -> DayLimits | None:
        """Return the days that rows may have if some rows of a day (None: of the window) have others."""
        groups = (group for file in self.files for group in file.groups if group.limits is not None)
        found = (group.limits for group in groups if day is None or group.first <= day <= group.last)
        return next(found, None)

    def groups(self, day: int) -> Iterator[tuple[LogFile, GroupDays]]:
        """Yield the row groups that may have rows of a day."""
        for file, groups in self.files:
            for group in groups:
                if group.first <= day <= group.last:
                    yield file, group


def open_window(
    paths: str | Sequence[str],
    columns: Columns,
    column: str,
    length: int,
    until: dt.date | None,
    skip: Collection[str],
    close: Close,
    known: KnownDays,
) -> Window:
    """Open a log (`open_log`), and choose its last days (`choose_window`).

    Files that are known to be of other days are not opened, since the window may be a small part of a long log, and a
    fault of a file costs its days alone.

    close : tells which files are not opened, although their days belong to the window
    known : tells the first and the last day of files that are known

    Raises
    ------
    InputRejectedError
        See `open_log` and `choose_window`; or all files of the window are closed.
    """
    opening = _Opening(column, length, until, close, known, columns.calendar)
    try:
        window = opening.choose(open_log(paths, columns, skip, opening.in_window))
    except InputRejectedError:
        # Repeated below for all files, since the window may have days that the log lacks.
        window = None
    # The files of the newest days may have no rows.
    if window is not None and (until is not None or window.last >= opening.newest):
        return window
    opening.check_open()
    return opening.choose(open_log(paths, columns, skip, opening.not_closed))


@dataclass
class _Opening:
    """Choice of the files to open for a window, whose length and last day are given.

    Attributes
    ----------
    newest : newest day of the files whose days are known
    closed : days whose files are not opened
    left : number of files of the window that are opened
    """

    column: str
    length: int
    until: dt.date | None
    close: Close
    known: KnownDays
    calendar: Calendar
    newest: int = 0
    closed: Sequence[ClosedDay] = ()
    left: int = 0

    def not_closed(self, files: Sequence[LogFile]) -> Sequence[LogFile]:
        """Select the files that are not closed."""
        names, self.closed = self.close(files)
        return [file for file in files if file.relative not in names]

    def in_window(self, files: Sequence[LogFile]) -> Sequence[LogFile]:
        """Select the files that are not closed and may have rows of the window."""
        limits = day_limits(self.calendar)
        spans = self.known(files)
        ends = (end for _, end in spans.values())
        self.newest = max((end for end in ends if limits is None or limits.contain(end)), default=0)
        last = self.newest if self.until is None else day_number(self.until)
        last = last if self.calendar.latest is None else min(last, self.calendar.latest)
        first = last - self.length + 1

        def may_be_inside(file: LogFile) -> bool:
            start, end = spans.get(file.relative, (first, last))
            impossible = limits is not None and not limits.contain(end)
            return impossible or (end >= first and (self.until is None or start <= last))

        chosen = [file for file in self.not_closed(files) if may_be_inside(file)]
        self.left = len(chosen)
        return chosen

    def check_open(self) -> None:
        """Raise InputRejectedError if all files of the window are closed."""
        if self.closed and not self.left:
            named = examples([f"{day_of(entry.day)} ({entry.reason})" for entry in self.closed])
            raise InputRejectedError(
                f"window: expected days to use, found that all are set aside or excluded: {named}; decide with "
                "`logcal days`"
            )

    def choose(self, log: Log) -> Window:
        """Choose the window's days; a closed day may be the first or the last one."""
        closed = [entry.day for entry in self.closed]
        begin = min(closed, default=None)
        window = choose_window(log, self.column, self.length, self.until, begin)
        if self.until is None and closed and max(closed) > window.last:
            window = choose_window(log, self.column, self.length, day_of(max(closed)), begin)
        return replace(window, closed=tuple(entry for entry in self.closed if entry.day in window.days))


def hive_day(path: str, column: str) -> int | None:
    """Return the day in a file's hive folders; None without one."""
    day = parse_day(hive_value(path, column) or "")
    return None if day is None else day_number(day)


def choose_window(
    log: Log, column: str, length: int, until: dt.date | None, begin: int | None = None
) -> Window:
    """Choose the last days of a log.

    Parameters
    ----------
    log : Log
    column : column with dates, timestamps (those with a time zone are of the calendar's zone, others as written),
        integers such as 20260131 or text such as 2026-01-31; or key of hive folders
    length : number of days
    until : the last day; None: the newest day of the log
    begin : first day whose files are not opened, as days since 1970-01-01; it may be before the log's first; or None

    Raises
    ------
    InputRejectedError
        All problems at once: a file without the column, with other values than dates, or with a footer that does not
        tell its days. Or the window has no rows.
    ConfigError
        The calendar has a zone, and the column no timestamps with a time zone.
    """
    files = _placed(_date_files(log, column, log.columns.calendar), column)
    log_first = min(group.first for file in files for group in file.groups)
    log_first = log_first if begin is None else min(log_first, begin)
    log_last, latest = _newest(files), log.columns.calendar.latest
    last = log_last if until is None else day_number(until)
    last = last if latest is None else min(last, latest)
    first = max(last - length + 1, min(log_first, last))  # days before the log's first are not missing
    inside = []
    for file in files:
        groups = tuple(group for group in file.groups if group.last >= first and group.first <= last)
        if groups:
            inside.append(DatedFile(file.file, groups))
    if not inside and latest is not None and latest < log_last:
        raise LabelsWaitingError(
            f"window: all rows after {day_of(latest)} wait for their labels ($[wait]), and the log has no "
            f"earlier ones: its days go from {day_of(log_first)} to {day_of(log_last)}"
        )
    if not inside:
        # A day between others has a file without rows.
        advice = "deliver them, or leave the days out with `logcal days exclude`"
        raise InputRejectedError(
            f"window: expected rows from {day_of(first)} to {day_of(last)}, found none: the log's days go from "
            f"{day_of(log_first)} to {day_of(log_last)}; "
            f"{advice if log_first < first and last < log_last else 'set $[until] or $[last]'}"
        )
    columns = log.columns.of_days(first, last)
    window_log = replace(log, files=tuple(file.file for file in inside), columns=columns)
    window = Window(column, first, last, window_log, tuple(inside))
    if not window.mixed:
        return window
    return replace(window, log=replace(window_log, columns=replace(window_log.columns, date=column)))


def newest_day(log: Log, column: str, calendar: Calendar) -> int:
    """Return the newest day of a log, as days since 1970-01-01. Raises: see `choose_window`."""
    return _newest(_placed(_date_files(log, column, calendar, "$[time]"), column))


def _newest(files: Sequence[DatedFile]) -> int:
    return max(group.last for file in files for group in file.groups)


def _date_files(log: Log, column: str, calendar: Calendar, setting: str = "$[date]") -> list[DatedFile]:
    filled, limits, zone = [file for file in log.files if file.rows], day_limits(calendar), calendar.zone
    check_zoned(log.filesystem, filled, column, zone)
    dated = list(together(lambda file: date_file(log.filesystem, file, column, limits, zone), filled))
    problems = [file for file in dated if isinstance(file, str)]
    if problems:
        raise InputRejectedError(
            f"{setting}={column} cannot be used: set it to the column of the days, or to null.\n{listing(problems)}"
        )
    return [file for file in dated if not isinstance(file, str)]


def _placed(files: Sequence[DatedFile], column: str) -> list[DatedFile]:
    """Let files without a possible day count for the last day of the file before, or the first day of the next.

    Raises
    ------
    InputRejectedError
        No file has a possible day.
    """
    days = [None if _unplaced(file) else (file.groups[0].first, file.groups[-1].last) for file in files]
    known = [pair for pair in days if pair is not None]
    if not known:
        limits = files[0].groups[0].limits
        assert limits is not None
        raise InputRejectedError(
            f"$[date]={column}: expected days from {day_of(limits.first)} to {day_of(limits.last)} "
            "($[newest]), found only others: correct them, or set $[newest]=any for simulated logs"
        )
    placed, day = [], known[0][0]
    for file, pair in zip(files, days, strict=True):
        if pair is None:
            groups = tuple(group._replace(first=day, last=day) for group in file.groups)
            file = file._replace(groups=groups)
        else:
            day = max(group.last for group in file.groups)
        placed.append(file)
    return placed


def _unplaced(file: DatedFile) -> bool:
    return any(group.first == UNPLACED for group in file.groups)


def _within(
    filesystem: Any, file: LogFile, column: str, groups: Sequence[GroupDays], limits: DayLimits, zone: str
) -> list[GroupDays]:
    """Restrict the days of row groups to possible ones, which are read from the column where a footer has others.

    All groups get the day `UNPLACED` if no row has a possible one.
    """
    restricted = []
    for group in groups:
        if not (limits.contain(group.first) and limits.contain(group.last)):
            if hive_value(file.path, column) is not None:
                first, last = UNPLACED, UNPLACED
                impossible: ImpossibleDays | None = ImpossibleDays(group.rows, group.start, group.first)
            else:
                first, last, impossible = _possible_days(filesystem, file, column, group, limits, zone)
            group = group._replace(first=first, last=last, mixed=True, limits=limits, impossible=impossible)
        restricted.append(group)
    placed = min((group.first for group in restricted if group.first != UNPLACED), default=UNPLACED)
    return [g if g.first != UNPLACED else g._replace(first=placed, last=placed) for g in restricted]


def _possible_days(
    filesystem: Any, file: LogFile, column: str, group: GroupDays, limits: DayLimits, zone: str
) -> tuple[int, int, ImpossibleDays | None]:
    """Read the first and the last possible day of a row group, `UNPLACED` if no row has one, and the other rows."""
    first, last, row = limits.last + 1, limits.first - 1, group.start
    impossible: ImpossibleDays | None = None
    for values in read_column(filesystem, file, column, [group.position]):
        days = days_of(values, zone)
        inside = (days >= limits.first) & (days <= limits.last)
        outside = np.flatnonzero(~inside & (days > DAY_INVALID))
        if inside.any():
            first, last = min(first, int(days[inside].min())), max(last, int(days[inside].max()))
        if outside.size:
            found = impossible or ImpossibleDays(0, row + int(outside[0]), int(days[outside[0]]))
            impossible = found._replace(rows=found.rows + int(outside.size))
        row += days.size
    return (UNPLACED, UNPLACED, impossible) if first > last else (first, last, impossible)


def date_file(
    filesystem: Any, file: LogFile, column: str, limits: DayLimits | None, zone: str
) -> DatedFile | str:
    """Return a file, whose footer has been read, with its days, or the problem with it.

    limits : days that rows may have; None: any. If no row has one, all groups have the day `UNPLACED`
    zone : see `Calendar`
    """
    value = hive_value(file.path, column)
    days: list[Days] | str
    if value is None:
        days = _days_in_footer(filesystem, file, column, zone, any_day=limits is not None)
    elif zone != UTC:
        days = f"{_ZONED}, found folders {column}={value}"
    elif (day := parse_day(value)) is not None:
        days = [(day_number(day), day_number(day), False)] * len(file.row_groups)
        if column in file.keys:
            days = _same_days(days, _days_in_footer(filesystem, file, column, zone), f"{column}={value}")
    else:
        hint = (
            "leave it out of $[paths]" if value == NO_VALUE else "name folders such as 2026-01-31 or 20260131"
        )
        days = f"expected a date in the folder's name, found {column}={value}: {hint}"
    if isinstance(days, str):
        return f"{file.path}: {days}"
    starts = np.cumsum([0, *file.row_groups]).tolist()
    by_group = enumerate(zip(starts, file.row_groups, days, strict=False))
    groups = [GroupDays(i, start, rows, *d) for i, (start, rows, d) in by_group if rows]
    if limits is not None:
        try:
            groups = _within(filesystem, file, column, groups, limits, zone)
        except InputRejectedError as error:
            return str(error)
    return DatedFile(file, tuple(groups))


def _same_days(days: list[Days], found: list[Days] | str, folder: str) -> list[Days] | str:
    """Return the days of a file's folder if its column has the same ones, else the problem."""
    if isinstance(found, str):
        return found
    other = [pair for day, pair in zip(days, found, strict=True) if pair[:2] != day[:2]]
    if not other:
        return days
    return (
        f"expected the day of its folder, {folder}, in the column of that name, found {day_of(other[0][0])} to "
        f"{day_of(other[0][1])}: name another column or key"
    )


_ZONED = "expected timestamps with a time zone, which $[timezone] divides into days"


def check_zoned(filesystem: Any, files: Sequence[LogFile], column: str, zone: str) -> None:
    """Check that some file has timestamps with a time zone, if days are those of another zone than UTC.

    Raises
    ------
    ConfigError
        All files have days as written.
    """
    if zone == UTC or not files:
        return
    found = ""
    for file in files:
        if hive_value(file.path, column) is not None:
            found = f"folders {column}=..."
            continue
        schema = checked_footer(filesystem, file).footer.schema.to_arrow_schema()
        schema = nested.with_fields(schema, [column])
        if column not in schema.names or _is_zoned(schema.field(column).type):
            return  # a file without the column is refused as such
        found = str(schema.field(column).type)
    raise ConfigError(
        f"$[timezone]={zone}: {_ZONED}, in $[date]={column}, found {found}: these days are as written; leave "
        "$[timezone] out"
    )


def _is_zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _days_in_footer(
    filesystem: Any, file: LogFile, column: str, zone: str, *, any_day: bool = False
) -> list[Days] | str:
    """Return the days of each row group (arbitrary for an empty one), or the problem with the file.

    any_day : whether days that no calendar has are no problem
    """
    footer = checked_footer(filesystem, file)
    schema = nested.with_fields(footer.footer.schema.to_arrow_schema(), [column])
    if column not in schema.names:
        return (
            f"expected a column '{column}' or folders named {column}=..., found neither; its columns are "
            f"{examples(schema.names, 12)}"
        )
    kind = schema.field(column).type
    if not usable(kind):
        return f"expected {_DAY_FORMATS} in column '{column}', found {kind}"
    if zone != UTC and not _is_zoned(kind):
        return f"{_ZONED}, in column '{column}', found {kind}"
    try:
        chunks = footer.chunks(column)
    except InputRejectedError as error:
        return str(error).removeprefix(f"{file.path}: ")
    logical = footer.logical_type(column)
    by_group = [
        _group_days(chunk, kind, logical, rows, zone, any_day=any_day) if rows else None
        for chunk, rows in zip(chunks, file.row_groups, strict=True)
    ]
    by_group = [
        _read_days(filesystem, file, column, index, zone, any_day=any_day) if days == _UNKNOWN else days
        for index, days in enumerate(by_group)
    ]
    if problems := [days for days in by_group if isinstance(days, str)]:
        return problems[0]
    first = min((days[0] for days in by_group if isinstance(days, tuple)), default=None)
    if first is None:
        return f"expected dates in column '{column}', found nulls only: write them, or leave the file out"
    # Row groups with only nulls count as of the file's first day.
    return [days if isinstance(days, tuple) else (first, first, True) for days in by_group]


_UNKNOWN = "unknown"
"""Days of a row group whose footer has no bounds, as with Spark's INT96 timestamps."""


def read_column(filesystem: Any, file: LogFile, column: str, groups: Sequence[int]) -> Iterator[pa.Array]:
    """Read a column of row groups batch by batch, where the footer does not tell its bounds."""
    for batch in read_piece(filesystem, file.piece(tuple(groups), 0, 0), [column], ()):
        yield batch.column(column)


def _read_days(
    filesystem: Any, file: LogFile, column: str, group: int, zone: str, *, any_day: bool
) -> Days | str | None:
    """Read the days of a row group, see `_group_days`."""
    parts = [np.unique(days_of(values, zone)) for values in read_column(filesystem, file, column, [group])]
    found = np.unique(np.concatenate(parts))
    days = found[found > DAY_INVALID]
    if days.size:
        return _checked(int(days[0]), int(days[-1]), found.size > 1, any_day=any_day)
    return (
        f"expected {_DAY_FORMATS} in column '{column}', found other values" if DAY_INVALID in found else None
    )


def _checked(first: int, last: int, mixed: bool, *, any_day: bool) -> Days | str:
    if any_day or _FIRST <= first <= last <= _LAST:
        return first, last, mixed
    return f"expected dates of the years 1 to 9999, found {first:,} to {last:,} days since 1970-01-01"


def _group_days(
    chunk: Any, arrow_type: pa.DataType, logical: Any, rows: int, zone: str, *, any_day: bool
) -> Days | str | None:
    """Return a row group's days, the problem with it, None if it has only nulls, or _UNKNOWN."""
    statistics = chunk.statistics
    if statistics is not None and statistics.has_null_count and statistics.null_count == rows:
        return None
    temporal = pa.types.is_temporal(arrow_type)
    times = time_bounds(chunk, logical) if temporal else None
    if statistics is None or not statistics.has_min_max or (temporal and times is None):
        return _UNKNOWN
    nulls = not statistics.has_null_count or statistics.null_count > 0
    if times is not None:
        times = local_bounds(*times, zone) if _is_zoned(arrow_type) else times
        first, last = (time // DAY for time in times)
        return _checked(first, last, nulls or first < last, any_day=any_day)
    bounds = bounds_of(statistics)
    if bounds is None:
        return "expected dates in the column's statistics in the footer, found no text: write the file again"
    texts = [bound.decode(errors="replace") if isinstance(bound, bytes) else str(bound) for bound in bounds]
    days = [parse_day(text) for text in texts]
    if days[0] is None or days[1] is None:
        return f"expected dates such as 2026-01-31 or 20260131, found {texts[0]} to {texts[1]}"
    first, last = sorted((day_number(days[0]), day_number(days[1])))
    # If the minimum and maximum begin with the same date, so does every text between them.
    one_day = first == last and texts[0][:8] == texts[1][:8]
    return first, last, nulls or not one_day


def time_bounds(chunk: Any, logical: Any) -> tuple[int, int] | None:
    """Return the first and the last time of a column chunk, in microseconds; None if the footer lacks them.

    logical : logical type of the column
    """
    statistics, column_type = chunk.statistics, parse_json(logical.to_json())
    if statistics is None or not statistics.has_min_max or column_type["Type"] not in ("Date", "Timestamp"):
        return None
    factor, divisor = (DAY, 1) if column_type["Type"] == "Date" else _TO_MICROSECONDS[column_type["timeUnit"]]
    return statistics.min_raw * factor // divisor, statistics.max_raw * factor // divisor


def usable(kind: pa.DataType) -> bool:
    """Tell whether a column of this type can contain days."""
    return meaning("day", kind) is not None


def days_of(column: pa.Array, zone: str = UTC) -> Codes:
    """Return the day of each row, as days since 1970-01-01; DAY_NULL or DAY_INVALID if it has none.

    Parameters
    ----------
    column : dates, timestamps, integers yyyymmdd, or text that begins with a date
    zone : zone of the days of timestamps with a time zone; others are as written
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_date32(column.type):
        days = as_numpy(column.view(pa.int32()))
    elif pa.types.is_temporal(column.type):
        times = instants(column)
        times = local_times(times, zone) if _is_zoned(column.type) else times
        days = (times // DAY).astype(np.int32)
    else:
        days = _parse_days(column)
    return np.where(null_mask(column), np.int32(DAY_NULL), days) if column.null_count else days


def instants(column: pa.Array) -> Integers:
    """Convert dates (the beginning of the day) or timestamps to microseconds; values at nulls are arbitrary."""
    arrow_type = column.type
    if pa.types.is_date32(arrow_type):
        return as_numpy(column.view(pa.int32())).astype(np.int64) * DAY
    unit = "ms" if pa.types.is_date64(arrow_type) else arrow_type.unit
    ticks = as_numpy(column.view(pa.int64()))
    return ticks // 1000 if unit == "ns" else ticks * _MICROSECONDS[unit]


def _parse_days(column: pa.Array) -> Codes:
    """Parse the days of text or integers, once for each distinct value."""
    if not pa.types.is_integer(column.type):
        # Imported here because it takes some hundredths of a second, and only these windows need it.
        import pyarrow.compute as pc

        if pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        column = pc.utf8_slice_codeunits(column, 0, 11)
    encoded = column.dictionary_encode()
    days = [parse_day(str(value)) for value in encoded.dictionary.to_pylist()]
    numbers = np.array([DAY_INVALID if day is None else day_number(day) for day in days], np.int32)
    if numbers.size == 0:
        return np.full(len(column), DAY_NULL, np.int32)
    return numbers[as_numpy(encoded.indices.fill_null(0))]


def shown(days: Sequence[int]) -> list[str]:
    """Format days as ISO text."""
    return [day_of(day).isoformat() for day in days]


def window_days(window: Window) -> dict[str, Any]:
    """Return the window's column, time zone (unless it is UTC), first day and last day for manifests."""
    return {
        "column": window.column,
        **window.log.columns.calendar.facts,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
    }
