"""Merging a range of scores of a log with segments: one order of its rows, for all of them and for each segment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators._kernels import pava
from calibrators.arithmetic import ordering
from calibrators.arithmetic.ordering import Coded
from calibrators.arithmetic.passes import Array, Points
from calibrators.arithmetic.pooling import pool_classes, pool_points
from calibrators.segments.partial_pooling import BlockRanges, pool_ranks_within, pool_within
from logcal.arrow_columns import as_column
from pipeline import schema
from pipeline._kernels import rows as kernels
from pipeline.sort.buckets import Bucket, CodedBucket
from pipeline.sort.folding import sort_tagged
from pipeline.sort.parts import write_part
from pipeline.sort.run_files import Integers
from pipeline.sort.segments import Coding, ShuffleFile, read_codes, read_keys, write_shuffle


class LevelCut(NamedTuple):
    """Items of each segment of a level in one range.

    Attributes
    ----------
    groups : path of a file of int32: of each code, the place of its segment among those of the level, -1 for segments
        that nobody wants
    size : how many segments the level has
    pooled : whether to leave blocks that isotonic regression has pooled; otherwise points
    path : of what is left, without the number of the range
    own : path of a file of int32: the segments of the level that get maps of their own, pooled with their parent's
        map; items then lie within the block ranges where that map can be constant. None without partial pooling
    """

    groups: str
    size: int
    pooled: bool
    path: str
    own: str | None = None


class KeptSegments(NamedTuple):
    """Places of each segment's points.

    folder : for a part a range. keys : path of a Parquet file, the segments' values by code, in columns of their names
    """

    folder: str
    keys: str


class Cutting(NamedTuple):
    """Cutting of the rows of segments as they leave the merge.

    weighted : whether sums are more than counts. kept : None where the score table is not kept
    """

    coding: Coding
    levels: tuple[LevelCut, ...]
    weighted: bool
    kept: KeptSegments | None = None

    @property
    def in_block_ranges(self) -> bool:
        """True if the items lie within block ranges: see `LevelCut.own`."""
        return any(cut.own is not None for cut in self.levels)


def merge_segments(
    bucket: CodedBucket, cutting: Cutting, index: int, scale: float = 1.0
) -> tuple[Bucket | Points, list[ShuffleFile]]:
    """All rows of a range, and what is left of each segment for each level.

    scale : what the weights of rows are multiplied by, once those of a score and a segment are added up

    Returns
    -------
    rows : sorted by class, or added up to points where rows have weights or ties have been folded
    files : a file a level
    """
    codes = cutting.coding.count
    files = []
    if cutting.kept is not None:
        _keep(_entries(bucket, scale), cutting.kept, index)
    if bucket.unweighted:
        score, tag = bucket.score, bucket.tag
        if score.size:
            score, tag = sort_tagged(score, tag, cutting.coding.bits)
        classes = _classes(score, tag)
        pooled = pool_classes(*classes) if cutting.in_block_ranges and score.size else None
        nest: _Nest | None = None
        for cut in cutting.levels:
            groups = read_codes(cut.groups, 0, codes)
            ranked = _ranked(score, tag, groups, cut.size)
            if pooled is None:
                columns, starts = _cut_rows(ranked, cut, cutting.weighted)
            else:
                nest = nest or _Nest(np.searchsorted(ranked.distinct, pooled[0].first).astype(np.int32))
                columns, starts = nest.cut_rows(ranked, groups, cut, cutting.weighted)
            files.append(write_shuffle(f"{cut.path}-{index:05d}", columns, starts))
        return Bucket(classes[0], classes[1], np.empty((0, 2)), None, pooled), files
    entries = _entries(bucket, scale)
    score, _, weight, positives = entries
    points = Points(*ordering.sum_ties(score, weight, positives))
    nest = _Nest(pool_points(points).first) if cutting.in_block_ranges else None
    for cut in cutting.levels:
        groups = read_codes(cut.groups, 0, codes)
        columns, starts = _cut_entries(entries, groups, cut, cutting.weighted)
        if nest is not None:
            columns, starts = nest.cut(columns, starts, groups, cut, cutting.weighted)
        files.append(write_shuffle(f"{cut.path}-{index:05d}", columns, starts))
    return points, files


def _entries(bucket: CodedBucket, scale: float) -> Coded:
    """All of a bucket, sorted by score and code."""
    entries = bucket.sorted_entries()
    if scale == 1.0:
        return entries
    # What is rounded must not depend on how rows lie in runs.
    score, code, weight, positives = ordering.sum_coded(entries)
    return ordering.Coded(score, code, weight * scale, positives * scale)


def _classes(score: Array, tag: Integers) -> tuple[Array, Array]:
    """The scores of rows with label 0, and those with label 1, in their order."""
    negatives, positives = np.empty(score.size + 1), np.empty(score.size + 1)
    n, p = kernels.split_classes(score, (tag & 1).astype(np.uint8), negatives, positives, 0, 0)
    return negatives[:n], positives[:p]


class _Nest:
    """Places within a range where the parent map of a level's segments can be constant: level by level.

    That of all rows is constant on unions of the range's own isotonic blocks, and so are the maps that move it; an own
    map is constant on unions of what this leaves of its segment.
    """

    def __init__(self, edges: Any) -> None:
        # Where the range's own blocks begin: float64 scores, or int32 ranks of them.
        self._block_ranges = BlockRanges(edges, np.array([0, edges.size]))
        self._parents: Any = None

    def cut_rows(
        self, ranked: _Ranked, groups: Any, cut: LevelCut, weighted: bool
    ) -> tuple[list[Array], Integers]:
        """Cut the next level's segments from their rows. groups : of each code, its segment."""
        parent, own = self._parents_and_own(groups, cut)
        items, ranks, sizes = pool_ranks_within(*ranked, self._block_ranges, parent, own)
        return _sums(list(items), weighted), self._descend(ranks, sizes, groups)

    def cut(
        self, points: list[Array], starts: Integers, groups: Any, cut: LevelCut, weighted: bool
    ) -> tuple[list[Array], Integers]:
        """Cut the next level's segments from their points. groups : of each code, its segment."""
        parent, own = self._parents_and_own(groups, cut)
        score, weight, positives = points
        zero = np.zeros(score.size)
        items = (score, score, weight, zero, positives, zero)
        found = pool_within(items, starts, self._block_ranges, parent, own)
        ends = self._descend(found.items[0], found.sizes, groups)
        columns = found.items
        return list(columns if weighted else columns[[0, 1, 2, 4]]), ends

    def _parents_and_own(self, groups: Any, cut: LevelCut) -> tuple[Any, Any]:
        """Return for each of a level's segments its parent, and whether it is to have a map of its own."""
        parent = np.zeros(cut.size, np.int32)
        if self._parents is not None:
            parent[groups] = self._parents
        assert cut.own is not None
        return parent, read_codes(cut.own, 0, cut.size).astype(np.bool_)

    def _descend(self, edges: Any, sizes: Integers, groups: Any) -> Integers:
        """Go on to the level below; returns where each segment's begin."""
        ends = _starts(sizes)
        self._block_ranges, self._parents = BlockRanges(edges, ends), groups
        return ends


def _keep(entries: Coded, kept: KeptSegments, index: int) -> None:
    """Write each segment's points; a repeated task writes the same file again."""
    score, code, weight, positives = ordering.sum_coded(entries)
    keys = read_keys(kept.keys, code)
    fields = [(field.name, field.type) for field in keys.schema]
    table = pa.Table.from_arrays(
        [*keys.columns, *(as_column(column) for column in (score, weight, positives))],
        schema=schema.segmented_score_table(fields),
    )
    write_part(table, f"{kept.folder}/part-{index:05d}.parquet", [*keys.schema.names, "weight", "positives"])


def _starts(counts: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)])


class _Ranked(NamedTuple):
    """Rows of weight 1 in the order of their segments, ascending in each.

    rows : uint32 array: of each twice its score's rank, plus its label. starts : of the segments
    distinct : float64 array: the score of each rank
    """

    rows: npt.NDArray[np.uint32]
    starts: Integers
    distinct: Array


def _ranked(score: Array, tag: Integers, group_of: Any, size: int) -> _Ranked:
    counts = np.zeros(size, np.int64)
    kernels.count_groups(tag, 1, group_of, counts)
    starts = _starts(counts)
    rows = np.empty(starts[-1], np.uint32)
    distinct = np.empty(score.size)
    n = kernels.scatter_ranks(score, tag, group_of, starts[:-1].copy(), distinct, rows)
    return _Ranked(rows, starts, distinct[:n])


def _sums(columns: list[Array], weighted: bool) -> list[Array]:
    """First and last score, weight and positives; sums as double-doubles where others are."""
    if not weighted:
        return columns
    first, last, weight, positives = columns
    zero = np.zeros(first.size)
    return [first, last, weight, zero, positives, zero]


def _cut_rows(ranked: _Ranked, cut: LevelCut, weighted: bool) -> tuple[list[Array], Integers]:
    rows, starts, distinct = ranked
    if cut.pooled:
        everywhere = BlockRanges(np.zeros(1, np.int32), np.array([0, 1]))
        of = np.zeros(cut.size, np.int32)
        blocks, _, sizes = pool_ranks_within(*ranked, everywhere, of, np.ones(cut.size, np.bool_))
        return _sums(list(blocks), weighted), _starts(sizes)
    points = np.empty((3, rows.size))
    ends = np.empty(cut.size, np.int64)
    kernels.points_of_ranks(rows, starts, distinct, points, ends)
    own = np.concatenate([[0], ends])
    return [column[: own[-1]] for column in points], own


def _cut_entries(
    entries: Coded, group_of: Any, cut: LevelCut, weighted: bool
) -> tuple[list[Array], Integers]:
    group = group_of[entries.code].astype(np.int64)
    score, group, weight, positives = ordering.sum_coded(entries._replace(code=group))
    wanted = group >= 0
    starts = _starts(np.bincount(group[wanted], minlength=cut.size))
    points = np.empty((3, starts[-1]))
    # The group of a group is itself.
    own = np.arange(cut.size + 1, dtype=np.int32)
    own[-1] = -1
    kernels.scatter_points(score, group, weight, positives, own, starts[:-1].copy(), points)
    if not cut.pooled:
        return list(points), starts
    zero = np.zeros(starts[-1])
    blocks, sizes = pava.pool_groups(
        (points[0], points[0], points[1], zero, points[2], zero), starts, pava.ALL
    )
    kept = blocks if weighted else [blocks[i] for i in (0, 1, 2, 4)]
    return list(kept), _starts(sizes)
