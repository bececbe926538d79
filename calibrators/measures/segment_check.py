"""Check of segments' maps against their own observations: each segment, ranges of its scores, and all together.

As in `calibrators.measures.fit_check`, a map must expect as many positives as were observed, or as isotonic regression
of the segment's observations expects. Segments with enough information (the sum of w p (1 - p)) are divided into
quarters or 16ths by information; unions of neighbouring ones are tested, too. Thousands of segments can be wrong
together though none is by itself: so all segments are also added up by ranges of scores, and by their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels.likelihood import isotonic_fit
from calibrators.measures.fit_check import (
    ERROR_RATE,
    LEAST_DIFFERENCE,
    Misfit,
    edges,
    normal_limit,
    roots,
    smaller,
    tempered,
)

LEAST_SEGMENT_DIFFERENCE = 0.1
"""Least difference in log-odds that is reported of a segment."""

_DIVIDED = ((4, 40.0), (16, 640.0))
"""Numbers of parts, and the information of a segment from which it is divided into them."""

_CANDIDATE = 4.0
"""Root below which a range of a segment cannot be significant."""

_SIZES = 16
_FAMILIES = 3


class SegmentCells(NamedTuple):
    """Cells of segments, segment after segment, ascending by score in each; float64 arrays, shape (cells,).

    starts : int64 array, shape (segments + 1,): index of each segment's first cell, and the number of cells
    first : first score of each cell
    weight, positives, expected : sums over the observations of the log
    """

    starts: Integers
    first: Array
    weight: Array
    positives: Array
    expected: Array


class SegmentSums(NamedTuple):
    """Sums for the checks of some segments, which add up to those of all.

    tests : number of ranges of segments
    segment : int64 array, shape (candidates,): segments with a range that may be significant, the worst of each
    candidates : float64 array, shape (7, candidates): first score of the range and of what follows it, weight,
        positives, expected and possible positives, information
    sums : float64 array, shape (4, segments): weight, positives, expected positives, information
    by_score : float64 array, shape (3, ranges): weight, positives and expected positives of all by range of scores
    """

    tests: int
    segment: Integers
    candidates: Array
    sums: Array
    by_score: Array


def segment_sums(cells: SegmentCells, ranges: Array) -> SegmentSums:
    """Compute the sums of some segments. O(cells).

    ranges : first scores of ranges of scores, ascending; cells count where they begin
    """
    sizes = np.diff(cells.starts)
    rate = np.clip(cells.expected / cells.weight, 0.0, 1.0)
    columns = (cells.weight, cells.positives, cells.expected, cells.weight * rate * (1 - rate))
    sums, filled = np.zeros((4, sizes.size)), sizes > 0
    for row, column in zip(sums, columns, strict=True):
        row[filled] = np.add.reduceat(column, cells.starts[:-1][filled]) if filled.any() else 0.0
    place = np.maximum(np.searchsorted(ranges, cells.first, side="right") - 1, 0)
    by_score = np.array([np.bincount(place, column, ranges.size) for column in columns[:3]], np.float64)
    tests, worst = int(filled.sum()), np.zeros((3, sizes.size))  # root, and the cells of its range
    worst[0] = _of_whole(sums)
    worst[1:] = cells.starts[:-1], cells.starts[1:]
    for (parts, least), (_, next_least) in zip(_DIVIDED, (*_DIVIDED[1:], (0, math.inf)), strict=True):
        chosen = np.flatnonzero((sums[3] > least) & (sums[3] <= next_least))
        tests += chosen.size * (parts * (parts + 1) // 2 - 1)
        for root, begin, end in _of_parts(cells, columns, chosen, parts) if chosen.size else ():
            larger = root > worst[0, chosen]
            worst[:, chosen[larger]] = np.stack([root, begin, end])[:, larger]
    segment = np.flatnonzero(worst[0] >= _CANDIDATE)
    found = [_candidate(cells, columns, i, *worst[1:, i].astype(int).tolist()) for i in segment.tolist()]
    candidates = np.array(found, np.float64).reshape(-1, 7).T
    return SegmentSums(tests, segment, candidates, sums, by_score)


def _of_whole(sums: Array) -> Array:
    return _root(*sums[:3])


def _root(weight: Array, positives: Array, expected: Array) -> Array:
    """Return the absolute roots of differences that are large enough to be reported, or else 0."""
    odds, observed = (np.log(np.maximum(x, 0.5) / np.maximum(weight - x, 0.5)) for x in (expected, positives))
    root = np.zeros(weight.size)
    some = (np.abs(odds - observed) > LEAST_SEGMENT_DIFFERENCE) & (weight > 0)
    root[some] = np.abs(roots(weight[some], positives[some], expected[some]))
    return root


def _of_parts(
    cells: SegmentCells, columns: Sequence[Array], chosen: Integers, parts: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield for each union of neighbouring parts its root in each chosen segment, and the cells of its range."""
    sizes = np.diff(cells.starts)[chosen]
    begin = np.cumsum(sizes) - sizes
    at = np.arange(sizes.sum()) + np.repeat(cells.starts[chosen] - begin, sizes)
    information = columns[3][at]
    total = np.add.reduceat(information, begin)
    running = np.cumsum(information)
    before = np.repeat(running[begin] - information[begin], sizes)
    share = (running - before - information / 2) / np.repeat(total, sizes)
    part = np.clip((share * parts).astype(np.int64), 0, parts - 1)
    key = np.repeat(np.arange(chosen.size) * parts, sizes) + part
    in_parts = np.stack([np.bincount(key, c[at], chosen.size * parts) for c in columns[:3]])
    cumulative = np.zeros((3, chosen.size, parts + 1))
    np.cumsum(in_parts.reshape(3, chosen.size, parts), axis=2, out=cumulative[:, :, 1:])
    counts = np.bincount(key, minlength=chosen.size * parts).reshape(chosen.size, parts)
    ends = np.column_stack([np.zeros(chosen.size, np.int64), np.cumsum(counts, axis=1)])
    ends += cells.starts[chosen][:, np.newaxis]
    for i in range(parts):
        for j in range(i + 1, parts + 1):
            if j - i < parts:
                yield _root(*(cumulative[:, :, j] - cumulative[:, :, i])), ends[:, i], ends[:, j]


def _candidate(
    cells: SegmentCells, columns: Sequence[Array], segment: int, begin: int, end: int
) -> tuple[float, ...]:
    """Return a candidate's column, see `SegmentSums`: with what isotonic regression of the segment expects."""
    start, stop = cells.starts[segment : segment + 2].tolist()
    possible = _isotonic(cells.weight[start:stop], cells.positives[start:stop])
    inside = slice(begin - start, end - start)
    w, k, e, information = (float(column[begin:end].sum()) for column in columns)
    after = float(cells.first[end]) if end < stop else math.inf
    return float(cells.first[begin]), after, w, k, e, float(possible[inside].sum()), information


def _isotonic(weight: Array, positives: Array) -> Array:
    """Compute the positives that isotonic regression expects, with a positive below all and a negative above."""
    observed = np.concatenate([[1.0], positives / weight, [0.0]])
    level = isotonic_fit(observed, np.concatenate([[1.0], weight, [1.0]]))
    return np.asarray(weight * level[1:-1])


def joined(parts: Sequence[tuple[Integers, SegmentSums]], count: int) -> SegmentSums:
    """Add up the sums of a level's segments.

    parts : indices of the segments of each part, ascending, and their sums
    count : number of segments; those that are in no part have sums of 0
    """
    sums = np.zeros((4, count))
    for codes, part in parts:
        sums[:, codes] = part.sums
    segment = np.concatenate([np.empty(0, np.int64), *(codes[part.segment] for codes, part in parts)])
    candidates = np.concatenate([np.empty((7, 0)), *(part.candidates for _, part in parts)], axis=1)
    order = np.argsort(segment, kind="stable")
    ranges = parts[0][1].by_score.shape[1] if parts else 1
    by_score = np.sum([np.zeros((3, ranges)), *(part.by_score for _, part in parts)], axis=0)
    tests = sum(part.tests for _, part in parts)
    return SegmentSums(tests, segment[order], candidates[:, order], sums, by_score)


class SegmentCheck(NamedTuple):
    """Result of the check of a level's segments.

    tests : number of ranges of segments
    largest : segment, and the range with the largest excess in any; None: none exceeds a root of 4
    misfits : significant segments with their worst ranges, largest excess first
    scores, sizes : the largest excess of all segments together, in ranges of scores and of sizes of segments (`first`
        and `last` are then weights of segments)
    fall : the same in ranges of scores, where it is significant only against the observed positives: their share falls
    """

    tests: int
    largest: tuple[int, Misfit] | None
    misfits: tuple[tuple[int, Misfit], ...]
    scores: Misfit | None
    sizes: Misfit | None
    fall: Misfit | None = None

    @property
    def agrees(self) -> bool:
        """True if nothing is significant."""
        together = (self.scores, self.sizes)
        return not self.misfits and not any(misfit is not None and misfit.significant for misfit in together)


def check_segments(
    found: SegmentSums,
    ranges: Array,
    *,
    tests: int,
    dispersion: float = 1.0,
    heaviest: float = 1.0,
) -> SegmentCheck:
    """Check the segments of a level.

    ranges : see `segment_sums`
    tests : number of ranges of segments of all levels
    dispersion, heaviest : see `fit_check.FitCheck` and `fit_check.check_fit`, of all rows
    """
    limit = normal_limit(tests, ERROR_RATE / _FAMILIES)
    misfits = []
    if found.segment.size:
        first, after, weight, positives, expected, possible, information = found.candidates
        difference, root = smaller(weight, positives, expected, possible)
        root = np.where(np.abs(difference) > LEAST_SEGMENT_DIFFERENCE, root, 0.0)
        root = tempered(root, information, dispersion, heaviest)
        last = _before(after)
        rows = np.stack([first, last, weight, positives, expected, possible, difference, root], axis=1)
        misfits = [
            (segment, Misfit._make([*row, limit]))
            for segment, row in zip(found.segment.tolist(), rows.tolist(), strict=True)
        ]
        misfits.sort(key=lambda entry: (-entry[1].excess, entry[0]))
    settings = dispersion, heaviest
    weight, positives, _ = found.by_score
    filled = weight > 0
    possible = np.zeros(weight.size)
    possible[filled] = _isotonic(weight[filled], positives[filled])
    scores = _together(found.by_score, possible, ranges, settings)
    fall = _together(found.by_score, positives, ranges, settings)
    excused = scores is None or not scores.significant
    return SegmentCheck(
        found.tests,
        misfits[0] if misfits and misfits[0][1].root else None,
        tuple(entry for entry in misfits if entry[1].significant),
        scores,
        _by_size(found.sums, settings) if found.sums.shape[1] else None,
        fall if excused and fall is not None and fall.significant else None,
    )


def _before(score: Array) -> Array:
    """Return the greatest score below each; infinity stands for the end of all scores."""
    return np.where(np.isinf(score), np.inf, np.nextafter(score, -np.inf))


def _by_size(sums: Array, settings: tuple[float, float]) -> Misfit | None:
    """Check all segments together by their sizes; `sums` as in `SegmentSums`."""
    ordered = sums[:, np.argsort(sums[0], kind="stable")]
    ends = edges(ordered[3], _SIZES)
    by_size = np.add.reduceat(ordered[:3], ends[:-1], axis=1)
    return _together(by_size, by_size[1], ordered[0][ends[:-1]], settings, ordered[0][ends[1:] - 1])


def _together(
    sums: Array, possible: Array, first: Array, settings: tuple[float, float], last: Array | None = None
) -> Misfit | None:
    """Find the union of neighbouring parts with the largest excess; None if none differs enough to be reported."""
    i, j = np.triu_indices(sums.shape[1] + 1, 1)
    totals = [np.append(0.0, np.cumsum(column)) for column in (*sums, np.clip(possible, 0.0, sums[0]))]
    weight, positives, expected, pooled = (total[j] - total[i] for total in totals)
    some = weight > 0
    i, j, weight, positives, expected, pooled = (x[some] for x in (i, j, weight, positives, expected, pooled))
    difference, root = smaller(weight, positives, expected, pooled)
    rate = np.clip(expected / weight, 0.0, 1.0)
    root = tempered(root, weight * rate * (1 - rate), *settings)
    limit = normal_limit(i.size, ERROR_RATE / _FAMILIES)
    excess = np.where(np.abs(difference) > LEAST_DIFFERENCE, np.abs(root), 0.0)
    if not excess.any():
        return None
    k = int(np.argmax(excess))
    if last is None:
        last = _before(np.append(first[1:], np.inf))
    filled = i[k] + np.flatnonzero(
        sums[0, i[k] : j[k]]
    )  # parts without observations at the ends do not count
    columns = np.stack((weight, positives, expected, pooled, difference, root))
    return Misfit._make([float(first[filled[0]]), float(last[filled[-1]]), *columns[:, k].tolist(), limit])
