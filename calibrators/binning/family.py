"""Families of equal-frequency binnings of the same points: edges, likelihoods, average."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.binning import kernels as kernel
from calibrators.core.arrays import Array, Codes, Integers
from calibrators.core.cumulative import (
    Counts,
    Layout,
    ascending_positions,
    bin_counts,
    cut_positions_in_part,
    cuts_after,
    running_sums,
)
from calibrators.core.kernels import sums as exact
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Points

MOST_EDGES = 1e9

_MOST_WEIGHT = 1e15


@dataclass(frozen=True)
class Family:
    """Binnings to be averaged; arrays of shape (models,).

    Attributes
    ----------
    bins : int64: requested number of bins
    numerator, denominator : float64: edge j lies where the cumulative weight reaches numerator j / denominator
    strength : float64, shape (models, 2): equivalent sample sizes, per bin and per model (divided among its bins)
    smoothed : whether levels are smoothed as in the authors' code
    balanced : whether edges depend on the rows and the rarer label (`balanced_shares`), not on the rows alone
    """

    bins: Integers
    numerator: Array
    denominator: Array
    strength: Array
    smoothed: bool
    balanced: bool = False

    @property
    def models(self) -> tuple[Integers, Array, Array]:
        """Numbers that define the edges of each model."""
        return self.bins, self.numerator, self.denominator


class Edges(NamedTuple):
    """Distinct edges of a family of binnings, and cumulative sums there.

    Attributes
    ----------
    cuts : float64 array, shape (edges, 3): edge, cumulative weight and positives
    low : float64 array, shape (edges, 2) or (0, 2): low parts of these sums, if there are any
    score_sums : float64 array, shape (edges + 1, 2) or (0, 2): cumulative sums of the positives' scores up to each
        edge and to the end, as high and low parts
    """

    cuts: Array
    low: Array
    score_sums: Array


def binning_family(total: float, C: float, *, authors: bool, per_bin: bool, balanced: bool = False) -> Family:
    """Make the binnings of BBQ for a total weight."""
    if total > _MOST_WEIGHT:
        raise ValueError(
            f"expected weights that add up to {_MOST_WEIGHT:g} at most, found {total:g}: the number of bins "
            "grows with them; divide the weights by their mean"
        )
    bins = np.arange(_fewest_bins(total, C), _most_bins(total, C) + 1)
    per_bin_size = np.full(bins.size, 2.0 if authors or per_bin else 0.0)
    return Family(
        bins=bins,
        numerator=np.maximum(np.floor(total / bins), 1.0) if authors else np.full(bins.size, total),
        denominator=np.ones(bins.size) if authors else bins.astype(np.float64),
        strength=np.column_stack([per_bin_size, 2.0 - per_bin_size]),
        smoothed=authors,
        balanced=balanced and not authors,
    )


def check_edges(family: Family, layout: Layout) -> None:
    """Raise ValueError if the models have more than `MOST_EDGES` edges."""
    edges = np.minimum(family.bins, layout.n_points).sum(dtype=np.float64)
    if edges > MOST_EDGES:
        raise ValueError(
            f"C: expected at most {MOST_EDGES:.0e} bin edges, found {edges:.2g} for a total weight of "
            f"{layout.weight:g}: lower C, or scale the weights to count observations"
        )


def _fewest_bins(total: float, C: float) -> int:
    """Compute max(1, floor(N^(1/3) / C)) exactly, without a rounded cube root."""
    bins = int(np.cbrt(total) / C)
    bins += (C * (bins + 1)) ** 3 <= total
    bins -= (C * bins) ** 3 > total
    return max(1, bins)


def _most_bins(total: float, C: float) -> int:
    """Compute min(ceil(N / 5), ceil(C N^(1/3))) exactly, without a rounded cube root."""
    root = np.cbrt(total) * C
    bins = int(np.ceil(root))
    bins += bins**3 < C**3 * total
    bins -= (bins - 1) ** 3 >= C**3 * total
    return max(1, min(int(np.ceil(total / 5)), bins))


def score_sum_pass() -> Pass:
    """Make the pass that yields the exact sums of the positives' scores before each part, and in total."""
    return Pass(chunk=_score_sum, combine=running_sums)


def _score_sum(points: Points) -> Array:
    expansion: Array = expansion_of(points.score * points.positives)
    return expansion


def edges_pass(layout: Layout, family: Family, score_sums_before: list[Array] | None) -> Pass:
    """Make the pass that yields the `Edges` of a family."""
    return Pass(
        chunk=partial(_edges_in_part, layout, family, score_sums_before),
        combine=partial(_join_edges, score_sums_before),
    )


def _edges_in_part(layout: Layout, family: Family, before: list[Array] | None, points: Points) -> Edges:
    start, reached = cut_positions_in_part(layout, points, balanced=family.balanced)
    if family.balanced:
        start *= layout.weight
        reached *= layout.weight
    marked = np.zeros(reached.size, np.bool_)
    kernel.mark_edges(_indexed(reached, start, float(reached[-1])), family.models, marked)
    index = np.flatnonzero(marked & (reached < layout.weight))
    cuts = cuts_after(layout, points, index)
    index = index[: cuts.below.size]  # `cuts_after` may have left out the last point of all
    score_sums = np.empty((0, 2))
    if before is not None:
        terms = points.score * points.positives
        score_sums = np.column_stack(exact.sums_through(terms, before[layout.part_of(points)], index + 1))
    weight, weight_low, positives, positives_low = cuts.counts
    low = np.column_stack([weight_low, positives_low])
    return Edges(
        np.column_stack([cuts.edges, weight, positives]), low if low.any() else np.empty((0, 2)), score_sums
    )


def _join_edges(score_sums_before: list[Array] | None, parts: list[Edges]) -> Edges:
    cuts, low, score_sums = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(low):
        low = np.concatenate([part.low if len(part.low) else np.zeros((len(part.cuts), 2)) for part in parts])
    if score_sums_before is not None:
        end = exact.sums_through(np.empty(0), score_sums_before[-1], np.zeros(1, np.int64))
        score_sums = np.concatenate([score_sums, np.column_stack(end)])
    return Edges(cuts, low, score_sums)


Index = tuple[Array, Codes, float, float]


def _indexed(reached: Array, low: float, high: float) -> Index:
    """Index cumulative weights for `kernel.edges_of`."""
    reached = np.ascontiguousarray(reached)
    return reached, kernel.bucket_index(reached, low, high), low, high


def _index(layout: Layout, family: Family, edges: Edges) -> Index:
    """Index the cumulative weight at each edge, or the total weight times the balanced share there."""
    weight, positives = edges.cuts[:, 1].copy(), edges.cuts[:, 2]
    reached = ascending_positions(layout, weight, positives, 0.0, balanced=family.balanced)
    if family.balanced:
        reached *= layout.weight
    return _indexed(reached, 0.0, layout.weight)


def _end(layout: Layout) -> Array:
    return np.array([1.0, layout.weight, layout.weight_low, layout.positives, layout.positives_low])


def log_marginal_likelihoods(layout: Layout, family: Family, edges: Edges) -> tuple[Array, Integers]:
    """Compute the log marginal likelihood of each model, and its number of bins after ties moved edges."""
    scores, sizes = np.empty(family.bins.size), np.empty(family.bins.size, np.int64)
    index, end = _index(layout, family, edges), _end(layout)
    cuts = edges.cuts, edges.low
    kernel.log_marginal_likelihoods(cuts, end, index, family.models, family.strength, (scores, sizes))
    return scores, sizes


def average(layout: Layout, family: Family, edges: Edges, models: Integers, weight: Array) -> CalibrationMap:
    """Compute the map of the weighted mean of models."""
    edge_index = _index(layout, family, edges)
    positions, change, start = [], [], 0.0
    for model, share in zip(models, weight, strict=True):
        chosen, level = _model_levels(layout, family, edges, edge_index, int(model))
        terms = share * level
        start += terms[0]
        positions.append(np.repeat(chosen, 2))
        change.append(np.column_stack([-terms[:-1], terms[1:]]).ravel())
    cut = np.concatenate(positions)
    order = np.argsort(cut, kind="stable")
    rows, counts = np.unique(cut, return_counts=True)
    steps = np.append(start, np.concatenate(change)[order])
    totals = exact.sums_through(steps, np.empty(0), np.append(1, 1 + np.cumsum(counts)))[0]
    level = np.clip(totals / np.sum(weight), 0.0, 1.0)
    edge, weight_at, positives_at = edges.cuts[rows].T
    low = edges.low[rows] if len(edges.low) else np.zeros((rows.size, 2))
    counts_at = Counts(weight_at, low[:, 0], positives_at, low[:, 1])
    return CalibrationMap.from_bins(edge, level, *bin_counts(layout, counts_at))


def _model_levels(
    layout: Layout, family: Family, edges: Edges, edge_index: Index, model: int
) -> tuple[Integers, Array]:
    """Compute the indices of a model's edges among all edges, and the levels of its bins."""
    end = _end(layout)
    most = min(int(family.bins[model]), len(edges.cuts) + 1)
    chosen = np.empty(most, np.int64)
    count = kernel.edges_of(edge_index, tuple(column[model] for column in family.models), chosen)
    chosen = chosen[:count]
    bin_edges, k, w = np.empty(count + 2), np.empty(count + 1), np.empty(count + 1)
    kernel.fill_bins((edges.cuts, edges.low), end, chosen, count, (bin_edges, w, k))
    middle = (bin_edges[:-1] + bin_edges[1:]) / 2
    if family.smoothed:
        score_sums = edges.score_sums[np.append(chosen, len(edges.cuts))]
        score_sum = np.diff(score_sums[:, 0], prepend=0.0) + np.diff(score_sums[:, 1], prepend=0.0)
        level = (k + (score_sum + middle) / (k + 1)) / (w + 1)
    else:
        strength = family.strength[model, 0] + family.strength[model, 1] / (count + 1)
        level = (k + strength * np.clip(middle, 0.005, 0.995)) / (w + strength)
    return chosen, np.clip(level, 0.0, 1.0)
