"""Buckets: the second stage of the out-of-core sort, which gathers ranges of scores from all runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core import sorting
from calibrators.core.arrays import Array, Codes
from pipeline.files.blobs import fetch
from pipeline.files.folders import is_url
from pipeline.sort import run_files
from pipeline.sort.run_files import COLUMNS, SUMS, WIDTHS, Run, RunFile, allocate, sections_of
from pipeline.sort.sections import Sections

TableOf = Callable[[int], Codes]

HEAVY = 3
"""Multiple of a bucket's bytes above which ties are folded while the bucket is read."""


def splitters(runs: list[Run], bucket_bytes: int) -> Array:
    """Choose scores that cut all runs into buckets of about `bucket_bytes`; never inside a tie.

    Bucket b holds splitters[b - 1] <= score < splitters[b]. A bucket's size is off by at most one stride per section
    and run.
    """
    sample = np.concatenate([part for run in runs for part in run.samples])
    sizes = np.concatenate(
        [
            np.full(part.size, width * run_files.SAMPLE_STRIDE, np.int32)
            for run in runs
            for part, width in zip(run.samples, WIDTHS, strict=True)
        ]
    )
    order = np.argsort(sample, kind="stable")
    sample, sizes = sample[order], sizes[order]
    bytes_before = np.cumsum(sizes, dtype=np.int64)
    total_bytes = bytes_before[-1]
    bytes_before -= sizes
    buckets = max(1, -(-sum(run.bytes for run in runs) // bucket_bytes))
    targets = np.arange(1, buckets) * total_bytes / buckets
    cuts = np.unique(sample[np.searchsorted(bytes_before, targets).clip(max=sample.size - 1)])
    # Nothing lies below the lowest score.
    return cuts[cuts > sample[0]]


class BucketSpans(NamedTuple):
    """Spans of the run files that hold a bucket's rows.

    Attributes
    ----------
    runs, paths : numbers and paths of the runs to read
    sections : sections that any run has
    words : uint32 array, shape (runs, columns of these sections, 2): first word to read, and one past the last
    room, largest : upper bounds of the rows of each section, in all runs together and in any one run
    most_bytes : bytes in memory above which ties are folded
    """

    runs: list[int]
    paths: list[str]
    sections: tuple[int, ...]
    words: npt.NDArray[np.uint32]
    room: tuple[int, ...]
    largest: tuple[int, ...]
    most_bytes: int


def bucket_spans(runs: list[Run], edges: Array, bucket_bytes: int) -> list[BucketSpans]:
    """Find the spans of each bucket.

    edges : float64 array, shape (buckets + 1,), ascending. bucket_bytes : size of a bucket without heavy ties
    """
    sections = tuple(s for s in range(len(COLUMNS)) if any(run.sizes[s] for run in runs))
    buckets = edges.size - 1
    columns = [column for s in sections for column in COLUMNS[s]]
    # One array: a billion rows have some hundred thousand spans, and an array for each would take 0.1 kB more.
    words = np.zeros((len(runs), buckets, len(columns), 2), np.uint32)
    room = np.zeros((buckets, len(COLUMNS)), np.int64)
    largest = np.zeros_like(room)
    most_bytes = HEAVY * bucket_bytes
    for r, run in enumerate(runs):
        passed = edges[:-1] >= run.below
        run_words = words[r]
        for section in sections:
            start, stop = run_files.blocks_between(run, section, edges)
            start[passed] = stop[passed] = 0
            # The last block may be shorter.
            last = np.minimum(stop * run_files.SAMPLE_STRIDE, run.sizes[section])
            rows = np.maximum(last - start * run_files.SAMPLE_STRIDE, 0)
            room[:, section] += rows
            largest[:, section] = np.maximum(largest[:, section], rows)
            for column in COLUMNS[section]:
                c = columns.index(column)
                run_words[:, c, 0], run_words[:, c, 1] = run.ends[column][start], run.ends[column][stop]
    nonempty = np.asarray((words[..., 0] < words[..., 1]).any(axis=2))
    spans = []
    for b in range(buckets):
        readers = np.flatnonzero(nonempty[:, b])
        paths = [runs[r].path for r in readers]
        sizes = tuple(room[b].tolist()), tuple(largest[b].tolist())
        spans.append(BucketSpans(readers.tolist(), paths, sections, words[readers, b], *sizes, most_bytes))
    return spans


def read_bucket(spans: BucketSpans, low: float, high: float, table_of: TableOf | None = None) -> Sections:
    """Read the rows with low <= score < high of all runs, in the order of the runs.

    table_of : function from a run's number to its table of new codes; None without segments
    """
    most_bytes = spans.most_bytes
    buffers = _buffers(spans, most_bytes)
    filled = [0] * len(COLUMNS)
    prefetched = _prefetch(spans)
    work = np.empty(max(spans.largest), np.uint64)
    for r, path, words in zip(spans.runs, spans.paths, spans.words.tolist(), strict=True):
        table = None if table_of is None else table_of(r)
        with RunFile(path, prefetched.pop(path, None), work) as file:
            for section in spans.sections:
                column_words, words = words[: len(COLUMNS[section])], words[len(COLUMNS[section]) :]
                if column_words[0][0] == column_words[0][1]:
                    continue
                out = [column[filled[section] :] for column in buffers[section]]
                count = file.read_rows(column_words, low, high, out)
                if table is not None:
                    _recode(out[1][:count], table, tags=section != SUMS)
                filled[section] += count
        if sum(map(operator.mul, filled, WIDTHS)) > most_bytes:
            # A heavily tied score lies in a single bucket; as sums, its memory is bounded by the number of segments.
            sums = sorting.expand_coded(_filled(buffers, filled).sorted_sums())
            # A higher limit avoids folding again and again if little was folded.
            most_bytes = max(spans.most_bytes, 2 * sums.score.size * WIDTHS[SUMS])
            buffers = _buffers(spans, most_bytes)
            filled = [0, 0, sums.score.size]
            for column, values in zip(buffers[SUMS], sums, strict=True):
                column[: filled[SUMS]] = values
    return _filled(buffers, filled)


def _buffers(spans: BucketSpans, most_bytes: int) -> list[list[npt.NDArray[Any]]]:
    """Allocate the columns of each section: for `most_bytes` and another run, or for all rows if none are folded."""
    room = spans.room
    if sum(map(operator.mul, room, WIDTHS)) > spans.most_bytes:
        room = tuple(
            most_bytes // width + largest if largest or section == SUMS else 0
            for section, (largest, width) in enumerate(zip(spans.largest, WIDTHS, strict=True))
        )
    return [allocate(section, size) for section, size in enumerate(room)]


def _filled(buffers: list[list[npt.NDArray[Any]]], filled: list[int]) -> Sections:
    return sections_of(
        [[column[:n] for column in columns] for columns, n in zip(buffers, filled, strict=True)]
    )


def _recode(column: Codes, table: Codes, *, tags: bool) -> None:
    """Replace a run's codes, or the codes in its tags, by those of all runs.

    table : new code by old code
    """
    column[:] = (table[column >> 1] << 1) | (column & 1) if tags else table[column]


def _prefetch(spans: BucketSpans) -> dict[str, dict[int, bytes]]:
    """Prefetch spans of runs in an object store by concurrent requests; skip local runs."""
    return fetch(
        [
            (path, 8 * start, 8 * stop)
            for path, words in zip(spans.paths, spans.words.tolist(), strict=True)
            if is_url(path)
            for start, stop in words
            if start < stop
        ]
    )
