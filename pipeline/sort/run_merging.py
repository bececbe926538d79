"""Merging of runs: small runs into larger ones, and groups of runs within coarse ranges of scores.

The latter is a second level of the sort's shuffle, for very many runs and buckets. A bucket reads a slice of each run
that it overlaps: M runs and K buckets are M K reads. Above `MOST_READS` the runs are divided into groups, and each
group is first merged within C coarse ranges of scores into runs of about a bucket's size. A bucket then reads only the
runs of its range: with about sqrt(M) groups, 2 K sqrt(M) reads in all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Array
from pipeline.execution import Graph
from pipeline.log.logs import batched_by_size
from pipeline.log.segment_values import Encoder, unified_values
from pipeline.sort import buckets
from pipeline.sort.run_files import Run, RunSegments, write_run
from pipeline.sort.runs import RunReceipt

_EVERYWHERE = np.array([-np.inf, np.inf])


def merge_small(runs: Sequence[Run], folder: str, most_bytes: int) -> list[Run]:
    """Merge neighbouring small runs into runs of at most `most_bytes`.

    Merged runs are new files; the source files stay.
    """
    count = 0
    while True:
        groups = list(batched_by_size(runs, lambda run: run.bytes, most_bytes))
        if len(groups) == len(runs):
            return list(runs)
        merged = []
        for group in groups:
            if len(group) > 1:
                [piece] = pieces_of(group, _EVERYWHERE)
                merged_run = merge_piece(piece, f"{folder}/run-merged-{count:06d}")
                assert merged_run is not None
                merged.append(merged_run)
                count += 1
            else:
                merged.append(group[0])
        # Folded ties make merged runs smaller: more of them may fit into one run now.
        runs = merged


class RunPiece(NamedTuple):
    """Rows of a group of runs within a range of scores, low <= score < high, to be merged into one run.

    Attributes
    ----------
    spans : spans of the rows
    segments : segments of the runs in `spans`, then of other runs that are only counted; empty without segments
    counts : True if the merged run counts the rows of all segments of the group; exactly one piece of a group does
    """

    spans: buckets.BucketSpans
    low: float
    high: float
    segments: tuple[RunSegments, ...] = ()
    counts: bool = True


def pieces_of(runs: Sequence[Run], edges: Array) -> list[RunPiece]:
    """Cut a group of runs into pieces that fit into memory. edges : float64 array, ascending."""
    pieces = []
    for i, spans in enumerate(buckets.bucket_spans(list(runs), edges, sum(run.bytes for run in runs))):
        read = [runs[r].segments for r in spans.runs]
        others = [run.segments for r, run in enumerate(runs) if i == 0 and r not in set(spans.runs)]
        segments = tuple(part for part in (*read, *others) if part is not None)
        pieces.append(RunPiece(spans, float(edges[i]), float(edges[i + 1]), segments, i == 0))
    return pieces


def merge_piece(piece: RunPiece, path: str) -> Run | None:
    """Merge the rows of a piece into one run; return None if the run would be empty."""
    if not piece.segments:
        sections = buckets.read_bucket(piece.spans, piece.low, piece.high).sorted()
        return write_run(path, sections) if any(sections.sizes) else None
    # The segments get common codes.
    names = [str(i) for i in range(len(piece.segments[0].values))]
    encoder = Encoder(names)
    parts = unified_values([part.values for part in piece.segments])
    tables = [encoder.encode(pa.RecordBatch.from_arrays(values, names)) for values in parts]
    counts = np.zeros((len(encoder), 2), np.int64)
    if piece.counts:
        for part, table in zip(piece.segments, tables, strict=True):
            counts[table] += part.counts
    # The tables of runs that are only counted come last and are not read.
    table_of = dict(zip(piece.spans.runs, tables, strict=False)).__getitem__
    sections = buckets.read_bucket(piece.spans, piece.low, piece.high, table_of).sorted()
    codes = np.arange(len(encoder))
    if not piece.counts:
        sections, codes = sections.renumbered(len(encoder))
        counts = counts[codes]
    if not codes.size:
        return None
    return write_run(path, sections, RunSegments(encoder.values_of(codes), counts))


MOST_READS = 1 << 22
"""Most reads of slices with one level; on an object store each read is a request."""


class Regrouping(NamedTuple):
    """Shape of the second level: number of groups of runs, and of coarse ranges of scores."""

    groups: int
    ranges: int


def regrouping(runs: int, buckets: int) -> Regrouping | None:
    """Choose the shape of the second level; None if one level is enough."""
    if runs * buckets <= MOST_READS:
        return None
    ranges = max(1, round(buckets / math.sqrt(runs)))
    return Regrouping(min(runs, -(-buckets // ranges)), ranges)


def add_regrouping(graph: Graph, total: Any, runs: int, buckets: int, scratch: str) -> Any:
    """Add the second level to a graph if it is needed: `regroup -> merge-runs-i -> regrouped`.

    Parameters
    ----------
    total : reference to the runs' receipt. runs, buckets : upper bounds of their numbers
    scratch : folder for the merged runs; the source runs stay, since tasks may run again
    """
    shape = regrouping(runs, buckets)
    if shape is None:
        return total
    count = shape.groups * shape.ranges
    pieces = graph.task("regroup", _pieces, total, shape)
    tasks = [
        (entry, f"{scratch}/run-regrouped-{i:06d}")
        for i, entry in enumerate(graph.entries("piece", pieces, count))
    ]
    merged = graph.layer("merge-runs", _merge, tasks)
    return graph.task("regrouped", _with_runs, total, merged)


def _pieces(total: RunReceipt, shape: Regrouping) -> list[RunPiece | None]:
    size = -(-sum(run.bytes for run in total.runs) // shape.ranges)
    edges = np.concatenate([[-np.inf], buckets.splitters(total.runs, max(1, size)), [np.inf]])
    ends = np.linspace(0, len(total.runs), shape.groups + 1).astype(int).tolist()
    pieces: list[RunPiece | None] = []
    for start, stop in itertools.pairwise(ends):
        if start < stop:
            pieces += pieces_of(total.runs[start:stop], edges)
    return [*pieces, *([None] * (shape.groups * shape.ranges - len(pieces)))]


def _merge(piece: RunPiece | None, path: str) -> Run | None:
    return None if piece is None else merge_piece(piece, path)


def _with_runs(total: RunReceipt, runs: Sequence[Run | None]) -> RunReceipt:
    return replace(total, runs=[run for run in runs if run is not None])
