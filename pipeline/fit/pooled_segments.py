"""Partial pooling of segments, out of core: see `calibrators.segments.partial_pooling` for the model.

The merge of a range of scores writes each segment's counts within the block ranges where its parent's map can be
constant. For each level, tasks gather these counts (each task neighbouring segments from all ranges), and the variances
of the level are estimated from all its segments, in the order of their keys. The level's maps are the parents of the
next level.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator, Sampling
from calibrators.core.arrays import Array, Codes, Mask
from calibrators.core.fine_cells import FineCells, fine_cells_pass
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, merge_passes
from calibrators.core.sampling import odds_divided
from calibrators.core.simplify import from_polyline, knots_of, simplify
from calibrators.isotonic.calibrator import Isotonic
from calibrators.measures.falls import proven_fall
from calibrators.measures.segment_check import SegmentSums, joined
from calibrators.segments.adjusting import Adjusted, CellParts, adjust
from calibrators.segments.bends import bend
from calibrators.segments.common_bend import (
    STRENGTHS,
    CommonBend,
    bend_in_common,
    bent_cells,
    strengths,
)
from calibrators.segments.crossing import cross
from calibrators.segments.curves import EXTREME, LEAST, MOST, bounded, curve_of, logistic_of, logit_of
from calibrators.segments.falling import FallingCells
from calibrators.segments.partial_pooling import BlockRanges
from calibrators.segments.wide_ranges import divide
from pipeline.execution import Graph
from pipeline.execution.processors import processors
from pipeline.files.blobs import receipts_in, write_blob
from pipeline.fit.calibration import check_classes_and_scores
from pipeline.fit.pooled_cells import (
    GatheredCells,
    GatherTask,
    MapInput,
    Parents,
    TaskMaps,
    cells_of,
    common_fall,
    gather_cells,
    make_maps,
    map_inputs,
    starts_of,
)
from pipeline.fit.self_check import Checked, check_all_rows, check_map
from pipeline.fit.shared_maps import SharedMaps
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_tasks import ITEM_BYTES, MOST_POOLED, limit_batches, most_batches, pack
from pipeline.sort.segments import Level, Segments, item_counts, write_codes
from pipeline.table.segment_maps import NO_BEND, ONE_SCORE, LevelFit, MapAdjustments, Maps


class _Spread(NamedTuple):
    """Spread of segments over all levels so far, and the bend that their mean has.

    variances, total : see `variances` and `spread` of `Adjusted`
    removed : float64 array, shape (segments,): part of the total that each segment's rows took away
    bend : bend of the map of all rows; None for none
    strength : float64 array, shape (segments,): each segment's strength of it
    """

    variances: tuple[float, float]
    total: float
    removed: Array
    bend: CommonBend | None
    strength: Array


@dataclass(frozen=True)
class _Curves:
    """Curves of a level, the parents of the level below: each adjusts a map in the table.

    Attributes
    ----------
    block_ranges : block ranges on which each curve is constant
    logit : float64 array, shape (block ranges,): log odds of the adjusted map
    centre : float64 array, shape (curves,): their mean, see `calibrators.segments.curves.Curve`
    origin : int32 array, shape (curves,): level of the adjusted map; 0 for that of all rows
    low, high : float64 arrays, shape (curves,): its ends
    lines : float64 arrays, shape (curves,): shift and slope of the adjusted map
    before : the same before the last step, see `calibrators.segments.crossing.cross`
    spread : how they differ
    dispersion : over-dispersion of all rows, by which the evidence of segments is divided
    """

    block_ranges: BlockRanges
    logit: Array
    centre: Array
    origin: Codes
    low: Array
    high: Array
    lines: tuple[Array, Array]
    before: tuple[Array, Array]
    spread: _Spread
    dispersion: float


class Numbered(NamedTuple):
    """The segments of a log, and which of them are fitted.

    reasons : for each level the reasons why segments are not fitted; None if they are
    wanted : for each level the mask of the fitted segments
    cutting : how the merge writes the segments' rows
    shared : maps that segments share, whose cells are the cutting's last level; None with partial pooling
    """

    segments: Segments
    reasons: tuple[list[str | None], ...]
    wanted: tuple[Mask, ...]
    cutting: Cutting
    shared: SharedMaps | None = None


def add_pooled(
    graph: Graph, calibrator: Calibrator, rate: float, first: Any, numbered: Any, rows: SortedRows
) -> Any:
    """Add the fits of all levels to a graph: `whole -> pack-1 -> join-1-i -> adjust-1 -> own-1-i -> level-1
    -> pack-2 ... -> levels`.

    Parameters
    ----------
    calibrator : calibrator of all rows
    rate : see `calibrators.base.Sampling`
    first, numbered : references to the score table with the first pass's result, and to a `Numbered`

    Returns
    -------
    reference to the `PooledLevels`
    """
    plan, columns = rows.plan, rows.log.columns.segments
    fitted = graph.task("whole", _fit_all_rows, first, calibrator, rate)
    curves = whole = graph.task("curve", _curve_of_all_rows, fitted, rate)
    ranges = graph.task("ranges", _ranges, fitted)
    most = most_batches(rows.log.rows, ITEM_BYTES, plan.bucket_bytes, 1, MOST_POOLED)
    levels = []
    for i in range(len(columns)):
        packed = graph.task(f"pack-{i + 1}", _pack_level, first, numbered, curves, i, plan, most)
        tasks = graph.entries(f"work-{i + 1}", packed, most)
        receipts = receipts_in(plan.scratch)
        gathered = graph.layer(f"join-{i + 1}", gather_cells, [(task,) for task in tasks], receipts=receipts)
        adjusted = graph.task(f"adjust-{i + 1}", _adjust, numbered, gathered, curves, i, fitted, whole, rate)
        inputs = graph.entries(
            f"share-{i + 1}", graph.task(f"shares-{i + 1}", operator.attrgetter("inputs"), adjusted), most
        )
        arguments = [(*of_task, ranges, rate) for of_task in zip(tasks, gathered, inputs, strict=True)]
        maps = graph.layer(f"own-{i + 1}", make_maps, arguments)
        level = graph.task(f"level-{i + 1}", _fit_level, numbered, adjusted, maps, curves, i, rate)
        curves = graph.task(f"curves-{i + 1}", operator.itemgetter(1), level)
        levels.append(level)
    return graph.task("levels", _all_levels, levels, fitted)


class _AllRows(NamedTuple):
    """Fitted calibrator of all rows, and the check of its map.

    cells : fine cells of the rows
    falls : whether they prove that the share of positives falls somewhere as the score rises
    """

    calibrator: Calibrator
    checked: Checked
    cells: FineCells
    falls: bool


class PooledLevels(NamedTuple):
    """Result of the fit of all levels.

    variances : variances of shifts and slopes of each level
    """

    levels: list[LevelFit]
    variances: tuple[tuple[float, float], ...]
    all_rows: _AllRows


def _all_levels(
    levels: list[tuple[LevelFit, _Curves | None, tuple[float, float]]], fitted: _AllRows
) -> PooledLevels:
    return PooledLevels([fit for fit, *_ in levels], tuple(variances for *_, variances in levels), fitted)


def _fit_all_rows(first: tuple[ScoreTable, Any], calibrator: Calibrator, rate: float) -> _AllRows:
    check_classes_and_scores(first[0])
    # Copy: other tasks of the graph share the calibrator.
    result, cells = first[1]
    sampling = Sampling(rate, first[0].heaviest)
    calibrator = copy.copy(calibrator).fit_passes(lambda request: result, sampling)
    checked = check_all_rows(calibrator, None, lambda fitted: (fitted, 0.0))
    if cells is None:
        cells = calibrator.fine_cells_
    else:
        finer = check_map(checked.fitted, calibrator, cells)
        checked = checked._replace(check=checked.check._replace(over_dispersion=finer.over_dispersion))
    assert cells is not None
    falls = proven_fall(cells, checked.check.dispersion, sampling.heaviest) is not None
    return _AllRows(calibrator, checked, cells, falls)


def pooled_pass(calibrator: Calibrator) -> Pass:
    """Return the first pass of a fit with partial pooling: the calibrator's, and fine cells if it has none."""
    first = calibrator.first_pass()
    needed = [first, fine_cells_pass()] if calibrator.needs.constant_rows else [first]
    merged = merge_passes(needed)
    return replace(merged, combine=functools.partial(_padded, merged.combine))


def _padded(combine: Callable[[list[Any]], list[Any]], states: list[Any]) -> list[Any]:
    return [*combine(states), None][:2]


def _ranges(all_rows: _AllRows) -> Array:
    """Return the first scores of the ranges in which all segments together are checked."""
    return np.asarray(all_rows.checked.check.profile[0])


def _curve_of_all_rows(all_rows: _AllRows, rate: float) -> _Curves:
    fitted, fine = all_rows.calibrator, all_rows.cells
    blocks, ends = fitted.block_ranges(), fitted.calibration_map_.prob_lo[[0, -1]]
    level = None
    if not fitted.needs.constant_rows:
        level = fitted.calibration_map_.predict_ascending(fine.first / 2 + fine.last / 2)
        level = level if rate == 1.0 else np.asarray(odds_divided(level, 1.0 / rate))
    blocks = divide(blocks, fine, level)
    curve = curve_of(blocks.level, blocks.weight)
    if isinstance(fitted, Isotonic):  # the curve equals the map, except that it is never 0 or 1
        ends = np.array([curve.low, curve.high])
        ends = np.asarray(odds_divided(ends, rate)) if rate != 1.0 else ends
    low, high = ends.reshape(2, 1)
    return _Curves(
        block_ranges=BlockRanges(blocks.edges, np.array([0, blocks.edges.size])),
        logit=curve.logit,
        centre=np.array([curve.centre]),
        origin=np.zeros(1, np.int32),
        low=low,
        high=high,
        lines=(np.zeros(1), np.ones(1)),
        before=(np.zeros(1), np.ones(1)),
        spread=_Spread((0.0, 0.0), 0.0, np.zeros(1), None, np.zeros(1)),
        dispersion=all_rows.checked.check.over_dispersion,
    )


def _knots(all_rows: _AllRows, whole: _Curves, rate: float) -> tuple[Array, Array]:
    """Return few knots of the map of all rows, none if it is nearly constant, and its log odds.

    Between knots the map is linear, and so short that a segment's bent curve is, too.
    """
    fitted, low, high = all_rows.calibrator.calibration_map_, whole.low, whole.high
    p = knots_of(fitted)[1]
    scores, p = knots_of(simplify(fitted, np.maximum(_COARSE * p * (1.0 - p), LEAST)))

    def logits(p: Array) -> Array:
        p = np.clip(p, low, high)
        p = np.clip(p if rate == 1.0 else np.asarray(odds_divided(p, 1.0 / rate)), LEAST, MOST)
        return logit_of(p, 1.0 - p)

    if not scores.size:
        return scores, scores
    # A piece that is straight in probability may be long in log odds, and bends where a segment's rate differs.
    parts = np.maximum(np.ceil(np.abs(np.diff(logits(p))) / _STEP), 1.0).astype(np.int64)
    within = np.append(np.concatenate([np.arange(n) / n for n in parts.tolist()]), 0.0)
    knot = np.repeat(np.arange(p.size), np.append(parts, 1))
    scores, p = (x[knot] + within * np.append(np.diff(x), 0.0)[knot] for x in (scores, p))
    new = np.append(np.diff(scores) > 0.0, True)
    return scores[new], logits(p[new])


_COARSE = 2.0**-8
_STEP = 2.0**-3
"""Largest difference of log odds between two knots."""


def _parents(numbered: Numbered, level: int) -> Codes:
    """Return the index of each segment's parent in the level above."""
    segments = numbered.segments.levels[level]
    parent = np.zeros(len(segments.keys), np.int32)
    if level:
        parent[segments.of] = numbered.segments.levels[level - 1].of
    return parent


def _pack_level(
    merged: tuple[ScoreTable, Any],
    numbered: Numbered,
    curves: _Curves,
    level: int,
    plan: SortPlan,
    count: int,
) -> list[GatherTask | None]:
    """Divide a level's segments among at most `count` tasks that gather their counts; pad with None."""
    files, block_ranges, pooled = merged[0].shuffled[level], curves.block_ranges, numbered.wanted[level]
    parent, below = _parents(numbered, level), level + 1 < len(numbered.segments.levels)
    name = f"{plan.scratch}/level-{level + 1}"
    edges, logits = f"{name}-edges", f"{name}-logits"
    write_blob(edges, [block_ranges.edges.data])
    write_blob(logits, [curves.logit.data])
    of = write_codes(f"{name}-parents", parent)
    sizes = 8 * files[0].columns * item_counts(files)

    def tasks(task_bytes: int, most: int) -> list[GatherTask]:
        small, _ = pack(sizes, np.zeros(parent.size, np.bool_), task_bytes, most, cut=False)
        result = []
        for first, last in ((int(codes[0]), int(codes[-1])) for codes in small):
            parents = Parents(edges, logits, block_ranges.starts[parent[first] : parent[last] + 2], of)
            mask, path = pooled[first : last + 1], f"{name}-cells-{first}"
            result.append(GatherTask(tuple(files), first, last, parents, mask, below, path))
        return result

    return limit_batches(count, plan.bucket_bytes, MOST_POOLED, tasks)


class _AdjustedLevel(NamedTuple):
    """Adjustments of a level's segments.

    adjusted : shift and slope of the map that their parents adjust, see `_Curves`
    main : effects across parents; None at the first level
    variances : see `LevelFit`
    bent : maps of all rows, bent by each strength that segments have: see `LevelFit`
    spread : how segments differ
    facts, one_range : see `LevelFit`
    inputs : inputs of the tasks that make maps
    """

    adjusted: Adjusted
    main: Adjusted | None
    variances: tuple[float, float]
    bent: dict[int, CalibrationMap]
    spread: _Spread
    facts: dict[str, float]
    inputs: list[MapInput | None]
    one_range: list[int]


def _adjust(
    numbered: Numbered,
    gathered: list[GatheredCells | None],
    above: _Curves,
    index: int,
    all_rows: _AllRows,
    whole: _Curves,
    rate: float,
) -> _AdjustedLevel:
    """Estimate a level's adjustments. whole : curve of all rows."""
    parent, pooled, level = _parents(numbered, index), numbered.wanted[index], numbered.segments.levels[index]
    centre, files = above.centre[parent], [part for part in gathered if part is not None]
    cells = cells_of(files, above.logit, centre, above.dispersion)
    across = _Across(level, parent, above) if index else None
    start, of_all = above.spread.bend, above.spread.total
    bent = cells if start is None else bent_cells(cells, start, above.spread.strength[parent])
    before = adjust(bent, processors()) if across is None else across(bent, processors())
    removed = above.spread.removed[parent] + before.removed
    certainty = removed / max(before.spread, _TINY)
    strength = np.where(above.origin[parent] == 0, strengths(certainty), 0.0)
    # To second order, a bend is in proportion to the variance that is taken away.
    start = None if start is None else start.scaled(before.spread / of_all)
    common, adjusted = bend_in_common(cells, before, strength, processors(), start, across)
    maps = {}
    if common is not None:
        knots = _knots(all_rows, whole, rate)
        if knots[0].size:
            maps = _bent_maps(all_rows, common, strength, knots, rate, level.level)
        else:  # a curve that is nearly constant has nothing to bend
            common, adjusted = None, before
    if common is None:
        bent, strength = cells, np.zeros(cells.groups)
    else:
        bent = bent_cells(cells, common, strength)
    main, own = (
        (adjusted.main, adjusted.residual) if isinstance(adjusted, _AdjustedAcross) else (None, adjusted)
    )
    fall = None
    if all_rows.falls:
        heaviest = max(1.0, all_rows.calibrator.sampling_.heaviest)
        fall = common_fall(files, bent, adjusted, pooled, above.block_ranges.starts, heaviest)
    if fall is None:
        bends = bend(bent, adjusted, pooled, processors())
    else:
        bends = bend(FallingCells(bent, cells.starts, fall), adjusted, pooled, processors())
    facts = {"pivot": own.pivot, "dispersion": above.dispersion}
    facts |= {"common_bend": 0.0 if common is None else common.scale, "bend": bends.sigma} | _typical(own)
    if main is not None:
        facts |= {"pivot_across": main.pivot} | {f"{key}_across": x for key, x in _typical(main).items()}
    one_range = np.diff(cells.starts) == 1
    return _AdjustedLevel(
        adjusted=adjusted,
        main=main,
        variances=own.variances,
        bent=maps,
        spread=_Spread(adjusted.variances, before.spread, removed, common, strength),
        facts=facts,
        inputs=map_inputs(gathered, adjusted, pooled, bends, above.dispersion, common, strength, fall),
        one_range=np.flatnonzero(one_range).tolist(),
    )


_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class _AdjustedAcross(Adjusted):
    """Adjustments by effects across parents, and by segment.

    Attributes
    ----------
    variances, spread : of all levels together
    main, residual : both steps
    """

    main: Adjusted = field(kw_only=True)
    residual: Adjusted = field(kw_only=True)

    @property
    def removed(self) -> Array:
        """Part of the spread that each segment's rows take away at this level."""
        return self.main.removed + self.residual.removed


class _Across:
    """Estimates adjustments of a deeper level: first by the last column's value, across all parents, then by segment.

    above : the parents' curves
    """

    def __init__(self, level: Level, parent: Codes, above: _Curves) -> None:
        values: dict[Any, int] = {}
        self._value = np.array([values.setdefault(key[-1], len(values)) for key in level.keys], np.int64)
        self._parent, self._spread = parent.astype(np.int64), above.spread
        self._lines, self._before = (
            (shift[parent], slope[parent]) for shift, slope in (above.lines, above.before)
        )

    def __call__(self, parts: CellParts, processors: int) -> _AdjustedAcross:
        """Adjust the cells' log odds."""
        cells = parts.part(0, parts.groups)
        lines = self._lines, self._before
        main, self._lines = cross(cells, self._value, self._parent, *lines, processors)
        sizes = np.diff(cells.starts)
        logit = np.repeat(main.shift, sizes) + np.repeat(main.slope, sizes) * cells.logit
        on_main = cells._replace(logit=logit, part_stretched=cells.logit, slope=main.slope)
        residual = adjust(on_main, processors)
        variances = self._spread.variances, main.variances, residual.variances
        shifts, slopes = (sum(parts) for parts in zip(*variances, strict=True))
        return _AdjustedAcross(
            variances=(shifts, slopes),
            shift=main.shift + residual.shift,
            slope=np.maximum(main.slope + (residual.slope - 1.0), 0.0),
            outlying=residual.outlying | main.outlying,
            pivot=residual.pivot,
            spread=self._spread.total + main.spread + residual.spread,
            main=main,
            residual=residual,
        )


def _bent_level(strength: float, columns: int) -> int:
    """Return the level in the lookup table of a map of all rows that is bent. columns : number of columns in a key."""
    return -STRENGTHS * (columns - 1) - round(strength * STRENGTHS)


def _bent_maps(
    all_rows: _AllRows,
    common: CommonBend,
    strength: Array,
    knots: tuple[Array, Array],
    rate: float,
    columns: int,
) -> dict[int, CalibrationMap]:
    """Bend the map of all rows by each strength that segments have; its rows count where their middle lies.

    knots : see `_knots`; columns : see `_bent_level`
    """
    scores, logit = knots
    rows = all_rows.calibrator.calibration_map_
    middle = (
        np.clip(rows.score_lo, -_FARTHEST, _FARTHEST) / 2 + np.clip(rows.score_hi, -_FARTHEST, _FARTHEST) / 2
    )
    maps = {}
    for value in np.unique(strength[strength > 0.0]).tolist():
        level = logistic_of(np.clip(common.bent(logit, value), -EXTREME, EXTREME))
        bent = from_polyline(scores, level if rate == 1.0 else np.asarray(odds_divided(level, rate)))
        row = np.searchsorted(bent.score_hi, middle, side="right")
        weight, positives = (
            np.bincount(row, x, len(bent)).astype(np.float64) for x in (rows.weight, rows.positives)
        )
        maps[_bent_level(value, columns)] = replace(bent, weight=weight, positives=positives)
    return maps


_FARTHEST = float(np.finfo(np.float64).max)


def _typical(adjusted: Adjusted) -> dict[str, float]:
    return {"typical_shift": adjusted.typical[0], "typical_slope": adjusted.typical[1]}


def _fit_level(
    numbered: Numbered,
    level: _AdjustedLevel,
    maps: list[TaskMaps | None],
    above: _Curves,
    depth: int,
    rate: float,
) -> tuple[LevelFit, _Curves | None, tuple[float, float]]:
    """Collect the fit of a level, its curves for the level below, and the variances of its shifts and slopes."""
    segments, parts = numbered.segments.levels[depth], [part for part in maps if part is not None]
    fitted = np.concatenate([part.fitted for part in parts])
    reasons = list(numbered.reasons[depth])
    for i in np.flatnonzero(numbered.wanted[depth] & ~fitted).tolist():
        reasons[i] = ONE_SCORE if level.facts.get("bend", 1) > 0 else NO_BEND
    for i in np.flatnonzero(fitted & ~numbered.wanted[depth]).tolist():
        reasons[i] = None  # its rows contradict the curve
    sizes = np.concatenate([part.sizes for part in parts]).tolist()
    columns = [list(column) for column in zip(*(part.columns for part in parts), strict=True)]
    parent = _parents(numbered, depth)
    origin = np.where(fitted, np.int32(segments.level), above.origin[parent])
    own = [np.clip(np.concatenate(ends), LEAST, MOST) for ends in zip(*map(_ends, parts), strict=True)]
    low, high = above.low[parent], above.high[parent]
    low[fitted], high[fitted] = own
    adjustments = _adjustments(level, segments.level, origin, (low, high), fitted, rate)
    fit = LevelFit(
        segments.level,
        segments.keys,
        segments.rows,
        segments.positives,
        reasons,
        Maps(sizes, columns),
        adjustments,
        (0.0, 0.0) if level.main is None else level.main.variances,
        level.facts,
        np.flatnonzero(level.adjusted.outlying).tolist(),
        level.one_range,
        checked=_joined(parts),
        bent={n: bent for n, bent in level.bent.items() if n in adjustments.fitted_level},
    )
    part_curves = [part.curves for part in parts if part.curves is not None]
    curves = None
    if part_curves:
        edges, logit, block_ranges, centre = (
            np.concatenate(column) for column in zip(*part_curves, strict=True)
        )
        before = (0.0, 1.0) if level.main is None else (level.main.shift, level.main.slope)
        curves = _Curves(
            block_ranges=BlockRanges(edges, starts_of(block_ranges)),
            logit=logit,
            centre=centre,
            origin=origin,
            low=low,
            high=high,
            lines=_unless(fitted, level.adjusted.shift, level.adjusted.slope),
            before=_unless(fitted, *before),
            spread=level.spread,
            dispersion=above.dispersion,
        )
    return fit, curves, level.variances


def _joined(parts: list[TaskMaps]) -> SegmentSums:
    starts = starts_of(np.array([part.fitted.size for part in parts])).tolist()
    codes = (np.arange(begin, end) for begin, end in pairwise(starts))
    return joined([(of, part.checked) for of, part in zip(codes, parts, strict=True)], starts[-1])


def _adjustments(
    level: _AdjustedLevel, columns: int, origin: Codes, ends: tuple[Array, Array], fitted: Mask, rate: float
) -> MapAdjustments:
    """Make the table's adjustments.

    columns : number of columns in a key
    origin, ends : of the map that each segment adjusts, unless it is bent: see `_Curves`
    fitted : mask of the segments with their own map
    """
    # Sampling multiplies odds by the rate: logit p - log r = shift + slope (logit q - log r).
    log_rate = float(logit_of(np.array([rate]), np.ones(1))[0])
    slope = level.adjusted.slope
    shift, slope = _unless(fitted, level.adjusted.shift + (1.0 - slope) * log_rate, slope)
    fitted_level, (low, high) = origin.copy(), (end.copy() for end in ends)
    for strength in np.unique(level.spread.strength[level.spread.strength > 0.0]).tolist():
        number = _bent_level(strength, columns)
        segments, bent = (level.spread.strength == strength) & ~fitted, level.bent[number]
        fitted_level[segments] = number
        low[segments], high[segments] = bent.prob_lo[0], bent.prob_lo[-1]
    low, high = np.clip(low, LEAST, MOST), np.clip(high, LEAST, MOST)
    return MapAdjustments(fitted_level, *bounded(shift, slope, low, high))


def _unless(fitted: Mask, shift: Array | float, slope: Array | float) -> tuple[Array, Array]:
    """Return shifts and slopes; 0 and 1 for segments with their own map."""
    return np.where(fitted, 0.0, shift), np.where(fitted, 1.0, slope)


def _ends(maps: TaskMaps) -> tuple[Array, Array]:
    """Return the lowest and the highest probability of each map."""
    rows = maps.sizes[maps.fitted]
    last = np.cumsum(rows) - 1
    prob = maps.columns[2]
    return prob[last - rows + 1], prob[last]
