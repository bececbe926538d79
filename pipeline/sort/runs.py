"""First stage of the out-of-core sort: read a log's rows and write them as sorted runs into scratch space.

A run has at most some millions of rows (`pipeline.sort.run_files`), and only rows that one task has read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Array
from calibrators.core.sampling import WeightSums
from pipeline.log import quarantine
from pipeline.log.label_counts import Joined, LabelCounts, sum_labels
from pipeline.log.log_files import Piece
from pipeline.log.logs import Columns, Rows, pieces_ahead, read_rows
from pipeline.log.quarantine import BadRows
from pipeline.log.segment_values import Encoder
from pipeline.sort.buffers import Buffer
from pipeline.sort.run_files import Run, RunSegments, write_run
from pipeline.sort.sections import Sections

NO_GRID = "none"
_EXACT = 2.0**52
"""Doubles from here on are whole numbers."""
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_STEP = re.compile(r"1e-([1-9])")


class Reading(NamedTuple):
    """Settings for reading a log's rows and computing their scores.

    Attributes
    ----------
    transform : 'none' or 'sigmoid', applied to the score column
    lookup : path of a lookup table without segments, applied after the transform, so that scores are calibrated
        probabilities; None: none is applied
    grid : grid for the final rounding of scores; see `round_scores`
    spilled : labels joined by earlier tasks; None: labels are in the log, or joined while it is read
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

    sums : sums of sampling weights; None without sampling weights
    held_out : number or weight of held-out rows, after `pipeline.sort.division`; they are not among the used rows
    labels : counts of joined labels; None if labels are in the log
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
        """Add the counts of joined labels, if any; dropped rows do not count as rows."""
        if joined is not None:
            counts = LabelCounts()
            counts.add(joined)
            self.rows -= counts.dropped
            self.labels = sum_labels([self.labels, counts])

    @property
    def waiting(self) -> int:
        """Number of rows whose label is not known yet."""
        return int(self.rows - self.used - self.bad.total - self.held_out.get("rows_held_out", 0))

    @property
    def scale(self) -> float:
        """Factor that multiplies the sums of weights."""
        return 1.0 if self.sums is None else self.sums.scale

    @property
    def heaviest(self) -> float:
        """Largest scaled sampling weight; 1 without sampling weights."""
        return 1.0 if self.sums is None else self.sums.heaviest


def write_runs(
    pieces: tuple[Piece, ...], reading: Reading, folder: str, index: int, run_rows: int, keep_bad: bool
) -> RunReceipt:
    """Read pieces of a log and write their usable rows as sorted runs of at most `run_rows` rows.

    Parameters
    ----------
    pieces : pieces of log files to read
    folder : scratch folder; files are named by `index`, so that a repeated task writes the same files
    keep_bad : whether to write the unusable rows as Parquet next to the runs
    """
    intake = Intake(reading)
    buffer = intake.buffer(run_rows, folder, index)
    receipt = RunReceipt()
    bad_tables: list[pa.Table] = []
    for piece, content in pieces_ahead(reading.filesystem, pieces):
        for rows, scored in intake.read(piece, content):
            receipt.rows += rows.score.size
            scored, move = intake.rounded(scored)
            receipt.largest_move = max(receipt.largest_move, move)
            used = buffer.add(scored)
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
    """Reader of a task's rows, which joins labels and computes scores and segment codes; one object per task."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        columns = reading.columns
        self.encoder = Encoder(columns.segments) if columns.segments else None
        labels = reading.spilled or columns.labels
        self.matching = None if labels is None else labels.matching()

    def read(self, piece: Piece, content: bytes | None = None) -> Iterator[tuple[Rows, Rows]]:
        """Read a piece in batches.

        Yields pairs: the rows as read, and the rows with calibration scores, not yet rounded, and segment codes.
        """
        columns = self.reading.columns
        for rows in read_rows(self.reading.filesystem, piece, columns, self.matching, content):
            code = None if self.encoder is None else self.encoder.encode(rows.batch)
            yield rows, rows._replace(score=calibration_scores(rows.score, self.reading), code=code)

    def count_outcomes(self, receipt: RunReceipt) -> None:
        """Add the number of matched outcome rows to a task's last receipt."""
        if self.matching is not None and receipt.labels is not None:
            receipt.labels.outcomes += self.matching.outcome_rows

    def rounded(self, rows: Rows) -> tuple[Rows, float]:
        """Return the rows with scores rounded to the grid, and the largest move of a score."""
        score, move = round_scores(rows.score, self.reading.grid)
        return rows._replace(score=score), move

    def buffer(self, capacity: int, folder: str, index: int) -> Buffer:
        """Return a buffer for the rows read; it writes runs of at most `capacity` rows."""
        columns = self.reading.columns
        weighted = columns.weight is not None
        return Buffer(capacity, folder, index, self.encoder, weighted=weighted, sampling=columns.sampling)


def calibration_scores(score: Array, reading: Reading) -> Array:
    """Return the scores to sort rows by, before rounding to a grid."""
    if reading.transform != "none":
        from logcal.schema import apply_transform

        # An infinite margin is a fault of the log, even though its sigmoid is finite.
        score = apply_transform(np.where(np.isfinite(score), score, np.nan), reading.transform)
    if reading.lookup is not None:
        from logcal.reading import cached_table

        # The map of an infinite score is finite, but the row stays unusable.
        finite = np.where(np.isfinite(score), score, np.nan)
        score = cached_table(reading.lookup).map.predict(finite)
    return score


def write_sections(
    sections: Sections, folder: str, index: int, segments: RunSegments | None = None
) -> RunReceipt:
    """Sort sections, and write them as a run; return a receipt with the run and its extreme scores only."""
    sections = sections.sorted()
    run = write_run(f"{folder}/run-{index:06d}-0000", sections, segments)
    return RunReceipt([run], lowest=sections.score_range[0], highest=sections.score_range[1])


def steps_per_unit(grid: str) -> float | None:
    """Return 10 ** k for a grid 1e-k; None for the other grids."""
    match = _STEP.fullmatch(grid)
    return None if match is None else 10.0 ** int(match[1])


def round_scores(score: Array, grid: str) -> tuple[Array, float]:
    """Round scores to a grid; return them with the largest move of a score.

    Parameters
    ----------
    score : float64 array, shape (n,); infinities and NaN stay
    grid : 'none'; 'float32': the nearest float32; '1e-k': the nearest multiple of 10 ** -k. Ties go to the even
        multiple; a tie is exact, as at 0.5. Scores too large for the grid (float32's range, 2 ** 52 steps) stay.
    """
    if grid == NO_GRID:
        return score, 0.0
    per_unit = steps_per_unit(grid)
    with np.errstate(over="ignore", invalid="ignore"):
        if per_unit is None:
            rounded = score.astype(np.float32).astype(np.float64)
            representable = np.abs(score) <= _LARGEST_FLOAT32
        else:
            # Round to a whole number of steps, halves to even.
            steps = score * per_unit
            rounded_steps = np.rint(steps)
            halves = np.flatnonzero(np.abs(steps - rounded_steps) == 0.5)
            if halves.size:
                # Decide by the exact product: the double 0.05 is above half a tenth.
                values, index = np.unique(score[halves], return_inverse=True)
                exact = [round(Fraction(value) * int(per_unit)) for value in values.tolist()]
                rounded_steps[halves] = np.array(exact, np.float64)[index]
            rounded = rounded_steps / per_unit
            representable = np.abs(steps) < _EXACT
        out = np.where(representable, rounded, score)
        return out, float(np.max(np.abs(out - score), initial=0.0, where=representable))
