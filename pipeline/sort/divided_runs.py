"""Row groups with rows of several days, divided while they are read into runs of each day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.errors import InputRejectedError
from pipeline.log import quarantine
from pipeline.log.log_files import Piece
from pipeline.log.logs import DAY_INVALID, Columns, Rows
from pipeline.log.windows import days_of, shown
from pipeline.sort.effective_size import add_sums
from pipeline.sort.runs import Intake, Reading, RunReceipt


class MixedPiece(NamedTuple):
    """A row group with rows of several days; those without a date count in the day `first`."""

    piece: Piece
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Rows in it."""
        return self.piece.rows


_NO_BATCH = pa.RecordBatch.from_arrays([], names=[])

P = TypeVar("P", Piece, MixedPiece)


def pack(pieces: Sequence[P], rows: int) -> Iterator[tuple[P, ...]]:
    """Neighbouring pieces as tasks of at most `rows` rows, where no single piece has more."""
    held: list[P] = []
    for piece in pieces:
        if held and sum(other.rows for other in held) + piece.rows > rows:
            yield tuple(held)
            held = []
        held.append(piece)
    if held:
        yield tuple(held)


def without_date(columns: Columns) -> Columns:
    """The columns where no row's day must be read."""
    return replace(columns, date=None)


def write_divided_runs(
    pieces: tuple[MixedPiece, ...],
    reading: Reading,
    folders: dict[int, str],
    index: int,
    run_rows: int,
    keep_bad: bool,
) -> dict[int, RunReceipt]:
    """Read row groups with rows of several days, and leave the wanted days' rows as runs in each day's folder.

    Parameters
    ----------
    pieces : what to read
    reading : how, `columns.date` included
    folders : of each wanted day; rows of other days are passed over
    index, run_rows, keep_bad : see `runs.write_runs`

    Returns
    -------
    receipts of the days that rows were found of

    Raises
    ------
    InputRejectedError
        A day that the file's footer says is not there.
    """
    divided = _Divided(reading, folders, index, run_rows, keep_bad)
    for piece in pieces:
        for rows, ready in divided.intake.read(piece.piece):
            divided.add(rows, ready, piece)
    return divided.finish()


class _Divided:
    """Rows of several days, on their way into runs of each."""

    def __init__(
        self, reading: Reading, folders: dict[int, str], index: int, run_rows: int, keep_bad: bool
    ) -> None:
        self.reading = reading
        self.intake = Intake(reading)
        self.folders = folders
        self.index = index
        self.run_rows = run_rows
        self.keep_bad = keep_bad
        self.held = 0
        self.pending: dict[int, list[Rows]] = {}
        self.receipts: dict[int, RunReceipt] = {}
        self.bad_tables: dict[int, list[pa.Table]] = {}

    def add(self, rows: Rows, ready: Rows, piece: MixedPiece) -> None:
        """Take the rows of wanted days. ready : see `Intake.read`."""
        assert self.reading.columns.date is not None
        rows = rows._replace(day=days_of(rows.batch.column(self.reading.columns.date)))
        assert rows.day is not None
        dated = rows.day > DAY_INVALID
        day_of_row = np.where(dated, rows.day, np.int32(piece.first))
        self._check(day_of_row, piece)
        order = _by_day(day_of_row, piece)
        if not dated.all():
            order = order[dated[order]]
        score, label = ready.score[order], ready.label[order]
        weight = None if ready.weight is None else ready.weight[order]
        code = None if ready.code is None else ready.code[order]
        counts = np.bincount(day_of_row - piece.first)
        for i in np.flatnonzero(counts).tolist():
            day = piece.first + i
            if day not in self.folders:
                continue
            part = slice(*np.searchsorted(day_of_row[order], [day, day + 1]).tolist())
            own, move = self.intake.rounded(
                Rows(
                    0,
                    score[part],
                    label[part],
                    None if weight is None else weight[part],
                    _NO_BATCH,
                    code=None if code is None else code[part],
                )
            )
            self._hold(day, own, int(counts[i]), move)
            if own.score.size < counts[i] or not _all_usable(own):
                self._keep_bad(day, rows, piece.piece.path, day_of_row == day)
        if self.held >= self.run_rows:
            self.flush()

    @staticmethod
    def _check(days: Any, piece: MixedPiece) -> None:
        if days.size and (days.min() < piece.first or days.max() > piece.last):
            found = shown([int(days.min()), int(days.max())])
            said = shown([piece.first, piece.last])
            raise InputRejectedError(
                f"{piece.piece.path}: expected dates from {said[0]} to {said[1]}, as its footer says, found "
                f"{found[0]} to {found[1]}: write it again"
            )

    def _hold(self, day: int, rows: Rows, count: int, move: float) -> None:
        receipt = self.receipts.setdefault(day, RunReceipt())
        receipt.rows += count
        receipt.largest_move = max(receipt.largest_move, move)
        self.pending.setdefault(day, []).append(rows)
        self.held += rows.score.size

    def _keep_bad(self, day: int, rows: Rows, path: str, among: Any) -> None:
        bad, table = quarantine.find_bad(rows, self.reading.columns, path, among)
        self.receipts[day].bad.merge(bad)
        if self.keep_bad and table.num_rows:
            self.bad_tables.setdefault(day, []).append(table)

    def flush(self) -> None:
        """Write what is held as a run of each day."""
        for day, parts in self.pending.items():
            receipt = self.receipts[day]
            size = max(1, sum(part.score.size for part in parts))
            buffer = self.intake.buffer(size, self.folders[day], self.index)
            # Its files go on counting where those of the last flush ended.
            buffer.runs = receipt.runs
            receipt.used += sum(buffer.add(part) for part in parts)
            buffer.flush()
            receipt.used_positive += buffer.used_positive
            receipt.sums = add_sums([receipt.sums, buffer.sums])
            receipt.lowest = min(receipt.lowest, float(buffer.lowest))
            receipt.highest = max(receipt.highest, float(buffer.highest))
        self.pending = {}
        self.held = 0

    def finish(self) -> dict[int, RunReceipt]:
        """Write the rest."""
        self.flush()
        for day, tables in self.bad_tables.items():
            quarantine.write_part(tables, f"{self.folders[day]}/bad-{self.index:06d}.parquet")
        return self.receipts


def _by_day(day: npt.NDArray[np.int32], piece: MixedPiece) -> npt.NDArray[np.int64]:
    """The order of rows by day."""
    place = day - piece.first
    # Small integers are sorted by counting.
    return np.argsort(place.astype(np.uint16) if piece.last - piece.first < 1 << 16 else place, kind="stable")


def _all_usable(rows: Rows) -> bool:
    good = np.isfinite(rows.score) & (rows.label <= 1)
    if rows.weight is not None:
        good &= np.isfinite(rows.weight) & (rows.weight > 0)
    return bool(good.all())
