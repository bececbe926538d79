"""Fitting segments that borrow strength, out of core: see `calibrators.partial_pooling` for what is fitted.

A merged range leaves of each segment its counts within the stretches where its parent's map can be constant. Level by
level these come together (a task takes neighbouring segments of all ranges), the variances of the level are estimated
from all its segments, in the order of their keys, and its maps are what the next level leans on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from calibrators._kernels.logistic import logistic
from calibrators.calibration_map import CalibrationMap
from calibrators.isotonic_groups import maps_of_blocks
from calibrators.partial_pooling import (
    LEAST,
    MOST,
    Cells,
    OwnMaps,
    Stretches,
    WithinStretches,
    curve_of,
    logit_of,
    move,
    own_maps,
    pool_within,
)
from calibrators.passes import Array
from calibrators.sampling import odds_divided
from pipeline.execution import Executor
from pipeline.files.blobs import Blob, write_blob
from pipeline.sort.exchange import Exchanged, gather, item_counts
from pipeline.sort.run_files import Integers
from pipeline.sort.segment_visits import MOST_POOLED, pack
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


def fit_leaning(
    whole: CalibrationMap,
    segments: Segments,
    exchanged: Sequence[Sequence[Exchanged]],
    reasons: Sequence[list[str | None]],
    executor: Executor,
    scratch: Path,
    task_bytes: int,
    rate: float = 1.0,
) -> tuple[list[LevelFit], tuple[tuple[float, float], ...]]:
    """Fit all levels' segments.

    Parameters
    ----------
    whole : the map of all rows: isotonic regression
    segments, exchanged : of each level, what the merge has left of its segments: see `LevelCut.own`
    reasons : see `own_segments`; completed
    scratch, task_bytes : folder that all tasks see; bytes that a task takes
    rate : of sampled negatives, see `calibrators.sampling`: counts are the log's, and maps those of all rows

    Returns
    -------
    fits of the levels, and each one's variances of shifts and slopes
    """
    curves, of = _curve_of_all(whole, rate), np.zeros(segments.coding.count, np.int32)
    fits, variances = [], []
    for level, files, found in zip(segments.levels, exchanged, reasons, strict=True):
        parent = np.empty(len(level.keys), np.int32)
        parent[level.of] = of
        pooled = np.array([reason is None for reason in found], np.bool_)
        cells = _gathered(files, curves.stretches, parent, pooled, level, executor, scratch, task_bytes)
        fit, curves, pair = _fit_level(level, cells, curves, parent, found, rate)
        of = level.of
        fits.append(fit)
        variances.append(pair)
    return fits, tuple(variances)


def _curve_of_all(whole: CalibrationMap, rate: float) -> _Curves:
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


def _gathered(
    files: Sequence[Exchanged],
    stretches: Stretches,
    parent: Codes,
    pooled: npt.NDArray[np.bool_],
    level: Level,
    executor: Executor,
    scratch: Path,
    task_bytes: int,
) -> WithinStretches:
    """What all segments of a level have within the stretches of their parents' maps."""
    name = scratch / f"level-{level.level}"
    edges = f"{name}-edges"
    write_blob(edges, [stretches.edges.data])
    parents = write_codes(Path(f"{name}-parents"), parent)
    sizes = 8 * files[0].columns * item_counts(files)
    small, _ = pack(sizes, np.zeros(parent.size, np.bool_), task_bytes, MOST_POOLED, cut=False)
    tasks = []
    for codes in small:
        first, last = int(codes[0]), int(codes[-1])
        own = stretches.starts[parent[first] : parent[last] + 2]
        tasks.append((tuple(files), first, last, edges, own, parents, pooled[first : last + 1]))
    parts: list[WithinStretches] = executor.run("join", _join, tasks)
    return WithinStretches(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _join(
    files: tuple[Exchanged, ...],
    first: int,
    last: int,
    edges: str,
    starts: Integers,
    parents: str,
    pooled: npt.NDArray[np.bool_],
) -> WithinStretches:
    """The same of segments first, ..., last. edges, parents : paths. starts : of their parents' stretches among all."""
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
    level: Level,
    items: WithinStretches,
    above: _Curves,
    parent: Codes,
    reasons: list[str | None],
    rate: float,
) -> tuple[LevelFit, _Curves, tuple[float, float]]:
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
    moved = move(cells)
    alone = (items.first[starts[:-1]] == items.last[starts[1:] - 1]).tolist()
    for i, reason in enumerate(reasons):
        if reason is None and alone[i]:
            reasons[i] = ONE_SCORE
    fitted = np.array([reason is None for reason in reasons], np.bool_)
    level_of_cells = moved.predict(cells)
    prior = np.repeat(level_of_cells, np.diff(np.append(begin, segment.size)))
    maps, own = _own_maps(items, segment, fitted, prior, rate)
    moves = _moves(level.level, moved.shift, moved.slope, above.moves, parent, fitted, maps, rate)
    fit = LevelFit(level.level, level.keys, level.rows, level.positives, reasons, maps, moves)
    eta = moved.shift[owner] + moved.slope[owner] * logit
    curves = _curves(items.first[begin], eta, cells.weight, owner, fitted, own, moves)
    return fit, curves, moved.variances


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
