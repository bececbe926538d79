"""Near-isotonic regression with a given lambda."""

from __future__ import annotations

from calibrators.base import Calibrator, Needs
from calibrators.core.passes import Passes
from calibrators.core.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.near_isotonic.part_blocks import blocks_pass, path_from
from calibrators.near_isotonic.path import check_lam


class NearIsotonic(Calibrator):
    """Near-isotonic regression with a given lambda: the penalty is lambda times the sum of the map's decreases.

    lam = 0 gives the frequency of positives at each score, an infinite lam, or one from the path's last breakpoint on,
    isotonic regression. The map is constant on each block of equal levels and linear in the gaps between blocks; it
    need not be monotone. Weights count as repeated rows, ties as one point.

    Best if the truth falls somewhere and there are some 50,000 positives, with lam from 30 to 100. With the default of
    1 its excess loss in simulations is 24 times the best method's in the median: lam has to be chosen
    (docs/methods.md).

    Parameters
    ----------
    lam : float >= 0, default 1
        In units of weight: two neighbouring blocks in the wrong order move by lam / weight towards each other.
        Infinite is allowed.
    shrink : float >= 0, default 1
        Probabilities are shrunk into [shrink / (2 N), 1 - shrink / (2 N)], N the sum of the weights, so that none is 0
        or 1: p becomes shrink / (2 N) + (1 - shrink / N) p. 0 leaves them unchanged.

    Notes
    -----
    One pass merges in each part the blocks that have certainly merged at `lam`, and gathers the others, 49 bytes each;
    the path up to `lam` is computed from there. Close to O(runs), where a run is a range of points with equal y (for
    labels of frequency p in random order about 2 p (1 - p) per point).

    References
    ----------
    Tibshirani, Hoefling & Tibshirani (2011), "Nearly-isotonic regression", Technometrics 53, 54-61.

    Examples
    --------
    >>> from calibrators.near_isotonic.calibrator import NearIsotonic
    >>> NearIsotonic(lam=0.25, shrink=0).fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]).predict([0.2, 0.25, 0.3])
    array([0.75, 0.5 , 0.25])
    """

    needs = Needs(one_pass=True, constant_rows=True)

    def __init__(self, lam: float = 1.0, shrink: float = 1) -> None:
        self.lam = lam
        self.shrink = shrink

    def check_parameters(self) -> None:
        """Raise ValueError if `lam` is not a number >= 0, or `shrink` not a finite one."""
        check_lam(self.lam)
        check_shrink(self.shrink)

    def _passes(self) -> Passes:
        lam = check_lam(self.lam)
        blocks = yield blocks_pass(limit=lam)
        fitted = path_from(blocks, limit=lam).solution(lam).calibration_map()
        return shrunk_map(fitted, floor_of(float(self.shrink), float(fitted.weight.sum())))
