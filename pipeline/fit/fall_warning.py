"""Warning that the share of positives falls as the score rises."""

from __future__ import annotations

import logging

from calibrators.base import Calibrator
from calibrators.core.fine_cells import FineCells
from calibrators.measures.falls import proven_fall

_logger = logging.getLogger("logcal")


def warn_of_fall(
    calibrator: Calibrator, cells: FineCells | None, dispersion: float
) -> dict[str, float] | None:
    """Say in one warning where the rows prove that the share of positives falls; return its facts.

    calibrator : the calibrator, after the fit; its map never decreases
    cells : cells of `CellCollector`. Methods without cells are not examined.
    dispersion : see `FitCheck`
    """
    cells = calibrator.fine_cells_ if cells is None else cells
    fall = None if cells is None else proven_fall(cells, dispersion, calibrator.sampling_.heaviest)
    if fall is None:
        return None
    _logger.warning(
        "scores are not monotone: for scores from %.4g to %.4g %.3g %% of the rows are positive, but from %.4g to %.4g "
        "%.3g %% (%.1f standard errors). The map never decreases, so it has one mean for both; $[method] enir "
        "or abb can follow this",
        fall.first,
        fall.turn,
        100 * fall.before,
        fall.begin,
        fall.last,
        100 * fall.after,
        fall.root,
    )
    return fall.facts()
