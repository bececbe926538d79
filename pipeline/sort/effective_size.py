"""Effective sample size (Kish) of rows with sampling weights, in place of the sum of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrators._kernels.sums import exact_sum
from calibrators.arithmetic.double_double import expansion_of
from calibrators.arithmetic.passes import Array, Points
from calibrators.arithmetic.sampling import effective_scale


class WeightSums(NamedTuple):
    """The exact sums of rows' weights and of their squares (each rounded once), as expansions.

    largest : float64 array, shape (1,): the largest weight; empty where it is not known any more
    """

    weight: Array
    squares: Array
    largest: Array = np.empty(0)

    @property
    def scale(self) -> float:
        """Return the factor by which weights add up to the effective sample size."""
        return effective_scale(float(exact_sum(self.weight)), float(exact_sum(self.squares)))

    @property
    def heaviest(self) -> float:
        """The largest weight, once multiplied; not more than that where it is known."""
        largest = self.largest.max() if self.largest.size else np.sqrt(exact_sum(self.squares))
        return float(largest) * self.scale


def sums_of(weight: Array) -> WeightSums:
    """Sum the weights of some rows."""
    return WeightSums(
        expansion_of(weight), expansion_of(weight * weight), weight.max(initial=0.0, keepdims=True)
    )


def add_sums(parts: Sequence[WeightSums | None]) -> WeightSums | None:
    """Add the sums of several; None if no weights are sampling weights. Exact, whatever the order."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    weight, squares, largest = (np.concatenate(column) for column in zip(*known, strict=True))
    unknown = not all(part.largest.size for part in known)
    heaviest = np.empty(0) if unknown else largest.max(keepdims=True)
    return WeightSums(expansion_of(weight), expansion_of(squares), heaviest)


def scaled(points: Points, scale: float) -> Points:
    """Points with their weights multiplied, each rounded once: of a label that all had, all have it still."""
    if scale == 1.0:
        return points
    return Points(points.score, points.weight * scale, points.positives * scale)
