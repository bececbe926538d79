"""Fitting segments that borrow strength, out of core: see `calibrators.partial_pooling` for what is fitted.

A merged range leaves of each segment its counts within the stretches where its parent's map can be constant. Level by
level these come together (a task takes neighbouring segments of all ranges), the variances of the level are estimated
from all its segments, in the order of their keys, and its maps are what the next level leans on.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels.logistic import logistic
from calibrators.base import Calibrator
from calibrators.isotonic_groups import maps_of_blocks
from calibrators.partial_pooling import (
    LEAST,
    MOST,
    Cells,
    Moved,
    OwnMaps,
    Stretches,
    WithinStretches,
    cross,
    curve_of,
    logit_of,
    move,
    own_maps,
    pool_within,
)
from calibrators.passes import Array
from calibrators.sampling import odds_divided
from pipeline.execution import Graph
from pipeline.files.blobs import Blob, receipts_in, write_blob
from pipeline.fit.calibration import refuse_table
from pipeline.log.logs import Log
from pipeline.sort.exchange import Exchanged, gather, item_counts
from pipeline.sort.run_files import Integers
from pipeline.sort.score_table import ScoreTable, SortPlan
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_visits import ITEM_BYTES, MOST_POOLED, most_works, pack, within
from pipeline.sort.segments import Codes, Level, Segments, read_codes, write_codes
from pipeline.table.segment_maps import ONE_SCORE, LevelFit, Maps, Moves, SegmentRules


@dataclass(frozen=True)
class _Curves:
    """The finished maps of a level, as the segments below it move them.

    Attributes
    ----------
    stretches : where each map is constant on the rows that it was fitted to
    logit : float64 array: of each stretch's level. centre : float64 array, shape (maps,): see `Curve`
    moves : how each map comes from one of those in the table
    """

    stretches: Stretches
    logit: Array
    centre: Array
    moves: Moves


def own_segments(segments: Segments, rules: SegmentRules) -> list[list[str | None]]:
    """Of each level's segments, why it has no map of its own; None where it has."""
    return [
        [rules.reason(n, k) for n, k in zip(level.rows.tolist(), level.positives.tolist(), strict=True)]
        for level in segments.levels
    ]


class Numbered(NamedTuple):
    """The segments of a log, and what is to be done with them.

    reasons : of each level, why segments are not fitted, None where they are. wanted : which are
    cutting : what the merge leaves of them
    """

    segments: Segments
    reasons: tuple[list[str | None], ...]
    wanted: tuple[npt.NDArray[np.bool_], ...]
    cutting: Cutting


def add_leaning(
    graph: Graph, calibrator: Calibrator, first: Any, numbered: Any, log: Log, plan: SortPlan
) -> Any:
    """Add the fits of all levels to a graph: `whole -> pack-1 -> join-1-i -> level-1 -> pack-2 ... -> levels`.

    Parameters
    ----------
    calibrator : isotonic regression; with its sampling rate counts are the log's, and maps those of all rows
    first, numbered : references to the score table with the first pass's result, and to a `Numbered`

    Returns
    -------
    reference to the fits of the levels, and each one's variances of shifts and slopes
    """
    rate = calibrator.sampling_rate
    curves = graph.task("whole", _curve_of_all, first, calibrator, rate)
    most = most_works(log.rows, ITEM_BYTES, plan.bucket_bytes, 1, MOST_POOLED)
    levels = []
    for i in range(len(log.columns.segments)):
        packed = graph.task(f"pack-{i + 1}", _packed, first, numbered, curves, i, plan, most)
        entries = [(entry,) for entry in graph.entries(f"work-{i + 1}", packed, most)]
        joined = graph.layer(f"join-{i + 1}", _join, entries, receipts=receipts_in(plan.scratch))
        level = graph.task(f"level-{i + 1}", _fit_level, numbered, joined, curves, i, rate)
        curves = graph.task(f"curves-{i + 1}", operator.itemgetter(1), level)
        levels.append(level)
    return graph.task("levels", _all_levels, levels)


def _all_levels(
    levels: list[tuple[LevelFit, _Curves, tuple[float, float]]],
) -> tuple[list[LevelFit], tuple[tuple[float, float], ...]]:
    return [fit for fit, *_ in levels], tuple(variances for *_, variances in levels)


def _curve_of_all(first: tuple[ScoreTable, Any], calibrator: Calibrator, rate: float) -> _Curves:
    refuse_table(first[0])
    # Other computations of the graph have it, too.
    fitted = copy.copy(calibrator).fit_passes(lambda request: first[1])
    whole = fitted.calibration_map_
    rows = np.flatnonzero(whole.weight > 0)
    level = whole.prob_lo[rows]
    if rate != 1.0:
        level = np.asarray(odds_divided(level, 1.0 / rate))
    curve = curve_of(level, whole.weight[rows])
    ends = np.array([curve.low, curve.high])
    low, high = (odds_divided(ends, rate) if rate != 1.0 else ends).reshape(2, 1)
    moves = Moves(np.zeros(1, np.int32), np.zeros(1), np.ones(1), low, high)
    stretches = Stretches(whole.score_lo[rows], np.array([0, rows.size]))
    return _Curves(stretches, curve.logit, np.array([curve.centre]), moves)


def _parents(numbered: Numbered, level: int) -> Codes:
    """The place of each segment's parent among those of the level above."""
    own = numbered.segments.levels[level]
    parent = np.zeros(len(own.keys), np.int32)
    if level:
        parent[own.of] = numbered.segments.levels[level - 1].of
    return parent


class _Work(NamedTuple):
    """Neighbouring segments first, ..., last, of which a task gathers what all ranges have.

    edges, parents : paths of files. starts : of their parents' stretches among all. pooled : see `pool_within`
    """

    files: tuple[Exchanged, ...]
    first: int
    last: int
    edges: str
    starts: Integers
    parents: str
    pooled: npt.NDArray[np.bool_]


def _packed(
    merged: tuple[ScoreTable, Any],
    numbered: Numbered,
    curves: _Curves,
    level: int,
    plan: SortPlan,
    count: int,
) -> list[_Work | None]:
    """What tasks gather of a level's segments within the stretches of their parents' maps."""
    files, stretches, pooled = merged[0].exchanged[level], curves.stretches, numbered.wanted[level]
    parent = _parents(numbered, level)
    name = f"{plan.scratch}/level-{level + 1}"
    edges = f"{name}-edges"
    write_blob(edges, [stretches.edges.data])
    parents = write_codes(f"{name}-parents", parent)
    sizes = 8 * files[0].columns * item_counts(files)

    def works(task_bytes: int, most: int) -> list[_Work]:
        small, _ = pack(sizes, np.zeros(parent.size, np.bool_), task_bytes, most, cut=False)
        found = []
        for first, last in ((int(codes[0]), int(codes[-1])) for codes in small):
            own = stretches.starts[parent[first] : parent[last] + 2]
            found.append(_Work(tuple(files), first, last, edges, own, parents, pooled[first : last + 1]))
        return found

    return within(count, plan.bucket_bytes, MOST_POOLED, works)


def _join(work: _Work | None) -> WithinStretches | None:
    """What segments have within the stretches of their parents' maps."""
    if work is None:
        return None
    files, first, last, edges, starts, parents, pooled = work
    columns, items = gather(files, first, last)
    if len(columns) == 4:
        zero = np.zeros(columns[0].size)
        columns = [*columns[:3], zero, columns[3], zero]
    parent = read_codes(parents, first, last + 1)
    own = np.empty(int(starts[-1] - starts[0]))
    with Blob(edges) as blob:
        blob.read(8 * int(starts[0]), own.data.cast("B"))
    stretches = Stretches(own, starts - starts[0])
    found = pool_within(columns, items, stretches, parent - parent[0], pooled)
    return found._replace(stretch=found.stretch + starts[0])


def _starts(sizes: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)])


def _fit_level(
    numbered: Numbered, joined: list[WithinStretches | None], above: _Curves, place: int, rate: float
) -> tuple[LevelFit, _Curves, tuple[float, float]]:
    """The fit of a level, its finished maps, and the variances of their shifts and slopes."""
    level, reasons = numbered.segments.levels[place], list(numbered.reasons[place])
    parent = _parents(numbered, place)
    filled = [part for part in joined if part is not None]
    items = WithinStretches(*(np.concatenate(column) for column in zip(*filled, strict=True)))
    starts = _starts(items.sizes)
    segment = np.repeat(np.arange(items.sizes.size), items.sizes)
    # Items of one stretch are a cell of it.
    begin = np.flatnonzero(np.diff(segment, prepend=-1) | np.diff(items.stretch, prepend=-1))
    own_stretch, owner = items.stretch[begin], segment[begin]
    logit = above.logit[own_stretch]
    cells = Cells(
        np.searchsorted(owner, np.arange(items.sizes.size + 1)),
        logit,
        logit - above.centre[parent][owner],
        np.add.reduceat(items.weight, begin),
        np.add.reduceat(items.positives, begin),
    )
    moved, crossed = _moved(cells, above.centre[parent], level, parent)
    alone = (items.first[starts[:-1]] == items.last[starts[1:] - 1]).tolist()
    for i, reason in enumerate(reasons):
        if reason is None and alone[i]:
            reasons[i] = ONE_SCORE
    fitted = np.array([reason is None for reason in reasons], np.bool_)
    level_of_cells = moved.predict(cells)
    prior = np.repeat(level_of_cells, np.diff(np.append(begin, segment.size)))
    maps, own = _own_maps(items, segment, fitted, prior, rate)
    moves = _moves(level.level, moved.shift, moved.slope, above.moves, parent, fitted, maps, rate)
    fit = LevelFit(level.level, level.keys, level.rows, level.positives, reasons, maps, moves, crossed)
    eta = moved.shift[owner] + moved.slope[owner] * logit
    curves = _curves(items.first[begin], eta, cells.weight, owner, fitted, own, moves)
    return fit, curves, moved.variances


def _moved(cells: Cells, centre: Array, level: Level, parent: Codes) -> tuple[Moved, tuple[float, float]]:
    """How segments move their parents' curves: by what their last column's value does to all of them, and each by what
    is left; and the variances of the former.
    """
    if level.level < 2:
        return move(cells), (0.0, 0.0)
    values: dict[Any, int] = {}
    value = np.array([values.setdefault(key[-1], len(values)) for key in level.keys], np.int64)
    main = cross(cells, value, parent.astype(np.int64))
    sizes = np.diff(cells.starts)
    logit = np.repeat(main.shift, sizes) + np.repeat(main.slope, sizes) * cells.logit
    offset = logit - np.repeat(main.shift + main.slope * centre, sizes)
    own = move(cells._replace(logit=logit, offset=offset))
    shift, slope = own.shift + own.slope * main.shift, own.slope * main.slope
    return Moved(own.variances, shift, slope), main.variances


def _own_maps(
    items: WithinStretches, segment: Integers, fitted: npt.NDArray[np.bool_], prior: Array, rate: float
) -> tuple[Maps, OwnMaps]:
    """Maps of the segments that have one of their own; and the same as blocks, with the levels of the log's rows."""
    mine = fitted[segment]
    own = own_maps(
        items.first[mine],
        items.last[mine],
        items.weight[mine],
        items.positives[mine],
        _starts(items.sizes[fitted]),
        prior[mine],
    )
    sizes = np.zeros(fitted.size, np.int64)
    level = own.level if rate == 1.0 else np.asarray(odds_divided(own.level, rate))
    blocks = np.column_stack([own.first, own.last, own.weight, own.positives])
    maps, rows = maps_of_blocks(blocks, level, own.sizes)
    sizes[fitted] = rows
    return Maps(sizes.tolist(), [[column] for column in maps]), own


def _moves(
    level: int,
    shift: Array,
    slope: Array,
    above: Moves,
    parent: Codes,
    fitted: npt.NDArray[np.bool_],
    maps: Maps,
    rate: float,
) -> Moves:
    """How the table says it: a parent's shift and slope come first, where it has no map of its own."""
    # With odds times the rate: logit p - log r = shift + slope (logit q - log r).
    log_rate = float(logit_of(np.array([rate]), np.ones(1))[0])
    shift = shift + (1.0 - slope) * log_rate
    own = np.flatnonzero(fitted)
    low, high = above.low[parent], above.high[parent]
    fitted_level = above.fitted_level[parent]
    if own.size:
        rows = np.array(maps.sizes)[own]
        last = np.cumsum(rows) - 1
        prob = maps.columns[2][0]
        low[own], high[own], fitted_level[own] = prob[last - rows + 1], prob[last], level
    shift = np.where(fitted, 0.0, shift + slope * above.shift[parent])
    slope = np.where(fitted, 1.0, slope * above.slope[parent])
    return Moves(fitted_level, shift, slope, np.clip(low, LEAST, MOST), np.clip(high, LEAST, MOST))


def _curves(
    first: Array,
    logit: Array,
    weight: Array,
    owner: Integers,
    fitted: npt.NDArray[np.bool_],
    own: OwnMaps,
    moves: Moves,
) -> _Curves:
    """The finished maps of a level. first, logit, weight, owner : of all cells where the parents' maps are moved."""
    kept = ~fitted[owner]
    level = np.clip(own.level, LEAST, MOST)
    owner = np.concatenate([owner[kept], np.repeat(np.flatnonzero(fitted), own.sizes)])
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    edges = np.concatenate([first[kept], own.first])[order]
    logit = np.concatenate([logit[kept], logit_of(level, 1.0 - level)])[order]
    weight = np.concatenate([weight[kept], own.weight])[order]
    starts = np.searchsorted(owner, np.arange(fitted.size + 1))
    p = np.empty(logit.size)
    logistic(logit, p)
    information = weight * p * (1.0 - p)
    total = np.add.reduceat(information, starts[:-1])
    centre = np.add.reduceat(information * logit, starts[:-1]) / np.where(total > 0, total, 1.0)
    return _Curves(Stretches(edges, starts), logit, centre, moves)
