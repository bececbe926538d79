"""Buckets: ranges of scores, each gathered from all sorted runs; the second stage of the out-of-core sort."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import rows as row_kernels
from calibrators._kernels import ties
from calibrators.ordering import sort_entries
from calibrators.points import Array, Points
from pipeline import runs as sorted_runs
from pipeline.runs import WIDTHS, Run


def splitters(runs: list[Run], bucket_bytes: int) -> Array:
    """Scores that cut all runs into buckets of about `bucket_bytes`; never inside a tie.

    Bucket b holds splitters[b - 1] <= score < splitters[b]. The error is at most one stride a section a run.
    """
    sample = np.concatenate([part for run in runs for part in run.samples])
    sizes = np.concatenate(
        [
            np.full(part.size, width * sorted_runs.SAMPLE_STRIDE)
            for run in runs
            for part, width in zip(run.samples, WIDTHS, strict=True)
        ]
    )
    order = np.argsort(sample, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    buckets = max(1, -(-sum(run.bytes for run in runs) // bucket_bytes))
    targets = np.arange(1, buckets) * (before[-1] + sizes[order][-1]) / buckets
    chosen = np.unique(sample[order][np.searchsorted(before, targets).clip(max=sample.size - 1)])
    # Nothing lies below the lowest score.
    return chosen[chosen > sample[order][0]]


def brackets(runs: list[Run], edges: Array) -> npt.NDArray[np.int64]:
    """Where in each section of each run to look for the scores between edges, from the samples alone.

    Parameters
    ----------
    runs : list of Run
    edges : float64 array, shape (buckets + 1,), ascending

    Returns
    -------
    int64 array, shape (buckets, runs, sections, 2): what is looked for lies in section[start:stop], and at most a
    stride at each end does not belong to it.
    """
    found = np.empty((edges.size - 1, len(runs), len(WIDTHS), 2), np.int64)
    for r, run in enumerate(runs):
        for s, (sample, size) in enumerate(zip(run.samples, run.sizes, strict=True)):
            # Sample i is the section's number i * SAMPLE_STRIDE.
            at = np.searchsorted(sample, edges)
            found[:, r, s, 0] = np.maximum(at[:-1] - 1, 0) * sorted_runs.SAMPLE_STRIDE
            found[:, r, s, 1] = np.minimum(at[1:] * sorted_runs.SAMPLE_STRIDE, size)
    found[..., 1] = np.maximum(found[..., 0], found[..., 1])
    return found


def entries_before(runs: list[Run], where: npt.NDArray[np.int64]) -> Array:
    """The weight of all runs' entries before the brackets of each bucket. where : `brackets`."""
    sums = np.zeros(len(where))
    for r, run in enumerate(runs):
        if run.before.size:
            sums += run.before[where[:, r, 2, 0] // sorted_runs.SAMPLE_STRIDE]
    return sums


class Source(NamedTuple):
    """What a bucket's task needs to know of a run: its file and the sizes of its sections."""

    path: str
    sizes: tuple[int, int, int]


class Bucket(NamedTuple):
    """The rows of a range of scores.

    Attributes
    ----------
    negatives, positives : float64 arrays, ascending: scores of rows with label 0 and 1
    entries : scores, and weights and positives as columns, in the order of the runs; None where there are none
    before : the weight of all lower scores, but for that of entries before the brackets, which `entries_before` has;
        exact where it is a number of rows
    """

    negatives: Array
    positives: Array
    entries: tuple[Array, Array] | None
    before: float

    def points(self) -> Points:
        """The points of all of them."""
        plain = Points(*ties.merge_classes(self.negatives, self.positives))
        if self.entries is None:
            return plain
        folded = Points(*ties.sum_ties(*sort_entries(*self.entries)))
        if plain.score.size == 0:
            return folded
        # A log has either weights, all in entries, or whole-number counts, which add exactly.
        return Points(*row_kernels.merge_points(*plain, *folded))


def read_bucket(sources: list[Source], where: npt.NDArray[np.int64], low: float, high: float) -> Bucket:
    """The rows with low <= score < high of all runs.

    where : int64 array, shape (runs, sections, 2): the bucket's `brackets`.
    """
    negatives: list[Array] = []
    positives: list[Array] = []
    scores, pairs = [], []
    before = 0.0
    for source, ((n0, n1), (p0, p1), (e0, e1)) in zip(sources, where.tolist(), strict=True):
        n, p, m = source.sizes
        # Not mapped into memory: the pages of all runs together would count as this process's.
        with Path(source.path).open("rb", buffering=0) as file:
            for kept, start, stop, own in ((negatives, n0, n1, 0), (positives, p0, p1, n)):
                section = _read(file, own + start, own + stop)
                a, b = np.searchsorted(section, [low, high])
                kept.append(section[a:b])
                before += start + a
            start = n + p + e0
            score = _read(file, start, n + p + e1)
            a, b = np.searchsorted(score, [low, high])
            if b:
                rest = [_read(file, start + i * m, start + i * m + b) for i in (1, 2)]
                before += rest[0][:a].sum()
                scores.append(score[a:b])
                pairs.append(np.stack(rest, axis=1)[a:])
    entries = (np.concatenate(scores), np.concatenate(pairs)) if any(score.size for score in scores) else None
    return Bucket(_sorted(negatives), _sorted(positives), entries, float(before))


def _read(file: FileIO, start: int, stop: int) -> Array:
    return np.fromfile(file, np.float64, stop - start, offset=8 * start - file.tell())


def _sorted(parts: list[Array]) -> Array:
    whole = np.concatenate(parts)
    parts.clear()
    whole.sort()
    return whole
