"""What rows with sampling weights count for: Kish's effective size, instead of the sum of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrators._kernels.accumulators import expansion_of
from calibrators._kernels.sums import exact_sum
from calibrators.passes import Array, Points
from calibrators.sampling import effective_scale


class WeightSums(NamedTuple):
    """The exact sums of rows' weights and of their squares (each rounded once), as expansions."""

    weight: Array
    squares: Array

    @property
    def scale(self) -> float:
        """What weights are multiplied by, so that they add up to the effective size."""
        return effective_scale(float(exact_sum(self.weight)), float(exact_sum(self.squares)))


def sums_of(weight: Array) -> WeightSums:
    """Of some rows' weights."""
    return WeightSums(expansion_of(weight), expansion_of(weight * weight))


def add_sums(parts: Sequence[WeightSums | None]) -> WeightSums | None:
    """Of the rows of several; None where no weights are sampling weights. Exact, whatever the order."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return WeightSums(*(expansion_of(np.concatenate(column)) for column in zip(*known, strict=True)))


def scaled(points: Points, scale: float) -> Points:
    """Points with their weights multiplied, each rounded once: of a label that all had, all have it still."""
    if scale == 1.0:
        return points
    return Points(points.score, points.weight * scale, points.positives * scale)
