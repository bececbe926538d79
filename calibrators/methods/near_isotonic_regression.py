"""Near-isotonic regression: the calibrator at one lambda."""

from __future__ import annotations

from calibrators.arithmetic.passes import Passes
from calibrators.methods.base import Calibrator
from calibrators.methods.near_isotonic_start import blocks_pass, path_from
from calibrators.methods.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.methods.solution_path import check_lam


class NearIsotonic(Calibrator):
    """Near-isotonic regression at one lambda: decreases of the map cost lambda each, times their size.

    From lam = 0 (the frequency of positives at each score) to isotonic regression (lam infinite, or at least the
    last breakpoint of the path). The map is constant on each block of equal levels and linear in the gaps between
    blocks; it need not be monotone. Weights count as repeated rows, ties as one point.

    Best where the truth falls somewhere and some 50,000 positives tell it, with lam 30 to 100; with 1, the default,
    in simulations 24 times the excess loss of the best method in the median: lam has to be chosen (docs/methods.md).

    Parameters
    ----------
    lam : float >= 0, default 1
        In units of weight: two neighbouring blocks in the wrong order move by lam / weight towards each other.
        Infinite is allowed.
    shrink : float >= 0, default 1
        Probabilities are drawn into [shrink / (2 N), 1 - shrink / (2 N)], N the sum of the weights, so that none is 0
        or 1: p becomes shrink / (2 N) + (1 - shrink / N) p. 0 leaves them as they are.

    Notes
    -----
    One pass merges in each part what is sure to have merged by `lam`, and gathers the blocks that this leaves, 49
    bytes each; then the path up to `lam` from there. Close to O(runs), where a run is a stretch of points with
    equal y (for labels of frequency p in random order about 2 p (1 - p) a point).

    References
    ----------
    Tibshirani, Hoefling & Tibshirani (2011), "Nearly-isotonic regression", Technometrics 53, 54-61.

    Examples
    --------
    >>> from calibrators.methods.near_isotonic_regression import NearIsotonic
    >>> NearIsotonic(lam=0.25, shrink=0).fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]).predict([0.2, 0.25, 0.3])
    array([0.75, 0.5 , 0.25])
    """

    single_pass = True

    def __init__(self, lam: float = 1.0, shrink: float = 1) -> None:
        self.lam = lam
        self.shrink = shrink

    def check_parameters(self) -> None:
        """Raise ValueError if `lam` is not a number >= 0, or `shrink` not a finite one."""
        check_lam(self.lam)
        check_shrink(self.shrink)

    def _passes(self) -> Passes:
        lam = check_lam(self.lam)
        blocks = yield blocks_pass(lam)
        fitted = path_from(blocks, limit=lam).solution(lam).calibration_map()
        return shrunk_map(fitted, floor_of(float(self.shrink), float(fitted.weight.sum())))
