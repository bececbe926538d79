"""Calibrating groups of observations rather than single ones: DGG, and the same with any calibrator."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral

from calibrators.arithmetic.cumulative import bin_counts, counts_below_pass
from calibrators.arithmetic.passes import Passes
from calibrators.arithmetic.pooling import check_ends
from calibrators.arithmetic.score_groups import groups_pass, start_pass
from calibrators.methods.base import Calibrator
from calibrators.methods.isotonic import Isotonic


class Grouped(Calibrator):
    """A calibrator fitted to means of groups of consecutive observations in score order.

    The observations in ascending order of their scores are cut after every `group_size` of them; the last group may
    be shorter. Each group becomes one point at its mean score, with its weight and its positives, so that the short
    group counts for what it holds. In terms of weights, groups end at the cumulative weights g, 2g, 3g, ... for
    group size g: a weight of 2 is a repeated row. A tie across an end is shared by the groups on both sides in
    proportion, each share with the tie's frequency of positives, so that the order of tied rows cannot matter; groups
    with equal mean scores are one point.

    Parameters
    ----------
    calibrator : Calibrator that fits a calibration map, default Isotonic()
    group_size : int >= 1, default 100
        Observations a group, g. 1 leaves observations of weight 1 as they are.

    Notes
    -----
    Two passes gather the groups, 56 bytes each, at most one a `group_size` of weight and two a distinct score; the
    calibrator is then fitted to them in memory; a third pass counts what lies in the rows of its map. O(m) time.
    Grouping pays for calibration data of a few thousand observations, whose single labels isotonic regression follows
    too closely at both ends.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), "Getting more out of small data sets: improving the calibration
    performance of isotonic regression by generating more data", ICAART, section 4.2.

    Examples
    --------
    >>> from calibrators import Grouped, Isotonic
    >>> grouped = Grouped(Isotonic(ends=0), group_size=2).fit([0.1, 0.3, 0.5, 0.7, 0.9], [0, 1, 0, 0, 1])
    >>> grouped.predict([0.2, 0.6, 0.75, 0.9])
    array([0.25 , 0.25 , 0.625, 1.   ])
    """

    def __init__(self, calibrator: Calibrator | None = None, group_size: int = 100) -> None:
        self.calibrator = calibrator
        self.group_size = group_size

    def check_parameters(self) -> None:
        """Raise ValueError if `group_size` is not a whole number >= 1, or `calibrator` not a fit one."""
        size = self.group_size
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"group_size: expected a whole number >= 1, found {size!r}")
        if self.calibrator is None:
            return
        if not isinstance(self.calibrator, Calibrator):
            raise ValueError(
                f"calibrator: expected a calibrator of this package, found {self.calibrator!r:.60}"
            )
        self.calibrator.check_parameters()

    def _inner(self) -> Calibrator:
        from sklearn.base import clone

        return Isotonic() if self.calibrator is None else clone(self.calibrator)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: the groups; with weights up to two a distinct score."""
        groups = 2 * points if weighted else points // int(self.group_size) + 1
        return super().gathers(2 * min(2 * points, groups), parts)

    def _passes(self) -> Passes:
        start = yield start_pass()
        groups = yield groups_pass(start, int(self.group_size))
        fitted = self._inner().fit_points(groups).calibration_map_
        counts = yield counts_below_pass(start.layout, fitted.score_lo[1:])
        weight, positives = bin_counts(start.layout, counts)
        return replace(fitted, weight=weight, positives=positives)


class DGG(Grouped):
    """Isotonic regression on means of groups: what DGG fits to a generated log.

    Of given scores, in simulations, best for truths that rise and fall, or rise in steps or a bend, told by 20 to 600
    positives; 1.8 times the excess loss of the best method in the median, 34 at most, where the highest scores alone
    tell anything (docs/methods.md).

    Parameters
    ----------
    group_size : int >= 1, default 100
        Observations a group.
    ends : float >= 0, default 1
        See `Isotonic`: what keeps probabilities from 0 and 1, in observations.

    Notes
    -----
    `Grouped` with isotonic regression: see there for ties, weights and cost. Non-decreasing.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), as for `Grouped`.

    Examples
    --------
    >>> from calibrators import DGG
    >>> DGG(group_size=2, ends=0).fit([0.1, 0.3, 0.5, 0.7], [0, 1, 1, 1]).predict([0.2, 0.4, 0.6])
    array([0.5 , 0.75, 1.  ])
    """

    def __init__(self, group_size: int = 100, ends: float = 1) -> None:
        super().__init__(group_size=group_size)
        self.ends = ends

    def check_parameters(self) -> None:
        """Raise ValueError as `Grouped`'s does, or if `ends` is not a finite number >= 0."""
        super().check_parameters()
        check_ends(self.ends)

    def _inner(self) -> Calibrator:
        return Isotonic(ends=self.ends)
