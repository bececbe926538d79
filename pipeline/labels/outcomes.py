"""Labels in other files than the predictions: outcomes, joined by key while a log's rows are read.

An outcome counts for a prediction with its key. If the times of both are known, its time must lie between a day before
the prediction (since clocks differ) and the end of the wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Integers
from logcal.arrow_columns import as_column, null_mask
from logcal.errors import InputRejectedError, examples
from pipeline.labels.outcome_index import (
    KeyColumn,
    OutcomeIndex,
    any_missing,
    batch_of,
    key_column,
)
from pipeline.log.calendars import ANY_DAY, DAY, UTC, Calendar, local_times, start_of
from pipeline.log.column_types import BYTES, TEXT, check_roles, common_kind, key_kind
from pipeline.log.label_counts import (
    CONFLICTING,
    EARLY,
    LATE,
    MATCHED,
    MISSING,
    WAITING,
    Joined,
    delay_cells,
)
from pipeline.log.log_files import LogFile, Piece, checked_footer, folders_of
from pipeline.log.logs import (
    LABEL_NULL,
    LABEL_OTHER,
    Log,
    label_codes,
    numbers,
    open_files,
    read_piece,
)
from pipeline.log.windows import (
    DAY_INVALID,
    days_of,
    instants,
    newest_day,
    read_column,
    time_bounds,
    usable,
)

_logger = logging.getLogger("logcal")

NEGATIVE, DROP = "negative", "drop"

_FOREVER = np.iinfo(np.int64).max

Instants = Integers
"""Microseconds since 1970-01-01, in UTC if there is a time zone."""


@dataclass(frozen=True)
class LabelSource:
    """Source of labels in other files, and the rules that turn outcomes into labels.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    key, outcome_key : key columns of the log and of the outcomes
    label : label column of the outcomes; None: an outcome means label 1
    time : time column of the outcomes; None: unknown
    predicted : column of the log, or key of its hive folders, with the time of predictions; None: unknown
    wait : microseconds after a prediction until which its outcome may arrive; None: rows never wait
    missing : treatment of rows without an outcome: 'negative' (label 0) or 'drop'
    duplicates : which of several outcomes of a prediction counts, see `OutcomeIndex`
    unread : the column that would be the label if labels were in the log
    newest : newest complete day of the log, if it is known; None: that of the files that are opened
    calendar : days of the predictions
    """

    paths: tuple[str, ...]
    key: tuple[str, ...]
    outcome_key: tuple[str, ...]
    label: str | None = None
    time: str | None = None
    predicted: str | None = None
    wait: int | None = None
    missing: str = NEGATIVE
    duplicates: str = "any"
    unread: str | None = None
    newest: int | None = None
    calendar: Calendar = ANY_DAY

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log that are read for the join."""
        return self.key if self.predicted is None else (*self.key, self.predicted)

    @property
    def timed(self) -> bool:
        """True if times of outcomes are compared with times of predictions."""
        return self.time is not None and self.predicted is not None


def _key_kinds(
    source: LabelSource, logs: Sequence[pa.Schema], all_outcomes: Sequence[pa.Schema]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the kinds in which keys are compared, and problems with the types of log and outcomes.

    logs, all_outcomes : schemas of the files, whose types of a key have one meaning
    """
    log, outcomes = logs[0], all_outcomes[0]
    kinds, problems = [], []
    for key, outcome_key in zip(source.key, source.outcome_key, strict=True):
        log_type, outcome_type = log.field(key).type, outcomes.field(outcome_key).type
        found = {key_kind(schema.field(key).type) for schema in logs}
        found |= {key_kind(schema.field(outcome_key).type) for schema in all_outcomes}
        kind = reduce(common_kind, sorted(found, key=str))
        kinds.append(kind or "")
        if kind is None:
            problems.append(
                f"expected keys of one type, found '{key}' of the log ($[key]) with {log_type}, and "
                f"'{outcome_key}' of the outcomes ($[labels.key]) with {outcome_type}: convert one"
            )
    name = source.predicted
    column = f"column '{name}' ($[time])"
    if name is not None and name not in log.names:
        problems.append(f"{column} is not in the log, which has {examples(log.names, 12)}")
    elif name is not None and not usable(log_type := log.field(name).type):
        problems.append(f"{column}: expected timestamps, dates, or days as numbers or text, found {log_type}")
    elif name is not None and source.time is not None:
        outcome_type = outcomes.field(source.time).type
        zoned = [kind.tz is not None for kind in (log_type, outcome_type) if pa.types.is_timestamp(kind)]
        if len(set(zoned)) > 1:
            problems.append(
                f"expected times of predictions and outcomes that are both with a time zone or both without, found "
                f"'{name}' of the log with {log_type} and '{source.time}' of the outcomes "
                f"($[labels.time]) with {outcome_type}: convert one of them"
            )
    return tuple(kinds), problems


def _distinct(schemas: Sequence[tuple[str, pa.Schema]]) -> list[pa.Schema]:
    """Return the distinct schema objects, in order; most files share one."""
    return list({id(schema): schema for _, schema in schemas}.values())


@dataclass(frozen=True)
class Outcomes:
    """Outcomes in other files. They have no files until `opened` has read and checked the footers.

    Attributes
    ----------
    files : files that may have outcomes for the log's predictions
    kinds : kinds of the key columns
    types : types of the columns
    spans : times of the first and the last outcome of each file; None if unknown
    text_bytes : bytes of all texts in keys
    until : time up to which outcomes are known: that of the newest, or the end of the log's newest day
    chosen : whether `files` and `until` are restricted to a window
    folders : folders of all files, chosen or not
    by_day : whether predictions have dates without times, so that all waits of a day end together
    zone : time zone of the predictions' days; UTC also for times without one
    """

    source: LabelSource
    filesystem: Any = None
    files: tuple[LogFile, ...] = ()
    kinds: tuple[str, ...] = ()
    types: dict[str, str] = field(default_factory=dict, hash=False)
    snapshots: tuple[dict[str, Any], ...] = field(default=(), hash=False)
    spans: tuple[tuple[int, int] | None, ...] = ()
    text_bytes: int = 0
    until: int | None = None
    chosen: bool = False
    folders: tuple[str, ...] = ()
    by_day: bool = False
    zone: str = UTC

    @property
    def rows(self) -> int:
        """Number of outcomes in all files."""
        return sum(file.rows for file in self.files)

    @property
    def locations(self) -> list[tuple[Any, str]]:
        """Folders of all files with their file system."""
        return [(self.filesystem, folder) for folder in self.folders]

    def opened(self, log: Log, schemas: Sequence[tuple[str, pa.Schema]]) -> Outcomes:
        """Find the outcomes' files, read their footers, and check all that footers tell.

        schemas : path and schema of the log's files, with the keys of hive folders

        Raises
        ------
        InputRejectedError
            All problems at once: no files; a column that is missing or has an unusable type; keys of types that are
            never equal; times with a time zone on one side only.
        """
        if self.files:
            return self
        source = self.source
        outcomes = open_files(source.paths, source.outcome_key, setting="$[labels]")
        listing, files = outcomes.listing, outcomes.files
        roles = [("key", name) for name in source.outcome_key]
        roles += [(role, name) for role, name in (("label", source.label), ("time", source.time)) if name]
        types, problems = check_roles(outcomes.schemas, roles, "labels.")
        outcomes.check("outcomes", source.paths, problems)
        kinds, problems = _key_kinds(source, _distinct(schemas), _distinct(outcomes.schemas))
        outcomes.check("outcomes", source.paths, problems)
        if source.unread in schemas[0][1].names:
            _logger.warning(
                "the log's column '%s' is not read, since $[labels] gives the labels", source.unread
            )
        texts = [name for name, kind in zip(source.outcome_key, kinds, strict=True) if kind in (TEXT, BYTES)]
        size = sum(_uncompressed_bytes(listing.filesystem, file, texts) for file in files) if texts else 0
        predicted = None if source.predicted is None else schemas[0][1].field(source.predicted).type
        zoned = predicted is not None and pa.types.is_timestamp(predicted) and predicted.tz is not None
        return Outcomes(
            source,
            listing.filesystem,
            files,
            kinds,
            types,
            listing.snapshots,
            text_bytes=size,
            folders=tuple(folders_of(listing.filesystem, listing.root, files)),
            by_day=predicted is not None and not pa.types.is_timestamp(predicted),
            zone=source.calendar.zone if zoned else UTC,
        ).with_times(log)

    def with_times(self, log: Log) -> Outcomes:
        """Add the times of outcomes, from footers or from the log's newest day."""
        source = self.source
        if source.time is not None and source.timed:
            spans = tuple(_time_span(self.filesystem, file, source.time) for file in self.files)
            pairs = zip(self.files, spans, strict=True)
            unknown = next((file for file, span in pairs if span is None and file.rows), None)
            if source.wait is not None and unknown is not None:
                raise InputRejectedError(
                    f"{unknown.path}: expected the smallest and the largest value of '{source.time}' "
                    "($[labels.time]) in the footer, found none (as with Spark's INT96 timestamps): the "
                    "wait needs to know up to when there are outcomes; write the file with statistics"
                )
            newest = max((span[1] for span in spans if span is not None), default=None)
            return replace(self, spans=spans, until=newest)
        if source.wait is None or source.predicted is None:
            return self
        newest = source.newest
        if newest is None:
            newest = newest_day(log, source.predicted, source.calendar._replace(zone=self.zone))
        return replace(self, until=start_of(newest + 1, self.zone))

    def of_days(self, first: int, last: int) -> Outcomes:
        """Restrict the files to outcomes of predictions from day `first` to `last` (days since 1970-01-01)."""
        until = self.until
        known = self.source.timed or self.source.newest is not None
        if not known and not self.chosen and until is not None:
            until = start_of(last + 1, self.zone)
        files, spans = self.files, self.spans
        if self.spans:
            begin, end = self._time_range(first, last)
            inside = [
                (file, span)
                for file, span in zip(files, spans, strict=True)
                if span is None or (span[1] >= begin and span[0] <= end)
            ]
            files, spans = tuple(file for file, _ in inside), tuple(span for _, span in inside)
        return replace(self, files=files, spans=spans, until=until, chosen=True)

    def known_day(self, share: float) -> int | None:
        """Return the last day with labels for the fraction `share` of its time; None if predictions never wait."""
        wait = self.source.wait
        if wait is None or self.until is None or self.source.missing == DROP:
            return None
        end = self.until - wait
        day = int(local_times(np.array([end]), self.zone)[0] // DAY)
        start, length = start_of(day, self.zone), start_of(day + 1, self.zone) - start_of(day, self.zone)
        part = length if self.by_day else 1 + round(share * (length - 1))
        return day if start + part <= end else day - 1

    def _time_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of times in which outcomes count for predictions of days `first` to `last`."""
        wait = self.source.wait
        begin, end = start_of(first, self.zone) - DAY, start_of(last + 1, self.zone)
        return begin, _FOREVER if wait is None else end + wait

    def identity(self, day: int | None = None) -> dict[str, Any]:
        """Return the JSON values that, with the settings, determine the labels of a day or of all rows."""
        outcomes = self if day is None else self.of_days(day, day)
        until = outcomes.until if self.source.wait is not None else None
        if day is not None and until is not None:
            until = min(until, self._time_range(day, day)[1])
        return {"outcomes": sorted(file.identity for file in outcomes.files), "until": until}

    def facts(self) -> dict[str, Any]:
        """Return the provenance of the labels for the manifest."""
        return {
            "path": list(self.source.paths),
            "columns": self.types,
            "files": [file.facts() for file in self.files],
            "rows": self.rows,
            "known_until": None if self.until is None else str(np.datetime64(self.until, "us")),
            **({"snapshots": list(self.snapshots)} if self.snapshots else {}),
        }

    @property
    def index_bytes(self) -> int:
        """Most bytes that the index takes, by measurements: just after its hash tables have doubled."""
        each = 40 + sum(190 if kind in (TEXT, BYTES) else 100 for kind in self.kinds)
        return self.rows * each + 3 * self.text_bytes // 2

    def matching(self) -> OutcomeMatching:
        """Return an object that joins the rows of one task with the outcomes."""
        return OutcomeMatching(self, shared_index(self))

    def read(self, files: Sequence[LogFile]) -> Iterator[pa.RecordBatch]:
        """Read the outcomes of files that have a key and a label, batch by batch; see `OutcomeIndex`."""
        source = self.source
        wanted = [*source.outcome_key, *(name for name in (source.label, source.time) if name is not None)]
        for file in files:
            piece = file.piece(tuple(range(len(file.row_groups))), 0, file.rows)
            for batch in read_piece(self.filesystem, piece, wanted, source.outcome_key):
                yield self._rows(batch, file.path)

    def _rows(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        source, keys = self.source, self._keys(batch, self.source.outcome_key)
        code, value, time = np.ones(batch.num_rows, np.uint8), None, None
        if source.label is not None:
            column = batch.column(source.label)
            code = label_codes(column)
            value = numbers(column) if (code == LABEL_OTHER).any() else code.astype(np.float64)
        if source.time is not None:
            column = batch.column(source.time)
            if column.null_count:
                raise InputRejectedError(
                    f"{path}: expected times in column '{source.time}' ($[labels.time]), found "
                    f"{column.null_count:,} nulls: write the times, or set $[labels.time]=null"
                )
            time = instants(column)
        rows = batch_of(
            {f"k{i}": key.values for i, key in enumerate(keys)} | {"code": code, "time": time, "value": value}
        )
        missing = any_missing(keys)
        usable_rows = code != LABEL_NULL if missing is None else (code != LABEL_NULL) & ~missing
        return rows if usable_rows.all() else rows.filter(as_column(usable_rows))

    def keys_of(self, batch: pa.RecordBatch) -> tuple[list[KeyColumn], Instants | None, Instants | None]:
        """Return keys of the log's rows, and start and end times (`prediction_times`); None if times do not matter."""
        source = self.source
        keys = self._keys(batch, source.key)
        if source.predicted is None or not (source.timed or source.wait is not None):
            return keys, None, None
        return keys, *prediction_times(batch.column(source.predicted), source.wait)

    def _keys(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[KeyColumn]:
        return [key_column(batch.column(name), kind) for name, kind in zip(names, self.kinds, strict=True)]


class OutcomeMatching:
    """Join of one task's rows with outcomes.

    index : index of the outcomes, shared by all tasks of a process
    """

    def __init__(self, outcomes: Outcomes, index: OutcomeIndex) -> None:
        self.outcomes = outcomes
        self.index = index
        self._keys_seen = np.zeros(len(index.table), np.bool_)

    @property
    def outcome_rows(self) -> int:
        """Number of outcomes that have the key of a row joined so far."""
        return self.index.count_outcomes(self._keys_seen)

    def join(self, batch: pa.RecordBatch) -> Joined:
        """Return the labels of a batch's rows."""
        return self.labels(*self.outcomes.keys_of(batch))

    def labels(self, keys: Sequence[KeyColumn], start: Instants | None, end: Instants | None) -> Joined:
        """Return the labels of rows by their keys. start, end : see `prediction_times`; None if times do not matter."""
        source, index = self.outcomes.source, self.index
        match = index.match(keys, None if start is None else start - DAY, end)
        self._keys_seen[match.key] = True
        rows = len(keys[0].values)
        status = np.full(rows, MISSING | (LABEL_NULL if source.missing == DROP else 0), np.uint8)
        matched = match.rows[match.valid]
        status[match.rows[match.late]] |= LATE
        status[match.rows[match.early]] |= EARLY
        status[matched] = MATCHED | match.code[match.valid] | (CONFLICTING * match.conflicting[match.valid])
        if end is not None and source.wait is not None and self.outcomes.until is not None:
            waiting = end > self.outcomes.until
            if source.missing == DROP:
                waiting &= status & MATCHED == 0
            status[waiting] = WAITING | LABEL_NULL
        delay = values = None
        if index.time is not None and start is not None:
            delay = np.zeros(rows, np.uint16)
            elapsed = index.time[match.position[match.valid]] - start[matched]
            delay[matched] = delay_cells(elapsed / 1e6)
        if index.value is not None:
            values = np.zeros(rows)
            values[matched] = index.value[match.position[match.valid]]
        return Joined(status, delay, values)


def read_keys(
    outcomes: Outcomes, filesystem: Any, piece: Piece
) -> Iterator[tuple[list[KeyColumn], Instants | None, Instants | None]]:
    """Read keys and times of a piece of the log batch by batch; see `Outcomes.keys_of`."""
    for batch in read_piece(filesystem, piece, outcomes.source.columns, outcomes.source.columns):
        yield outcomes.keys_of(batch)


_lock = threading.Lock()
_indexes: dict[Any, OutcomeIndex] = {}


def shared_index(outcomes: Outcomes) -> OutcomeIndex:
    """Return the process's index of outcomes; the first thread builds it while the others wait."""
    source = outcomes.source
    settings = (source.outcome_key, source.label, source.time, source.duplicates, outcomes.kinds)
    key = (outcomes.filesystem, outcomes.files, settings)
    with _lock:
        if key not in _indexes:
            _indexes.clear()
            _indexes[key] = OutcomeIndex(outcomes.kinds, source.duplicates, outcomes.read(outcomes.files))
        return _indexes[key]


def prediction_times(column: pa.Array, wait: int | None) -> tuple[Instants, Instants]:
    """Return the times of predictions, and the ends of their waits.

    A date counts as the beginning of its day, and its wait begins at the end of the day. A prediction without a time
    waits for ever.
    """
    arrow_type = column.type
    if pa.types.is_timestamp(arrow_type):
        start = wait_start = instants(column)
        unknown = null_mask(column) if column.null_count else None
    else:
        day = days_of(column)
        unknown = day <= DAY_INVALID
        start = day.astype(np.int64) * DAY
        wait_start = start + DAY
        unknown = unknown if unknown.any() else None
    end = np.full(start.size, _FOREVER) if wait is None else wait_start + wait
    if unknown is not None:
        start, end = np.where(unknown, 0, start), np.where(unknown, _FOREVER, end)
    return start, end


def _uncompressed_bytes(filesystem: Any, file: LogFile, names: Sequence[str]) -> int:
    """Return the uncompressed bytes of columns of a file."""
    footer = checked_footer(filesystem, file)
    chunks = [chunk for name in names if footer.has(name) for chunk in footer.chunks(name)]
    return sum(chunk.total_uncompressed_size for chunk in chunks)


def _time_span(filesystem: Any, file: LogFile, column: str) -> tuple[int, int] | None:
    """Return the first and the last time of a file's outcomes; None if the footer lacks them."""
    if not file.rows:
        return None
    footer = checked_footer(filesystem, file)
    logical, chunks = footer.logical_type(column), footer.chunks(column)
    pairs = [time_bounds(chunk, logical) for chunk, rows in zip(chunks, file.row_groups, strict=True) if rows]
    bounds = [pair for pair in pairs if pair is not None]
    if len(bounds) < len(pairs):
        return _read_span(filesystem, file, column)
    return min(first for first, _ in bounds), max(last for _, last in bounds)


def _read_span(filesystem: Any, file: LogFile, column: str) -> tuple[int, int] | None:
    """Read the first and the last time of a file's outcomes, where the footer lacks them; None if all are null."""
    times = [
        instants(values.drop_null())
        for values in read_column(filesystem, file, column, range(len(file.row_groups)))
        if values.null_count < len(values)
    ]
    if not times:
        return None
    return min(int(part.min()) for part in times), max(int(part.max()) for part in times)
