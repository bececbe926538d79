"""Tasks of partial pooling for the segments of a level: see `pipeline.fit.pooled_segments`.

A task gathers neighbouring segments. It writes their counts within the block ranges of their parents' maps to a file in
scratch space, since the counts of all segments can be as large as the log. Once the level's variances are estimated,
another task makes the maps of these segments from that file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.map import maps_of_blocks
from calibrators.core.sampling import odds_divided
from calibrators.measures.segment_check import SegmentCells, SegmentSums, segment_sums
from calibrators.segments.adjusting import Adjusted, BlockCells, CellParts
from calibrators.segments.bends import Bends, bent
from calibrators.segments.common_bend import STRENGTHS, CommonBend
from calibrators.segments.curves import LEAST, MOST, logistic_of, logit_of
from calibrators.segments.falling import change_at_falls
from calibrators.segments.own import Chosen, can_contradict, choose_maps, least_evidence
from calibrators.segments.partial_pooling import (
    BlockRanges,
    OwnMaps,
    WithinBlockRanges,
    cells_within,
    pool_within,
)
from pipeline.files.blobs import Blob
from pipeline.sort.segments import Packed, ShuffleFile, gather, read_codes, write_packed

MOST_IN_MEMORY = 1 << 23
"""Largest number of cells, of 24 bytes each, that are kept in memory instead of being read again."""


class Parents(NamedTuple):
    """Parents' maps of the segments of a task.

    edges, logits : paths of files with the edge and the level's logit of each block range of the level's parents
    starts : positions of these maps' block ranges in the files, shape (maps + 1,)
    of : path of a file with the index of each segment's parent
    """

    edges: str
    logits: str
    starts: Integers
    of: str

    def read(self, path: str) -> Array:
        """Read a file's values for the block ranges of these maps."""
        values = np.empty(int(self.starts[-1] - self.starts[0]))
        with Blob(path) as blob:
            blob.read(8 * int(self.starts[0]), values.data.cast("B"))
        return values


class GatherTask(NamedTuple):
    """Task that gathers neighbouring segments first, ..., last from all ranges of scores.

    files : the shuffle files of the ranges
    parents : maps of the segments' parents
    pooled : mask of the segments that get their own map; see `pool_within`
    below : whether there is a level below
    path : path of the file that the task writes
    """

    files: tuple[ShuffleFile, ...]
    first: int
    last: int
    parents: Parents
    pooled: Mask
    below: bool
    path: str


class GatheredCells(NamedTuple):
    """File with the counts of some segments in the block ranges of their parents' maps.

    A cell has the counts of a segment in a block range; a pooled segment's cells consist of items. Columns:

    - 0: number of cells of each segment
    - 1 to 4: index of the block range among all, weight, positives and, if there is a level below, first score of cells
    - 5, 6: number of items of each cell of pooled segments, and of each pooled segment
    - 7 to 10: first score, last score, weight and positives of these items
    """

    file: Packed

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self.file.sizes[0]

    def sizes(self) -> Integers:
        """Return the number of cells of each segment."""
        return self.file.read(0).view(np.int64)

    def block_ranges(self, start: int = 0, stop: int | None = None) -> Integers:
        """Return the indices of the block ranges of cells start, ..., stop - 1."""
        return self.file.read(1, start, stop).view(np.int64)

    def numbers(self, column: int, start: int = 0, stop: int | None = None) -> Array:
        """Return a column of cells start, ..., stop - 1: 2 for weight, 3 for positives, 4 for first score."""
        return self.file.read(column, start, stop).view(np.float64)

    def item_counts(self) -> tuple[Integers, Integers]:
        """Return the number of items of each cell of pooled segments, and of each pooled segment."""
        return self.file.read(5).view(np.int64), self.file.read(6).view(np.int64)

    def items(self) -> list[Array]:
        """Return the columns of the items."""
        return [self.file.read(column).view(np.float64) for column in range(7, 11)]


def gather_cells(task: GatherTask | None) -> GatheredCells | None:
    """Gather the counts of segments in the block ranges of their parents' maps."""
    if task is None:
        return None
    parents = task.parents
    parent = read_codes(parents.of, task.first, task.last + 1)
    parent -= parent[0]
    block_ranges = BlockRanges(parents.read(parents.edges), parents.starts - parents.starts[0])
    columns, starts, _ = gather(task.files, task.first, task.last)
    within = columns, starts, block_ranges, parent, task.pooled
    # Without weights, sums are counts.
    counted = len(columns) == 4
    gathered = _counted(task, *cells_within(*within)) if counted else _columns(task, pool_within(*within))
    del columns, within
    return GatheredCells(write_packed(task.path, gathered))


def _counted(
    task: GatherTask, block_range: Integers, sums: Array, sizes: Integers, items: Array, counts: Integers
) -> Iterator[npt.NDArray[Any]]:
    """Yield the columns of `GatheredCells`. Parameters: see the kernel `cells_within`."""
    yield sizes[0]
    yield block_range + task.parents.starts[0]
    yield from sums[:2]
    yield sums[2] if task.below else np.empty(0)
    yield counts
    yield sizes[1][task.pooled]
    yield from items


def _columns(task: GatherTask, cells: WithinBlockRanges) -> Iterator[npt.NDArray[Any]]:
    """Yield the columns of `GatheredCells`, one at a time to save memory."""
    pooled = np.repeat(task.pooled, cells.cells)
    begin = np.cumsum(cells.counts) - cells.counts
    first, last, weight, _, positives, _ = cells.items
    yield cells.cells
    yield cells.block_range + task.parents.starts[0]
    yield np.add.reduceat(weight, begin)
    yield np.add.reduceat(positives, begin)
    yield first[begin] if task.below else np.empty(0)
    yield cells.counts[pooled]
    yield cells.sizes[task.pooled]
    pooled_items = np.repeat(task.pooled, cells.sizes)
    for column in (first, last, weight, positives):
        yield column[pooled_items]


class LevelCells:
    """The cells of all segments of a level, read from files on access: those of a million segments have 400 MB.

    logit : logit of the level of each block range of the parents' maps
    centre : centre of each segment's parent, see `calibrators.segments.adjusting.Curve`
    dispersion : over-dispersion, by which weight and positives are divided
    """

    def __init__(
        self, gathered: Sequence[GatheredCells], logit: Array, centre: Array, dispersion: float
    ) -> None:
        self._gathered = gathered
        self._logit = logit
        self._centre = centre
        self._dispersion = dispersion
        self.starts = starts_of(np.concatenate([part.sizes() for part in gathered]))
        self._first = starts_of(np.array([part.segments for part in gathered]))
        self._curve = np.zeros(self.groups, np.int64)  # where each segment's log odds begin in `_logit`

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self.starts.size - 1

    def bent(self, bend: CommonBend, strength: Array) -> LevelCells:
        """Bend the log odds, once for each block range. strength : of each segment."""
        result, steps = copy.copy(self), range(1, STRENGTHS + 1)
        result._logit = np.concatenate(
            [self._logit, *(bend.bent(self._logit, step / STRENGTHS) for step in steps)]
        )
        result._curve = (STRENGTHS * strength).astype(np.int64) * self._logit.size
        return result

    def part(self, start: int, stop: int) -> BlockCells:
        """Select segments start, ..., stop - 1."""
        starts = self.starts[start : stop + 1] - self.starts[start]
        curve = np.repeat(self._curve[start:stop], np.diff(starts))
        columns = np.empty((3, int(starts[-1])))
        at = 0
        for part, first in zip(self._gathered, self._first.tolist(), strict=False):
            low, high = max(start, first), min(stop, first + part.segments)
            if low >= high:
                continue
            begin, end = (self.starts[[low, high]] - self.starts[first]).tolist()
            span = slice(at, at + end - begin)
            columns[0, span] = self._logit[curve[span] + part.block_ranges(begin, end)]
            columns[1, span] = part.numbers(2, begin, end)
            columns[2, span] = part.numbers(3, begin, end)
            at = span.stop
        columns[1:] /= self._dispersion
        return BlockCells(starts, self._centre[start:stop], *columns)


def cells_of(
    gathered: Sequence[GatheredCells], logit: Array, centre: Array, dispersion: float
) -> BlockCells | LevelCells:
    """Return the cells of a level, in memory up to `MOST_IN_MEMORY`. Parameters: see `LevelCells`."""
    cells = LevelCells(gathered, logit, centre, dispersion)
    return cells if cells.starts[-1] > MOST_IN_MEMORY else cells.part(0, cells.groups)


def common_fall(
    gathered: Sequence[GatheredCells],
    cells: CellParts,
    adjusted: Adjusted,
    chosen: Mask,
    starts: Integers,
    heaviest: float,
) -> Array | None:
    """Find where the shares of segments fall together: return the change of log odds in each cell, None without a fall.

    chosen : the segments; outlying ones do not count
    starts : see `Parents`
    heaviest : see `calibrators.base.Sampling`
    """
    sums, chosen = np.zeros((3, int(starts[-1]))), chosen & ~adjusted.outlying
    first = starts_of(np.array([part.segments for part in gathered]))
    for part, (start, stop) in zip(gathered, pairwise(first.tolist()), strict=True):
        if not chosen[start:stop].any():
            continue
        own = cells.part(start, stop)
        sizes = np.diff(own.starts)
        shift, slope = (np.repeat(x[start:stop], sizes) for x in (adjusted.shift, adjusted.slope))
        mask = np.repeat(chosen[start:stop], sizes)
        expected = own.weight * logistic_of(shift + slope * own.logit)
        block_range = part.block_ranges()[mask]
        for total, column in zip(sums, (own.weight, own.positives, expected), strict=True):
            total += np.bincount(block_range, column[mask], total.size)
    sums /= heaviest
    change = np.zeros(sums.shape[1])
    for begin, end in pairwise(starts.tolist()):
        some = begin + np.flatnonzero(sums[0, begin:end])
        if some.size:
            change[some] = change_at_falls(*sums[:, some])
    return np.concatenate([change[part.block_ranges()] for part in gathered]) if change.any() else None


class MapInput(NamedTuple):
    """Input of a task that makes maps: its segments' adjustments to their parents' maps, and bends of own maps.

    shift, slope : adjustment of each segment
    pooled : mask of the segments that can have their own map
    theta : coefficients of these segments' bends, see `Bends`
    bending : whether all of them have their own map
    evidence : see `calibrators.segments.own.least_evidence`
    dispersion : see `LevelCells`
    common : bend of the parent's curve; None if there is none
    strength : float64 array, shape (segments,): its strength for each segment
    fall : see `common_fall`, of these segments' cells
    """

    shift: Array
    slope: Array
    pooled: Mask
    theta: Array
    bending: bool
    evidence: float
    dispersion: float
    common: CommonBend | None
    strength: Array
    fall: Array | None


def map_inputs(
    gathered: Sequence[GatheredCells | None],
    adjusted: Adjusted,
    pooled: Mask,
    bends: Bends,
    dispersion: float,
    common: CommonBend | None,
    strength: Array,
    fall: Array | None,
) -> list[MapInput | None]:
    """Divide a level's estimates among the tasks. Parameters: see `MapInput`."""
    inputs: list[MapInput | None] = []
    before = starts_of(pooled.astype(np.int64))
    bending, evidence = bends.sigma > 0, least_evidence(pooled.size)
    at = cell = 0
    for part in gathered:
        if part is None:
            inputs.append(None)
            continue
        span, of_cells = slice(at, at + part.segments), slice(cell, cell + int(part.sizes().sum()))
        theta = bends.theta[before[span.start] : before[span.stop]]
        adjustment = adjusted.shift[span], adjusted.slope[span]
        of_segments = (
            *adjustment,
            pooled[span],
            theta,
            bending,
            evidence,
            dispersion,
            common,
            strength[span],
            None if fall is None else fall[of_cells],
        )
        inputs.append(MapInput(*of_segments))
        at, cell = span.stop, of_cells.stop
    return inputs


class AdjustedMaps(NamedTuple):
    """Curves of some segments, the parents of the level below: see `pooled_segments._Curves`.

    edges, logit : float64 arrays: first score of each block range, and log odds of its level in the adjusted map
    sizes : number of block ranges of each segment
    centre : float64 array: centre of each segment
    """

    edges: Array
    logit: Array
    sizes: Integers
    centre: Array


class TaskMaps(NamedTuple):
    """Maps of the segments of a task.

    fitted : mask of the segments that have their own map
    sizes : number of rows of each segment's map
    columns : the rows' columns, those of `CalibrationMap`
    curves : None if there is no level below
    checked : sums for the check of the maps against their rows
    """

    fitted: Mask
    sizes: Integers
    columns: list[Array]
    curves: AdjustedMaps | None
    checked: SegmentSums


def make_maps(
    task: GatherTask | None,
    gathered: GatheredCells | None,
    estimates: MapInput | None,
    ranges: Array,
    rate: float,
) -> TaskMaps | None:
    """Make the own maps of a task's segments.

    ranges : see `segment_sums`
    rate : sampling rate, by which odds are divided
    """
    if task is None or gathered is None or estimates is None:
        return None
    cells = gathered.sizes()
    of_cells = gathered.block_ranges() - task.parents.starts[0]
    logit = logit_of_map = task.parents.read(task.parents.logits)[of_cells]
    if estimates.common is not None:
        logit = estimates.common.bent_cells(logit, np.repeat(estimates.strength, cells))
    eta = np.repeat(estimates.shift, cells) + np.repeat(estimates.slope, cells) * logit
    edges = task.parents.read(task.parents.edges)
    of_small = _small_maps(gathered, estimates, _bounds(task.parents, edges, of_cells), eta, cells)
    own, maps = _in_order([_own_maps(gathered, estimates, eta, cells), of_small])
    sizes, columns = np.zeros(own.size, np.int64), [np.empty(0)] * 7
    if maps is not None:
        prob = maps.level if rate == 1.0 else np.asarray(odds_divided(maps.level, rate))
        blocks = np.stack([maps.first, maps.last, maps.weight, maps.positives])
        columns, sizes[own] = maps_of_blocks(blocks, prob, maps.sizes)
    curves = _curves(gathered, logit_of_map, eta, cells, own, maps) if task.below else None
    checked = segment_sums(_checked_cells(gathered, edges[of_cells], eta, cells, own, maps), ranges)
    return TaskMaps(own, sizes, columns, curves, checked)


def _bounds(parents: Parents, edges: Array, of_cells: Integers) -> tuple[Array, Array]:
    """Return bounds of the scores in cells: the lower end of their block range, and the last score below the next one.

    Where a parent's map begins or ends, which may be at infinity, both are the other bound of the range.
    """
    upper = np.nextafter(np.append(edges[1:], np.inf), -np.inf)
    ends = parents.starts[1:] - parents.starts[0] - 1
    upper[ends] = edges[ends]
    lower = np.where(np.isinf(edges), upper, edges)
    return lower[of_cells], upper[of_cells]


def _small_maps(
    gathered: GatheredCells, estimates: MapInput, bounds: tuple[Array, Array], logit: Array, cells: Integers
) -> Chosen:
    """Make own maps from the cells of other segments than the pooled ones, if their rows contradict their curve.

    bounds : see `_bounds`. Other parameters: see `_own_maps`

    Returns
    -------
    mask of all segments, and the maps
    """
    weight, positives = gathered.numbers(2), gathered.numbers(3)
    starts = np.cumsum(cells) - cells
    of_weight, of_positives = (np.add.reduceat(column, starts) for column in (weight, positives))
    own = ~estimates.pooled & (cells > 1) & can_contradict(of_weight, of_positives, estimates.evidence)
    if not own.any():
        return Chosen(own, None)
    mask = np.repeat(own, cells)
    level = logistic_of(logit[mask])
    first, last, weight, positives = (column[mask] for column in (*bounds, weight, positives))
    columns = (first, last, weight, positives)
    own[own], maps = choose_maps(
        columns, starts_of(cells[own]), level, False, estimates.evidence, estimates.dispersion
    )
    return Chosen(own, maps)


def _in_order(chosen: list[Chosen]) -> Chosen:
    """Put maps of different segments into the order of the segments."""
    own = np.logical_or.reduce([of for of, _ in chosen])
    made = [(np.flatnonzero(of), maps) for of, maps in chosen if maps is not None]
    if len(made) < 2:
        return Chosen(own, made[0][1] if made else None)
    owner = np.concatenate([np.repeat(of, maps.sizes) for of, maps in made])
    order = np.argsort(owner, kind="stable")
    first, last, weight, positives, level, _ = (
        np.concatenate(column) for column in zip(*(maps for _, maps in made), strict=True)
    )
    columns = [column[order] for column in (first, last, weight, positives, level)]
    return Chosen(own, OwnMaps._make([*columns, np.bincount(owner, minlength=own.size)[own]]))


def _own_maps(gathered: GatheredCells, estimates: MapInput, logit: Array, cells: Integers) -> Chosen:
    """Make own maps of the pooled segments; those with one score have none.

    logit : adjusted logit of each cell
    cells : number of cells of each segment

    Returns
    -------
    mask of all segments, and the maps
    """
    own = np.zeros(cells.size, np.bool_)
    if not estimates.pooled.any():
        return Chosen(own, None)
    cell_items, items = gathered.item_counts()
    columns, starts = gathered.items(), starts_of(items)
    several = columns[0][starts[:-1]] != columns[1][starts[1:] - 1]
    if not several.any():
        return Chosen(own, None)
    pooled = np.repeat(estimates.pooled, cells)
    counts = gathered.numbers(2)[pooled], gathered.numbers(3)[pooled]
    mask = np.repeat(several, items)

    def prior(logit: Array) -> Array:
        level = logistic_of(bent(logit[pooled], *counts, cells[estimates.pooled], estimates.theta))
        return np.asarray(np.repeat(level, cell_items)[mask])

    first, last, weight, positives = (column[mask] for column in columns)
    chosen = choose_maps(
        (first, last, weight, positives),
        starts_of(items[several]),
        prior(logit),
        estimates.bending,
        estimates.evidence,
        estimates.dispersion,
        None if estimates.fall is None else prior(logit + estimates.fall),
    )
    several[several] = chosen.own
    own[estimates.pooled] = several
    return Chosen(own, chosen.maps)


def _checked_cells(
    gathered: GatheredCells,
    edges: Array,
    logit: Array,
    cells: Integers,
    fitted: Mask,
    maps: OwnMaps | None,
) -> SegmentCells:
    """Return the cells of adjusted maps and the blocks of own maps, with the positives that the maps expect.

    edges, logit : first score and adjusted logit of each cell. Other parameters: see `_curves`
    """
    level = logistic_of(logit)
    weight, positives = gathered.numbers(2), gathered.numbers(3)
    columns = [edges, weight, positives, weight * level]
    if maps is None:
        return SegmentCells(starts_of(cells), *columns)
    owner = np.repeat(np.arange(fitted.size), cells)
    adjusted = ~fitted[owner]
    owner = np.concatenate([owner[adjusted], np.repeat(np.flatnonzero(fitted), maps.sizes)])
    order = np.argsort(owner, kind="stable")
    own = (maps.first, maps.weight, maps.positives, maps.weight * maps.level)
    columns = [np.concatenate([a[adjusted], b])[order] for a, b in zip(columns, own, strict=True)]
    return SegmentCells(np.searchsorted(owner[order], np.arange(fitted.size + 1)), *columns)


def _curves(
    gathered: GatheredCells,
    logit: Array,
    adjusted: Array,
    cells: Integers,
    fitted: Mask,
    maps: OwnMaps | None,
) -> AdjustedMaps:
    """Collect own maps and, for the other segments, the maps that they adjust, whose block ranges are the cells.

    logit, adjusted : log odds of each cell in the adjusted map, and adjusted
    cells : number of cells of each segment
    """
    owner = np.repeat(np.arange(fitted.size), cells)
    others = ~fitted[owner]
    p = logistic_of(adjusted[others])
    columns = [gathered.numbers(4)[others], logit[others], gathered.numbers(2)[others] * p * (1.0 - p)]
    owner = owner[others]
    if maps is not None:
        level = np.clip(maps.level, LEAST, MOST)
        owner = np.concatenate([owner, np.repeat(np.flatnonzero(fitted), maps.sizes)])
        order = np.argsort(owner, kind="stable")
        own = maps.first, logit_of(level, 1.0 - level), maps.weight * level * (1.0 - level)
        columns = [np.concatenate(parts)[order] for parts in zip(columns, own, strict=True)]
        owner = owner[order]
    edges, logit, information = columns
    starts = np.searchsorted(owner, np.arange(fitted.size + 1))
    total = np.add.reduceat(information, starts[:-1])
    centre = np.add.reduceat(information * logit, starts[:-1]) / np.where(total > 0, total, 1.0)
    return AdjustedMaps(edges, logit, np.diff(starts), centre)


def starts_of(sizes: Integers) -> Integers:
    """Return the start of each of consecutive ranges, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes)])
