"""The edges of a family of binnings in the first pass, where each part's place among all observations is known.

The places of parts are known beforehand where all observations have weight 1 (see `Place`). Then so are the targets
that fall into each part, and what is gathered of it can be counts from its beginning: 16 bytes an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import binnings as kernel
from calibrators._kernels import placed_edges
from calibrators.arithmetic.calibration_map import midpoints
from calibrators.arithmetic.cumulative import Layout, PartTotals, layout_of, part_totals
from calibrators.arithmetic.passes import Array, Pass, Place, Points
from calibrators.methods.binnings import MOST_EDGES, Edges, Family

FamilyOf = Callable[[float], Family]
"""The family of binnings for a total weight."""


class _PlacedEdges(NamedTuple):
    """The distinct edges in a part; arrays of shape (edges,).

    edge : float64; NaN for the edge after the part's last point, which the next part's first score decides.
    weight, positives : whole numbers: sums from the part's first point up to the edge.
    """

    edge: Array
    weight: npt.NDArray[np.generic]
    positives: npt.NDArray[np.generic]


State = tuple[PartTotals, _PlacedEdges | None]


def layout_and_edges_pass(family_of: FamilyOf) -> Pass:
    """The pass that yields the `Layout` and, where it is carried out `placed`, a family's `Edges`; otherwise None.

    The edges are those that `binnings.edges_pass` finds, to the last bit. O(points + edges of the binnings).

    family_of : picklable
    """
    return Pass(chunk=_totals, combine=_layout_and_edges, placed=partial(_totals_and_edges, family_of))


def _totals(points: Points) -> State:
    return part_totals(points), None


def _totals_and_edges(family_of: FamilyOf, points: Points, place: Place) -> State:
    totals = part_totals(points)
    family = family_of(float(place.total))
    # Ties may leave few of very many edges, but whether they do is known of all points only.
    if family.bins.sum() > MOST_EDGES:
        return totals, None
    return totals, _edges_in_part(family, points, place, rows=totals[3].sum())


def _edges_in_part(family: Family, points: Points, place: Place, rows: float) -> _PlacedEdges:
    bins = (family.bins, family.numerator, family.denominator)
    m = points.score.size
    ones = rows == m
    if ones:
        marked = placed_edges.mark_edges_of_ones(m, place.before, *bins, place.total)
    else:
        carry = np.array([float(place.before)] if place.before else [])
        marked = kernel.mark_edges(points.weight, carry, *bins, float(place.total))
    n = int(np.count_nonzero(marked))
    below, above = np.empty(n), np.empty(n)
    # The counts of a tie of four billion rows are as exact in float64.
    whole = np.uint32 if rows < 2**32 else np.float64
    counts = np.empty(n, whole), np.empty(n, whole)
    placed_edges.read_marks(*points, ones, marked, below, above, *counts)
    return _PlacedEdges(midpoints(below, above), *counts)


def _layout_and_edges(parts: list[State]) -> tuple[Layout, Edges | None]:
    layout = layout_of([totals for totals, _ in parts])
    found = [edges for _, edges in parts if edges is not None]
    if len(found) < len(parts):
        return layout, None
    cuts = np.empty((sum(part.edge.size for part in found), 3))
    done = 0
    for i, part in enumerate(found):
        rows = cuts[done : done + part.edge.size]
        rows[:, 0] = part.edge
        # Sums of whole numbers are exact.
        rows[:, 1] = part.weight + layout.weight_before[i].sum()
        rows[:, 2] = part.positives + layout.positives_before[i].sum()
        if len(rows) and np.isnan(rows[-1, 0]):
            rows[-1, 0] = midpoints(np.array([parts[i][0][1]]), np.array([layout.score_after(i)]))[0]
        done += part.edge.size
    return layout, Edges(cuts, np.empty((0, 2)))
