"""A day on a score grid as counts: the rows of each class at each step, of any number of rows in bounded space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Points
from pipeline.files.blobs import Blob, write_blob
from pipeline.log.score_grid import EXACT
from pipeline.sort.run_files import Run, Sections, read_run, write_run
from pipeline.sort.runs import RunReceipt

MOST_STEPS = 1 << 22
"""Between the extreme scores of a day, or of several that are added up in one piece: 32 MB a class."""

_MOST_ROWS = (1 << 32) - 1
_STEP_BYTES = 8


class Counts(NamedTuple):
    """A file of uint32 counts: of label 0 at each step, then of label 1.

    first : number of the first step; its score is first / steps per unit. steps : how many.
    """

    path: str
    first: int
    steps: int


def write_counts(receipt: RunReceipt, path: str, per_unit: float) -> Counts | None:
    """Write the rows in a day's runs as counts, where that is smaller than the runs.

    receipt : of rows without weights, whose scores are on the grid
    """
    if not 0 < receipt.used <= _MOST_ROWS or max(-receipt.lowest, receipt.highest) * per_unit >= EXACT:
        return None
    first, last = (round(end * per_unit) for end in (float(receipt.lowest), float(receipt.highest)))
    steps = last - first + 1
    if steps > MOST_STEPS or _STEP_BYTES * steps >= sum(run.bytes for run in receipt.runs):
        return None
    counts = np.zeros((2, steps), np.int64)
    for run in receipt.runs:
        sections = read_run(run)
        negatives, positives, entries = sections.negatives, sections.positives, sections.entries
        for row, score, amount in (
            (0, negatives, np.ones(negatives.size)),
            (1, positives, np.ones(positives.size)),
            (0, entries.score, entries.weight - entries.positives),
            (1, entries.score, entries.positives),
        ):
            np.add.at(
                counts[row], np.rint(score * per_unit).astype(np.int64) - first, amount.astype(np.int64)
            )
    write_blob(path, [counts.astype(np.uint32).data])
    return Counts(path, first, steps)


def cluster(days: Sequence[Counts]) -> list[tuple[Counts, ...]]:
    """Days to be added up together, their extreme scores at most `MOST_STEPS` apart."""
    clusters: list[list[Counts]] = []
    start = 0
    for day in sorted(days, key=lambda day: (day.first, day.path)):
        if not clusters or day.first + day.steps - start > MOST_STEPS:
            clusters.append([])
            start = day.first
        clusters[-1].append(day)
    return [tuple(days) for days in clusters]


def add_counts(days: tuple[Counts, ...], per_unit: float, path: str) -> Run:
    """Add up some days' counts, and leave them as a run of entries."""
    first = min(day.first for day in days)
    counts = np.zeros((2, max(day.first + day.steps for day in days) - first), np.int64)
    for day in days:
        own: npt.NDArray[np.uint32] = np.empty((2, day.steps), np.uint32)
        with Blob(day.path) as blob:
            blob.read(0, own.data.cast("B"))
        counts[:, day.first - first : day.first - first + day.steps] += own
    weight = counts.sum(axis=0)
    filled = np.flatnonzero(weight)
    score = (filled + first) / per_unit
    entries = Points(score, weight[filled].astype(np.float64), counts[1, filled].astype(np.float64))
    return write_run(path, Sections(entries=entries))
