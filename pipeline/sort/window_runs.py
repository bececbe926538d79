"""The rows of a window as runs of each day: whole row groups of one day, and others divided while they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.sampling import add_sums
from logcal.errors import InputRejectedError
from pipeline.execution import Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log import quarantine
from pipeline.log.log_files import Piece
from pipeline.log.logs import DAY_INVALID, Rows, neighbours, pieces_ahead
from pipeline.log.windows import Window, days_of, shown
from pipeline.sort.day_files import FileId
from pipeline.sort.label_join import add_labels
from pipeline.sort.runs import Intake, Reading, RunReceipt, write_runs
from pipeline.sort.score_table import SortPlan, add_up


def add_days(
    graph: Graph,
    window: Window,
    files: Mapping[int, frozenset[FileId]],
    folders: Mapping[int, str],
    plan: SortPlan,
) -> dict[int, list[Any]]:
    """Add to a graph what sorts the rows of some days into runs in the days' own folders: a layer `sort-i`.

    files : of each day; its row groups in them are read, by as few tasks as can be

    Returns
    -------
    references of each day to what tasks left, of this day and of others: receipts by day, see `add_up_day`
    """
    log = window.log
    if files:
        log = replace(log, columns=log.columns.of_days(min(files), max(files)))
    reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    whole, mixed = _divide(window, files)
    every = (*whole.items(), *sorted(mixed.items(), key=lambda item: sorted(item[0])))
    packed = [
        (own_days, some)
        for own_days, pieces in every
        for some in neighbours(pieces, lambda dated: dated.piece.rows, plan.run_rows)
    ]
    reach = [own_days for own_days, _ in packed]
    read = [[dated.piece for dated in some] for _, some in packed]
    readings = add_labels(graph, log, reading, read, plan.scratch, plan.label_bytes)
    tasks = [
        (some, how, {day: folders[day] for day in sorted(own_days)}, i, plan.run_rows, plan.rules.keep)
        for i, ((own_days, some), how) in enumerate(zip(packed, readings, strict=True))
    ]
    found = graph.layer("sort", _write_days, tasks, receipts=receipts_in(plan.scratch))
    return {
        day: [result for days, result in zip(reach, found, strict=True) if day in days] for day in folders
    }


def add_up_day(day: int, receipts: list[dict[int, RunReceipt]]) -> RunReceipt:
    """The receipts of a day as one. receipts : by day, of several tasks."""
    return add_up([own[day] for own in receipts if day in own])


class DatedPiece(NamedTuple):
    """Row groups with rows of the days first, ..., last.

    mixed : whether the day of each row must be read; rows without a date count in the first day
    """

    piece: Piece
    first: int
    last: int
    mixed: bool


def _divide(
    window: Window, files: Mapping[int, frozenset[FileId]]
) -> tuple[dict[frozenset[int], list[DatedPiece]], dict[frozenset[int], list[DatedPiece]]]:
    """The row groups that some files have of some days, by their days: those of one day, and those of several.

    Of a file that some days have a table of already, only the others' rows are taken.
    """
    wanted = {path for own in files.values() for path, _, _ in own}
    whole: dict[frozenset[int], list[DatedPiece]] = {frozenset([day]): [] for day in files}
    mixed: dict[frozenset[int], list[DatedPiece]] = {}
    for file, groups in window.files:
        if file.path not in wanted:
            continue
        own_days = {day for day, own in files.items() if (file.path, file.size, file.stamp) in own}
        for group in groups:
            days = own_days.intersection(range(group.first, group.last + 1))
            if days:
                piece = file.piece((group.place,), group.start, group.rows)
                found = DatedPiece(piece, group.first, group.last, group.mixed)
                (mixed if group.mixed else whole).setdefault(frozenset(days), []).append(found)
    return whole, mixed


def _write_days(
    pieces: tuple[DatedPiece, ...],
    reading: Reading,
    folders: dict[int, str],
    index: int,
    run_rows: int,
    keep_bad: bool,
) -> dict[int, RunReceipt]:
    """Read row groups, and leave the wanted days' rows as runs in each day's folder.

    Parameters
    ----------
    pieces : what to read: all of one day, or all with days to be read
    reading : how, `columns.date` included where days are read
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
    for folder in folders.values():
        Folder.at(folder).make()
    if not pieces[0].mixed:
        [(day, folder)] = folders.items()
        plain = reading._replace(columns=replace(reading.columns, date=None))
        own = tuple(dated.piece for dated in pieces)
        return {day: write_runs(own, plain, folder, index, run_rows, keep_bad)}
    divided = _Divided(Intake(reading), folders, index, run_rows, keep_bad)
    ahead = pieces_ahead(reading.filesystem, [dated.piece for dated in pieces])
    for dated, (piece, content) in zip(pieces, ahead, strict=True):
        for rows, ready in divided.intake.read(piece, content):
            divided.add(rows, ready, dated)
    return divided.finish()


_NO_BATCH = pa.RecordBatch.from_arrays([], names=[])


@dataclass
class _Divided:
    """Rows of several days, on their way into runs of each."""

    intake: Intake
    folders: dict[int, str]
    index: int
    run_rows: int
    keep_bad: bool
    held: int = 0
    pending: dict[int, list[Rows]] = field(default_factory=dict)
    receipts: dict[int, RunReceipt] = field(default_factory=dict)
    bad_tables: dict[int, list[pa.Table]] = field(default_factory=dict)

    def add(self, rows: Rows, ready: Rows, piece: DatedPiece) -> None:
        """Take the rows of wanted days. ready : see `Intake.read`."""
        date = self.intake.reading.columns.date
        assert date is not None
        rows = rows._replace(day=days_of(rows.batch.column(date)))
        assert rows.day is not None
        dated = rows.day > DAY_INVALID
        day_of_row = np.where(dated, rows.day, np.int32(piece.first))
        self._check(day_of_row, piece)
        order = _by_day(day_of_row, piece)
        if not dated.all():
            order = order[dated[order]]
        # What is held until it is written is without the batch.
        ready = ready.some(order)._replace(batch=_NO_BATCH)
        counts = np.bincount(day_of_row - piece.first)
        for i in np.flatnonzero(counts).tolist():
            day = piece.first + i
            if day not in self.folders:
                continue
            part = slice(*np.searchsorted(day_of_row[order], [day, day + 1]).tolist())
            own, move = self.intake.rounded(ready.some(part))
            self._hold(day, own, int(counts[i]), move)
            if rows.joined is not None:
                self.receipts[day].count(rows.joined.part(day_of_row == day))
            if own.score.size < counts[i] or not quarantine.usable(own).all():
                self._keep_bad(day, rows, piece.piece.path, day_of_row == day)
        if self.held >= self.run_rows:
            self.flush()

    @staticmethod
    def _check(days: Any, piece: DatedPiece) -> None:
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
        bad, table = quarantine.find_bad(rows, self.intake.reading.columns, path, among)
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
        for receipt in list(self.receipts.values())[:1]:
            self.intake.count_outcomes(receipt)
        for day, tables in self.bad_tables.items():
            quarantine.write_part(tables, f"{self.folders[day]}/bad-{self.index:06d}.parquet")
        return self.receipts


def _by_day(day: npt.NDArray[np.int32], piece: DatedPiece) -> npt.NDArray[np.int64]:
    """The order of rows by day."""
    place = day - piece.first
    # Small integers are sorted by counting.
    return np.argsort(place.astype(np.uint16) if piece.last - piece.first < 1 << 16 else place, kind="stable")
