"""Check of fitted maps against their own rows: where its sums come from.

A method whose map is constant within rows has them in the map; `auto` and `smooth` gather fine cells anyway; other
methods have several passes over a written score table, and the cells are gathered in the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.check_cells import check_cells_pass
from calibrators.arithmetic.cumulative import Layout, layout_of
from calibrators.arithmetic.fine_cells import FineCells
from calibrators.arithmetic.passes import Pass, merge_passes
from calibrators.measures.fit_check import FitCheck, cells_of_rows, cells_of_scores, check_fit
from calibrators.methods.auto import Auto
from calibrators.methods.base import Calibrator
from pipeline.sort.score_table import ScoreTable


class CellCollector:
    """Gathers the cells for the check of a map along with another pass over the written score table.

    cells : the cells; None before that, and if they are not needed
    """

    def __init__(self, calibrator: Calibrator) -> None:
        self.cells: FineCells | None = None
        self._calibrator = calibrator

    @property
    def needed(self) -> bool:
        """True if the fit has no cells: known after the first pass."""
        fitted = self._calibrator
        return self.cells is None and not fitted.constant_rows and fitted.fine_cells_ is None

    def run(self, request: Pass | None, table: ScoreTable, run: Callable[[Pass], Any]) -> Any:
        """Carry out a pass, if there is one, with `run`, and gather the cells if they are needed."""
        if not self.needed:
            return None if request is None else run(request)
        cells = check_cells_pass(_layout(table))
        if request is None:
            self.cells = run(cells)
            return None
        result, self.cells = run(merge_passes([request, cells]))
        return result


def _layout(table: ScoreTable) -> Layout:
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
        replaced = None if self.before is None else self.before.facts() | {"profile": None}
        return {"ranges": self.check.facts(), "fallback": self.fallback, "replaced": replaced}


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
    rate, cells = calibrator.sampling_rate, calibrator.fine_cells_ if cells is None else cells
    if cells is None:
        return check_fit(cells_of_rows(fitted, rate), ends, calibrator.heaviest)
    return check_fit(cells_of_scores(cells, fitted.predict_ascending, rate), ends, calibrator.heaviest)
