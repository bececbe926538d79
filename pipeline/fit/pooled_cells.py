"""Tasks of partial pooling for the segments of a level: see `pipeline.fit.pooled_segments`.

A task takes neighbouring segments. It writes their counts within the block ranges of their parents' maps to a file in
scratch space, since those of all segments together can be as large as the log. Once the level's variances are known, a
task makes the maps of its segments from that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels.log_odds import logistic
from calibrators.arithmetic.calibration_map import maps_of_blocks
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.sampling import odds_divided
from calibrators.segments.adjusting import LEAST, MOST, Adjusted, CellParts, Cells, logit_of
from calibrators.segments.bends import bent
from calibrators.segments.partial_pooling import (
    BlockRanges,
    OwnMaps,
    WithinBlockRanges,
    own_maps,
    pool_within,
)
from pipeline.files.blobs import Blob
from pipeline.sort.run_files import Integers
from pipeline.sort.segments import Packed, ShuffleFile, gather, read_codes, write_packed

MOST_HELD = 1 << 23
"""Cells that are read once and held, 24 bytes each."""


class Parents(NamedTuple):
    """The maps that the segments of a task move: paths of files, and the place of the first block range.

    edges, logits : of all block ranges. starts : of the block ranges of these maps, shape (maps + 1,)
    of : the place of each segment's map among all
    """

    edges: str
    logits: str
    starts: Integers
    of: str

    def read(self, path: str) -> Array:
        """Read a file's rows of these maps' block ranges."""
        own = np.empty(int(self.starts[-1] - self.starts[0]))
        with Blob(path) as blob:
            blob.read(8 * int(self.starts[0]), own.data.cast("B"))
        return own


class Work(NamedTuple):
    """Task that gathers neighbouring segments first, ..., last from all ranges of scores.

    pooled : which are to have a map of their own; see `pool_within`. below : whether there are segments below
    left : path of the file that the task leaves
    """

    files: tuple[ShuffleFile, ...]
    first: int
    last: int
    parents: Parents
    pooled: npt.NDArray[np.bool_]
    below: bool
    left: str


class Joined(NamedTuple):
    """Rows of some segments in the block ranges of their parents' maps, in a file.

    Cells are what a segment has in a block range; a pooled segment's are made of items. Columns: of each segment its
    cells; of each cell the place of its block range among all, weight, positives, and where segments are below
    its first score; of the pooled segments' cells how many items each has, of pooled segments how many; of
    their items first score, last score, weight, positives.
    """

    file: Packed

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self.file.sizes[0]

    def sizes(self) -> Integers:
        """Number of cells of each segment."""
        return self.file.read(0).view(np.int64)

    def block_ranges(self, start: int = 0, stop: int | None = None) -> Integers:
        """Block ranges of cells start, ..., stop - 1."""
        return self.file.read(1, start, stop).view(np.int64)

    def numbers(self, column: int, start: int = 0, stop: int | None = None) -> Array:
        """The same; column : 2 for the weight, 3 for positives, 4 for the first score."""
        return self.file.read(column, start, stop).view(np.float64)

    def item_counts(self) -> tuple[Integers, Integers]:
        """Number of items of each of the pooled segments' cells, and of each of these segments."""
        return self.file.read(5).view(np.int64), self.file.read(6).view(np.int64)

    def items(self) -> list[Array]:
        """The items."""
        return [self.file.read(column).view(np.float64) for column in range(7, 11)]


def join(work: Work | None) -> Joined | None:
    """Gather the rows of segments in the block ranges of their parents' maps."""
    if work is None:
        return None
    parents = work.parents
    parent = read_codes(parents.of, work.first, work.last + 1)
    parent -= parent[0]
    block_ranges = BlockRanges(parents.read(parents.edges), parents.starts - parents.starts[0])
    columns, starts, _ = gather(work.files, work.first, work.last)
    if len(columns) == 4:  # counts
        first, last, weight, positives = columns
        none = np.empty(0)
        columns = [first, last, weight, none, positives, none]
    found = pool_within(columns, starts, block_ranges, parent, work.pooled)
    del columns
    return Joined(write_packed(work.left, _columns(work, found)))


def _columns(work: Work, found: WithinBlockRanges) -> Iterator[npt.NDArray[Any]]:
    """The columns of a `Joined`: most are short, and so each is made when the one before it is written."""
    pooled = np.repeat(work.pooled, found.cells)
    begin = np.cumsum(found.counts) - found.counts
    first, last, weight, _, positives, _ = found.items
    yield found.cells
    yield found.block_range + work.parents.starts[0]
    yield np.add.reduceat(weight, begin)
    yield np.add.reduceat(positives, begin)
    yield first[begin] if work.below else np.empty(0)
    yield found.counts[pooled]
    yield found.sizes[work.pooled]
    mine = np.repeat(work.pooled, found.sizes)
    for column in (first, last, weight, positives):
        yield column[mine]


class JoinedCells:
    """The cells of all segments of a level, read where they are looked at: of a million segments they are 400 MB.

    logit : of all block ranges of the parents' maps. centre : of each segment's parent
    """

    def __init__(self, joined: Sequence[Joined], logit: Array, centre: Array) -> None:
        self._joined = joined
        self._logit = logit
        self._centre = centre
        self.starts = starts_of(np.concatenate([part.sizes() for part in joined]))
        self._first = starts_of(np.array([part.segments for part in joined]))

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self.starts.size - 1

    def part(self, start: int, stop: int) -> Cells:
        """Select segments start, ..., stop - 1."""
        starts = self.starts[start : stop + 1] - self.starts[start]
        columns = np.empty((3, int(starts[-1])))
        at = 0
        for part, first in zip(self._joined, self._first.tolist(), strict=False):
            low, high = max(start, first), min(stop, first + part.segments)
            if low >= high:
                continue
            begin, end = (self.starts[[low, high]] - self.starts[first]).tolist()
            own = slice(at, at + end - begin)
            columns[0, own] = self._logit[part.block_ranges(begin, end)]
            columns[1, own] = part.numbers(2, begin, end)
            columns[2, own] = part.numbers(3, begin, end)
            at = own.stop
        return Cells(starts, self._centre[start:stop], *columns)


def cells_of(joined: Sequence[Joined], logit: Array, centre: Array) -> CellParts:
    """See `JoinedCells`; in memory where they are few, since they are looked at several times."""
    cells = JoinedCells(joined, logit, centre)
    return cells if cells.starts[-1] > MOST_HELD else cells.part(0, cells.groups)


class Own(NamedTuple):
    """Input of a task that makes maps: its segments' adjustments to their parents' maps, and bends of own maps.

    pooled : which are to have a map of their own. theta : of these, see `Bends`; None where they do not bend
    strength : see `own_maps`
    """

    shift: Array
    slope: Array
    pooled: npt.NDArray[np.bool_]
    theta: Array | None
    strength: float


def shares_of(
    joined: Sequence[Joined | None],
    adjusted: Adjusted,
    pooled: npt.NDArray[np.bool_],
    theta: Array | None,
    strength: float,
) -> list[Own | None]:
    """Divide the input among the tasks. pooled : which segments are to have a map of their own."""
    shares: list[Own | None] = []
    before = starts_of(pooled.astype(np.int64))
    at = 0
    for part in joined:
        if part is None:
            shares.append(None)
            continue
        own = slice(at, at + part.segments)
        bends = None if theta is None else theta[before[own.start] : before[own.stop]]
        shares.append(Own(adjusted.shift[own], adjusted.slope[own], pooled[own], bends, strength))
        at += part.segments
    return shares


class AdjustedMaps(NamedTuple):
    """Finished maps of some segments, as the segments below move them: see `pooled_segments.Curves`.

    edges, logit : float64 arrays. sizes : of each segment its block ranges. centre : of each segment
    """

    edges: Array
    logit: Array
    sizes: Integers
    centre: Array


class Made(NamedTuple):
    """Maps of some segments.

    fitted : which have one of their own. sizes : of each segment the rows of its map
    columns : the rows, as `CalibrationMap` names them. curves : None where nothing is below
    """

    fitted: npt.NDArray[np.bool_]
    sizes: Integers
    columns: list[Array]
    curves: AdjustedMaps | None


def make(work: Work | None, joined: Joined | None, share: Own | None, rate: float) -> Made | None:
    """Maps of the segments that have one of their own. rate : by which odds are divided."""
    if work is None or joined is None or share is None:
        return None
    fitted, sizes = share.pooled.copy(), np.zeros(share.pooled.size, np.int64)
    columns, own = [np.empty(0)] * 7, None
    if not (work.below or fitted.any()):
        return Made(fitted, sizes, columns, None)
    cells = joined.sizes()
    logit = work.parents.read(work.parents.logits)[joined.block_ranges() - work.parents.starts[0]]
    eta = np.repeat(share.shift, cells) + np.repeat(share.slope, cells) * logit
    if fitted.any():
        of_cells, items = joined.item_counts()
        first, last, weight, positives = joined.items()
        starts = starts_of(items)
        several = first[starts[:-1]] != last[starts[1:] - 1]
        fitted[share.pooled] = several
    if fitted.any():
        level, mine = np.empty(of_cells.size), np.repeat(share.pooled, cells)
        own_eta = eta[mine]
        if share.theta is not None:
            own_eta = bent(own_eta, joined.numbers(2)[mine], cells[share.pooled], share.theta)
        logistic(own_eta, level)
        prior = np.repeat(level, of_cells)
        if not several.all():
            mine = np.repeat(several, items)
            first, last, weight, positives, prior = (
                column[mine] for column in (first, last, weight, positives, prior)
            )
        own = own_maps(first, last, weight, positives, starts_of(items[several]), prior, share.strength)
        said = own.level if rate == 1.0 else np.asarray(odds_divided(own.level, rate))
        blocks = np.stack([own.first, own.last, own.weight, own.positives])
        columns, sizes[fitted] = maps_of_blocks(blocks, said, own.sizes)
    curves = _curves(joined.numbers(4), eta, joined.numbers(2), cells, fitted, own) if work.below else None
    return Made(fitted, sizes, columns, curves)


def _curves(
    first: Array,
    logit: Array,
    weight: Array,
    cells: Integers,
    fitted: npt.NDArray[np.bool_],
    own: OwnMaps | None,
) -> AdjustedMaps:
    """first, logit, weight : of all cells where the parents' maps are adjusted. cells : of each segment."""
    owner = np.repeat(np.arange(fitted.size), cells)
    kept = ~fitted[owner]
    edges, logit, weight, owner = first[kept], logit[kept], weight[kept], owner[kept]
    if own is not None:
        level = np.clip(own.level, LEAST, MOST)
        owner = np.concatenate([owner, np.repeat(np.flatnonzero(fitted), own.sizes)])
        edges = np.concatenate([edges, own.first])
        logit = np.concatenate([logit, logit_of(level, 1.0 - level)])
        weight = np.concatenate([weight, own.weight])
        order = np.argsort(owner, kind="stable")
        owner, edges, logit, weight = owner[order], edges[order], logit[order], weight[order]
    starts = np.searchsorted(owner, np.arange(fitted.size + 1))
    p = np.empty(logit.size)
    logistic(logit, p)
    information = weight * p * (1.0 - p)
    total = np.add.reduceat(information, starts[:-1])
    centre = np.add.reduceat(information * logit, starts[:-1]) / np.where(total > 0, total, 1.0)
    return AdjustedMaps(edges, logit, np.diff(starts), centre)


def starts_of(sizes: Integers) -> Integers:
    """Return the start of each of neighbours, and the end of all."""
    return np.concatenate([[0], np.cumsum(sizes)])
