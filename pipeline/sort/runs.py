"""Sorted runs: what the first stage of the out-of-core sort leaves in scratch space.

A run holds some millions of rows (`pipeline.sort.run_files`). Rows without weights are scores alone, a class at a time,
which keeps numpy's vectorised sort; it works for any finite score and loses nothing. Rows with weights are pairs of
score and weight, the label being the weight's sign. Longer ties of either become sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators._kernels import ties
from calibrators.ordering import sort_pairs
from calibrators.passes import Array, Points
from pipeline._kernels import rows as row_kernels
from pipeline.log import quarantine, score_grid
from pipeline.log.log_files import Piece
from pipeline.log.logs import Columns, Rows, read_rows
from pipeline.log.quarantine import BadRows
from pipeline.sort.run_files import Run, Sections, SignedRows, write_run

SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as an entry (24 bytes) than as rows (8 or 16 bytes each)."""


class Reading(NamedTuple):
    """How a log's rows become scores.

    Attributes
    ----------
    transform : 'none' or 'sigmoid', applied to the score column.
    lookup : path of a lookup table applied after it, or None: the score is then a calibrated probability.
    grid : what scores are rounded to last; see `pipeline.log.score_grid`.
    """

    filesystem: Any
    columns: Columns
    transform: str = "none"
    lookup: str | None = None
    grid: str = score_grid.NONE


@dataclass
class RunReceipt:
    """What one task of the first stage did."""

    runs: list[Run] = field(default_factory=list)
    rows: int = 0
    used: int = 0
    used_positive: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    largest_move: float = 0.0
    bad: BadRows = field(default_factory=BadRows)


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
    kind = WeightedBuffer if reading.columns.weight else Buffer
    buffer = kind(run_rows, Path(folder), index)
    receipt = RunReceipt()
    bad_tables: list[pa.Table] = []
    for piece in pieces:
        for rows in read_rows(reading.filesystem, piece, reading.columns):
            receipt.rows += rows.score.size
            score, move = score_grid.round_scores(calibration_scores(rows.score, reading), reading.grid)
            receipt.largest_move = max(receipt.largest_move, move)
            used = buffer.add(rows._replace(score=score))
            receipt.used += used
            if used < rows.score.size:
                bad, table = quarantine.find_bad(rows, reading.columns, piece.path)
                receipt.bad.merge(bad)
                if keep_bad:
                    bad_tables.append(table)
    buffer.flush()
    receipt.runs = buffer.runs
    receipt.used_positive = buffer.used_positive
    receipt.lowest, receipt.highest = buffer.lowest, buffer.highest
    if bad_tables:
        quarantine.write_part(bad_tables, Path(folder) / f"bad-{index:06d}.parquet")
    return receipt


def calibration_scores(score: Array, reading: Reading) -> Array:
    """The scores that rows are sorted by, before they are rounded to a grid."""
    if reading.transform != "none":
        from pipeline.log.transforms import apply_transform

        # An infinite margin is a fault of the log, also where its sigmoid would be 0 or 1.
        score = apply_transform(np.where(np.isfinite(score), score, np.nan), reading.transform)
    if reading.lookup is not None:
        from pipeline.table.lookup_table import cached_lookup_table

        # The map of an infinite score is finite, but the row is as little use as before.
        finite = np.where(np.isfinite(score), score, np.nan)
        score = cached_lookup_table(reading.lookup).map.predict(finite)
    return score


class Buffer:
    """Rows without weights, on their way into runs."""

    def __init__(self, capacity: int, folder: Path, index: int) -> None:
        self.capacity = capacity
        self.folder = folder
        self.index = index
        self.negatives = np.empty(capacity)
        self.positives = np.empty(capacity)
        self.n = self.p = 0
        self.used_positive = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.runs: list[Run] = []

    def add(self, rows: Rows) -> int:
        """Take the usable rows; return how many there were."""
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            score = rows.score[start : start + self.capacity]
            if self.n + self.p + score.size > self.capacity:
                self.flush()
            before = self.n + self.p
            label = rows.label[start : start + self.capacity]
            self.n, self.p = row_kernels.split_classes(
                score, label, self.negatives, self.positives, self.n, self.p
            )
            used += self.n + self.p - before
        return used

    def flush(self) -> None:
        """Write what is held as a run."""
        if self.n + self.p:
            self.write(self.negatives[: self.n], self.positives[: self.p])
        self.n = self.p = 0

    def write(self, negatives: Array, positives: Array) -> None:
        """Write scores of the classes, at least one score, as a run; they are sorted in place."""
        negatives.sort()
        positives.sort()
        ends = [section[i] for section in (negatives, positives) if section.size for i in (0, -1)]
        self.lowest, self.highest = min(self.lowest, *ends), max(self.highest, *ends)
        self.used_positive += positives.size
        negatives, negative_ties = fold(negatives, label=0)
        positives, positive_ties = fold(positives, label=1)
        entries = np.concatenate([negative_ties, positive_ties], axis=1)
        entries = np.take(entries, np.argsort(entries[0], kind="stable"), axis=1)
        self._write(Sections(negatives, positives, entries=Points(*entries)))

    def _write(self, sections: Sections) -> None:
        path = self.folder / f"run-{self.index:06d}-{len(self.runs):04d}"
        self.runs.append(write_run(path, sections))


def write_entries(entries: Points, folder: Path, index: int) -> RunReceipt:
    """Leave entries, sorted by score, as a run; of the receipt, the run and its extreme scores are filled in."""
    run = write_run(folder / f"run-{index:06d}-0000", Sections(entries=entries))
    return RunReceipt([run], lowest=float(entries.score[0]), highest=float(entries.score[-1]))


def _has_longer_ties(score: Array) -> bool:
    reach = SHORTEST_FOLDED_TIE - 1
    return bool((score[reach:] == score[:-reach]).any())


def fold(values: Array, label: int) -> tuple[Array, Array]:
    """Sorted scores of a class without their longer ties, and the ties as entries, shape (3, ties)."""
    if not _has_longer_ties(values):
        return values, np.empty((3, 0))
    n, score, count = row_kernels.fold_ties(values, SHORTEST_FOLDED_TIE)
    return values[:n], np.stack([score, count, label * count])


def fold_weighted(rows: SignedRows) -> tuple[SignedRows, Points]:
    """Sorted weighted rows without their longer ties, and the ties' exact sums as entries; rows are used up."""
    score, signed = rows
    if not _has_longer_ties(score):
        return rows, Sections().entries
    n, *entries = ties.fold_signed(score, signed, SHORTEST_FOLDED_TIE)
    return SignedRows(score[:n], signed[:n]), Points(*entries)


class WeightedBuffer(Buffer):
    """Rows with weights, on their way into runs."""

    def __init__(self, capacity: int, folder: Path, index: int) -> None:
        super().__init__(0, folder, index)
        self.capacity = capacity
        self.rows = np.empty((capacity, 2))

    def add(self, rows: Rows) -> int:
        """See `Buffer.add`."""
        assert rows.weight is not None
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            part = slice(start, start + self.capacity)
            if self.n + rows.score[part].size > self.capacity:
                self.flush()
            before = self.n
            self.n = row_kernels.keep_weighted(
                rows.score[part],
                rows.label[part],
                rows.weight[part],
                self.rows,
                self.n,
            )
            used += self.n - before
        return used

    def flush(self) -> None:
        """See `Buffer.flush`."""
        if self.n:
            self.write_weighted(self.rows[: self.n])
        self.n = 0

    def write_weighted(self, rows: Array) -> None:
        """Write weighted rows, shape (rows, 2): score and signed weight, at least one, as a run."""
        score, signed = sort_pairs(rows)
        self.lowest, self.highest = min(self.lowest, score[0]), max(self.highest, score[-1])
        self.used_positive += int(np.count_nonzero(signed > 0))
        kept, entries = fold_weighted(SignedRows(score, signed))
        self._write(Sections(rows=kept, entries=entries))
