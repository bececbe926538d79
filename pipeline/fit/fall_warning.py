"""Warnings that the share of positives falls as the score rises."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator
from calibrators.core.arrays import Array
from calibrators.core.fine_cells import FineCells
from calibrators.measures.falls import Fall, proven_fall
from calibrators.measures.fit_check import FitCheck
from calibrators.measures.segment_check import SegmentSums
from logcal.errors import range_text

_logger = logging.getLogger("logcal")

_OF_ONE_MAP = "The map never decreases, so it has one mean for both; $[method] enir or abb can follow this"
_IN_SEGMENTS = (
    "Segments' maps never decrease, so each has one mean where its own shares fall. If a default score is the reason, "
    "give its rows a segment of their own (a first column of $[segment]); $[method] enir or abb can follow a fall"
)


class SegmentRanges(NamedTuple):
    """Sums of all segments of a level by ranges of scores.

    first, last : first and last score of each range
    weight, positives, expected : weight, positives and the positives that the segments' maps expect
    """

    first: Array
    last: Array
    weight: Array
    positives: Array
    expected: Array

    @classmethod
    def of(cls, check: FitCheck, sums: SegmentSums | None) -> SegmentRanges:
        """Take the sums of a level's segments in the ranges of the check of all rows; none if it has no such sums."""
        by_score = np.empty((3, 0)) if sums is None or sums.by_score.shape[1] == 1 else sums.by_score
        return cls(*(column[: by_score.shape[1]] for column in check.profile[:2]), *by_score)

    def follow(self, fall: Fall) -> bool:
        """Return whether the maps explain more than half of a fall; not if most of it is in other ranges.

        Cells of segments may be wider than ranges, which count them where they begin.
        """
        sides = [
            (self.first >= first) & (self.last <= last)
            for first, last in ((fall.first, fall.turn), (fall.begin, fall.last))
        ]
        weight, positives, expected = np.array(
            [[column[side].sum() for side in sides] for column in self[2:]]
        )
        if not weight[0] or weight[1] < 0.5 * fall.weight:
            return False
        level = positives.sum() / weight.sum()
        return bool(abs(positives - expected).sum() < 0.5 * abs(positives - level * weight).sum())


def warn_of_fall(
    calibrator: Calibrator, cells: FineCells | None, dispersion: float, segments: SegmentRanges | None = None
) -> dict[str, float] | None:
    """Say in one warning where the rows prove that the share of positives falls; return its facts.

    calibrator : the calibrator, after the fit; its map never decreases
    cells : cells of `CellCollector`. Methods without cells are not examined.
    dispersion : see `FitCheck`
    segments : given if this is the map of all rows beside those of segments. A fall that their maps follow, such as
        between the scores of two models, is none.
    """
    cells = calibrator.fine_cells_ if cells is None else cells
    fall = None if cells is None else proven_fall(cells, dispersion, calibrator.sampling_.heaviest)
    if fall is None or (segments is not None and segments.follow(fall)):
        return None
    _logger.warning(
        "scores are not monotone: for scores from %.4g to %.4g %.3g %% of the rows are positive, but from %.4g to %.4g "
        "%.3g %% (%.1f standard errors). %s",
        fall.first,
        fall.turn,
        100 * fall.before,
        fall.begin,
        fall.last,
        100 * fall.after,
        fall.root,
        _OF_ONE_MAP if segments is None else _IN_SEGMENTS,
    )
    return fall.facts()


def warn_of_segments_fall(levels: Sequence[dict[str, Any]]) -> None:
    """Say in one warning where the maps of all segments together miss the rows since the share of positives falls.

    levels : see `pipeline.fit.self_check.level_facts`
    """
    fall = next((level["fall"] for level in reversed(levels) if level["fall"] is not None), None)
    if fall is None:
        return
    low, high = (
        beyond if fall[name] is None else fall[name]
        for name, beyond in (("first_score", -math.inf), ("last_score", math.inf))
    )
    _logger.warning(
        "scores are not monotone within segments: for scores %s their maps expect %s positives, but %s of %s rows are "
        "positive (%.1f standard errors). %s",
        range_text(low, high),
        *(f"{fall[name]:,.6g}" for name in ("expected", "positives")),
        f"{fall['weight']:,.10g}",
        abs(fall["deviance_residual"]),
        _IN_SEGMENTS,
    )
