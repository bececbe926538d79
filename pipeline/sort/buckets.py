"""Buckets: ranges of scores, each gathered from all sorted runs; the second stage of the out-of-core sort."""

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
from pipeline.sort.folding import recode, together
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
"""Times the bytes of a bucket: when so much of rows with segments is gathered, a tie is heavy, and ties are folded."""


def splitters(runs: list[Run], bucket_bytes: int) -> Array:
    """Scores that cut all runs into buckets of about `bucket_bytes`; never inside a tie.

    Bucket b holds splitters[b - 1] <= score < splitters[b]. The error is at most one stride a section a run.
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
    before = np.cumsum(sizes, dtype=np.int64)
    whole = before[-1]
    before -= sizes
    buckets = max(1, -(-sum(run.bytes for run in runs) // bucket_bytes))
    targets = np.arange(1, buckets) * whole / buckets
    chosen = np.unique(sample[np.searchsorted(before, targets).clip(max=sample.size - 1)])
    # Nothing lies below the lowest score.
    return chosen[chosen > sample[0]]


class Places(NamedTuple):
    """Places of a bucket's rows.

    Attributes
    ----------
    runs : the numbers of the runs to read. paths : of these
    sections : those that any run has
    words : uint32 array, shape (runs, columns of these sections, 2): the words to read of each file
    room, largest : for how many rows of each of all sections: of all runs, and of any one
    most : bytes to hold before ties are folded
    """

    runs: list[int]
    paths: list[str]
    sections: tuple[int, ...]
    words: npt.NDArray[np.uint32]
    room: tuple[int, ...]
    largest: tuple[int, ...]
    most: int


def places(runs: list[Run], edges: Array, bucket_bytes: int) -> list[Places]:
    """Find the rows of each bucket between edges.

    edges : float64 array, shape (buckets + 1,), ascending. bucket_bytes : that a bucket without heavy ties has
    """
    sections = tuple(s for s in range(len(COLUMNS)) if any(run.sizes[s] for run in runs))
    buckets = edges.size - 1
    columns = [column for s in sections for column in COLUMNS[s]]
    # One array: of a billion rows there are some hundred thousand places, and a small one each takes 0.1 kB more.
    words = np.zeros((len(runs), buckets, len(columns), 2), np.uint32)
    room = np.zeros((buckets, len(COLUMNS)), np.int64)
    largest = np.zeros_like(room)
    most = HEAVY * bucket_bytes
    for r, run in enumerate(runs):
        passed = edges[:-1] >= run.below
        own_words = words[r]
        for section in sections:
            start, stop = run_files.blocks_between(run, section, edges)
            start[passed] = stop[passed] = 0
            # The last block may be shorter.
            last = np.minimum(stop * run_files.SAMPLE_STRIDE, run.sizes[section])
            own = np.maximum(last - start * run_files.SAMPLE_STRIDE, 0)
            room[:, section] += own
            largest[:, section] = np.maximum(largest[:, section], own)
            for column in COLUMNS[section]:
                c = columns.index(column)
                own_words[:, c, 0], own_words[:, c, 1] = run.ends[column][start], run.ends[column][stop]
    there = np.asarray((words[..., 0] < words[..., 1]).any(axis=2))
    found = []
    for b in range(buckets):
        readers = np.flatnonzero(there[:, b])
        paths = [runs[r].path for r in readers]
        rows = tuple(room[b].tolist()), tuple(largest[b].tolist())
        found.append(Places(readers.tolist(), paths, sections, words[readers, b], *rows, most))
    return found


class Bucket(NamedTuple):
    """The rows of a range of scores.

    Attributes
    ----------
    negatives, positives : float64 arrays, ascending: scores of rows with label 0 and 1
    rows : float64 array, shape (rows, 2): scores and signed weights of weighted rows, in the order of the runs
    entries : scores, and weights and positives as columns, in the order of the runs; None where there are none
    pooled : what `pool_classes` makes of negatives and positives, where it has been asked
    """

    negatives: Array
    positives: Array
    rows: Array
    entries: tuple[Array, Array] | None
    pooled: tuple[Blocks, int] | None = None

    @property
    def plain(self) -> bool:
        """True if it holds nothing but scores of rows of weight 1."""
        return self.entries is None and self.rows.size == 0

    def points(self) -> Points:
        """The points of all of them; `rows` are used up."""
        plain = list(ordering.merge_classes(self.negatives, self.positives))
        if self.rows.size == 0 and self.entries is None:
            return Points(*plain)
        rows = self._rows()
        if self.entries is not None:
            entries = sort_entries(*self.entries)
            at = np.searchsorted(rows[0], entries[0])
            rows = [np.insert(column, at, more) for column, more in zip(rows, entries, strict=True)]
        folded = Points(*ordering.sum_ties(*rows))
        # A log has either weights or whole-number counts, which add exactly.
        return folded if plain[0].size == 0 else _merged(plain, folded)

    def _rows(self) -> list[Array]:
        """Scores, weights and positives of the weighted rows, sorted."""
        score, signed = sort_pairs(self.rows) if self.rows.size else (np.empty(0), np.empty(0))
        return [score, np.abs(signed), np.maximum(signed, 0.0)]


def _merged(columns: list[Array], others: Points) -> Points:
    """Points of two sorted sets of points with whole-number weights; quick where the others are few.

    columns : of the one set, used up
    """
    score = columns[0]
    at = np.searchsorted(score, others.score)
    there = score[np.minimum(at, score.size - 1)] == others.score
    for column, more in zip(columns[1:], others[1:], strict=True):
        column[at[there]] += more[there]
    del score, column
    if not there.all():
        for i, more in enumerate(others):  # one after the other: each is some MB
            columns[i] = np.insert(columns[i], at[~there], more[~there])
    return Points(*columns)


class CodedBucket(NamedTuple):
    """The rows of a range of scores of a log with segments, in the order of the runs, with the codes of all runs.

    Attributes
    ----------
    score, tag : float64 and int64 arrays: of rows without weights
    rows, entries : tuples of arrays: score, code and signed weight; score, code, weight and positives
    """

    score: Array
    tag: Integers
    rows: tuple[Array, Integers, Array]
    entries: tuple[Array, Integers, Array, Array]

    @property
    def plain(self) -> bool:
        """True if it holds nothing but rows of weight 1."""
        return self.rows[0].size == 0 and self.entries[0].size == 0

    def in_order(self) -> Coded:
        """All of them as entries, sorted by score and code."""
        score, code, signed = self.rows
        label = (self.tag & 1).astype(np.float64)
        return together(
            Coded(*self.entries),
            Coded(score, code, np.abs(signed), np.maximum(signed, 0.0)),
            Coded(self.score, self.tag >> 1, np.ones(label.size), label),
        )


def read_bucket(where: Places, low: float, high: float) -> Bucket:
    """The rows with low <= score < high of all runs."""
    columns = _read(where, low, high, None)
    entries = columns[ENTRIES]
    return Bucket(
        _sorted(columns[NEGATIVES]),
        _sorted(columns[POSITIVES]),
        columns[ROWS],
        (entries[:, 0].copy(), entries[:, 1:].copy()) if entries.size else None,
    )


def read_coded_bucket(where: Places, low: float, high: float, table_of: TableOf) -> CodedBucket:
    """The same of a log with segments. table_of : a run's number to the new code of each of its codes."""
    return _coded(_read(where, low, high, table_of))


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


def _read(where: Places, low: float, high: float, table_of: TableOf | None) -> list[Array]:
    """The rows of each section in the order of the runs."""
    most = where.most if table_of is not None else sum(map(operator.mul, where.room, WIDTHS))
    kept: list[Words] = [
        np.empty((min(room, most // width + largest), width // 8), np.uint64)
        for room, largest, width in zip(where.room, where.largest, WIDTHS, strict=True)
    ]
    filled = [0] * len(COLUMNS)
    ahead = _ahead(where)
    numbers = np.empty(max(where.largest), np.uint64)
    for r, path, spans in zip(where.runs, where.paths, where.words.tolist(), strict=True):
        table = None if table_of is None else table_of(r)
        with RunFile(path, ahead.pop(path, None), numbers) as file:
            for section in where.sections:
                own, spans = spans[: len(COLUMNS[section])], spans[len(COLUMNS[section]) :]
                if own[0][0] == own[0][1]:
                    continue
                start = filled[section]
                of_ties = section in (ENTRIES, CODED_ENTRIES)
                bounds = (-np.inf, np.inf) if of_ties else (low, high)
                _, stop = file.read_rows(own, *bounds, kept[section], start)
                if of_ties:
                    block = kept[section][start:stop]
                    scores = block[:, 0].view(np.float64)
                    a, b = np.searchsorted(scores, [low, high])
                    block[: b - a] = block[a:b].copy()
                    stop = start + int(b - a)
                if table is not None:
                    recode(kept[section][start:stop, 1], table, labelled=section == TAGGED)
                filled[section] = stop
        if sum(map(operator.mul, filled, WIDTHS)) > most:
            most = _fold(kept, filled, where.most, where.largest)
    return [rows[:stop].view(np.float64) for rows, stop in zip(kept, filled, strict=True)]


def _fold(kept: list[Words], filled: list[int], most: int, largest: Sequence[int]) -> int:
    """Make entries of all rows held, one a score and segment where sums allow it; return how many bytes to hold next.

    A score that very many rows have is in one bucket: what is held of it is bounded by the segments.
    """
    bucket = _coded([rows[:stop].view(np.float64) for rows, stop in zip(kept, filled, strict=True)])
    score, code, weight, positives = ordering.expand_coded(bucket.in_order())
    filled[:] = [0] * len(filled)
    filled[CODED_ENTRIES] = score.size
    held = score.size * WIDTHS[CODED_ENTRIES]
    # Where little was folded, folding again and again would take long.
    most = max(most, 2 * held)
    for section, (rows, width) in enumerate(zip(kept, WIDTHS, strict=True)):
        room = most // width + largest[section] if largest[section] else 0
        room = max(room, filled[section])
        if rows.shape[0] < room:
            kept[section] = np.empty((room, width // 8), np.uint64)
    out = kept[CODED_ENTRIES]
    for i, column in enumerate((score, code, weight, positives)):
        out[: score.size, i] = column.view(np.uint64)
    return most


def _ahead(where: Places) -> dict[str, dict[int, bytes]]:
    """Prefetch runs in a store, in as many requests at a time as it takes; of other runs nothing."""
    return fetch(
        [
            (path, 8 * start, 8 * stop)
            for path, spans in zip(where.paths, where.words.tolist(), strict=True)
            if is_url(path)
            for start, stop in spans
            if start < stop
        ]
    )


def _sorted(scores: Array) -> Array:
    flat = scores.reshape(-1)
    sort_scores(flat)
    return flat
