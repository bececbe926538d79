"""Partial pooling of segments, out of core: see `calibrators.segments.partial_pooling` for what is fitted.

A merged range of scores leaves each segment's counts within the block ranges where its parent's map can be constant.
Level by level these counts are gathered (a task takes neighbouring segments of all ranges), and the variances of the
level are estimated from all its segments, in the order of their keys. The level's maps are the parents of the next.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.sampling import odds_divided
from calibrators.methods.base import Calibrator
from calibrators.methods.isotonic import Isotonic
from calibrators.segments.adjusting import LEAST, MOST, Adjusted, CellParts, adjust, cross, curve_of, logit_of
from calibrators.segments.bends import STRENGTH, bend
from calibrators.segments.partial_pooling import OWN_STRENGTH, BlockRanges
from pipeline.execution import Graph
from pipeline.files.blobs import receipts_in, write_blob
from pipeline.fit.calibration import refuse_table
from pipeline.fit.pooled_cells import (
    Joined,
    Made,
    Own,
    Parents,
    Work,
    cells_of,
    join,
    make,
    shares_of,
    starts_of,
)
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_tasks import ITEM_BYTES, MOST_POOLED, limit_batches, most_batches, pack
from pipeline.sort.segments import Codes, Level, Segments, item_counts, write_codes
from pipeline.table.segment_maps import NO_BEND, ONE_SCORE, Adjustments, LevelFit, Maps


@dataclass(frozen=True)
class _Curves:
    """The finished maps of a level, as the segments below it move them.

    Attributes
    ----------
    block_ranges : where each map is constant on the rows that it was fitted to
    logit : float64 array: of each block range's level. centre : float64 array, shape (maps,): see `Curve`
    adjustments : how each map comes from one of those in the table
    """

    block_ranges: BlockRanges
    logit: Array
    centre: Array
    adjustments: Adjustments


class Numbered(NamedTuple):
    """The segments of a log, and what is to be done with them.

    reasons : of each level, why segments are not fitted, None where they are. wanted : which are
    cutting : what the merge leaves of them
    """

    segments: Segments
    reasons: tuple[list[str | None], ...]
    wanted: tuple[npt.NDArray[np.bool_], ...]
    cutting: Cutting


def add_pooled(graph: Graph, calibrator: Calibrator, first: Any, numbered: Any, rows: SortedRows) -> Any:
    """Add the fits of all levels to a graph: `whole -> pack-1 -> join-1-i -> move-1 -> own-1-i -> level-1
    -> pack-2 ... -> levels`.

    Parameters
    ----------
    calibrator : of all rows; with its sampling rate counts are the log's, and maps those of all rows. Where it is
        isotonic regression, shifts and slopes are the most likely ones, and own maps are pooled with adjusted maps;
        otherwise they give expected probabilities, and own maps are pooled with adjusted maps that bend
    first, numbered : references to the score table with the first pass's result, and to a `Numbered`

    Returns
    -------
    reference to the fits of the levels, each one's variances of shifts and slopes, and the fitted calibrator
    """
    rate, plan, columns = calibrator.sampling_rate, rows.plan, rows.log.columns.segments
    mean = not isinstance(calibrator, Isotonic)
    fitted = graph.task("whole", _fitted, first, calibrator)
    curves = graph.task("curve", _curve_of_all, fitted, rate)
    most = most_batches(rows.log.rows, ITEM_BYTES, plan.bucket_bytes, 1, MOST_POOLED)
    levels = []
    for i in range(len(columns)):
        packed = graph.task(f"pack-{i + 1}", _packed, first, numbered, curves, i, plan, most)
        works = graph.entries(f"work-{i + 1}", packed, most)
        receipts = receipts_in(plan.scratch)
        joined = graph.layer(f"join-{i + 1}", join, [(work,) for work in works], receipts=receipts)
        adjusted = graph.task(f"adjust-{i + 1}", _adjust, numbered, joined, curves, i, mean)
        shares = graph.entries(
            f"share-{i + 1}", graph.task(f"shares-{i + 1}", operator.attrgetter("shares"), adjusted), most
        )
        each = [(*of, rate) for of in zip(works, joined, shares, strict=True)]
        made = graph.layer(f"own-{i + 1}", make, each)
        level = graph.task(f"level-{i + 1}", _fit_level, numbered, adjusted, made, curves, i, rate)
        curves = graph.task(f"curves-{i + 1}", operator.itemgetter(1), level)
        levels.append(level)
    return graph.task("levels", _all_levels, levels, fitted)


def _all_levels(
    levels: list[tuple[LevelFit, _Curves | None, tuple[float, float]]], fitted: Calibrator
) -> tuple[list[LevelFit], tuple[tuple[float, float], ...], Calibrator]:
    return [fit for fit, *_ in levels], tuple(variances for *_, variances in levels), fitted


def _fitted(first: tuple[ScoreTable, Any], calibrator: Calibrator) -> Calibrator:
    refuse_table(first[0])
    # Other computations of the graph have it, too.
    return copy.copy(calibrator).fit_passes(lambda request: first[1])


def _curve_of_all(fitted: Calibrator, rate: float) -> _Curves:
    found, ends = fitted.block_ranges(), fitted.calibration_map_.prob_lo[[0, -1]]
    curve = curve_of(found.level, found.weight)
    if isinstance(fitted, Isotonic):  # the curve is the map, but that it says neither 0 nor 1
        ends = np.array([curve.low, curve.high])
        ends = np.asarray(odds_divided(ends, rate)) if rate != 1.0 else ends
    low, high = ends.reshape(2, 1)
    adjustments = Adjustments(np.zeros(1, np.int32), np.zeros(1), np.ones(1), low, high)
    block_ranges = BlockRanges(found.edges, np.array([0, found.edges.size]))
    return _Curves(block_ranges, curve.logit, np.array([curve.centre]), adjustments)


def _parents(numbered: Numbered, level: int) -> Codes:
    """The place of each segment's parent among those of the level above."""
    own = numbered.segments.levels[level]
    parent = np.zeros(len(own.keys), np.int32)
    if level:
        parent[own.of] = numbered.segments.levels[level - 1].of
    return parent


def _packed(
    merged: tuple[ScoreTable, Any],
    numbered: Numbered,
    curves: _Curves,
    level: int,
    plan: SortPlan,
    count: int,
) -> list[Work | None]:
    """Gather a level's segments from tasks, within the block ranges of their parents' maps."""
    files, block_ranges, pooled = merged[0].shuffled[level], curves.block_ranges, numbered.wanted[level]
    parent, below = _parents(numbered, level), level + 1 < len(numbered.segments.levels)
    name = f"{plan.scratch}/level-{level + 1}"
    edges, logits = f"{name}-edges", f"{name}-logits"
    write_blob(edges, [block_ranges.edges.data])
    write_blob(logits, [curves.logit.data])
    of = write_codes(f"{name}-parents", parent)
    sizes = 8 * files[0].columns * item_counts(files)

    def works(task_bytes: int, most: int) -> list[Work]:
        small, _ = pack(sizes, np.zeros(parent.size, np.bool_), task_bytes, most, cut=False)
        found = []
        for first, last in ((int(codes[0]), int(codes[-1])) for codes in small):
            starts = block_ranges.starts[parent[first] : parent[last] + 2]
            own = pooled[first : last + 1]
            left = f"{name}-cells-{first}"
            found.append(
                Work(tuple(files), first, last, Parents(edges, logits, starts, of), own, below, left)
            )
        return found

    return limit_batches(count, plan.bucket_bytes, MOST_POOLED, works)


class _Level(NamedTuple):
    """Adjustments of a level's segments. crossed : variances of the adjustments by their last column's values.

    bent : for the manifest. shares : of tasks that make maps
    """

    adjusted: Adjusted
    crossed: tuple[float, float]
    bent: dict[str, float]
    shares: list[Own | None]


def _adjust(
    numbered: Numbered, joined: list[Joined | None], above: _Curves, place: int, mean: bool
) -> _Level:
    parent, pooled = _parents(numbered, place), numbered.wanted[place]
    centre = above.centre[parent]
    cells = cells_of([part for part in joined if part is not None], above.logit, centre)
    adjusted, crossed, across = _adjusted(cells, centre, numbered.segments.levels[place], parent, mean)
    if not mean:
        return _Level(adjusted, crossed, {}, shares_of(joined, adjusted, pooled, None, OWN_STRENGTH))
    bends = bend(cells, adjusted, pooled)
    # Where nothing bends own maps would add noise alone.
    bending = pooled & (bends.sigma > 0)
    bent = {"place": adjusted.pivot, "place_across": across, "bend": bends.sigma}
    return _Level(adjusted, crossed, bent, shares_of(joined, adjusted, bending, bends.theta, STRENGTH))


def _adjusted(
    parts: CellParts, centre: Array, level: Level, parent: Codes, mean: bool
) -> tuple[Adjusted, tuple[float, float], float]:
    """Adjust segments to their parents' curves: by their last column's value in all of them, and each by what
    is left; and the variances and the place of the former.
    """
    if level.level < 2:
        return adjust(parts, mean=mean), (0.0, 0.0), 0.0
    cells = parts.part(0, parts.groups)
    values: dict[Any, int] = {}
    value = np.array([values.setdefault(key[-1], len(values)) for key in level.keys], np.int64)
    main = cross(cells, value, parent.astype(np.int64), mean=mean)
    sizes = np.diff(cells.starts)
    logit = np.repeat(main.shift, sizes) + np.repeat(main.slope, sizes) * cells.logit
    own = adjust(cells._replace(logit=logit, centre=main.shift + main.slope * centre), mean=mean)
    shift, slope = own.shift + own.slope * main.shift, own.slope * main.slope
    return Adjusted(own.variances, shift, slope, own.pivot), main.variances, main.pivot


def _fit_level(
    numbered: Numbered, level: _Level, made: list[Made | None], above: _Curves, depth: int, rate: float
) -> tuple[LevelFit, _Curves | None, tuple[float, float]]:
    """The fit of a level, its finished maps, and the variances of their shifts and slopes."""
    segments, parts = numbered.segments.levels[depth], [part for part in made if part is not None]
    fitted = np.concatenate([part.fitted for part in parts])
    reasons = list(numbered.reasons[depth])
    for lacking in np.flatnonzero(numbered.wanted[depth] & ~fitted).tolist():
        reasons[lacking] = ONE_SCORE if level.bent.get("bend", 1) > 0 else NO_BEND
    sizes = np.concatenate([part.sizes for part in parts]).tolist()
    maps = Maps(sizes, [list(column) for column in zip(*(part.columns for part in parts), strict=True)])
    adjustments = _adjustments(
        segments.level, level.adjusted, above.adjustments, _parents(numbered, depth), parts, rate
    )
    fit = LevelFit(
        segments.level,
        segments.keys,
        segments.rows,
        segments.positives,
        reasons,
        maps,
        adjustments,
        level.crossed,
        level.bent,
    )
    part_curves = [part.curves for part in parts if part.curves is not None]
    curves = None
    if part_curves:
        edges, logit, block_ranges, centre = (
            np.concatenate(column) for column in zip(*part_curves, strict=True)
        )
        curves = _Curves(BlockRanges(edges, starts_of(block_ranges)), logit, centre, adjustments)
    return fit, curves, level.adjusted.variances


def _adjustments(
    level: int,
    adjusted: Adjusted,
    above: Adjustments,
    parent: Codes,
    made: list[Made],
    rate: float,
) -> Adjustments:
    """Return the adjustments as the table has them: those of a parent without a map of its own come first."""
    # With odds times the rate: logit p - log r = shift + slope (logit q - log r).
    log_rate = float(logit_of(np.array([rate]), np.ones(1))[0])
    slope = adjusted.slope
    shift = adjusted.shift + (1.0 - slope) * log_rate
    low, high = above.low[parent], above.high[parent]
    fitted = np.concatenate([part.fitted for part in made])
    fitted_level = above.fitted_level[parent]
    fitted_level[fitted] = level
    for of, ends in ((low, 0), (high, 1)):
        of[fitted] = np.concatenate([_ends(part)[ends] for part in made])
    shift = np.where(fitted, 0.0, shift + slope * above.shift[parent])
    slope = np.where(fitted, 1.0, slope * above.slope[parent])
    return Adjustments(fitted_level, shift, slope, np.clip(low, LEAST, MOST), np.clip(high, LEAST, MOST))


def _ends(made: Made) -> tuple[Array, Array]:
    """The lowest and the highest probability of each map."""
    rows = made.sizes[made.fitted]
    last = np.cumsum(rows) - 1
    prob = made.columns[2]
    return prob[last - rows + 1], prob[last]
