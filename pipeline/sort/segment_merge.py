"""Merging of a range of scores of a log with segments: rows are sorted once, for all of them and for each segment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core import sorting
from calibrators.core.arrays import Array, Codes, Integers, Mask
from calibrators.core.kernels import pava
from calibrators.core.keys import add_sorted, sort_rows
from calibrators.core.passes import Points
from calibrators.core.pava import pool_points
from calibrators.core.sorting import Coded
from calibrators.segments.partial_pooling import BlockRanges, pool_ranks_within, pool_within
from calibrators.segments.wide_ranges import cell_begins
from logcal.arrow_columns import as_column
from pipeline import schema
from pipeline._kernels import rows as kernels
from pipeline.sort.parts import write_part
from pipeline.sort.score_cells import add_up_cells
from pipeline.sort.sections import Sections, UnitRows
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
    cells : whether items are points added up in cells, see `pipeline.sort.score_cells`
    """

    groups: str
    size: int
    pooled: bool
    path: str
    own_maps: str | None = None
    cells: bool = False


class KeptSegments(NamedTuple):
    """Output of each segment's points for a kept score table.

    folder : folder of the parts, one per range. keys : Parquet file of the segments' values by code
    """

    folder: str
    keys: str


class Cutting(NamedTuple):
    """Settings of a merge task for the items of segments on all levels.

    weighted : whether rows have weights. kept : None if the score table is not kept
    left_out : path of a file of int32 flags: codes whose rows are left out of the pass, and of what decides where the
        map of all rows can be constant; None: no rows. Without levels they are left out of everything
    """

    coding: Coding
    levels: tuple[LevelCut, ...]
    weighted: bool
    kept: KeptSegments | None = None
    left_out: str | None = None

    @property
    def in_block_ranges(self) -> bool:
        """True if items lie within block ranges; see `LevelCut.own_maps`."""
        return any(cut.own_maps is not None for cut in self.levels)


def merge_segments(
    bucket: Sections, cutting: Cutting, index: int, scale: float = 1.0
) -> tuple[Points, Points, list[ShuffleFile]]:
    """Merge all rows of a range, and write the items of each segment on each level.

    scale : factor of the sums of weights of a score and a segment

    Returns
    -------
    points : of all rows. used : those of the pass, see `Cutting.left_out`. files : one shuffle file per level
    """
    rows = _Ranked(bucket.rows) if bucket.unweighted else _Summed(bucket, scale)
    if not rows.points.score.size:
        return rows.points, rows.points, []
    used = rows.points
    if cutting.left_out is not None:
        used = rows.without(read_codes(cutting.left_out, 0, cutting.coding.count).astype(np.bool_))
    if not cutting.levels:
        return used, used, []
    if cutting.kept is not None:
        _write_kept_points(rows.segment_points(), cutting.kept, index)
    ranges = None
    if cutting.in_block_ranges:
        score = rows.points.score
        blocks = pool_points(used if used.score.size else rows.points).first
        ranges = _Ranges(rows.edges(np.union1d(blocks, score[cell_begins(score)])))
    files = []
    for cut in cutting.levels:
        groups = read_codes(cut.groups, 0, cutting.coding.count)
        columns, starts = rows.items(cut, groups, ranges)
        if cut.cells:
            score, *sums = columns
            columns, starts = add_up_cells(score, score, sums, starts)
        else:
            columns = _of_blocks(columns, cutting.weighted)
        files.append(write_shuffle(f"{cut.path}-{index:05d}", columns, starts))
    return rows.points, used, files


def _of_blocks(columns: list[Array], weighted: bool) -> list[Array]:
    """Return the columns to write: the sums of blocks have low parts, as double-doubles, if rows have weights."""
    if len(columns) == 6 and not weighted:
        return [*columns[:3], columns[4]]
    if len(columns) == 4 and weighted:
        zero = np.zeros(columns[0].size)
        return [*columns[:3], zero, columns[3], zero]
    return columns


class _Ranges:
    """Block ranges where the parent maps of a level's segments can be constant, level by level.

    The map of all rows is constant on unions of the range's isotonic blocks, and so are maps adjusted from it. A
    segment's own map is constant on unions of the items that lie within these ranges.

    edges : starts of the range's isotonic blocks, and where wide ones may be divided: float64 scores, or their int32
        ranks
    """

    def __init__(self, edges: Any) -> None:
        self.block_ranges = BlockRanges(edges, np.array([0, edges.size]))
        self._parents: Any = None

    def parents(self, groups: Any, cut: LevelCut) -> tuple[Any, Any]:
        """Return the parent of each of a level's segments, and whether it gets a map of its own."""
        parent = np.zeros(cut.size, np.int32)
        if self._parents is not None:
            parent[groups] = self._parents
        assert cut.own_maps is not None
        return parent, read_codes(cut.own_maps, 0, cut.size).astype(np.bool_)

    def descend(self, edges: Any, starts: Integers, groups: Any) -> None:
        """Go to the next level. edges, starts : starts of each segment's items, and of each segment among them."""
        self.block_ranges, self._parents = BlockRanges(edges, starts), groups


def _write_kept_points(points: Coded, kept: KeptSegments, index: int) -> None:
    """Write each segment's points; a repeated task writes the same file again."""
    score, code, weight, positives = points
    keys = read_keys(kept.keys, code)
    fields = [(field.name, field.type) for field in keys.schema]
    table = pa.Table.from_arrays(
        [*keys.columns, *(as_column(column) for column in (score, weight, positives))],
        schema=schema.segmented_score_table(fields),
    )
    write_part(table, f"{kept.folder}/part-{index:05d}.parquet", [*keys.schema.names, "weight", "positives"])


def _offsets(counts: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)])


class _Ranked:
    """Rows of weight 1 of a range. A segment's rows are the ranks of their scores in the range, and their labels.

    points : points of all segments together
    """

    def __init__(self, rows: UnitRows) -> None:
        sort_rows(*rows)
        self.rows = rows
        score, _, *sums = add_sorted(*rows, by_code=False)
        self.points = Points(score, *sums)

    def segment_points(self) -> Coded:
        """Return the points of each segment."""
        return add_sorted(*self.rows, by_code=True)

    def without(self, left_out: Mask) -> Points:
        """Return the points of the rows whose codes are not left out."""
        kept = ~left_out[self.rows.tag >> 1]
        score, _, *sums = add_sorted(*(column[kept] for column in self.rows), by_code=False)
        return Points(score, *sums)

    def edges(self, scores: Array) -> Codes:
        """Return the ranks of scores."""
        return np.searchsorted(self.points.score, scores).astype(np.int32)

    def items(self, cut: LevelCut, groups: Codes, ranges: _Ranges | None) -> tuple[list[Array], Integers]:
        """Return the items of a level's segments by column, and the start of each segment's."""
        score, tag = self.rows
        counts = np.zeros(cut.size, np.int64)
        kernels.count_groups(tag, groups, counts)
        starts = _offsets(counts)
        ranks = np.empty(starts[-1], np.uint32)
        kernels.scatter_ranks(score, tag, groups, starts[:-1].copy(), ranks)
        if ranges is None and not cut.pooled:
            points = np.empty((3, ranks.size))
            ends = np.empty(cut.size, np.int64)
            kernels.points_of_ranks(ranks, starts, self.points.score, points, ends)
            point_starts = np.concatenate([[0], ends])
            return [column[: point_starts[-1]] for column in points], point_starts
        if ranges is None:
            one_range = BlockRanges(np.zeros(1, np.int32), np.array([0, 1]))
            within = one_range, np.zeros(cut.size, np.int32), np.ones(cut.size, np.bool_)
        else:
            within = ranges.block_ranges, *ranges.parents(groups, cut)
        blocks, first_ranks, sizes = pool_ranks_within(ranks, starts, self.points.score, *within)
        starts = _offsets(sizes)
        if ranges is not None:
            ranges.descend(first_ranks, starts, groups)
        return list(blocks), starts


class _Summed:
    """Rows of a range as sums by score and segment, with scaled weights; see `_Ranked`."""

    def __init__(self, bucket: Sections, scale: float) -> None:
        self.sums = bucket.sorted_sums()
        if scale != 1.0:
            # Scale complete sums: rounding must not depend on how rows are divided into runs.
            score, code, weight, positives = sorting.sum_coded(self.sums)
            self.sums = Coded(score, code, weight * scale, positives * scale)
        score, _, *sums = self.sums
        self.points = Points(*sorting.sum_ties(score, *sums))

    def segment_points(self) -> Coded:
        """Return the points of each segment."""
        return sorting.sum_coded(self.sums)

    def without(self, left_out: Mask) -> Points:
        """Return the points of the rows whose codes are not left out."""
        score, code, weight, positives = self.sums
        kept = ~left_out[code]
        return Points(*sorting.sum_ties(score[kept], weight[kept], positives[kept]))

    def edges(self, scores: Array) -> Array:
        """Return the scores."""
        return scores

    def items(self, cut: LevelCut, groups: Codes, ranges: _Ranges | None) -> tuple[list[Array], Integers]:
        """Return the items of a level's segments by column, and the start of each segment's."""
        score, group, weight, positives = sorting.sum_coded(self.sums._replace(code=groups[self.sums.code]))
        starts = _offsets(np.bincount(group[group >= 0], minlength=cut.size))
        points = np.empty((3, starts[-1]))
        kernels.scatter_points(score, group, weight, positives, starts[:-1].copy(), points)
        if ranges is None and not cut.pooled:
            return list(points), starts
        score, weight, positives = points
        zero = np.zeros(score.size)
        blocks = (score, score, weight, zero, positives, zero)
        if ranges is None:
            columns, sizes = pava.pool_groups(blocks, starts, pava.ALL)
            return list(columns), _offsets(sizes)
        pooled = pool_within(blocks, starts, ranges.block_ranges, *ranges.parents(groups, cut))
        starts = _offsets(pooled.sizes)
        ranges.descend(pooled.items[0], starts, groups)
        return list(pooled.items), starts
