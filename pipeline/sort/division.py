"""Division of sorted rows into held-out rows and the others, by the content of the rows and not their position.

Of m rows with the same score, label and segment floor(share * m + u) are held out, where u in [0, 1) is a hash of the
three. So the draw depends on the rows' content alone, ties of any weight are divided evenly, and rows held out of a
part are also held out of the whole. A weight of 2 is the row twice; if weights are not whole numbers, all rows of a
score, a label and a segment go to the same side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Codes, Integers, Mask
from calibrators.core.hashing import mixed
from calibrators.core.passes import Points
from calibrators.core.sorting import Coded
from logcal.arrow_columns import one_array
from pipeline.execution import Executor
from pipeline.log.segment_values import Key
from pipeline.sort import buckets
from pipeline.sort.buckets import BucketSpans
from pipeline.sort.run_files import Run, RunSegments
from pipeline.sort.runs import RunReceipt, write_sections
from pipeline.sort.score_table import SortPlan, ranges
from pipeline.sort.sections import Sections
from pipeline.sort.segments import (
    Coding,
    Level,
    number_segments,
    read_codes,
    read_keys,
    write_codes,
    write_keys,
)

_LABELS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))

Salts = npt.NDArray[np.uint64]


def divide_points(
    share: float, points: Points, cell: Integers | None = None, salt: Salts | None = None
) -> tuple[Points, Points]:
    """Divide each point into its kept and its held-out part; either may have weight 0. See `draw_held_out`."""
    negatives, positives = draw_held_out(share, points, cell, salt)
    # Subtract per label: the difference of the weights would leave a rounding error.
    kept_negatives = points.weight - points.positives - negatives
    kept_positives = points.positives - positives
    held_out = Points(points.score, negatives + positives, positives)
    return Points(points.score, kept_negatives + kept_positives, kept_positives), held_out


def draw_held_out(
    share: float, points: Points, cell: Integers | None = None, salt: Salts | None = None
) -> tuple[Array, Array]:
    """Draw the held-out rows of label 0 and of label 1 at each point.

    Parameters
    ----------
    share : share of rows to hold out, in (0, 1)
    cell : segment of each point to draw from; neighbouring points with equal score and cell are drawn from as one
        group, the first points first. None: each point is a group.
    salt : hash input of each point's cell
    """
    score, weight, positives = points
    first = np.ones(score.size, np.bool_)
    if cell is not None:
        first[1:] = (np.diff(score) != 0) | (np.diff(cell) != 0)
    group = np.cumsum(first) - 1
    fractional = (weight != np.floor(weight)) | (positives != np.floor(positives))
    integral = (np.bincount(group, fractional) == 0)[group]
    draws = []
    for label, rows in enumerate((weight - positives, positives)):
        u = _uniform(score, _LABELS[label] if salt is None else _LABELS[label] + salt)
        # Number a point's rows after those of the earlier points of its group.
        upto = np.cumsum(rows)
        below = upto - rows
        below, upto = below - below[first][group], upto - below[first][group]
        count = np.minimum(np.floor(upto * share + u), upto)
        count -= np.minimum(np.floor(below * share + u), below)
        draws.append(np.where(integral, np.clip(count, 0, rows), np.where(u >= 1 - share, rows, 0.0)))
    return draws[0], draws[1]


def _with_weight(*points: Array) -> tuple[Points, Mask]:
    """Return the points with a positive weight, and their mask."""
    score, weight, positives = points
    positive = weight > 0
    return Points(score[positive], weight[positive], np.minimum(positives, weight)[positive]), positive


def _uniform(score: Array, salt: Salts | np.uint64) -> Array:
    """Hash scores to numbers in [0, 1), by the finaliser of SplitMix64."""
    bits = mixed((score + 0.0).view(np.uint64) + salt)  # -0.0 is 0.0
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _salt(key: Key) -> int:
    """Return the hash input of a segment: its values and their kinds."""
    digest = hashlib.blake2b(
        repr([(type(value).__name__, str(value)) for value in key]).encode(), digest_size=8
    )
    return int.from_bytes(digest.digest(), "little")


class _Drawing(NamedTuple):
    """Paths of files, indexed by segment code, for drawing rows of segments.

    cells : int32, the segment to draw from. salts : uint64, its hash input. keys : Parquet, the segments' values
    """

    coding: Coding
    cells: str
    salts: str
    keys: str


def divide(
    total: RunReceipt, plan: SortPlan, executor: Executor, share: float, *, weighted: bool, columns: int = 0
) -> tuple[RunReceipt, RunReceipt]:
    """Divide sorted runs into runs of the kept rows and runs of the held-out rows.

    Parameters
    ----------
    plan : plan whose scratch folder receives the new runs
    weighted : whether rows have weights; then the weight is divided, and both sides keep the row counts of all rows
    columns : number of leading segment columns to draw by

    Returns
    -------
    kept, held_out : receipts as of two logs
    """
    drawing, level = None, None
    if any(run.segments is not None for run in total.runs):
        drawing, level = _drawing(total, plan.scratch, columns)
    tasks = [
        (entry, share, drawing, plan.scratch, i) for i, entry in enumerate(ranges(total, plan.bucket_bytes))
    ]
    results = executor.run("divide", _divide, tasks)
    kept, held_out = ([pair[side] for pair in results if pair[side].weight] for side in range(2))
    for parts in (kept, held_out):
        if level is not None and weighted:
            _count_rows(parts, level)
    weight = sum(part.weight for part in held_out)
    receipt = _receipt(kept, total, weighted=weighted)
    receipt.rows, receipt.bad, receipt.labels = total.rows, total.bad, total.labels
    receipt.held_out = {"weight_held_out": weight} if weighted else {"rows_held_out": int(weight)}
    return receipt, _receipt(held_out, total, weighted=weighted)


def _drawing(total: RunReceipt, scratch: str, columns: int) -> tuple[_Drawing, Level]:
    segments = number_segments(total.runs, scratch)
    last = segments.levels[-1]
    if columns:
        level = segments.levels[columns - 1]
        cells, keys = level.of, level.keys
    else:
        cells, keys = np.zeros(len(last.keys), np.int32), [()]
    salts = np.array([_salt(key) if key else 0 for key in keys], np.uint64)
    path = write_keys(f"{scratch}/division-keys.parquet", last, [str(i) for i in range(len(last.types))])
    cell_codes = write_codes(f"{scratch}/division-cells", cells)
    # Each salt is written as two 32-bit numbers.
    salt_codes = write_codes(f"{scratch}/division-salts", salts[cells].view(np.int32))
    return _Drawing(segments.coding, cell_codes, salt_codes, path), last


class _Side(NamedTuple):
    """One side of a task: its run, the weight of its rows and of its positives, extreme scores.

    codes : codes among all runs of the segments of its run; None without segments
    """

    run: Run | None = None
    weight: float = 0.0
    positives: float = 0.0
    lowest: float = np.inf
    highest: float = -np.inf
    codes: Codes | None = None


def _divide(
    entry: tuple[BucketSpans, float, float], share: float, drawing: _Drawing | None, folder: str, index: int
) -> tuple[_Side, _Side]:
    spans, low, high = entry
    bucket = buckets.read_bucket(spans, low, high, None if drawing is None else drawing.coding.table)
    score, code, *sums = bucket.segment_points()
    points, cell, salt = Points(score, *sums), None, None
    if drawing is not None:
        count = drawing.coding.count
        cell = read_codes(drawing.cells, 0, count).astype(np.int64)[code]
        salt = read_codes(drawing.salts, 0, 2 * count).view(np.uint64)[code]
    written = []
    for i, side in enumerate(divide_points(share, points, cell, salt)):
        side_points, selected = _with_weight(*side)
        written.append(_write(side_points, code[selected], drawing, folder, 2 * index + i))
    return written[0], written[1]


def _write(points: Points, code: Codes, drawing: _Drawing | None, folder: str, index: int) -> _Side:
    score, weight, positives = points
    if score.size == 0:
        return _Side()
    run_codes, segments = None, None
    if drawing is not None:
        run_codes, position = np.unique(code, return_inverse=True)
        values = [one_array(column) for column in read_keys(drawing.keys, run_codes).columns]
        by_label = (np.bincount(position, rows, run_codes.size) for rows in (weight - positives, positives))
        segments = RunSegments(values, np.column_stack(list(by_label)).astype(np.int64))
        code = position.astype(np.int32)
    receipt = write_sections(Sections(sums=Coded(score, code, weight, positives)), folder, index, segments)
    sums = float(weight.sum()), float(positives.sum())
    return _Side(receipt.runs[0], *sums, receipt.lowest, receipt.highest, run_codes)


def _count_rows(parts: Sequence[_Side], level: Level) -> None:
    """Set the row counts of weighted runs: the log's rows of a segment are counted in the segment's first run."""
    counts = np.column_stack([level.rows - level.positives, level.positives])
    for part in parts:
        assert part.run is not None
        assert part.run.segments is not None
        part.run.segments = part.run.segments._replace(counts=counts[part.codes])
        counts[part.codes] = 0


def _receipt(parts: Sequence[_Side], total: RunReceipt, *, weighted: bool) -> RunReceipt:
    weight, positives = (
        int(sum(numbers)) for numbers in ([p.weight for p in parts], [p.positives for p in parts])
    )
    used = total.used if weighted else weight
    return RunReceipt(
        runs=[part.run for part in parts if part.run is not None],
        rows=used,
        used=used,
        used_positive=total.used_positive if weighted else positives,
        lowest=min((part.lowest for part in parts), default=np.inf),
        highest=max((part.highest for part in parts), default=-np.inf),
        largest_move=total.largest_move,
        sums=total.sums,
    )
