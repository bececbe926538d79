"""Scores in another unit than those that a table was fitted to: percent or log odds instead of probabilities."""

from __future__ import annotations

import math

_LEAST_PERCENT = 1.5


def are_probabilities(lowest: float, highest: float) -> bool:
    """Tell whether a table was fitted to scores in [0, 1]. lowest, highest : ends of its calibration range."""
    return lowest >= 0 and highest <= 1


def plausible(score: float) -> bool:
    """Tell whether a score may be of a table of probabilities; False for NaN."""
    return 0.0 <= score <= _LEAST_PERCENT


def unit_question(lowest: float, highest: float) -> str:
    """Return what scores are if they are no probabilities, as a question; empty if this is not known.

    lowest, highest : extreme scores of those given to a table of probabilities
    """
    if lowest >= 0 and _LEAST_PERCENT < highest <= 100:
        return "are they percent?"
    # Infinite scores are no sign of a unit.
    return "are they log odds?" if -math.inf < lowest < 0 else ""
