"""Buckets: the second stage of the out-of-core sort, which gathers ranges of scores from all runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic import ordering
from calibrators.arithmetic.ordering import Coded, sort_entries, sort_pairs, sort_scores
from calibrators.arithmetic.passes import Array, Blocks, Points
from pipeline.files.blobs import fetch
from pipeline.files.folders import is_url
from pipeline.sort import run_files
from pipeline.sort.folding import merge_entries, recode
from pipeline.sort.run_files import (
    CODED_ENTRIES,
    CODED_ROWS,
    COLUMNS,
    ENTRIES,
    NEGATIVES,
    POSITIVES,
    ROWS,
    TAGGED,
    WIDTHS,
    Integers,
    Run,
    RunFile,
    Words,
)
from pipeline.sort.segments import Codes

TableOf = Callable[[int], Codes]

HEAVY = 3
"""Multiple of a bucket's bytes above which ties of rows with segments are folded while the bucket is read."""


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


class Bucket(NamedTuple):
    """Rows of a range of scores.

    Attributes
    ----------
    negatives, positives : float64 arrays, ascending: scores of rows of weight 1 with label 0 and 1
    rows : float64 array, shape (rows, 2): scores and signed weights of weighted rows, in the order of the runs
    entries : scores, and an array with the columns weight and positives, in the order of the runs; None if empty
    pooled : result of `pool_classes` for negatives and positives, if computed
    """

    negatives: Array
    positives: Array
    rows: Array
    entries: tuple[Array, Array] | None
    pooled: tuple[Blocks, int] | None = None

    @property
    def unweighted(self) -> bool:
        """True if the bucket only has scores of rows of weight 1."""
        return self.entries is None and self.rows.size == 0

    def points(self) -> Points:
        """Return the points of all rows; `rows` is overwritten."""
        unweighted = list(ordering.merge_classes(self.negatives, self.positives))
        if self.rows.size == 0 and self.entries is None:
            return Points(*unweighted)
        weighted = self._weighted_rows()
        if self.entries is not None:
            entries = sort_entries(*self.entries)
            index = np.searchsorted(weighted[0], entries[0])
            pairs = zip(weighted, entries, strict=True)
            weighted = [np.insert(column, index, sums) for column, sums in pairs]
        folded = Points(*ordering.sum_ties(*weighted))
        # Without weights the sums are whole numbers, which add exactly.
        return folded if unweighted[0].size == 0 else _merge_points(unweighted, folded)

    def _weighted_rows(self) -> list[Array]:
        """Return score, weight and positives of the weighted rows, sorted by score."""
        score, signed = sort_pairs(self.rows) if self.rows.size else (np.empty(0), np.empty(0))
        return [score, np.abs(signed), np.maximum(signed, 0.0)]


def _merge_points(columns: list[Array], others: Points) -> Points:
    """Merge two sorted sets of points with whole-number weights; fast if `others` are few.

    columns : first set, overwritten
    """
    score = columns[0]
    positions = np.searchsorted(score, others.score)
    matched = score[np.minimum(positions, score.size - 1)] == others.score
    for column, sums in zip(columns[1:], others[1:], strict=True):
        column[positions[matched]] += sums[matched]
    del score, column
    if not matched.all():
        for i, sums in enumerate(others):  # one column at a time saves some MB
            columns[i] = np.insert(columns[i], positions[~matched], sums[~matched])
    return Points(*columns)


class CodedBucket(NamedTuple):
    """Rows of a range of scores of a log with segments, in the order of the runs, with the codes of all runs.

    Attributes
    ----------
    score, tag : float64 and int64 arrays: rows of weight 1
    rows : score, code and signed weight of weighted rows. entries : score, code, weight and positives
    """

    score: Array
    tag: Integers
    rows: tuple[Array, Integers, Array]
    entries: tuple[Array, Integers, Array, Array]

    @property
    def unweighted(self) -> bool:
        """True if the bucket only has rows of weight 1."""
        return self.rows[0].size == 0 and self.entries[0].size == 0

    def sorted_entries(self) -> Coded:
        """Return all rows as entries, sorted by score and code."""
        score, code, signed = self.rows
        label = (self.tag & 1).astype(np.float64)
        return merge_entries(
            Coded(*self.entries),
            Coded(score, code, np.abs(signed), np.maximum(signed, 0.0)),
            Coded(self.score, self.tag >> 1, np.ones(label.size), label),
        )


def read_bucket(spans: BucketSpans, low: float, high: float) -> Bucket:
    """Read the rows with low <= score < high of all runs."""
    columns = _read(spans, low, high, None)
    entries = columns[ENTRIES]
    return Bucket(
        _sorted_scores(columns[NEGATIVES]),
        _sorted_scores(columns[POSITIVES]),
        columns[ROWS],
        (entries[:, 0].copy(), entries[:, 1:].copy()) if entries.size else None,
    )


def read_coded_bucket(spans: BucketSpans, low: float, high: float, table_of: TableOf) -> CodedBucket:
    """Read a bucket of a log with segments. table_of : function from a run's number to its table of new codes."""
    return _coded(_read(spans, low, high, table_of))


def _coded(columns: list[Array]) -> CodedBucket:
    score, tag = _columns(columns[TAGGED])
    rows, entries = _columns(columns[CODED_ROWS]), _columns(columns[CODED_ENTRIES])
    return CodedBucket(
        score,
        tag.view(np.int64),
        (rows[0], rows[1].view(np.int64), rows[2]),
        (entries[0], entries[1].view(np.int64), entries[2], entries[3]),
    )


def _columns(rows: Array) -> list[Array]:
    return [np.ascontiguousarray(column) for column in rows.T]


def _read(spans: BucketSpans, low: float, high: float, table_of: TableOf | None) -> list[Array]:
    """Read the rows of each section, in the order of the runs."""
    most_bytes = spans.most_bytes if table_of is not None else sum(map(operator.mul, spans.room, WIDTHS))
    buffers: list[Words] = [
        np.empty((min(room, most_bytes // width + largest), width // 8), np.uint64)
        for room, largest, width in zip(spans.room, spans.largest, WIDTHS, strict=True)
    ]
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
                start = filled[section]
                folded = section in (ENTRIES, CODED_ENTRIES)
                bounds = (-np.inf, np.inf) if folded else (low, high)
                _, stop = file.read_rows(column_words, *bounds, buffers[section], start)
                if folded:
                    block = buffers[section][start:stop]
                    scores = block[:, 0].view(np.float64)
                    a, b = np.searchsorted(scores, [low, high])
                    block[: b - a] = block[a:b].copy()
                    stop = start + int(b - a)
                if table is not None:
                    recode(buffers[section][start:stop, 1], table, labelled=section == TAGGED)
                filled[section] = stop
        if sum(map(operator.mul, filled, WIDTHS)) > most_bytes:
            most_bytes = _fold_ties(buffers, filled, spans.most_bytes, spans.largest)
    return [rows[:stop].view(np.float64) for rows, stop in zip(buffers, filled, strict=True)]


def _fold_ties(buffers: list[Words], filled: list[int], most_bytes: int, largest: Sequence[int]) -> int:
    """Fold all rows read so far into entries, one per score and segment if sums allow; return the next bytes limit.

    A heavily tied score lies in a single bucket; after folding, its memory is bounded by the number of segments.
    """
    bucket = _coded([rows[:stop].view(np.float64) for rows, stop in zip(buffers, filled, strict=True)])
    score, code, weight, positives = ordering.expand_coded(bucket.sorted_entries())
    filled[:] = [0] * len(filled)
    filled[CODED_ENTRIES] = score.size
    used_bytes = score.size * WIDTHS[CODED_ENTRIES]
    # A higher limit avoids folding again and again if little was folded.
    most_bytes = max(most_bytes, 2 * used_bytes)
    for section, (rows, width) in enumerate(zip(buffers, WIDTHS, strict=True)):
        room = most_bytes // width + largest[section] if largest[section] else 0
        room = max(room, filled[section])
        if rows.shape[0] < room:
            buffers[section] = np.empty((room, width // 8), np.uint64)
    out = buffers[CODED_ENTRIES]
    for i, column in enumerate((score, code, weight, positives)):
        out[: score.size, i] = column.view(np.uint64)
    return most_bytes


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


def _sorted_scores(scores: Array) -> Array:
    flat = scores.reshape(-1)
    sort_scores(flat)
    return flat
