"""A second level of the sort's shuffle, where very many runs meet very many buckets.

A bucket reads a slice of each run that it overlaps: M runs and K buckets are M K reads. Above `MOST_READS` the runs are
divided into groups, and each group is first merged within C coarse ranges of scores into runs of about a bucket's size.
A bucket then reads those of its own range alone: with about sqrt(M) groups, 2 K sqrt(M) reads in all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.execution import Graph
from pipeline.sort import buckets
from pipeline.sort.run_files import Run
from pipeline.sort.run_merging import Piece, merge_piece, pieces_of
from pipeline.sort.runs import RunReceipt

MOST_READS = 1 << 22
"""Reads of slices up to which runs are merged at once: on an object store each is a request."""


class Regrouping(NamedTuple):
    """Shape of the second level: groups of runs, and coarse ranges of scores."""

    groups: int
    ranges: int


def regrouping(runs: int, buckets: int) -> Regrouping | None:
    """Choose the shape for so many runs and buckets; None if one level is enough."""
    if runs * buckets <= MOST_READS:
        return None
    ranges = max(1, round(buckets / math.sqrt(runs)))
    return Regrouping(min(runs, -(-buckets // ranges)), ranges)


def add_regrouping(graph: Graph, total: Any, runs: int, buckets: int, scratch: str) -> Any:
    """Add the second level to a graph if it is needed: `regroup -> merge-runs-i -> regrouped`.

    Parameters
    ----------
    total : reference to the runs' receipt. runs, buckets : how many there are at most.
    scratch : folder for the merged runs; those that they are made of stay, since tasks may run again.
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


def _pieces(total: RunReceipt, shape: Regrouping) -> list[Piece | None]:
    size = -(-sum(run.bytes for run in total.runs) // shape.ranges)
    edges = np.concatenate([[-np.inf], buckets.splitters(total.runs, max(1, size)), [np.inf]])
    ends = np.linspace(0, len(total.runs), shape.groups + 1).astype(int).tolist()
    found: list[Piece | None] = []
    for start, stop in itertools.pairwise(ends):
        if start < stop:
            found += pieces_of(total.runs[start:stop], edges)
    return [*found, *([None] * (shape.groups * shape.ranges - len(found)))]


def _merge(piece: Piece | None, path: str) -> Run | None:
    return None if piece is None else merge_piece(piece, path)


def _with_runs(total: RunReceipt, runs: Sequence[Run | None]) -> RunReceipt:
    return replace(total, runs=[run for run in runs if run is not None])
