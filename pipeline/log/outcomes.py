"""Labels that lie in other files than the predictions: outcomes, joined by key while a log's rows are read.

An outcome counts for a prediction of its key. Where the times of both are known, its time must lie between a day before
the prediction (clocks differ) and the end of the wait after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import null_mask
from logcal.errors import InputRejectedError, examples
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
    check_roles,
    label_codes,
    numbers,
    open_files,
    read_piece,
)
from pipeline.log.outcome_index import (
    BYTES,
    TEXT,
    KeyColumn,
    OutcomeIndex,
    OutcomeRows,
    any_missing,
    common_kind,
    key_column,
    kind_of,
)
from pipeline.log.windows import DAY, DAY_INVALID, days_of, instants, newest_day, time_bounds, usable

_logger = logging.getLogger("logcal")

NEGATIVE, DROP = "negative", "drop"

_FOREVER = np.iinfo(np.int64).max

Instants = npt.NDArray[np.int64]
"""Microseconds since 1970-01-01, in UTC where there is a time zone."""


@dataclass(frozen=True)
class LabelSource:
    """Source of labels in other files, and the rule for making labels of outcomes.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    key, own_key : columns of the log and of the outcomes that must be equal
    label : column of the outcomes; None: an outcome means 1
    time : column of the outcomes with their time; None: not known
    predicted : column of the log, or key of its hive folders, that dates predictions; None: not known
    wait : microseconds after a prediction from which on no outcome means none; None: no outcome means none
    missing : 'negative' (label 0) or 'drop': what a row without an outcome is
    duplicates : which of several outcomes of a prediction counts, see `OutcomeIndex`
    unread : the column that labels would be read from, were they in the log
    section : of the configuration that says all this, for messages
    """

    paths: tuple[str, ...]
    key: tuple[str, ...]
    own_key: tuple[str, ...]
    label: str | None = None
    time: str | None = None
    predicted: str | None = None
    wait: int | None = None
    missing: str = NEGATIVE
    duplicates: str = "any"
    unread: str | None = None
    section: str = "log"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log that are read for the join."""
        return self.key if self.predicted is None else (*self.key, self.predicted)

    @property
    def timed(self) -> bool:
        """True if times of outcomes are compared with those of predictions."""
        return self.time is not None and self.predicted is not None


def _compared(source: LabelSource, log: pa.Schema, outcomes: pa.Schema) -> tuple[tuple[str, ...], list[str]]:
    """Choose the comparison of keys, and describe faults of the types of both sides."""
    kinds, problems = [], []
    for key, own_key in zip(source.key, source.own_key, strict=True):
        one, other = log.field(key).type, outcomes.field(own_key).type
        kind = common_kind(kind_of(one), kind_of(other))
        kinds.append(kind or "")
        if kind is None:
            problems.append(
                f"expected keys of one type, found '{key}' of the log ({source.section}.key) with {one} "
                f"and '{own_key}' of the outcomes ({source.section}.labels.key) with {other}: convert one of them"
            )
    name = source.predicted
    own = f"column '{name}' ({source.section}.time)"
    if name is not None and name not in log.names:
        problems.append(f"{own} is not in the log, which has {examples(log.names, 12)}")
    elif name is not None and not usable(one := log.field(name).type):
        problems.append(f"{own}: expected timestamps, dates, or days as numbers or text, found {one}")
    elif name is not None and source.time is not None:
        other = outcomes.field(source.time).type
        zoned = [kind.tz is not None for kind in (one, other) if pa.types.is_timestamp(kind)]
        if len(set(zoned)) > 1:
            problems.append(
                f"expected times of predictions and outcomes that are both with a time zone or both without, found "
                f"'{name}' of the log with {one} and '{source.time}' of the outcomes "
                f"({source.section}.labels.time) with {other}: convert one of them"
            )
    return tuple(kinds), problems


@dataclass(frozen=True)
class Outcomes:
    """Outcomes; without files as long as their footers have not been read and checked (`opened`).

    Attributes
    ----------
    files : that may have outcomes of the log's predictions. kinds : of the columns of the key. types : of the columns
    spans : of each file the times of its first and its last outcome; None where they are not known
    text_bytes : of all texts among the keys
    until : outcomes are known up to here: the time of the newest, or the end of the log's newest day
    chosen : whether the files and `until` have been narrowed to a window
    folders : of all files, chosen or not
    by_day : whether predictions have dates alone: all of a day's waits end together
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

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def places(self) -> list[tuple[Any, str]]:
        """Folders of all files, with their file system."""
        return [(self.filesystem, folder) for folder in self.folders]

    def opened(self, log: Log, schemas: Sequence[tuple[str, pa.Schema]]) -> Outcomes:
        """Find the outcomes, and check everything that footers tell.

        schemas : of the log's files, with the keys of hive folders

        Raises
        ------
        InputRejectedError
            All problems at once: no files; a column that is missing or has a type that cannot be used; keys that
            can never be equal; times with and without a time zone.
        """
        if self.files:
            return self
        source = self.source
        outcomes = open_files(source.paths, f"{source.section}.labels.path", source.own_key)
        found, files = outcomes.found, outcomes.files
        roles = [("key", name) for name in source.own_key]
        roles += [(role, name) for role, name in (("label", source.label), ("time", source.time)) if name]
        types, problems = check_roles(outcomes.schemas, roles, f"{source.section}.labels")
        outcomes.check("outcomes", source.paths, problems)
        kinds, problems = _compared(source, schemas[0][1], outcomes.schemas[0][1])
        outcomes.check("outcomes", source.paths, problems)
        if source.unread in schemas[0][1].names:
            _logger.warning(
                "the log has a column '%s' itself, which is not read: %s.labels.path says where labels are",
                source.unread,
                source.section,
            )
        texts = [name for name, kind in zip(source.own_key, kinds, strict=True) if kind in (TEXT, BYTES)]
        size = sum(_bytes_of(found.filesystem, file, texts) for file in files) if texts else 0
        predicted = None if source.predicted is None else schemas[0][1].field(source.predicted).type
        return Outcomes(
            source,
            found.filesystem,
            files,
            kinds,
            types,
            found.snapshots,
            text_bytes=size,
            folders=tuple(folders_of(found.filesystem, found.root, files)),
            by_day=predicted is not None and not pa.types.is_timestamp(predicted),
        ).dated(log)

    def dated(self, log: Log) -> Outcomes:
        """The same with what is known of times."""
        source = self.source
        if source.time is not None and source.timed:
            spans = tuple(_span(self.filesystem, file, source.time) for file in self.files)
            pairs = zip(self.files, spans, strict=True)
            unknown = next((file for file, span in pairs if span is None and file.rows), None)
            if source.wait is not None and unknown is not None:
                raise InputRejectedError(
                    f"{unknown.path}: expected the smallest and the largest value of '{source.time}' "
                    f"({source.section}.labels.time) in the footer, found none (as with Spark's INT96 timestamps): the "
                    "wait needs to know up to when there are outcomes; write the file with statistics"
                )
            newest = max((span[1] for span in spans if span is not None), default=None)
            return replace(self, spans=spans, until=newest)
        if source.wait is None or source.predicted is None:
            return self
        return replace(self, until=(newest_day(log, source.predicted) + 1) * DAY)

    def of_days(self, first: int, last: int) -> Outcomes:
        """Select those that can be of predictions of some days, both included; days since 1970-01-01."""
        until = self.until
        if not self.source.timed and not self.chosen and until is not None:
            until = (last + 1) * DAY
        files, spans = self.files, self.spans
        if self.spans:
            begin, end = self._range(first, last)
            inside = [
                (file, span)
                for file, span in zip(files, spans, strict=True)
                if span is None or (span[1] >= begin and span[0] <= end)
            ]
            files, spans = tuple(file for file, _ in inside), tuple(span for _, span in inside)
        return replace(self, files=files, spans=spans, until=until, chosen=True)

    def known_day(self, share: float) -> int | None:
        """The last day of which some predictions have labels, and this share; None: no prediction waits for its own."""
        wait = self.source.wait
        if wait is None or self.until is None or self.source.missing == DROP:
            return None
        part = DAY if self.by_day else 1 + round(share * (DAY - 1))
        return (self.until - wait - part) // DAY

    def _range(self, first: int, last: int) -> tuple[int, int]:
        """Times between which outcomes count for predictions of some days."""
        wait = self.source.wait
        return (first - 1) * DAY, _FOREVER if wait is None else (last + 1) * DAY + wait

    def identity(self, day: int | None = None) -> dict[str, Any]:
        """JSON values on which labels depend, beside the settings: those of a day, or of all rows."""
        own = self if day is None else self.of_days(day, day)
        until = own.until if self.source.wait is not None else None
        if day is not None and until is not None:
            until = min(until, self._range(day, day)[1])
        return {"outcomes": sorted((f.path, f.size, f.stamp) for f in own.files), "until": until}

    def facts(self) -> dict[str, Any]:
        """Facts for the manifest about the origin of the labels."""
        return {
            "path": list(self.source.paths),
            "columns": self.types,
            "files": [file.facts() for file in self.files],
            "rows": self.rows,
            "known_until": None if self.until is None else str(np.datetime64(self.until, "us")),
            **({"snapshots": list(self.snapshots)} if self.snapshots else {}),
        }

    @property
    def held_bytes(self) -> int:
        """About as many bytes as their index takes at most."""
        each = sum(100 if kind in (TEXT, BYTES) else 72 for kind in self.kinds)
        return self.rows * each + 3 * self.text_bytes // 2

    def matching(self) -> OutcomeMatching:
        """Return the matcher of one task's rows with outcomes."""
        return OutcomeMatching(self, held_index(self))

    def read(self, files: Sequence[LogFile]) -> Iterator[OutcomeRows]:
        """Outcomes of some files with a key and a label, batch by batch."""
        source = self.source
        wanted = [*source.own_key, *(name for name in (source.label, source.time) if name is not None)]
        for file in files:
            piece = file.piece(tuple(range(len(file.row_groups))), 0, file.rows)
            for batch in read_piece(self.filesystem, piece, wanted, source.own_key):
                yield self._rows(batch, file.path)

    def _rows(self, batch: pa.RecordBatch, path: str) -> OutcomeRows:
        source = self.source
        code = np.ones(batch.num_rows, np.uint8)
        if source.label is not None:
            code = label_codes(batch.column(source.label))
        columns = self._keys(batch, source.own_key)
        missing = any_missing(columns)
        there = code != LABEL_NULL if missing is None else (code != LABEL_NULL) & ~missing
        time = None
        if source.time is not None:
            column = batch.column(source.time)
            if column.null_count:
                raise InputRejectedError(
                    f"{path}: expected times in column '{source.time}' ({source.section}.labels.time), found "
                    f"{column.null_count:,} nulls: write the times, or set {source.section}.labels.time=null"
                )
            time = instants(column)
        value = None
        if source.label is not None and (code == LABEL_OTHER).any():
            value = numbers(batch.column(source.label))[there]
        keys = [column.values for column in columns]
        if there.all():
            return OutcomeRows(keys, code, time, value)
        chosen = pa.array(there)
        keys = [key[there] if isinstance(key, np.ndarray) else key.filter(chosen) for key in keys]
        return OutcomeRows(keys, code[there], None if time is None else time[there], value)

    def keys_of(self, batch: pa.RecordBatch) -> tuple[list[KeyColumn], Instants | None, Instants | None]:
        """Keys of rows of the log, and their times, see `prediction_times`; None where these do not matter."""
        source = self.source
        keys = self._keys(batch, source.key)
        if source.predicted is None or not (source.timed or source.wait is not None):
            return keys, None, None
        return keys, *prediction_times(batch.column(source.predicted), source.wait)

    def _keys(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[KeyColumn]:
        return [key_column(batch.column(name), kind) for name, kind in zip(names, self.kinds, strict=True)]


class OutcomeMatching:
    """Joins the rows of one task with outcomes.

    index : the outcomes, which all tasks of a process share
    """

    def __init__(self, outcomes: Outcomes, index: OutcomeIndex) -> None:
        self.outcomes = outcomes
        self.index = index
        self._seen = np.zeros(len(index.table), np.bool_)

    @property
    def outcome_rows(self) -> int:
        """Outcomes that have the key of a row so far."""
        return self.index.rows_of(self._seen)

    def join(self, batch: pa.RecordBatch) -> Joined:
        """The labels of a batch's rows."""
        return self.labels(*self.outcomes.keys_of(batch))

    def labels(self, keys: Sequence[KeyColumn], start: Instants | None, end: Instants | None) -> Joined:
        """The labels of rows with some keys. start, end : see `prediction_times`; None where it does not matter."""
        source, index = self.outcomes.source, self.index
        match = index.choose(keys, None if start is None else start - DAY, end)
        self._seen[match.number] = True
        rows = len(keys[0].values)
        status = np.full(rows, MISSING | (LABEL_NULL if source.missing == DROP else 0), np.uint8)
        there = match.hit[match.there]
        status[match.hit[match.late]] |= LATE
        status[match.hit[match.early]] |= EARLY
        status[there] = MATCHED | match.code[match.there] | (CONFLICTING * match.conflicting[match.there])
        if end is not None and source.wait is not None and self.outcomes.until is not None:
            waiting = end > self.outcomes.until
            if source.missing == DROP:
                waiting &= status & MATCHED == 0
            status[waiting] = WAITING | LABEL_NULL
        delay = values = None
        if index.time is not None and start is not None:
            delay = np.zeros(rows, np.uint16)
            took = index.time[match.place[match.there]] - start[there]
            delay[there] = delay_cells(took / 1e6)
        if index.value is not None:
            values = np.zeros(rows)
            values[there] = index.value[match.place[match.there]]
        return Joined(status, delay, values)


def read_keys(
    outcomes: Outcomes, filesystem: Any, piece: Piece
) -> Iterator[tuple[list[KeyColumn], Instants | None, Instants | None]]:
    """Keys and times of a piece of the log, batch by batch; see `Outcomes.keys_of`."""
    for batch in read_piece(filesystem, piece, outcomes.source.columns, outcomes.source.columns):
        yield outcomes.keys_of(batch)


_lock = threading.Lock()
_held: dict[Any, OutcomeIndex] = {}


def held_index(outcomes: Outcomes) -> OutcomeIndex:
    """The process's index of outcomes; a thread that asks while it is being built waits."""
    source = outcomes.source
    how = (source.own_key, source.label, source.time, source.duplicates, outcomes.kinds)
    which = (outcomes.filesystem, outcomes.files, how)
    with _lock:
        if which not in _held:
            _held.clear()
            _held[which] = OutcomeIndex(outcomes.kinds, source.duplicates, outcomes.read(outcomes.files))
        return _held[which]


def prediction_times(column: pa.Array, wait: int | None) -> tuple[Instants, Instants]:
    """Return the times of predictions, and of the ends until which outcomes count.

    Of a day alone its beginning counts, and the wait begins with its end. A prediction without a time waits for ever.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        start = last = instants(column)
        unknown = null_mask(column) if column.null_count else None
    else:
        day = days_of(column)
        unknown = day <= DAY_INVALID
        start = day.astype(np.int64) * DAY
        last = start + DAY
        unknown = unknown if unknown.any() else None
    end = np.full(start.size, _FOREVER) if wait is None else last + wait
    if unknown is not None:
        start, end = np.where(unknown, 0, start), np.where(unknown, _FOREVER, end)
    return start, end


def _bytes_of(filesystem: Any, file: LogFile, names: Sequence[str]) -> int:
    """Return the bytes of a file's columns before compression."""
    footer = checked_footer(filesystem, file)
    chunks = [chunk for name in names if footer.has(name) for chunk in footer.chunks(name)]
    return sum(chunk.total_uncompressed_size for chunk in chunks)


def _span(filesystem: Any, file: LogFile, column: str) -> tuple[int, int] | None:
    """The first and the last time of a file's outcomes; None where its footer does not say."""
    if not file.rows:
        return None
    footer = checked_footer(filesystem, file)
    logical, chunks = footer.logical_type(column), footer.chunks(column)
    ends = [time_bounds(chunk, logical) for chunk, rows in zip(chunks, file.row_groups, strict=True) if rows]
    known = [pair for pair in ends if pair is not None]
    if len(known) < len(ends):
        return None
    return min(first for first, _ in known), max(last for _, last in known)
