"""Making a map monotone: its isotonic projection."""

from __future__ import annotations

import numpy as np

from calibrators.calibration_map import CalibrationMap


def largest_fall(calibration_map: CalibrationMap) -> float:
    """How far the map falls at most below a value that it had at a lower score; 0 for a monotone map. O(rows)."""
    low, high = calibration_map.ends()
    values = np.column_stack([low, high]).ravel()
    return float((np.maximum.accumulate(values) - values).max())


def project_isotonic(calibration_map: CalibrationMap) -> tuple[CalibrationMap, float]:
    """The monotone map nearest to a map.

    The levels of the constant rows become their isotonic regression, weighted with the calibration data in each; gaps
    between blocks stay linear. The mean calibrated probability over the calibration data does not change.

    Parameters
    ----------
    calibration_map : CalibrationMap
        Of blocks with linear gaps, or of bins, as `CalibrationMap.from_blocks` and `from_bins` make them: every
        constant row has weight, no other row has.

    Returns
    -------
    map : CalibrationMap
        Monotone; the same edges, weights and positives.
    largest : float
        The largest change of a level.

    Raises
    ------
    ValueError
        For a map of another kind that is not monotone.

    Notes
    -----
    O(rows). Barlow et al. (1972), "Statistical Inference under Order Restrictions".
    """
    rows = calibration_map
    if rows.monotone:
        return rows, 0.0
    # Most maps are monotone, and scipy.optimize takes a quarter of a second to import.
    from scipy.optimize import isotonic_regression

    flat = rows.slope == 0
    block = flat & (rows.weight > 0)
    if not np.array_equal(block, rows.weight > 0):
        raise ValueError("expected a map whose weights lie in constant rows")
    level = rows.prob_lo[block]
    projected = np.clip(isotonic_regression(level, weights=rows.weight[block]).x, 0.0, 1.0)
    largest = float(np.abs(projected - level).max())
    if block.all():
        edges = rows.score_lo[1:]
        return CalibrationMap.from_bins(edges, projected, rows.weight, rows.positives), largest
    # A block's anchor is its first score; its row ends just above its last.
    first = rows.anchor[block]
    last = np.nextafter(rows.score_hi[block], -np.inf)
    last[-1] = first[-1]
    return (
        CalibrationMap.from_blocks(first, last, projected, rows.weight[block], rows.positives[block]),
        largest,
    )
