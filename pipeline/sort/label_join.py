"""Join of outcomes that exceed a task's memory: both sides are split by a hash of the key and joined part by part.

    outcomes-j, keys-i -> match-p -> labels-i

*outcomes* and *keys* leave the rows of their files as one Arrow file each, a batch for each part of the keys. *match*
finds the labels of a part of the keys, and leaves a batch for each task that sorts; such a task (`Spilled`) reads its
own from all parts. Where outcomes fit, tasks read them themselves (`outcomes.OutcomeMatching`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import as_column, as_numpy
from logcal.names import hash_texts
from pipeline.execution import Graph
from pipeline.files.blobs import reading, receipts_in, writing
from pipeline.log.label_counts import Joined
from pipeline.log.log_files import LogFile, Piece
from pipeline.log.logs import Log, neighbours
from pipeline.log.outcome_index import (
    BYTES,
    INTEGER,
    TEXT,
    KeyColumn,
    OutcomeIndex,
    OutcomeRows,
    any_missing,
    key_column,
)
from pipeline.log.outcomes import OutcomeMatching, Outcomes, read_keys
from pipeline.sort.runs import Reading

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TASK_ROWS = 1 << 21
_MOST_PARTS = 1 << 12
_SHARE = 4
"""Parts that fit into the memory for outcomes: threads have one each, and the rows of both sides beside it."""


class Spilled(NamedTuple):
    """Labels of one task's rows, part by part of the keys.

    paths : of the parts. place : of the task's batch in each. rows : that the task has
    outcomes : rows of outcomes that have the key of a row, of all tasks; said by the first
    """

    paths: tuple[str, ...]
    place: int
    rows: int
    outcomes: int

    def matching(self) -> SpilledMatching:
        """Return the matcher of rows with their labels, in their order."""
        return SpilledMatching(self)


class SpilledMatching:
    """Labels that were joined before; as `OutcomeMatching`."""

    def __init__(self, spilled: Spilled) -> None:
        self.outcome_rows = spilled.outcomes
        self._row = 0
        status = np.zeros(spilled.rows, np.uint8)
        delay = values = None
        for path in spilled.paths:
            batch = _read_batch(path, spilled.place)
            row = as_numpy(batch.column("row"))
            status[row] = as_numpy(batch.column("status"))
            if "delay" in batch.schema.names:
                delay = np.zeros(spilled.rows, np.uint16) if delay is None else delay
                delay[row] = as_numpy(batch.column("delay"))
            if "value" in batch.schema.names:
                values = np.zeros(spilled.rows) if values is None else values
                values[row] = as_numpy(batch.column("value"))
        if values is not None:
            # Parts whose labels are all 0 or 1 have no values.
            values = np.where(status & 3 == 1, 1.0, values)
        self._joined = Joined(status, delay, values)

    def join(self, batch: pa.RecordBatch) -> Joined:
        """The labels of the next rows."""
        first, self._row = self._row, self._row + batch.num_rows
        return self._joined.part(slice(first, self._row))


def add_labels(
    graph: Graph, log: Log, reader: Reading, pieces: Sequence[Sequence[Piece]], scratch: str, most_bytes: int
) -> list[Any]:
    """Add to a graph what joins labels that are too many for a task.

    Parameters
    ----------
    reader : how the tasks that sort read their rows
    pieces : of each of these tasks
    most_bytes : that outcomes may take in a task

    Returns
    -------
    of each task how it reads its rows: `reader`, where outcomes fit or labels are in the log; or a reference
    """
    outcomes = log.columns.labels
    if not isinstance(outcomes, Outcomes) or not pieces or outcomes.held_bytes <= most_bytes:
        return [reader for _ in pieces]
    parts = min(_MOST_PARTS, -(-_SHARE * outcomes.held_bytes // most_bytes))
    receipts = receipts_in(scratch)
    shares = neighbours(outcomes.files, lambda file: file.rows, _TASK_ROWS)
    files = [(outcomes, own, parts, f"{scratch}/outcomes-{j:06d}") for j, own in enumerate(shares)]
    split = graph.layer("outcomes", _split_outcomes, files, receipts=receipts)
    tasks = [
        (outcomes, log.filesystem, own, parts, f"{scratch}/keys-{i:06d}") for i, own in enumerate(pieces)
    ]
    keys = graph.layer("keys", _split_keys, tasks, receipts=receipts)
    joins = [(outcomes, split, keys, p, f"{scratch}/labels-{p:06d}") for p in range(parts)]
    joined = graph.layer("match", _join, joins, receipts=receipts)
    rows = [sum(piece.rows for piece in own) for own in pieces]
    each = [(reader, joined, i, count) for i, count in enumerate(rows)]
    return graph.layer("labels", _labelled, each, shown=False)


def spill_bytes(log: Log, most_bytes: int) -> int:
    """Scratch space that the join of a log's labels needs at most, see `add_labels`; 0 where outcomes fit a task.

    Texts among the keys of the log are taken to be as long as those of the outcomes.
    """
    outcomes = log.columns.labels
    if not isinstance(outcomes, Outcomes) or outcomes.held_bytes <= most_bytes:
        return 0
    texts = outcomes.text_bytes / max(outcomes.rows, 1)
    key = 8 * len(outcomes.kinds) + texts
    # An outcome: code, value, time. A row: place, missing, times; then place, status, delay, value.
    return int(1.1 * (outcomes.rows * (key + 17) + log.rows * (key + 21 + 15)))


def _spilled_kinds(outcomes: Outcomes) -> list[str]:
    """Kinds of keys as they are spilled: whole numbers of 64 bits, or texts."""
    return [TEXT if kind in (TEXT, BYTES) else INTEGER for kind in outcomes.kinds]


def _part_of(keys: Sequence[Any], parts: int) -> npt.NDArray[np.uint16]:
    """The part of each key."""
    found = np.zeros(len(keys[0]), np.uint64)
    for column in keys:
        own = column.view(np.uint64) if isinstance(column, np.ndarray) else hash_texts(column)
        found = (found ^ own) * _GOLDEN
        found ^= found >> np.uint64(29)
    return (((found * _GOLDEN) >> np.uint64(33)) % np.uint64(parts)).astype(np.uint16)


def _spill(path: str, columns: dict[str, pa.Array], part: npt.NDArray[np.uint16], parts: int) -> None:
    """Write rows as an Arrow file with a batch for each part."""
    order = np.argsort(part, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns)).take(as_column(order))
    _write_batches(path, (batch.slice(a, b - a) for a, b in itertools.pairwise(ends.tolist())), batch.schema)


def _write_batches(path: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    with (
        writing(path) as sink,
        pa.ipc.new_file(sink if hasattr(sink, "write") else str(sink), schema) as file,
    ):
        for batch in batches:
            file.write_batch(batch)


def _read_batch(path: str, place: int) -> pa.RecordBatch:
    with reading(path) as source, ExitStack() as held:
        file = held.enter_context(pa.OSFile(source)) if isinstance(source, str) else source
        return held.enter_context(pa.ipc.open_file(file)).get_batch(place)


def _names(keys: Sequence[Any]) -> dict[str, pa.Array]:
    return {f"k{i}": as_column(key) if isinstance(key, np.ndarray) else key for i, key in enumerate(keys)}


def _split_outcomes(outcomes: Outcomes, files: tuple[LogFile, ...], parts: int, path: str) -> str:
    """Split outcomes by a hash of their key."""
    rows = list(outcomes.read(files))
    columns = _chained(outcomes, [part.keys for part in rows])
    found = _names(columns)
    found["code"] = as_column(np.concatenate([np.empty(0, np.uint8), *(part.code for part in rows)]))
    if any(part.value is not None for part in rows):
        values = [part.code.astype(float) if part.value is None else part.value for part in rows]
        found["value"] = as_column(np.concatenate(values))
    if outcomes.source.time is not None:
        found["time"] = as_column(np.concatenate([_NONE, *(part.time for part in rows)]))
    _spill(path, found, _part_of(columns, parts), parts)
    return path


_NONE = np.empty(0, np.int64)


def _chained(outcomes: Outcomes, parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The columns of the key of several parts, each in one piece."""
    found: list[Any] = []
    for i, kind in enumerate(_spilled_kinds(outcomes)):
        own = [part[i] for part in parts]
        none = pa.array([], pa.large_string())
        found.append(pa.concat_arrays([none, *own]) if kind == TEXT else np.concatenate([_NONE, *own]))
    return found


def _split_keys(outcomes: Outcomes, filesystem: Any, pieces: Sequence[Piece], parts: int, path: str) -> str:
    """Split the keys of a task's rows, with their places among these and their times."""
    batches = [batch for piece in pieces for batch in read_keys(outcomes, filesystem, piece)]
    columns = _chained(outcomes, [[key.values for key in keys] for keys, *_ in batches])
    spilled = _names(columns)
    spilled["row"] = as_column(np.arange(len(columns[0]), dtype=np.int32))
    gone = [any_missing(keys) for keys, *_ in batches]
    sizes = [len(keys[0].values) for keys, *_ in batches]
    masks = [np.zeros(n, np.bool_) if mask is None else mask for n, mask in zip(sizes, gone, strict=True)]
    spilled["missing"] = as_column(np.concatenate([np.zeros(0, np.bool_), *masks]))
    if batches and batches[0][1] is not None:
        spilled["start"] = as_column(np.concatenate([start for _, start, _ in batches]))
        spilled["end"] = as_column(np.concatenate([end for *_, end in batches]))
    _spill(path, spilled, _part_of(columns, parts), parts)
    return path


def _join(outcomes: Outcomes, split: list[str], keys: list[str], part: int, path: str) -> tuple[str, int]:
    """Find the labels of all rows whose keys are in a part; return where they are, and how many outcomes have a row."""
    kinds = _spilled_kinds(outcomes)
    index = OutcomeIndex(kinds, outcomes.source.duplicates, _outcomes_of(split, part, kinds))
    matching = OutcomeMatching(outcomes, index)
    batches = (_joined(matching, _read_batch(own, part), kinds) for own in keys)
    first = next(batches)
    _write_batches(path, iter([first, *batches]), first.schema)
    return path, matching.outcome_rows


def _outcomes_of(split: Sequence[str], part: int, kinds: Sequence[str]) -> Iterator[OutcomeRows]:
    for path in split:
        batch = _read_batch(path, part)
        there = batch.schema.names
        yield OutcomeRows(
            [key_column(batch.column(f"k{i}"), kind).values for i, kind in enumerate(kinds)],
            as_numpy(batch.column("code")),
            as_numpy(batch.column("time")) if "time" in there else None,
            as_numpy(batch.column("value")) if "value" in there else None,
        )


def _joined(matching: OutcomeMatching, batch: pa.RecordBatch, kinds: Sequence[str]) -> pa.RecordBatch:
    missing = as_numpy(batch.column("missing"))
    keys = [
        KeyColumn(key_column(batch.column(f"k{i}"), kind).values, missing) for i, kind in enumerate(kinds)
    ]
    start = end = None
    if "start" in batch.schema.names:
        start, end = as_numpy(batch.column("start")), as_numpy(batch.column("end"))
    found = matching.labels(keys, start, end)
    columns = {"row": batch.column("row"), "status": as_column(found.status)}
    if found.delay is not None:
        columns["delay"] = as_column(found.delay)
    if found.values is not None:
        columns["value"] = as_column(found.values)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _labelled(reader: Reading, joined: list[tuple[str, int]], place: int, rows: int) -> Reading:
    """Return the reading of a task's rows with their labels."""
    outcomes = 0 if place else sum(count for _, count in joined)
    return reader._replace(spilled=Spilled(tuple(path for path, _ in joined), place, rows, outcomes))
