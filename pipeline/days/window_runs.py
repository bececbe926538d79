"""Sorting of a window's rows into runs of each day; row groups with several days are divided while they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers
from calibrators.core.sampling import add_sums
from logcal.errors import InputRejectedError
from pipeline.execution import Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.labels.label_join import add_labels
from pipeline.log import quarantine
from pipeline.log.log_files import FileId, Piece
from pipeline.log.logs import DAY_INVALID, DAY_OUT_OF_RANGE, Rows, batched_by_size, pieces_ahead
from pipeline.log.windows import GroupDays, Window, days_of, shown
from pipeline.sort.runs import Intake, Reading, RunReceipt, write_runs
from pipeline.sort.score_table import SortPlan, add_up


def add_days(
    graph: Graph,
    window: Window,
    files: Mapping[int, frozenset[FileId]],
    folders: Mapping[int, str],
    plan: SortPlan,
) -> dict[int, list[Any]]:
    """Add tasks that sort the rows of some days into runs in one folder per day: a layer `sort-i`.

    files, folders : files to read, and folder for the runs, by day

    Returns
    -------
    references to the results of the tasks with rows of each day: receipts by day, see `add_up_day`
    """
    log = window.log
    if files:
        log = replace(log, columns=log.columns.of_days(min(files), max(files)))
    base_reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    unmixed, mixed = _group_by_days(window, files)
    groups = (*unmixed.items(), *sorted(mixed.items(), key=lambda item: sorted(item[0])))
    packed = [
        (days, batch)
        for days, pieces in groups
        for batch in batched_by_size(pieces, lambda dated: dated.piece.rows, plan.run_rows)
    ]
    log_pieces = [[dated.piece for dated in batch] for _, batch in packed]
    readings = add_labels(graph, log, base_reading, log_pieces, plan.scratch, plan.label_bytes)
    tasks = [
        (batch, reading, {day: folders[day] for day in sorted(days)}, i, plan.run_rows, plan.rules.keep)
        for i, ((days, batch), reading) in enumerate(zip(packed, readings, strict=True))
    ]
    results = graph.layer("sort", _write_days, tasks, receipts=receipts_in(plan.scratch))
    by_task = list(zip(packed, results, strict=True))
    return {day: [result for (days, _), result in by_task if day in days] for day in folders}


def add_up_day(day: int, receipts: list[dict[int, RunReceipt]]) -> RunReceipt:
    """Add up a day's receipts. receipts : each task's receipts by day."""
    return add_up([by_day[day] for by_day in receipts if day in by_day])


class DatedPiece(NamedTuple):
    """Row group, and its days. If the day of each row must be read, rows without a date count for the first day."""

    piece: Piece
    days: GroupDays


def _group_by_days(
    window: Window, files: Mapping[int, frozenset[FileId]]
) -> tuple[dict[frozenset[int], list[DatedPiece]], dict[frozenset[int], list[DatedPiece]]]:
    """Group the row groups of files by the days to read from them: row groups with one day, and with several.

    If some days of a file have a table with the file, only rows of its other days are read.
    """
    wanted = frozenset[FileId]().union(*files.values())
    unmixed: dict[frozenset[int], list[DatedPiece]] = {frozenset([day]): [] for day in files}
    mixed: dict[frozenset[int], list[DatedPiece]] = {}
    for file, groups in window.files:
        if file.identity not in wanted:
            continue
        wanted_days = {day for day, ids in files.items() if file.identity in ids}
        for group in groups:
            days = wanted_days.intersection(range(group.first, group.last + 1))
            if days:
                piece = file.piece((group.position,), group.start, group.rows)
                by_days = mixed if group.mixed else unmixed
                by_days.setdefault(frozenset(days), []).append(DatedPiece(piece, group))
    return unmixed, mixed


def _write_days(
    pieces: tuple[DatedPiece, ...],
    reading: Reading,
    folders: dict[int, str],
    index: int,
    run_rows: int,
    keep_bad: bool,
) -> dict[int, RunReceipt]:
    """Read row groups, and write the wanted days' rows as runs into each day's folder.

    Parameters
    ----------
    pieces : row groups of one day, or mixed ones
    reading : settings; mixed row groups need `columns.date`
    folders : folder of each wanted day; rows of other days are skipped
    index, run_rows, keep_bad : see `runs.write_runs`

    Returns
    -------
    receipts of the days that have rows

    Raises
    ------
    InputRejectedError
        A row has a day outside the range in the file's footer.
    """
    for folder in folders.values():
        Folder.at(folder).make()
    if not pieces[0].days.mixed:
        [(day, folder)] = folders.items()
        undated = reading._replace(columns=replace(reading.columns, date=None))
        log_pieces = tuple(dated.piece for dated in pieces)
        return {day: write_runs(log_pieces, undated, folder, index, run_rows, keep_bad)}
    buffers = _DayBuffers(Intake(reading), folders, index, run_rows, keep_bad)
    contents = pieces_ahead(reading.filesystem, [dated.piece for dated in pieces])
    for dated, (piece, content) in zip(pieces, contents, strict=True):
        for rows, scored in buffers.intake.read(piece, content):
            buffers.add(rows, scored, dated)
    return buffers.finish()


_NO_BATCH = pa.RecordBatch.from_arrays([], names=[])


@dataclass
class _DayBuffers:
    """Buffers of the rows of several days, written as runs of each day."""

    intake: Intake
    folders: dict[int, str]
    index: int
    run_rows: int
    keep_bad: bool
    pending_rows: int = 0
    pending: dict[int, list[Rows]] = field(default_factory=dict)
    receipts: dict[int, RunReceipt] = field(default_factory=dict)
    bad_tables: dict[int, list[pa.Table]] = field(default_factory=dict)

    def add(self, rows: Rows, scored: Rows, dated: DatedPiece) -> None:
        """Add the rows of wanted days. scored : rows with calibration scores, see `Intake.read`."""
        date, group = self.intake.reading.columns.date, dated.days
        assert date is not None
        days = days_of(rows.batch.column(date), self.intake.reading.columns.calendar.zone)
        if group.limits is not None:
            out = (days > DAY_INVALID) & ((days < group.limits.first) | (days > group.limits.last))
            days = np.where(out, np.int32(DAY_OUT_OF_RANGE), days)
        rows = rows._replace(day=days)
        has_date = days > DAY_OUT_OF_RANGE
        day_of_row = np.where(has_date, days, np.int32(group.first))
        self._check(day_of_row, dated)
        order = _order_by_day(day_of_row, group)
        if not has_date.all():
            order = order[has_date[order]]
        # Rows that wait to be written do not keep their batch in memory.
        scored = scored.some(order)._replace(batch=_NO_BATCH)
        counts = np.bincount(day_of_row - group.first)
        for i in np.flatnonzero(counts).tolist():
            day = group.first + i
            if day not in self.folders:
                continue
            span = slice(*np.searchsorted(day_of_row[order], [day, day + 1]).tolist())
            day_rows, move = self.intake.rounded(scored.some(span))
            self._queue(day, day_rows, int(counts[i]), move)
            if rows.joined is not None:
                self.receipts[day].count(rows.joined.part(day_of_row == day))
            if day_rows.score.size < counts[i] or not quarantine.usable(day_rows).all():
                self._keep_bad(day, rows, dated.piece.path, day_of_row == day)
        if self.pending_rows >= self.run_rows:
            self.flush()

    @staticmethod
    def _check(days: Any, dated: DatedPiece) -> None:
        group = dated.days
        if days.size and (days.min() < group.first or days.max() > group.last):
            found = shown([int(days.min()), int(days.max())])
            expected = shown([group.first, group.last])
            raise InputRejectedError(
                f"{dated.piece.path}: expected dates from {expected[0]} to {expected[1]}, as its footer says, found "
                f"{found[0]} to {found[1]}: write it again"
            )

    def _queue(self, day: int, rows: Rows, count: int, move: float) -> None:
        receipt = self.receipts.setdefault(day, RunReceipt())
        receipt.rows += count
        receipt.largest_move = max(receipt.largest_move, move)
        self.pending.setdefault(day, []).append(rows)
        self.pending_rows += rows.score.size

    def _keep_bad(self, day: int, rows: Rows, path: str, selected: Any) -> None:
        bad, table = quarantine.find_bad(rows, self.intake.reading.columns, path, selected)
        self.receipts[day].bad.merge(bad)
        if self.keep_bad and table.num_rows:
            self.bad_tables.setdefault(day, []).append(table)

    def flush(self) -> None:
        """Write the pending rows as a run of each day."""
        for day, parts in self.pending.items():
            receipt = self.receipts[day]
            size = max(1, sum(part.score.size for part in parts))
            buffer = self.intake.buffer(size, self.folders[day], self.index)
            # Continue the numbers of the run files after those of the last flush.
            buffer.runs = receipt.runs
            receipt.used += sum(buffer.add(part) for part in parts)
            buffer.flush()
            receipt.used_positive += buffer.used_positive
            receipt.sums = add_sums([receipt.sums, buffer.sums])
            receipt.lowest = min(receipt.lowest, float(buffer.lowest))
            receipt.highest = max(receipt.highest, float(buffer.highest))
        self.pending = {}
        self.pending_rows = 0

    def finish(self) -> dict[int, RunReceipt]:
        """Write the pending and the unusable rows; return the receipts."""
        self.flush()
        for receipt in list(self.receipts.values())[:1]:
            self.intake.count_outcomes(receipt)
        for day, tables in self.bad_tables.items():
            quarantine.write_part(tables, f"{self.folders[day]}/bad-{self.index:06d}.parquet")
        return self.receipts


def _order_by_day(day: Codes, group: GroupDays) -> Integers:
    """Return the stable order of rows by day."""
    key = day - group.first
    # Small integers are sorted by counting.
    return np.argsort(key.astype(np.uint16) if group.last - group.first < 1 << 16 else key, kind="stable")
