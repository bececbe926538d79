"""Isotonic regression of the labels on the scores."""

from __future__ import annotations

import numpy as np

from calibrators._kernels import pava
from calibrators.base import Blocks, Calibrator, Pass, Passes, Points
from calibrators.calibration_map import CalibrationMap
from calibrators.centred import centred_passes

_PIECE = 1 << 22
_LARGEST_EXACT_TOTAL = float(1 << 26)


def pool_points(points: Points) -> Blocks:
    """Isotonic blocks of points. O(m)."""
    pieces = [
        _pool_piece(Points(*(column[i : i + _PIECE] for column in points)))
        for i in range(0, points.score.size, _PIECE)
    ]
    return pieces[0] if len(pieces) == 1 else pool_blocks(pieces)


def _pool_piece(points: Points) -> Blocks:
    # The cross products of whole numbers below 2**26 are exact in double precision.
    if points.weight.sum() < _LARGEST_EXACT_TOTAL and np.array_equal(points.weight, np.floor(points.weight)):
        return Blocks(*pava.pool_counts(*points))
    none = np.empty(0)
    return Blocks(*pava.pool(points.score, points.score, points.weight, none, points.positives, none))


def pool_blocks(parts: list[Blocks]) -> Blocks:
    """Isotonic blocks of parts pooled one by one, in score order: equal to pooling everything at once.

    Pooling is associative: a block that violates within its part would violate within the whole.
    """
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Blocks(*pava.pool(*columns))


class Isotonic(Calibrator):
    """Isotonic regression: the non-decreasing step function nearest to the labels (least squares, weighted).

    The map is constant on each pooled block and linear in the gaps between blocks, as
    `sklearn.isotonic.IsotonicRegression(out_of_bounds="clip")` predicts; unlike it, scores closer than 1e-6
    are never merged. Ties are one point. Non-decreasing. O(m) after the sort.

    Parameters
    ----------
    strict : bool, default False
        Centred isotonic regression: each pooled block becomes one knot, at the weighted mean of its scores, and the
        map is linear between knots, so that it increases strictly from the first knot to the last and keeps the
        ranking there. Constant outside them; a block at level 0 or 1, which no map can cross, stays flat.

    Notes
    -----
    One pass; with `strict` a second one counts what lies between the knots.

    References
    ----------
    Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
    Ayer et al. (1955), "An empirical distribution function for sampling with incomplete information".
    Oron & Flournoy (2017), "Centered isotonic regression: point and interval estimation for dose-response studies",
    Statistics in Biopharmaceutical Research 9, 258-267, doi:10.1080/19466315.2017.1286256.

    Examples
    --------
    >>> from calibrators import Isotonic
    >>> Isotonic().fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]).predict([0.25, 0.35])
    array([0.5 , 0.75])
    >>> Isotonic(strict=True).fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]).predict([0.25, 0.35]).round(3)
    array([0.5  , 0.833])
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict

    @property
    def single_pass(self) -> bool:  # type: ignore[override]
        """Whether one pass is enough: unless `strict`."""
        return not self.strict

    def check_parameters(self) -> None:
        """Raise ValueError if `strict` is not a bool."""
        if not isinstance(self.strict, (bool, np.bool_)):
            raise ValueError(f"strict: expected True or False, found {self.strict!r}")

    def _passes(self) -> Passes:
        if self.strict:
            return (yield from centred_passes(pool_points, pool_blocks))
        blocks = yield Pass(chunk=pool_points, combine=pool_blocks)
        return CalibrationMap.from_blocks(
            blocks.first, blocks.last, blocks.level, blocks.weight, blocks.positives
        )
