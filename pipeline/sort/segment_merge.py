"""Merging of a range of scores of a log with segments: rows are sorted once, for all of them and for each segment."""

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
    """Settings of a merge task for the items of a level's segments.

    Attributes
    ----------
    groups : path of a file of int32: index on the level of each code's segment; -1 for segments that are not wanted
    size : number of segments of the level
    pooled : whether items are isotonic blocks; otherwise points
    path : path of the shuffle files, without the number of the range
    own_maps : path of a file of int32 flags: segments of the level that get maps of their own, pooled with their
        parent's map; items then lie within block ranges where that map can be constant. None without partial pooling
    """

    groups: str
    size: int
    pooled: bool
    path: str
    own_maps: str | None = None


class KeptSegments(NamedTuple):
    """Output of each segment's points for a kept score table.

    folder : folder of the parts, one per range. keys : Parquet file of the segments' values by code
    """

    folder: str
    keys: str


class Cutting(NamedTuple):
    """Settings of a merge task for the items of segments on all levels.

    weighted : whether rows have weights. kept : None if the score table is not kept
    """

    coding: Coding
    levels: tuple[LevelCut, ...]
    weighted: bool
    kept: KeptSegments | None = None

    @property
    def in_block_ranges(self) -> bool:
        """True if items lie within block ranges; see `LevelCut.own_maps`."""
        return any(cut.own_maps is not None for cut in self.levels)


def merge_segments(
    bucket: CodedBucket, cutting: Cutting, index: int, scale: float = 1.0
) -> tuple[Bucket | Points, list[ShuffleFile]]:
    """Merge all rows of a range, and write the items of each segment on each level.

    scale : factor of the sums of weights of a score and a segment

    Returns
    -------
    rows : scores sorted by class; points if rows have weights or ties have been folded
    files : one shuffle file per level
    """
    codes = cutting.coding.count
    files = []
    if cutting.kept is not None:
        _write_kept_points(_entries(bucket, scale), cutting.kept, index)
    if bucket.unweighted:
        score, tag = bucket.score, bucket.tag
        if score.size:
            score, tag = sort_tagged(score, tag, cutting.coding.bits)
        classes = _classes(score, tag)
        pooled = pool_classes(*classes) if cutting.in_block_ranges and score.size else None
        ranges: _Ranges | None = None
        for cut in cutting.levels:
            groups = read_codes(cut.groups, 0, codes)
            ranked = _rank_rows(score, tag, groups, cut.size)
            if pooled is None:
                columns, starts = _cut_rows(ranked, cut, cutting.weighted)
            else:
                ranges = ranges or _Ranges(np.searchsorted(ranked.distinct, pooled[0].first).astype(np.int32))
                columns, starts = ranges.cut_rows(ranked, groups, cut, cutting.weighted)
            files.append(write_shuffle(f"{cut.path}-{index:05d}", columns, starts))
        return Bucket(classes[0], classes[1], np.empty((0, 2)), None, pooled), files
    entries = _entries(bucket, scale)
    score, _, weight, positives = entries
    points = Points(*ordering.sum_ties(score, weight, positives))
    ranges = _Ranges(pool_points(points).first) if cutting.in_block_ranges else None
    for cut in cutting.levels:
        groups = read_codes(cut.groups, 0, codes)
        columns, starts = _cut_entries(entries, groups, cut, cutting.weighted)
        if ranges is not None:
            columns, starts = ranges.cut(columns, starts, groups, cut, cutting.weighted)
        files.append(write_shuffle(f"{cut.path}-{index:05d}", columns, starts))
    return points, files


def _entries(bucket: CodedBucket, scale: float) -> Coded:
    """Return a bucket's entries, sorted by score and code, with scaled weights."""
    entries = bucket.sorted_entries()
    if scale == 1.0:
        return entries
    # Scale complete sums: rounding must not depend on how rows are divided into runs.
    score, code, weight, positives = ordering.sum_coded(entries)
    return ordering.Coded(score, code, weight * scale, positives * scale)


def _classes(score: Array, tag: Integers) -> tuple[Array, Array]:
    """Split scores by label, keeping their order."""
    negatives, positives = np.empty(score.size + 1), np.empty(score.size + 1)
    n, p = kernels.split_classes(score, (tag & 1).astype(np.uint8), negatives, positives, 0, 0)
    return negatives[:n], positives[:p]


class _Ranges:
    """Block ranges where the parent maps of a level's segments can be constant, level by level.

    The map of all rows is constant on unions of the range's isotonic blocks, and so are maps adjusted from it. A
    segment's own map is constant on unions of the items that this class returns for the segment.
    """

    def __init__(self, edges: Any) -> None:
        # Starts of the range's isotonic blocks: float64 scores, or their int32 ranks.
        self._block_ranges = BlockRanges(edges, np.array([0, edges.size]))
        self._parents: Any = None

    def cut_rows(
        self, ranked: _Ranked, groups: Any, cut: LevelCut, weighted: bool
    ) -> tuple[list[Array], Integers]:
        """Return the items of the next level's segments from their rows. groups : segment of each code."""
        parent, with_map = self._read_parents(groups, cut)
        items, ranks, sizes = pool_ranks_within(*ranked, self._block_ranges, parent, with_map)
        return _item_columns(list(items), weighted), self._next_level(ranks, sizes, groups)

    def cut(
        self, points: list[Array], starts: Integers, groups: Any, cut: LevelCut, weighted: bool
    ) -> tuple[list[Array], Integers]:
        """Return the items of the next level's segments from their points. groups : segment of each code."""
        parent, with_map = self._read_parents(groups, cut)
        score, weight, positives = points
        zero = np.zeros(score.size)
        items = (score, score, weight, zero, positives, zero)
        pooled = pool_within(items, starts, self._block_ranges, parent, with_map)
        ends = self._next_level(pooled.items[0], pooled.sizes, groups)
        columns = pooled.items
        return list(columns if weighted else columns[[0, 1, 2, 4]]), ends

    def _read_parents(self, groups: Any, cut: LevelCut) -> tuple[Any, Any]:
        """Return the parent of each of a level's segments, and whether it gets a map of its own."""
        parent = np.zeros(cut.size, np.int32)
        if self._parents is not None:
            parent[groups] = self._parents
        assert cut.own_maps is not None
        return parent, read_codes(cut.own_maps, 0, cut.size).astype(np.bool_)

    def _next_level(self, edges: Any, sizes: Integers, groups: Any) -> Integers:
        """Go to the next level; return the start of each segment's items."""
        ends = _offsets(sizes)
        self._block_ranges, self._parents = BlockRanges(edges, ends), groups
        return ends


def _write_kept_points(entries: Coded, kept: KeptSegments, index: int) -> None:
    """Write each segment's points; a repeated task writes the same file again."""
    score, code, weight, positives = ordering.sum_coded(entries)
    keys = read_keys(kept.keys, code)
    fields = [(field.name, field.type) for field in keys.schema]
    table = pa.Table.from_arrays(
        [*keys.columns, *(as_column(column) for column in (score, weight, positives))],
        schema=schema.segmented_score_table(fields),
    )
    write_part(table, f"{kept.folder}/part-{index:05d}.parquet", [*keys.schema.names, "weight", "positives"])


def _offsets(counts: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)])


class _Ranked(NamedTuple):
    """Rows of weight 1, segment after segment, ascending in each.

    rows : uint32 array: twice the rank of the row's score, plus the label. starts : start of each segment, and the end
    distinct : float64 array: score of each rank
    """

    rows: npt.NDArray[np.uint32]
    starts: Integers
    distinct: Array


def _rank_rows(score: Array, tag: Integers, group_of: Any, size: int) -> _Ranked:
    counts = np.zeros(size, np.int64)
    kernels.count_groups(tag, 1, group_of, counts)
    starts = _offsets(counts)
    rows = np.empty(starts[-1], np.uint32)
    distinct = np.empty(score.size)
    n = kernels.scatter_ranks(score, tag, group_of, starts[:-1].copy(), distinct, rows)
    return _Ranked(rows, starts, distinct[:n])


def _item_columns(columns: list[Array], weighted: bool) -> list[Array]:
    """Return the columns of blocks; with weights, sums get low parts, as for double-doubles."""
    if not weighted:
        return columns
    first, last, weight, positives = columns
    zero = np.zeros(first.size)
    return [first, last, weight, zero, positives, zero]


def _cut_rows(ranked: _Ranked, cut: LevelCut, weighted: bool) -> tuple[list[Array], Integers]:
    rows, starts, distinct = ranked
    if cut.pooled:
        one_range = BlockRanges(np.zeros(1, np.int32), np.array([0, 1]))
        parents = np.zeros(cut.size, np.int32)
        blocks, _, sizes = pool_ranks_within(*ranked, one_range, parents, np.ones(cut.size, np.bool_))
        return _item_columns(list(blocks), weighted), _offsets(sizes)
    points = np.empty((3, rows.size))
    ends = np.empty(cut.size, np.int64)
    kernels.points_of_ranks(rows, starts, distinct, points, ends)
    point_starts = np.concatenate([[0], ends])
    return [column[: point_starts[-1]] for column in points], point_starts


def _cut_entries(
    entries: Coded, group_of: Any, cut: LevelCut, weighted: bool
) -> tuple[list[Array], Integers]:
    group = group_of[entries.code].astype(np.int64)
    score, group, weight, positives = ordering.sum_coded(entries._replace(code=group))
    wanted = group >= 0
    starts = _offsets(np.bincount(group[wanted], minlength=cut.size))
    points = np.empty((3, starts[-1]))
    # Codes are groups already: map each to itself.
    identity = np.arange(cut.size + 1, dtype=np.int32)
    identity[-1] = -1
    kernels.scatter_points(score, group, weight, positives, identity, starts[:-1].copy(), points)
    if not cut.pooled:
        return list(points), starts
    zero = np.zeros(starts[-1])
    blocks, sizes = pava.pool_groups(
        (points[0], points[0], points[1], zero, points[2], zero), starts, pava.ALL
    )
    columns = blocks if weighted else [blocks[i] for i in (0, 1, 2, 4)]
    return list(columns), _offsets(sizes)
