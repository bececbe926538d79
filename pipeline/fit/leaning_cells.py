"""What tasks do with the segments of a level that borrow strength: see `pipeline.fit.leaning_segments`.

A task takes neighbouring segments. It leaves what they have within the stretches of their parents' maps in a file of
scratch space, since of many segments together that is as much as the log; once the level's variances are known, it
makes of that file the maps of its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels.logistic import logistic
from calibrators.isotonic_groups import maps_of_blocks
from calibrators.partial_pooling import (
    LEAST,
    MOST,
    Cells,
    Moved,
    OwnMaps,
    Stretches,
    logit_of,
    own_maps,
    pool_within,
)
from calibrators.passes import Array
from calibrators.sampling import odds_divided
from pipeline.files.blobs import Blob, write_blob
from pipeline.sort.exchange import Exchanged, gather
from pipeline.sort.run_files import Integers
from pipeline.sort.segments import read_codes


class Parents(NamedTuple):
    """The maps that the segments of a task move: paths of files, and the place of the first stretch.

    edges, logits : of all stretches. starts : of the stretches of these maps, shape (maps + 1,)
    of : the place of each segment's map among all
    """

    edges: str
    logits: str
    starts: Integers
    of: str

    def read(self, path: str) -> Array:
        """What a file has of these maps' stretches."""
        own = np.empty(int(self.starts[-1] - self.starts[0]))
        with Blob(path) as blob:
            blob.read(8 * int(self.starts[0]), own.data.cast("B"))
        return own


class Work(NamedTuple):
    """Neighbouring segments first, ..., last, of which a task gathers what all ranges have.

    pooled : see `pool_within`. left : path of the file that the task leaves
    """

    files: tuple[Exchanged, ...]
    first: int
    last: int
    parents: Parents
    pooled: npt.NDArray[np.bool_]
    left: str


class Joined(NamedTuple):
    """A file with the items of some segments, within the stretches of their parents' maps, and the cells they are in.

    Cells are what a segment has in a stretch. Columns of numbers of 8 bytes, one after another: of each segment the
    cells and the items; of each cell the place of its stretch among all, its first item, weight, positives; of each
    item first score, last score, weight, positives.
    """

    path: str
    segments: int
    cells: int
    items: int

    def _read(self, start: int, columns: int, size: int, kind: type[Any]) -> npt.NDArray[Any]:
        found = np.empty((columns, size), kind)
        if found.size:
            with Blob(self.path) as blob:
                blob.read(8 * start, found.reshape(-1).data.cast("B"))
        return found

    def sizes(self) -> Integers:
        """Of each segment the cells and the items: int64, shape (2, segments)."""
        return self._read(0, 2, self.segments, np.int64)

    def places(self) -> Integers:
        """Of each cell its stretch and its first item: int64, shape (2, cells)."""
        return self._read(2 * self.segments, 2, self.cells, np.int64)

    def counts(self) -> Array:
        """Of each cell weight and positives: float64, shape (2, cells)."""
        return self._read(2 * self.segments + 2 * self.cells, 2, self.cells, np.float64)

    def columns(self) -> Array:
        """The items: float64, shape (4, items)."""
        return self._read(2 * self.segments + 4 * self.cells, 4, self.items, np.float64)


def join(work: Work | None) -> Joined | None:
    """What segments have within the stretches of their parents' maps."""
    if work is None:
        return None
    columns, items, _ = gather(work.files, work.first, work.last)
    if len(columns) == 4:
        zero = np.zeros(columns[0].size)
        columns = [*columns[:3], zero, columns[3], zero]
    parents = work.parents
    parent = read_codes(parents.of, work.first, work.last + 1)
    stretches = Stretches(parents.read(parents.edges), parents.starts - parents.starts[0])
    found = pool_within(columns, items, stretches, parent - parent[0], work.pooled)
    segment = np.repeat(np.arange(found.sizes.size), found.sizes)
    # Items of one stretch are a cell of it.
    begin = np.flatnonzero(np.diff(segment, prepend=-1) | np.diff(found.stretch, prepend=-1))
    written = (
        np.bincount(segment[begin], minlength=found.sizes.size),
        found.sizes,
        found.stretch[begin] + parents.starts[0],
        begin,
        np.add.reduceat(found.weight, begin),
        np.add.reduceat(found.positives, begin),
        found.first,
        found.last,
        found.weight,
        found.positives,
    )
    write_blob(work.left, (np.ascontiguousarray(column).data.cast("B") for column in written))
    return Joined(work.left, found.sizes.size, begin.size, found.first.size)


def cells_of(joined: Sequence[Joined], logit: Array, centre: Array) -> Cells:
    """The cells of all segments of a level.

    logit : of all stretches of the parents' maps. centre : of each segment's parent
    """
    sizes = np.concatenate([part.sizes()[0] for part in joined])
    starts = starts_of(sizes)
    columns = np.empty((4, int(starts[-1])))
    at = 0
    for part in joined:
        own = slice(at, at + part.cells)
        columns[0, own] = logit[part.places()[0]]
        columns[2:, own] = part.counts()
        at += part.cells
    columns[1] = columns[0] - np.repeat(centre, sizes)
    return Cells(starts, *columns)


class Own(NamedTuple):
    """What a task makes maps from: of its segments which are wanted, and how they move their parents' maps."""

    wanted: npt.NDArray[np.bool_]
    shift: Array
    slope: Array


def shares_of(
    joined: Sequence[Joined | None], wanted: npt.NDArray[np.bool_], moved: Moved
) -> list[Own | None]:
    """What each task needs."""
    shares: list[Own | None] = []
    at = 0
    for part in joined:
        if part is None:
            shares.append(None)
            continue
        own = slice(at, at + part.segments)
        shares.append(Own(wanted[own], moved.shift[own], moved.slope[own]))
        at += part.segments
    return shares


class MovedMaps(NamedTuple):
    """Finished maps of some segments, as the segments below move them: see `leaning_segments.Curves`.

    edges, logit : float64 arrays. sizes : of each segment its stretches. centre : of each segment
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
    curves: MovedMaps | None


def make(
    work: Work | None, joined: Joined | None, share: Own | None, rate: float, parents: bool
) -> Made | None:
    """Maps of the segments that have one of their own.

    rate : by which odds are divided. parents : whether there are segments below
    """
    if work is None or joined is None or share is None:
        return None
    cells, items = joined.sizes()
    stretch, begin = joined.places()
    first, last, weight, positives = joined.columns()
    starts = starts_of(items)
    alone = first[starts[:-1]] == last[starts[1:] - 1]
    fitted = share.wanted & ~alone
    logit = work.parents.read(work.parents.logits)[stretch - work.parents.starts[0]]
    eta = np.repeat(share.shift, cells) + np.repeat(share.slope, cells) * logit
    level = np.empty(eta.size)
    logistic(eta, level)
    mine = np.repeat(fitted, items)
    prior = np.repeat(level, np.diff(np.append(begin, first.size)))
    sizes = np.zeros(fitted.size, np.int64)
    if not fitted.any():
        columns, own = [np.empty(0)] * 7, None
    else:
        own = own_maps(
            first[mine], last[mine], weight[mine], positives[mine], starts_of(items[fitted]), prior[mine]
        )
        said = own.level if rate == 1.0 else np.asarray(odds_divided(own.level, rate))
        blocks = np.column_stack([own.first, own.last, own.weight, own.positives])
        columns, sizes[fitted] = maps_of_blocks(blocks, said, own.sizes)
    curves = _curves(first[begin], eta, joined.counts()[0], cells, fitted, own) if parents else None
    return Made(fitted, sizes, columns, curves)


def _curves(
    first: Array,
    logit: Array,
    weight: Array,
    cells: Integers,
    fitted: npt.NDArray[np.bool_],
    own: OwnMaps | None,
) -> MovedMaps:
    """first, logit, weight : of all cells where the parents' maps are moved. cells : of each segment."""
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
    return MovedMaps(edges, logit, np.diff(starts), centre)


def starts_of(sizes: Integers) -> Integers:
    """Where each of neighbours begins, and the end of all."""
    return np.concatenate([[0], np.cumsum(sizes)])
