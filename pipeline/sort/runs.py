"""Sorted runs: the result of the out-of-core sort's first stage, in scratch space.

A run holds some millions of rows (`pipeline.sort.run_files`), or as many as one task reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.arithmetic.ordering import expand_ties
from calibrators.arithmetic.passes import Array, Points
from calibrators.arithmetic.sampling import WeightSums
from pipeline.log import quarantine
from pipeline.log.label_counts import Joined, LabelCounts, sum_labels
from pipeline.log.log_files import Piece
from pipeline.log.logs import Columns, Rows, pieces_ahead, read_rows
from pipeline.log.quarantine import BadRows
from pipeline.log.segment_values import Encoder
from pipeline.sort.buffers import Buffer, CodedBuffer, WeightedBuffer
from pipeline.sort.run_files import Run, Sections, write_run

NO_GRID = "none"
_EXACT = 2.0**52
"""From here on every double is a whole number."""
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_STEP = re.compile(r"1e-([1-9])")


class Reading(NamedTuple):
    """Reading of a log's rows into scores.

    Attributes
    ----------
    transform : 'none' or 'sigmoid', applied to the score column.
    lookup : path of a lookup table without segments applied after it: the score is then a calibrated probability; or
        None.
    grid : what scores are rounded to last; see `round_scores`.
    spilled : labels that were joined before; None: they are in the log, or its tasks join them.
    """

    filesystem: Any
    columns: Columns
    transform: str = "none"
    lookup: str | None = None
    grid: str = NO_GRID
    spilled: Any = None


@dataclass
class RunReceipt:
    """Receipt of a task of the first stage.

    sums : of rows with sampling weights; otherwise None
    held_out : of rows that were divided (`pipeline.sort.division`): how many are not among the used ones
    labels : of rows whose labels were joined; otherwise None
    """

    runs: list[Run] = field(default_factory=list)
    rows: int = 0
    used: int = 0
    used_positive: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    largest_move: float = 0.0
    bad: BadRows = field(default_factory=BadRows)
    sums: WeightSums | None = None
    held_out: dict[str, float] = field(default_factory=dict)
    labels: LabelCounts | None = None

    def count(self, joined: Joined | None) -> None:
        """Count rows whose labels were joined, if they were; those that are left out are no rows."""
        if joined is not None:
            own = LabelCounts()
            own.add(joined)
            self.rows -= own.dropped
            self.labels = sum_labels([self.labels, own])

    @property
    def waiting(self) -> int:
        """Rows whose label is not known yet."""
        return int(self.rows - self.used - self.bad.total - self.held_out.get("rows_held_out", 0))

    @property
    def scale(self) -> float:
        """Factor of the rows' weights where they are added up."""
        return 1.0 if self.sums is None else self.sums.scale

    @property
    def heaviest(self) -> float:
        """The largest of sampling weights, once multiplied; otherwise 1."""
        return 1.0 if self.sums is None else self.sums.heaviest


def write_runs(
    pieces: tuple[Piece, ...], reading: Reading, folder: str, index: int, run_rows: int, keep_bad: bool
) -> RunReceipt:
    """Read pieces of a log and leave their usable rows as sorted runs of at most `run_rows` rows.

    Parameters
    ----------
    pieces : what to read
    reading : how
    folder : scratch folder; files are named by `index`, so that a repeated task writes the same files
    run_rows : rows a run
    keep_bad : whether to leave the unusable rows as Parquet beside the runs
    """
    intake = Intake(reading)
    buffer = intake.buffer(run_rows, folder, index)
    receipt = RunReceipt()
    bad_tables: list[pa.Table] = []
    for piece, content in pieces_ahead(reading.filesystem, pieces):
        for rows, ready in intake.read(piece, content):
            receipt.rows += rows.score.size
            ready, move = intake.rounded(ready)
            receipt.largest_move = max(receipt.largest_move, move)
            used = buffer.add(ready)
            receipt.used += used
            receipt.count(rows.joined)
            if used < rows.score.size:
                bad, table = quarantine.find_bad(rows, reading.columns, piece.path)
                receipt.bad.merge(bad)
                if keep_bad and bad.total:
                    bad_tables.append(table)
    buffer.flush()
    receipt.runs = buffer.runs
    receipt.used_positive = buffer.used_positive
    receipt.lowest, receipt.highest = buffer.lowest, buffer.highest
    receipt.sums = buffer.sums
    intake.count_outcomes(receipt)
    if bad_tables:
        quarantine.write_part(bad_tables, f"{folder}/bad-{index:06d}.parquet")
    return receipt


class Intake:
    """Intake of all rows of a log before they are sorted; one object a task."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        columns = reading.columns
        self.encoder = Encoder(columns.segments) if columns.segments else None
        labels = reading.spilled or columns.labels
        self.matching = None if labels is None else labels.matching()

    def read(self, piece: Piece, content: bytes | None = None) -> Iterator[tuple[Rows, Rows]]:
        """Batches of a piece: rows as they are; and the same with the scores that they are sorted by, but for the
        grid, and with the codes of their segments.
        """
        columns = self.reading.columns
        for rows in read_rows(self.reading.filesystem, piece, columns, self.matching, content):
            code = None if self.encoder is None else self.encoder.encode(rows.batch)
            yield rows, rows._replace(score=calibration_scores(rows.score, self.reading), code=code)

    def count_outcomes(self, receipt: RunReceipt) -> None:
        """Add to the receipt of a task's last rows what it has found of other files' rows."""
        if self.matching is not None and receipt.labels is not None:
            receipt.labels.outcomes += self.matching.outcome_rows

    def rounded(self, rows: Rows) -> tuple[Rows, float]:
        """Rows with their scores on the grid, and how far the score has moved that moved the most."""
        score, move = round_scores(rows.score, self.reading.grid)
        return rows._replace(score=score), move

    def buffer(self, capacity: int, folder: str, index: int) -> Buffer:
        """Make the buffer that takes such rows and writes them as runs of at most `capacity` rows."""
        weighted = self.reading.columns.weight is not None
        buffer: Buffer
        if self.encoder is not None:
            buffer = CodedBuffer(capacity, folder, index, self.encoder, weighted)
        else:
            buffer = (WeightedBuffer if weighted else Buffer)(capacity, folder, index)
        buffer.sampling = self.reading.columns.sampling
        return buffer


def calibration_scores(score: Array, reading: Reading) -> Array:
    """The scores that rows are sorted by, before they are rounded to a grid."""
    if reading.transform != "none":
        from logcal.schema import apply_transform

        # An infinite margin is a fault of the log, also where its sigmoid would be 0 or 1.
        score = apply_transform(np.where(np.isfinite(score), score, np.nan), reading.transform)
    if reading.lookup is not None:
        from pipeline.table.lookup_table import cached_lookup_table

        # The map of an infinite score is finite, but the row is as little use as before.
        finite = np.where(np.isfinite(score), score, np.nan)
        score = cached_lookup_table(reading.lookup).map.predict(finite)
    return score


def write_points_run(score: Array, weight: Array, positives: Array, folder: str, index: int) -> RunReceipt:
    """Leave points, in any order, as a run; of the receipt, the run and its extreme scores are filled in."""
    order = np.argsort(score, kind="stable")
    entries = Points(*expand_ties(score[order], weight[order], positives[order]))
    run = write_run(f"{folder}/run-{index:06d}-0000", Sections(entries=entries))
    return RunReceipt([run], lowest=float(entries.score[0]), highest=float(entries.score[-1]))


def steps_per_unit(grid: str) -> float | None:
    """Return 10 ** k of a power of ten 1e-k; None for the other grids."""
    match = _STEP.fullmatch(grid)
    return None if match is None else 10.0 ** int(match[1])


def round_scores(score: Array, grid: str) -> tuple[Array, float]:
    """Scores on a grid, and how far the one that moved the most has moved.

    Parameters
    ----------
    score : float64 array, shape (n,); infinities and NaN stay
    grid : 'none'; 'float32': the nearest float32; '1e-k': the nearest multiple of 10 ** -k. Halves go to the even
        one; a double is half-way only where it is so exactly, as 0.5 is. Scores too large for the grid (float32's
        range, 2 ** 52 steps) stay.
    """
    if grid == NO_GRID:
        return score, 0.0
    per_unit = steps_per_unit(grid)
    with np.errstate(over="ignore", invalid="ignore"):
        if per_unit is None:
            rounded = score.astype(np.float32).astype(np.float64)
            small = np.abs(score) <= _LARGEST_FLOAT32
        else:
            # The double next to a whole number of steps, halves to the even one.
            steps = score * per_unit
            whole = np.rint(steps)
            halves = np.flatnonzero(np.abs(steps - whole) == 0.5)
            if halves.size:
                # Of the exact product: 0.05 is above half a tenth.
                values, place = np.unique(score[halves], return_inverse=True)
                exact = [round(Fraction(value) * int(per_unit)) for value in values.tolist()]
                whole[halves] = np.array(exact, np.float64)[place]
            rounded = whole / per_unit
            small = np.abs(steps) < _EXACT
        out = np.where(small, rounded, score)
        return out, float(np.max(np.abs(out - score), initial=0.0, where=small))
