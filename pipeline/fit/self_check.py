"""Check of fitted maps against their own rows: where its sums come from.

A method whose map is constant within rows has them in the map; `auto` and `smooth` gather fine cells anyway; other
methods have several passes over a written score table, and the cells are gathered in the second one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrators.auto.calibrator import Auto
from calibrators.base import Calibrator, Line
from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.check_cells import check_cells_pass
from calibrators.core.cumulative import Layout, layout_of, layout_pass
from calibrators.core.fine_cells import FineCells
from calibrators.core.log_odds import log_odds, logistic
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Points, merge_passes
from calibrators.core.sampling import odds_divided
from calibrators.measures.fit_check import (
    FitCheck,
    Misfit,
    cells_of_rows,
    cells_of_scores,
    check_fit,
    misfit_facts,
)
from calibrators.measures.segment_check import (
    SegmentCells,
    SegmentCheck,
    SegmentSums,
    check_segments,
    segment_sums,
)
from pipeline.log.segment_values import Key
from pipeline.sort.score_table import ScoreTable
from pipeline.sort.segments import Slices
from pipeline.table.segment_maps import LevelFit


class CellCollector:
    """Gathers the cells for the check of a map along with a pass after the first.

    cells : the cells; None before that, and if they are not needed
    layout : the layout of the points, as soon as it is known
    """

    def __init__(self, calibrator: Calibrator) -> None:
        self.cells: FineCells | None = None
        self.layout: Layout | None = None
        self._calibrator = calibrator

    @property
    def needed(self) -> bool:
        """True if the fit has no cells: known after the first pass."""
        fitted = self._calibrator
        return self.cells is None and not fitted.needs.constant_rows and fitted.fine_cells_ is None

    def run(self, request: Pass, run: Callable[[Pass], Any]) -> Any:
        """Carry out a pass with `run`, and with it gather the cells if they are needed and the layout is known."""
        if not self.needed:
            return run(request)
        if self.layout is None:
            result = run(request)
            # Many methods begin with the layout.
            parts = result if isinstance(result, (list, tuple)) else [result]
            self.layout = next((part for part in parts if isinstance(part, Layout)), None)
            return result
        result, self.cells = run(merge_passes([request, check_cells_pass(self.layout)]))
        return result

    def finish(self, run: Callable[[Pass], Any]) -> None:
        """Gather the cells if they are still needed."""
        if self.needed:
            self.layout = self.layout or run(layout_pass())
            self.cells = run(check_cells_pass(self.layout))


def layout_of_table(table: ScoreTable) -> Layout:
    """Return the layout of a written score table, without a pass."""
    parts = table.parts
    return layout_of(
        [(part.first, table.highest, part.points, part.weight, part.positives) for part in parts]
    )


class Checked(NamedTuple):
    """A map of all rows that was checked against its rows.

    fitted : the map
    repair : largest change by the monotone repair
    check : its check
    fallback : what replaced the map of method auto: a key of `FALLBACKS`; None: nothing
    before : the check of the map that was replaced
    """

    fitted: CalibrationMap
    repair: float
    check: FitCheck
    fallback: str | None = None
    before: FitCheck | None = None

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        before = None if self.before is None else self.before.facts() | {"profile": None}
        return {"ranges": self.check.facts(), "fallback": self.fallback, "before_fallback": before}


def no_check() -> dict[str, Any]:
    """Return the facts of a table without a map of all rows, whose rows are too few."""
    return {"ranges": None, "fallback": None, "before_fallback": None}


RANGES, EVERYWHERE = "isotonic_in_ranges", "isotonic"
FALLBACKS = {
    RANGES: "isotonic regression, in the ranges where the smooth curve does not agree with the rows",
    EVERYWHERE: "isotonic regression, since the smooth curve does not agree with the rows",
}

Keep = Callable[[CalibrationMap], tuple[CalibrationMap, float]]
"""Function that repairs a map that decreases; it returns the map and its largest change."""


def check_all_rows(calibrator: Calibrator, cells: FineCells | None, keep: Keep) -> Checked:
    """Check the map of all rows; replace the one of method auto by isotonic regression where it does not agree.

    The map of another method is never replaced: a person chose it.

    calibrator : the calibrator, after the fit; changed if its map is replaced
    cells : cells of `CellCollector`
    """
    fitted, repair = keep(calibrator.calibration_map_)
    check = check_map(fitted, calibrator, cells)
    if not check.misfits or not isinstance(calibrator, Auto) or calibrator.candidates is not None:
        return Checked(fitted, repair, check)
    before, fallback = check, None
    for fallback in FALLBACKS:
        misfits = check.misfits if fallback == RANGES else ()
        calibrator.fall_back([(misfit.first, misfit.last) for misfit in misfits])
        fitted, repair = keep(calibrator.calibration_map_)
        check = check_map(fitted, calibrator, cells)
        if not check.misfits:
            break
    return Checked(fitted, repair, check, fallback, before)


def check_map(fitted: CalibrationMap, calibrator: Calibrator, cells: FineCells | None) -> FitCheck:
    """Check a map of all rows.

    fitted : the map as it is published
    calibrator : its calibrator, after the fit
    cells : cells of `CellCollector`
    """
    ends = max(1.0, float(getattr(calibrator, "ends", 1.0)))
    rate, heaviest = calibrator.sampling_
    cells = calibrator.fine_cells_ if cells is None else cells
    if cells is None:
        return check_fit(cells_of_rows(fitted, rate), ends, heaviest)
    return check_fit(cells_of_scores(cells, fitted.predict_ascending, rate), ends, heaviest)


# Segments

ONE_RANGE = np.array([-np.inf])


def expected_positives(outcome: CalibrationMap | Line | str, points: Points, rate: float) -> Array:
    """Compute the positives that a segment's map or line expects at each point of the log; 0 without one.

    rate : sampling rate of the log, see `calibrators.base.Sampling`
    """
    if isinstance(outcome, str):
        return np.zeros(points.score.size)
    if isinstance(outcome, CalibrationMap):
        level = outcome.predict_ascending(points.score)
    else:
        level = _along(outcome, points.score)
    return points.weight * (level if rate == 1.0 else np.asarray(odds_divided(level, 1.0 / rate)))


def _along(line: Line, scores: Array) -> Array:
    x = scores if line.of == 1 else log_odds(np.clip(scores, 2.0**-53, 1.0 - 2.0**-53))
    return logistic(line.shift + line.slope * x)


def sums_of_points(segments: Slices, expected: Array, fitted: Mask) -> SegmentSums:
    """Compute the sums for the check of segments from their points.

    expected : see `expected_positives`
    fitted : mask of the segments with a map or a line; the others are not checked
    """
    score, weight, positives = segments.columns
    sizes = np.diff(segments.starts)
    kept = np.repeat(fitted, sizes)
    starts = np.concatenate([[0], np.cumsum(np.where(fitted, sizes, 0))])
    cells = SegmentCells(starts, *(column[kept] for column in (score, weight, positives, expected)))
    return segment_sums(cells, ONE_RANGE)


def sums_of_rows(columns: Sequence[Array], sizes: Integers) -> SegmentSums:
    """Compute the sums for the check of isotonic maps, whose rows with observations are constant.

    columns : the columns of `CalibrationMap` for all segments. sizes : number of rows of each
    """
    first, _, level, _, anchor, weight, positives = columns
    filled = weight > 0
    counts = np.bincount(np.repeat(np.arange(sizes.size), sizes)[filled], minlength=sizes.size)
    starts = np.concatenate([[0], np.cumsum(counts)])
    first = np.where(np.isfinite(first), first, anchor)
    cells = (column[filled] for column in (first, weight, positives, weight * level))
    return segment_sums(SegmentCells(starts, *cells), ONE_RANGE)


def sums_of_cells(outcome: CalibrationMap | Line | str, fine: FineCells | None, rate: float) -> SegmentSums:
    """Compute the sums for the check of one large segment. fine : its cells; None: the rows of the map."""
    if isinstance(outcome, str):
        return segment_sums(SegmentCells(np.zeros(2, np.int64), *np.empty((4, 0))), ONE_RANGE)
    if isinstance(outcome, CalibrationMap):
        predict = outcome.predict_ascending
        cells = cells_of_rows(outcome, rate) if fine is None else cells_of_scores(fine, predict, rate)
    else:
        assert fine is not None
        cells = cells_of_scores(fine, functools.partial(_along, outcome), rate)
    starts = np.array([0, cells.weight.size])
    return segment_sums(
        SegmentCells(starts, cells.first, cells.weight, cells.positives, cells.expected), ONE_RANGE
    )


_MOST_NAMED, _MOST_SHOWN = 5, 20


def level_facts(
    levels: Sequence[LevelFit], shared: LevelFit | None, agreement: Checked | None, heaviest: float
) -> dict[str, Any]:
    """Check the segments of all levels, and the maps that segments share; return facts for the manifest.

    levels : levels 1, 2, ...
    shared : see `pipeline.fit.shared_maps`
    agreement : the check of the map of all rows
    heaviest : see `calibrators.base.Sampling`
    """
    dispersion = dispersion_of(agreement)
    checked = [level for level in (*levels, shared) if level is not None and level.checked is not None]
    tests = sum(level.checked.tests for level in checked if level.checked is not None)
    facts: dict[str, Any] = {"levels": [], "shared_maps": None}
    for level in checked:
        assert level.checked is not None
        several = agreement is not None and level.checked.by_score.shape[1] > 1
        ranges = agreement.check.profile[0] if agreement is not None and several else ONE_RANGE
        check = check_segments(level.checked, ranges, tests=tests, dispersion=dispersion, heaviest=heaviest)
        found = _check_facts(check, level)
        if level is shared:
            facts["shared_maps"] = found
        else:
            facts["levels"].append({"level": level.level, **found})
    return facts


def dispersion_of(agreement: Checked | None) -> float:
    """Return the over-dispersion of all rows. agreement : the check of their map; None: 1.0."""
    return 1.0 if agreement is None else max(agreement.check.dispersion, agreement.check.over_dispersion)


def _check_facts(check: SegmentCheck, level: LevelFit) -> dict[str, Any]:
    assert level.checked is not None

    def named(entry: tuple[int, Misfit]) -> dict[str, Any]:
        return {"segment": _texts(level.keys[entry[0]]), **misfit_facts(entry[1])}

    sums = level.checked.sums
    largest = np.argsort(-sums[3], kind="stable")[:_MOST_SHOWN]
    return {
        "tests": check.tests,
        "largest": None if check.largest is None else named(check.largest),
        "misfits": [named(entry) for entry in check.misfits[:_MOST_NAMED]],
        "segments_with_misfits": len(check.misfits),
        "all_by_score": None if check.scores is None else misfit_facts(check.scores),
        "all_by_size": None if check.sizes is None else misfit_facts(check.sizes),
        "fall": None if check.fall is None else misfit_facts(check.fall),
        "agrees": check.agrees,
        "most_informative": [
            {
                "segment": _texts(level.keys[i]),
                **{
                    name: float(f"{value:.12g}")
                    for name, value in zip(("weight", "positives", "expected"), sums[:3, i], strict=True)
                },
            }
            for i in largest.tolist()
        ],
    }


def _texts(key: Key) -> list[str | None]:
    return [None if value is None else str(value) for value in key]
