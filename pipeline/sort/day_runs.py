"""What tasks do for day tables: rows of several days into runs of each, and a day's runs made fit to be kept."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators._kernels import ties
from calibrators.ordering import sort_pairs
from calibrators.passes import Array, Points
from pipeline._kernels import tags
from pipeline.arrow_columns import as_column, as_numpy
from pipeline.errors import InputRejectedError
from pipeline.log import quarantine
from pipeline.log.log_files import Piece
from pipeline.log.logs import DAY_INVALID, Columns, Rows
from pipeline.log.segment_values import Encoder
from pipeline.log.windows import days_of, shown
from pipeline.sort.buffers import coded_sections, fold, fold_weighted, tagged_sections
from pipeline.sort.day_counts import Counts, add_counts, write_counts
from pipeline.sort.run_files import (
    CodedEntries,
    Run,
    RunSegments,
    Sections,
    SignedRows,
    read_run,
    row_width,
    write_run,
)
from pipeline.sort.runs import Intake, Reading, RunReceipt
from pipeline.sort.score_table import add_up
from pipeline.sort.tagged import order_tagged

SEGMENTS = "segments.parquet"


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


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """One stage's tasks may be of two kinds."""
    return function(*arguments)


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
            buffer = self.intake.buffer(size, Path(self.folders[day]), self.index)
            # Its files go on counting where those of the last flush ended.
            buffer.runs = receipt.runs
            receipt.used += sum(buffer.add(part) for part in parts)
            buffer.flush()
            receipt.used_positive += buffer.used_positive
            receipt.lowest = min(receipt.lowest, float(buffer.lowest))
            receipt.highest = max(receipt.highest, float(buffer.highest))
        self.pending = {}
        self.held = 0

    def finish(self) -> dict[int, RunReceipt]:
        """Write the rest."""
        self.flush()
        for day, tables in self.bad_tables.items():
            quarantine.write_part(tables, Path(self.folders[day]) / f"bad-{self.index:06d}.parquet")
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


def merge_tables(
    folder: str,
    parts: Sequence[tuple[str, RunReceipt, Counts | None]],
    files: Sequence[tuple[str, int, str]],
    run_rows: int,
    per_unit: float | None,
) -> None:
    """Make one day table of several of a day, each with its folder; as `finish_day` of all their rows."""
    place = Path(folder)
    receipt = add_up([part for _, part, _ in parts])
    runs: list[Run] = []
    for i, (source, part, counts) in enumerate(parts):
        for run in part.runs:
            runs.append(replace(run, path=str(_linked(Path(run.path), place / f"run-part-{len(runs):06d}"))))
        if counts is not None:
            assert per_unit is not None
            runs.append(add_counts((counts,), per_unit, str(place / f"run-part-{len(runs):06d}")))
        for j, bad in enumerate(sorted(Path(source).glob("bad-*.parquet"))):
            _linked(bad, place / f"bad-{i:06d}-{j:06d}.parquet")
    receipt.runs = runs
    finish_day(folder, receipt, files, run_rows, per_unit)


def _linked(source: Path, target: Path) -> Path:
    """The same file under a second name, or a copy where the file system has no links. May run again."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    return target


def finish_day(
    folder: str,
    receipt: RunReceipt,
    files: Sequence[tuple[str, int, str]],
    run_rows: int,
    per_unit: float | None,
) -> None:
    """Make a day's runs a day table: few files, its facts beside them, all of it on the disk.

    A repeated task does the same again.

    files : that the rows are of: path, size and stamp of each
    per_unit : steps of the score grid, where the day may become counts; otherwise None
    """
    place = Path(folder)
    counts = None if per_unit is None else write_counts(receipt, place / "counts", per_unit)
    segmented = any(run.segments is not None for run in receipt.runs)
    most = run_rows * row_width(weighted=False, segmented=segmented)
    runs = merge_small(receipt.runs, place, most) if counts is None else []
    with (place / "samples.npy").open("wb") as file:
        np.save(file, np.concatenate([np.empty(0), *(run.index for run in runs)]))
    facts = {
        "files": files,
        "rows": receipt.rows,
        "used": receipt.used,
        "used_positive": receipt.used_positive,
        "lowest": float(receipt.lowest),
        "highest": float(receipt.highest),
        "largest_move": receipt.largest_move,
        "bad": receipt.bad.counts,
        "examples": receipt.bad.examples,
        "runs": [{"name": Path(run.path).name, "sizes": run.sizes} for run in runs],
        "segments": write_run_segments(runs, place / SEGMENTS),
        "counts": None if counts is None else {"first": counts.first, "steps": counts.steps},
    }
    kept = {Path(run.path) for run in runs}
    if counts is not None:
        kept.add(Path(counts.path))
    for path in [*kept, place / "samples.npy", *place.glob(SEGMENTS), *place.glob("bad-*.parquet")]:
        _sync(path)
    (place / "day.json").write_text(json.dumps(facts))
    _sync(place / "day.json")
    _sync(place)


def merge_small(runs: Sequence[Run], folder: Path, most_bytes: int) -> list[Run]:
    """Merge neighbouring runs into runs of at most `most_bytes`, as far as they are smaller.

    The merged runs are new files; what they were merged of stays.
    """
    groups: list[list[Run]] = []
    for run in runs:
        if groups and sum(other.bytes for other in groups[-1]) + run.bytes <= most_bytes:
            groups[-1].append(run)
        else:
            groups.append([run])
    if len(groups) == len(runs):
        return list(runs)
    made = len(list(folder.glob("run-merged-*")))
    merged = [
        group[0] if len(group) == 1 else _merge(group, folder / f"run-merged-{made + i:06d}")
        for i, group in enumerate(groups)
    ]
    # Ties have become entries: what was too much for one run may fit now.
    return merge_small(merged, folder, most_bytes)


def write_run_segments(runs: Sequence[Run], path: Path) -> bool:
    """Leave the segments of runs beside them, by run and by code; say whether there are any."""
    known = [run.segments for run in runs if run.segments is not None]
    if not known:
        return False
    owner = np.repeat(np.arange(len(known), dtype=np.int32), [len(own.counts) for own in known])
    counts = np.concatenate([own.counts for own in known])
    values = [pa.concat_arrays(column) for column in zip(*(own.values for own in known), strict=True)]
    columns = [as_column(owner), as_column(counts[:, 0]), as_column(counts[:, 1]), *values]
    names = ["run", "negatives", "positives", *(str(i) for i in range(len(values)))]
    pq.write_table(pa.Table.from_arrays(columns, names=names), path, compression="lz4")
    return True


def read_run_segments(path: Path, runs: int) -> list[RunSegments]:
    """What `write_run_segments` left of so many runs."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        table = file.read(use_threads=False).combine_chunks()
    owner, negatives, positives, *values = table.columns
    ends = np.searchsorted(as_numpy(owner), np.arange(runs + 1))
    counts = np.stack([as_numpy(negatives), as_numpy(positives)], axis=1)
    whole = [column.chunk(0) if column.num_chunks else column.combine_chunks() for column in values]
    return [
        RunSegments([column.slice(a, b - a) for column in whole], counts[a:b])
        for a, b in itertools.pairwise(ends.tolist())
    ]


def _merge_coded(runs: Sequence[Run], path: Path) -> Run:
    """As `_merge`, of runs of a log with segments, which get codes in common."""
    assert runs[0].segments is not None
    names = [str(i) for i in range(len(runs[0].segments.values))]
    encoder = Encoder(names)
    parts, tables = [], []
    for run in runs:
        assert run.segments is not None
        tables.append(encoder.encode(pa.RecordBatch.from_arrays(run.segments.values, names)))
        parts.append(read_run(run))
    counts = np.zeros((len(encoder), 2), np.int64)
    for run, table, part in zip(runs, tables, parts, strict=True):
        assert run.segments is not None
        counts[table] += run.segments.counts
        for column, labelled in (
            (part.tagged.tag, 1),
            (part.coded_rows.code, 0),
            (part.coded_entries.code, 0),
        ):
            tags.recode(column.view(np.uint64), table, labelled)
    score, tag = (np.concatenate(column) for column in zip(*(part.tagged for part in parts), strict=True))
    code: Any
    entries = [np.concatenate(column) for column in zip(*(part.coded_entries for part in parts), strict=True)]
    kept = []
    tagged, rows = Sections().tagged, Sections().coded_rows
    if score.size:
        folded = tagged_sections(score, tag, len(encoder))
        tagged = folded.tagged
        kept.append(folded.coded_entries)
    score, code, signed = (
        np.concatenate(column) for column in zip(*(part.coded_rows for part in parts), strict=True)
    )
    if score.size:
        folded = coded_sections(score, code, signed)
        rows = folded.coded_rows
        kept.append(folded.coded_entries)
    score, code, weight, hits = (
        np.concatenate([column, *(getattr(more, name) for more in kept)])
        for column, name in zip(entries, CodedEntries._fields, strict=True)
    )
    order = order_tagged(score, code)
    whole = CodedEntries(*tags.expand_ties(score[order], code[order], weight[order], hits[order]))
    segments = RunSegments(encoder.values_of(np.arange(len(encoder))), counts)
    return write_run(path, Sections(tagged=tagged, coded_rows=rows, coded_entries=whole), segments)


def _merge(runs: Sequence[Run], path: Path) -> Run:
    if runs[0].segments is not None:
        return _merge_coded(runs, path)
    sections = [read_run(run) for run in runs]
    negatives, negative_ties = fold(_sorted([section.negatives for section in sections]), label=0)
    positives, positive_ties = fold(_sorted([section.positives for section in sections]), label=1)
    pairs = np.concatenate([np.stack(section.rows, axis=1) for section in sections])
    rows, weighted_ties = fold_weighted(SignedRows(*sort_pairs(pairs)))
    entries = [np.stack(section.entries) for section in sections]
    entries += [negative_ties, positive_ties, np.stack(weighted_ties)]
    score, weight, hits = np.concatenate(entries, axis=1)
    order = np.argsort(score, kind="stable")
    folded = Points(*ties.expand_ties(score[order], weight[order], hits[order]))
    return write_run(path, Sections(negatives, positives, rows, folded))


def _sorted(parts: list[Array]) -> Array:
    whole = np.concatenate(parts)
    whole.sort()
    return whole


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
