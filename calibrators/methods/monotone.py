"""Making a map monotone: its isotonic projection."""

from __future__ import annotations

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap, gap_slopes


def largest_fall(calibration_map: CalibrationMap) -> float:
    """Return the largest fall of the map below its value at a lower score; 0 for a monotone map. O(rows)."""
    low, high = calibration_map.ends()
    values = np.column_stack([low, high]).ravel()
    return float((np.maximum.accumulate(values) - values).max())


def project_isotonic(calibration_map: CalibrationMap) -> tuple[CalibrationMap, float]:
    """The monotone map nearest to a map.

    The levels of the constant rows become their isotonic regression, weighted with the calibration data in each; gaps
    between blocks stay linear. The mean calibrated probability over the calibration data does not change. Of a row
    with a slope and weight, each end has half of the weight: the mean stays as far as its data lie evenly.

    Parameters
    ----------
    calibration_map : CalibrationMap

    Returns
    -------
    map : CalibrationMap
        Monotone; the same edges, weights and positives.
    largest : float
        The largest change of a level.

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
        return _project_slopes(rows)
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


def _project_slopes(rows: CalibrationMap) -> tuple[CalibrationMap, float]:
    """The projection where data lie in rows with slopes: of the values at both ends of each row."""
    from scipy.optimize import isotonic_regression

    ends = np.column_stack(rows.ends())
    # A constant row is one value; rows without data follow the others.
    own = np.column_stack([rows.weight > 0, (rows.weight > 0) & (rows.slope != 0)])
    weight = np.repeat(rows.weight / np.where(own[:, 1], 2, 1), 2).reshape(-1, 2)
    projected = np.full(ends.shape, np.nan)
    projected[own] = np.clip(isotonic_regression(ends[own], weights=weight[own]).x, 0.0, 1.0)
    constant = own[:, 0] & ~own[:, 1]
    projected[constant, 1] = projected[constant, 0]
    flat = projected.ravel()
    known = np.where(np.isnan(flat), -np.inf, flat)
    below = np.maximum.accumulate(known)
    above = np.minimum.accumulate(np.where(np.isnan(flat), np.inf, flat)[::-1])[::-1]
    level = np.clip(ends.ravel(), np.maximum(below, 0.0), np.minimum(above, 1.0))
    level = np.maximum.accumulate(np.where(np.isnan(flat), level, flat)).reshape(-1, 2)
    # The outer rows have no slope.
    level[0, 0], level[-1, 1] = level[0, 1], level[-1, 0]
    slope = np.zeros(len(rows))
    slope[1:-1] = gap_slopes(rows.score_lo[1:-1], rows.score_hi[1:-1], level[1:-1, 0], level[1:-1, 1])
    anchor = np.where(np.isfinite(rows.score_lo), rows.score_lo, rows.anchor)
    repaired = CalibrationMap(
        rows.score_lo, rows.score_hi, level[:, 0], slope, anchor, rows.weight, rows.positives
    )
    return repaired, float(np.abs(np.column_stack(repaired.ends()) - ends).max())
