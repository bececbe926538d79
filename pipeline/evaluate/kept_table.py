"""In-sample rows, and evaluation of a version on the score table that was kept with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from calibrators.core.sorting import Coded
from logcal.arrow_columns import as_numpy
from logcal.errors import InputRejectedError, examples
from logcal.manifest import read_manifest
from logcal.reading import SEGMENTS_FILE, cached_table
from pipeline import schema
from pipeline.execution import Graph
from pipeline.files.blobs import read_blob, reading, receipts_in
from pipeline.files.folders import Folder
from pipeline.log import segment_values
from pipeline.log.calendars import UTC
from pipeline.log.log_files import FittedFiles, LogFile, open_parquet, row_groups_of
from pipeline.log.logs import Columns, Log
from pipeline.log.quarantine import BadRows
from pipeline.log.segment_values import Encoder, Key
from pipeline.log.windows import Window, day_of
from pipeline.sort.run_files import RunSegments
from pipeline.sort.runs import RunReceipt, write_sections
from pipeline.sort.score_table import SortPlan, add_up
from pipeline.sort.sections import Sections
from pipeline.table.published import MANIFEST, SCORE_TABLE, days_fitted


@dataclass(frozen=True)
class KeptTable:
    """Score table kept with a version, and the version's manifest.

    version : the version's folder, on a mounted file system or an object store
    """

    version: Folder
    manifest: dict[str, Any]

    @property
    def transform(self) -> str:
        """Transform of the log's scores."""
        return str(self.manifest["score_transform"])

    @property
    def segments(self) -> tuple[str, ...]:
        """The segment columns of the points."""
        return tuple((self.manifest.get("segments") or {}).get("columns", ()))

    @property
    def weighted(self) -> bool:
        """True if the log had weights."""
        return self.manifest["config"]["log"].get("weight") is not None

    def rows_of_segments(self) -> dict[Key, tuple[int, int]]:
        """Return the number of used rows of each segment, and of those with label 1."""
        with (
            reading(str(self.version / SEGMENTS_FILE)) as source,
            pq.ParquetFile(source, pre_buffer=False) as file,
        ):
            table = file.read(use_threads=False)
        keys = segment_values.keys_of([table.column(name) for name in self.segments])
        counts = zip(table.column("rows").to_pylist(), table.column("rows_positive").to_pylist(), strict=True)
        return dict(zip(keys, counts, strict=True))

    def files(self) -> Log:
        """Return the parts as a log whose rows are points.

        Raises
        ------
        InputRejectedError
            A part is missing, or differs from the published file.
        """
        folder = self.version / SCORE_TABLE
        try:
            sizes = folder.sizes()
        except (FileNotFoundError, NotADirectoryError):
            sizes = {}
        files, faults = [], []
        for name, facts in sorted(self.manifest["files"].items()):
            if not name.startswith(f"{SCORE_TABLE}/"):
                continue
            part = name.rpartition("/")[2]
            size = sizes.get(part)
            if size is None or size != facts["bytes"]:
                faults.append(f"{part} ({'no file' if size is None else f'{size:,} bytes'})")
                continue
            path = str(folder / part)
            with open_parquet(folder.filesystem, f"{folder.root}/{part}", None) as parquet:
                groups = row_groups_of(parquet.metadata, path)
            # Published files never change, so their checksum identifies them.
            files.append(LogFile(path, part, size, facts["sha256"], groups))
        if faults or not files:
            raise InputRejectedError(
                f"{folder}: expected the parts that {MANIFEST} names, found other sizes of "
                f"{examples(faults) or 'all'}: the version is damaged; evaluate on the log, or fit again"
            )
        score, weight, positives = names = schema.SCORE_TABLE.names
        columns = Columns(score, positives, weight)
        return Log(str(folder), folder.filesystem, tuple(files), columns, dict.fromkeys(names, "double"))


def kept_table(paths: Sequence[str]) -> KeptTable | None:
    """Return the kept score table at a log's path; None if the path is that of a log.

    Raises
    ------
    InputRejectedError
        The version's manifest cannot be read.
    TemporaryError
        The store is unavailable.
    """
    parent, _, name = paths[0].rstrip("/").rpartition("/")
    if len(paths) != 1 or name != SCORE_TABLE:
        return None
    version = Folder.at(parent or ".")
    manifest = str(version / MANIFEST)
    content = read_blob(manifest)
    if content is None:
        return None
    return KeptTable(version, read_manifest(manifest, content))


def add_sort_kept(graph: Graph, table: KeptTable, log: Log, segments: tuple[str, ...], plan: SortPlan) -> Any:
    """Add the tasks that sort a kept table's points into runs to a graph: `sort-i -> check`.

    log : the kept table's `files`
    segments : segment columns; empty: all points together
    plan : without segments, the scores are replaced by the predictions of its `lookup`, if it has one
    """
    data = table.manifest["data"]
    total = RunReceipt(
        rows=data["rows_read"],
        used=data["rows_used"],
        used_positive=data["rows_positive"],
        bad=BadRows(dict(data["quarantined_by_reason"])),
    )
    groups = [(file.path, group) for file in log.files for group in range(len(file.row_groups))]
    tasks = [(*group, segments, plan.lookup, plan.scratch, i) for i, group in enumerate(groups)]
    receipts = graph.layer("sort", _write_points, tasks, receipts=receipts_in(plan.scratch))
    return graph.task("check", _with_runs, total, receipts)


def _with_runs(total: RunReceipt, receipts: list[RunReceipt]) -> RunReceipt:
    """Add the runs of points to the receipt of the rows that they summarise."""
    points = add_up(receipts)
    return replace(total, runs=points.runs, lowest=points.lowest, highest=points.highest)


def _write_points(
    path: str,
    group: int,
    segments: tuple[str, ...],
    lookup: str | None,
    folder: str,
    index: int,
) -> RunReceipt:
    names = schema.SCORE_TABLE.names
    with reading(path) as source, pq.ParquetFile(source, pre_buffer=False) as file:
        table = file.read_row_groups([group], columns=[*segments, *names], use_threads=False)
    batch = table.combine_chunks().to_batches()[0]
    score, weight, positives = (as_numpy(batch.column(name)) for name in names)
    code, counts = np.zeros(score.size, np.int32), None
    if segments:
        encoder = Encoder(segments)
        code = encoder.encode(batch)
        # The version has the row counts of the segments.
        counts = RunSegments(
            encoder.values_of(np.arange(len(encoder))), np.zeros((len(encoder), 2), np.int64)
        )
    elif lookup is not None:
        score = cached_table(lookup).map.predict(score)
    return write_sections(Sections(sums=Coded(score, code, weight, positives)), folder, index, counts)


_TOTALS = (
    "rows_read",
    "rows_positive",
    "distinct_scores",
    "weight",
    "positives",
    "lowest_score",
    "highest_score",
)
_ENOUGH_SCORES = 100
"""Number of distinct scores from which on equal totals mean equal rows."""


@dataclass(frozen=True)
class InSample:
    """Number of rows of a log that a version was fitted to, and their share of all rows in [0, 1]."""

    rows: int
    share: float

    def __bool__(self) -> bool:
        return self.rows > 0

    def sentence(self, version: str) -> str:
        """Describe the rows in a sentence."""
        part = "All" if self.share >= 1 else f"{100 * self.share:.3g} % of all"
        return (
            f"In sample: {part} rows are in files that version {version} was fitted on. Measures on them are too good; "
            "use other rows."
        )


def in_sample(log: Log, manifest: Mapping[str, Any], window: Window | None = None) -> InSample:
    """Count the rows of a log that a version was fitted to, by their files: see `FittedFiles`.

    window : window of the log. If the version has a window of the same column and time zone, only the days that it
        was fitted to count: days that its fit left out, such as days that waited for labels, do not.
    """
    fitted = FittedFiles(manifest["log"]["files"])
    parts = [(file, file.rows, True) for file in log.files]
    fitted_window = manifest.get("window") or {}
    if window is not None and (window.column, window.log.columns.calendar.zone) == (
        fitted_window.get("column"),
        fitted_window.get("timezone", UTC),
    ):
        fitted_days = set(days_fitted(manifest))
        days = {day for day in window.days if day_of(day).isoformat() in fitted_days}
        parts = [
            (file, group.rows, not days.isdisjoint(range(group.first, group.last + 1)))
            for file, groups in window.files
            for group in groups
        ]
    rows = sum(rows for file, rows, used in parts if used and file in fitted)
    return InSample(rows, rows / max(1, sum(rows for _, rows, _ in parts)))


def in_sample_by_totals(facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> InSample:
    """Recognise the rows that a version was fitted to in a copy of the log, by comparing totals.

    facts : facts of the log's score table
    """
    data = manifest["data"]
    comparable = all(name in data and name in facts for name in _TOTALS)
    if (
        comparable
        and facts["distinct_scores"] >= _ENOUGH_SCORES
        and all(data[name] == facts[name] for name in _TOTALS)
    ):
        return InSample(int(facts["rows_read"]), 1.0)
    return InSample(0, 0.0)
