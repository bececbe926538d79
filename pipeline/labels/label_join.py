"""Join of outcomes that exceed a task's memory: both sides are split by a hash of the key and joined part by part.

    outcomes-j, keys-i -> match-p -> labels-i

Each *outcomes* and *keys* task writes an Arrow file with one batch per part of the keys. A *match* task finds the
labels of a part of the keys, and writes one batch per sort task; a sort task reads its batches from all parts
(`SpilledLabels`). If outcomes fit into memory, sort tasks read them directly (`outcomes.OutcomeMatching`).
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
from pipeline.labels.outcome_index import (
    KeyColumn,
    OutcomeIndex,
    any_missing,
    array_in,
    batch_of,
    keys_in,
)
from pipeline.labels.outcomes import OutcomeMatching, Outcomes, read_keys
from pipeline.log.column_types import BYTES, INTEGER, TEXT
from pipeline.log.label_counts import Joined
from pipeline.log.log_files import LogFile, Piece
from pipeline.log.logs import Log, batched_by_size

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_TASK_ROWS = 1 << 21
_MOST_PARTS = 1 << 12
_PARTS_IN_MEMORY = 4
"""Parts that fit into the memory for outcomes: each thread has a part, with the rows of both sides."""


class SpilledLabels(NamedTuple):
    """Labels of one task's rows, by part of the keys.

    paths : files of the parts. batch : number of the task's batch in each file. rows : number of the task's rows
    outcomes : number of matched outcome rows of all tasks, for the first task; 0 for the others
    """

    paths: tuple[str, ...]
    batch: int
    rows: int
    outcomes: int

    def matching(self) -> SpilledMatching:
        """Return a matcher that takes the rows in order."""
        return SpilledMatching(self)


class SpilledMatching:
    """Matcher of rows with labels joined by earlier tasks; has the interface of `OutcomeMatching`."""

    def __init__(self, spilled: SpilledLabels) -> None:
        self.outcome_rows = spilled.outcomes
        self._row = 0
        columns: dict[str, Any] = {"status": np.zeros(spilled.rows, np.uint8)}
        for path in spilled.paths:
            batch = _read_batch(path, spilled.batch)
            row = as_numpy(batch.column("row"))
            for name in batch.schema.names[1:]:
                part = as_numpy(batch.column(name))
                columns.setdefault(name, np.zeros(spilled.rows, part.dtype))[row] = part
        status, values = columns["status"], columns.get("value")
        if values is not None:
            # A part whose labels are all 0 or 1 has no values.
            values = np.where(status & 3 == 1, 1.0, values)
        self._joined = Joined(status, columns.get("delay"), values)

    def join(self, batch: pa.RecordBatch) -> Joined:
        """Return the labels of the next rows."""
        first, self._row = self._row, self._row + batch.num_rows
        return self._joined.part(slice(first, self._row))


def add_labels(
    graph: Graph, log: Log, reader: Any, pieces: Sequence[Sequence[Piece]], scratch: str, most_bytes: int
) -> list[Any]:
    """Add tasks that join labels, if outcomes are too many for one task.

    Parameters
    ----------
    reader : settings for reading rows in sort tasks, a named tuple with the field `spilled`
    pieces : pieces of each sort task
    most_bytes : most bytes of outcomes in a task

    Returns
    -------
    settings for each sort task: `reader` if labels are in the log or outcomes fit; otherwise a reference
    """
    outcomes = log.columns.labels
    if not isinstance(outcomes, Outcomes) or not pieces or outcomes.index_bytes <= most_bytes:
        return [reader for _ in pieces]
    parts = min(_MOST_PARTS, -(-_PARTS_IN_MEMORY * outcomes.index_bytes // most_bytes))
    receipts = receipts_in(scratch)
    filled = [file for file in outcomes.files if file.rows]
    shares = batched_by_size(filled, lambda file: file.rows, _TASK_ROWS)
    files = [(outcomes, share, parts, f"{scratch}/outcomes-{j:06d}") for j, share in enumerate(shares)]
    split = graph.layer("outcomes", _split_outcomes, files, receipts=receipts)
    tasks = [
        (outcomes, log.filesystem, share, parts, f"{scratch}/keys-{i:06d}") for i, share in enumerate(pieces)
    ]
    keys = graph.layer("keys", _split_keys, tasks, receipts=receipts)
    joins = [(outcomes, split, keys, p, f"{scratch}/labels-{p:06d}") for p in range(parts)]
    joined = graph.layer("match", _join, joins, receipts=receipts)
    rows = [sum(piece.rows for piece in share) for share in pieces]
    readings = [(reader, joined, i, count) for i, count in enumerate(rows)]
    return graph.layer("labels", _with_labels, readings, shown=False)


def spill_bytes(log: Log, most_bytes: int) -> int:
    """Estimate the scratch space for joining a log's labels, see `add_labels`; 0 if outcomes fit into a task.

    Assumes that text keys of the log are as long as those of the outcomes.
    """
    outcomes = log.columns.labels
    if not isinstance(outcomes, Outcomes) or outcomes.index_bytes <= most_bytes:
        return 0
    texts = outcomes.text_bytes / max(outcomes.rows, 1)
    key = 8 * len(outcomes.kinds) + texts
    # Outcomes: code, value, time. Rows: number, missing, times; then number, status, delay, value.
    return int(1.1 * (outcomes.rows * (key + 17) + log.rows * (key + 21 + 15)))


def _part_of(keys: Sequence[Any], parts: int) -> npt.NDArray[np.uint16]:
    """Return the part of each key, by its hash."""
    digest = np.zeros(len(keys[0]), np.uint64)
    for column in keys:
        hashes = column.view(np.uint64) if isinstance(column, np.ndarray) else hash_texts(column)
        digest = (digest ^ hashes) * _MULTIPLIER
        digest ^= digest >> np.uint64(29)
    return (((digest * _MULTIPLIER) >> np.uint64(33)) % np.uint64(parts)).astype(np.uint16)


def _spill(path: str, batches: Sequence[pa.RecordBatch], parts: int) -> str:
    """Write rows as an Arrow file with one batch per part of their keys; return its path."""
    rows = pa.concat_batches(batches)
    part = _part_of(keys_in(rows), parts)
    ends = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    rows = rows.take(as_column(np.argsort(part, kind="stable")))
    _write_batches(path, (rows.slice(a, b - a) for a, b in itertools.pairwise(ends.tolist())), rows.schema)
    return path


def _write_batches(path: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    with (
        writing(path) as sink,
        pa.ipc.new_file(sink if hasattr(sink, "write") else str(sink), schema) as file,
    ):
        for batch in batches:
            file.write_batch(batch)


def _read_batch(path: str, index: int) -> pa.RecordBatch:
    with reading(path) as source, ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(source)) if isinstance(source, str) else source
        return stack.enter_context(pa.ipc.open_file(file)).get_batch(index)


def _split_outcomes(outcomes: Outcomes, files: tuple[LogFile, ...], parts: int, path: str) -> str:
    """Write a spill file of outcomes, split by the hash of their key; return its path."""
    return _spill(path, list(outcomes.read(files)), parts)


def _split_keys(outcomes: Outcomes, filesystem: Any, pieces: Sequence[Piece], parts: int, path: str) -> str:
    """Write a spill file of a sort task's keys, with row numbers and times; return its path."""
    batches, first = [], 0
    for piece in pieces:
        for keys, start, end in read_keys(outcomes, filesystem, piece):
            rows, missing = len(keys[0].values), any_missing(keys)
            columns = {f"k{i}": key.values for i, key in enumerate(keys)}
            columns |= {
                "row": np.arange(first, first + rows, dtype=np.int32),
                "missing": np.zeros(rows, np.bool_) if missing is None else missing,
                "start": start,
                "end": end,
            }
            batches.append(batch_of(columns))
            first += rows
    return _spill(path, batches, parts)


def _join(outcomes: Outcomes, split: list[str], keys: list[str], part: int, path: str) -> tuple[str, int]:
    """Write the labels of all rows whose keys are in a part; return the path and the number of matched outcomes."""
    # Keys are 64-bit integers or texts in spill files.
    kinds = [TEXT if kind in (TEXT, BYTES) else INTEGER for kind in outcomes.kinds]
    spilled = (_read_batch(spill, part) for spill in split)
    matching = OutcomeMatching(outcomes, OutcomeIndex(kinds, outcomes.source.duplicates, spilled))
    batches = (_join_batch(matching, _read_batch(keys_path, part)) for keys_path in keys)
    first = next(batches)
    _write_batches(path, iter([first, *batches]), first.schema)
    return path, matching.outcome_rows


def _join_batch(matching: OutcomeMatching, batch: pa.RecordBatch) -> pa.RecordBatch:
    missing = array_in(batch, "missing")
    keys = [KeyColumn(key, missing) for key in keys_in(batch)]
    labels = matching.labels(keys, array_in(batch, "start"), array_in(batch, "end"))
    return batch_of(
        {
            "row": batch.column("row"),
            "status": labels.status,
            "delay": labels.delay,
            "value": labels.values,
        }
    )


def _with_labels(reader: Any, joined: list[tuple[str, int]], index: int, rows: int) -> Any:
    """Return the reading settings of a sort task with its labels."""
    outcomes = 0 if index else sum(count for _, count in joined)
    return reader._replace(spilled=SpilledLabels(tuple(path for path, _ in joined), index, rows, outcomes))
