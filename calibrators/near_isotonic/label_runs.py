"""Label runs: neighbouring points with equal frequency of positives, which path algorithms gather instead of points."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.double_double import two_product
from calibrators.core.kernels import sums
from calibrators.core.passes import Pass, Points
from calibrators.near_isotonic.kernels import label_runs as kernel


class Runs(NamedTuple):
    """Label runs: maximal ranges of neighbouring points with equal frequency of positives.

    Frequencies are compared exactly, as quotients of the points' doubles. Labels 0 and 1 with
    frequency p, in random order, form about 2 p (1 - p) runs per point.

    Attributes
    ----------
    first, last : float64 arrays, shape (r,), first[i] <= last[i] < first[i + 1]: first and last score of each run
    weight : float64 array, shape (r,), > 0: the exact sum of the weights, rounded once
    positives : float64 array, shape (r,), in [0, weight]: the same for the positive labels
    moment : float64 array, shape (r,): the same for weight times score; shape (0,) without moments
    """

    first: Array
    last: Array
    weight: Array
    positives: Array
    moment: Array


class Border(NamedTuple):
    """First or last run of a part, which may continue in the next part.

    weight, positives : of one of its points
    weight_sum, positives_sum, moment_sum : its sums as expansions
    """

    weight: float
    positives: float
    weight_sum: Array
    positives_sum: Array
    moment_sum: Array

    def same_level(self, other: Border) -> bool:
        """Tell whether the runs of both have the same frequency of positives and so are one run, if neighbours."""
        weight, positives = np.array([[self.weight, other.weight], [self.positives, other.positives]])
        return bool(kernel.run_starts(weight, positives).size == 1)


class PartRuns(NamedTuple):
    """Runs of one part, and the borders of its first and its last run, which may be the same run."""

    runs: Runs
    head: Border
    tail: Border


def runs_pass(moments: bool = False) -> Pass:
    """Return the pass that gathers `Runs`: 32 bytes per run (40 with moments), plus two borders per part."""
    return Pass(chunk=partial(part_runs, moments=moments), combine=join_runs)


def part_runs(points: Points, moments: bool = False) -> PartRuns:
    """Find the runs of a part. O(m) time, O(runs) memory."""
    score, weight, positives = points
    start = kernel.run_starts(weight, positives)
    end = np.append(start[1:], score.size)
    columns = [weight, positives]
    totals = [sums.sums_between(column, start) for column in columns]
    if moments:  # products as two doubles each
        columns.append(np.column_stack(two_product(weight, score)).ravel())
        totals.append(sums.sums_between(columns[2], 2 * start))

    def border(run: int) -> Border:
        rows = slice(start[run], end[run])
        parts = [column[rows] for column in columns[:2]]
        parts += [columns[2][2 * rows.start : 2 * rows.stop] if moments else np.empty(0)]
        return Border(float(parts[0][0]), float(parts[1][0]), *map(sums.expansion_of, parts))

    no_moments = [] if moments else [np.empty(0)]
    return PartRuns(Runs(score[start], score[end - 1], *totals, *no_moments), border(0), border(-1))


def join_runs(parts: list[PartRuns]) -> Runs:
    """Join the runs of parts; the result equals the runs of all points at once, for any division into parts."""
    if len(parts) == 1:
        return parts[0].runs
    moments = parts[0].runs.moment.size > 0
    pieces: list[Runs] = []
    first, last, border = 0.0, 0.0, None
    for part in parts:
        runs, head, tail = part
        begin = 0
        if border is not None:
            if border.same_level(head):
                border, last, begin = _add_borders(border, head), float(runs.last[0]), 1
                if runs.first.size == 1:
                    continue
            pieces.append(_run_of_border(first, last, border, moments))
        pieces.append(Runs(*(column[begin:-1] for column in runs)))
        first, last, border = float(runs.first[-1]), float(runs.last[-1]), tail
    if border is not None:
        pieces.append(_run_of_border(first, last, border, moments))
    return Runs(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _add_borders(a: Border, b: Border) -> Border:
    added = (sums.expansion_of(np.concatenate(pair)) for pair in zip(a[2:], b[2:], strict=True))
    return Border(a.weight, a.positives, *added)


def _run_of_border(first: float, last: float, border: Border, moments: bool) -> Runs:
    weight, positives, moment = (np.array([sums.exact_sum(s)]) for s in border[2:])
    return Runs(np.array([first]), np.array([last]), weight, positives, moment if moments else np.empty(0))
