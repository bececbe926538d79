"""Files of a day table: runs, their index, and day.json, which is written last and completes the table.

day.json          files, rows, runs and bad rows of the day
samples.npy       block index of each run
segments.parquet  segments of each run, for a log with segments
run-*             see `pipeline.sort.run_files`
bad-*.parquet     unusable rows, if they are kept
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.sampling import WeightSums
from logcal.arrow_columns import as_column, as_numpy
from logcal.storage import parse_checked, with_checksum
from pipeline.files.blobs import read_blob
from pipeline.files.folders import Folder
from pipeline.log.label_counts import LabelCounts
from pipeline.log.log_files import FileId
from pipeline.log.quarantine import BAD_PARTS, BadRows, Example
from pipeline.log.segment_values import unified_values
from pipeline.sort.run_files import Run, RunSegments, restore_run
from pipeline.sort.run_merging import merge_small
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import add_up

FACTS, SAMPLES, SEGMENTS = "day.json", "samples.npy", "segments.parquet"
_NUMBERS = ("rows", "used", "used_positive", "lowest", "highest", "largest_move")
"""Fields of a receipt that day.json has unchanged."""


class StoredDay(NamedTuple):
    """Content of a day table's folder.

    files : the log's files that the table's rows come from. receipt : runs, rows and bad rows
    """

    files: frozenset[FileId]
    receipt: RunReceipt


def finish_day(folder: str, receipt: RunReceipt, files: Sequence[FileId], run_bytes: int) -> StoredDay:
    """Complete a day table: merge small runs, write index and day.json, and sync all files to disk.

    May run again with the same result.

    files : the log's files that the rows come from. run_bytes : most bytes of a merged run
    """
    table = Folder.at(folder)
    runs = merge_small(receipt.runs, folder, run_bytes)
    index = io.BytesIO()
    np.save(index, np.concatenate([np.empty(0), *(run.index for run in runs)]))
    table.write(SAMPLES, index.getvalue())
    segments = _pack_segments(runs)
    if segments is not None:
        table.write(SEGMENTS, segments)
    facts = {
        "files": files,
        **{name: getattr(receipt, name) for name in _NUMBERS},
        "sums": None if receipt.sums is None else [column.tolist() for column in receipt.sums],
        "labels": None if receipt.labels is None else receipt.labels.to_json(),
        "bad": receipt.bad.counts,
        "examples": receipt.bad.examples,
        "runs": [{"name": _name(run.path), "sizes": run.sizes} for run in runs],
        "segments": segments is not None,
    }
    run_names = [_name(run.path) for run in runs]
    table.sync([*run_names, *table.matching(BAD_PARTS)])
    facts["checksums"] = _checksums(table, [*run_names, SAMPLES, *([] if segments is None else [SEGMENTS])])
    table.write(FACTS, json.dumps(with_checksum(facts)).encode())
    return StoredDay(frozenset(files), replace(receipt, runs=runs))


def file_digests(files: Iterable[FileId]) -> set[str]:
    """Return a digest of each file's identity."""
    return {hashlib.sha256(json.dumps(file).encode()).hexdigest()[:16] for file in files}


def digests_of_day(folder: Folder, day: str) -> set[str]:
    """Return the digests of the files of a day's tables. Reads no rows, only the tables' facts.

    folder : folder of the day tables. day : ISO date, such as 2026-01-31
    """
    names = [name for name in folder.names() if name.startswith(f"{day}-")]
    return file_digests(file for name in names for file in _files_of(folder / name))


def _files_of(table: Folder) -> list[FileId]:
    """Return the files of a day table; none if it is incomplete, or its facts are damaged."""
    try:
        facts = parse_checked(table.read(FACTS) or b"null")
    except ValueError:
        return []
    return [] if facts is None else [(name, size, stamp) for name, size, stamp in facts["files"]]


def merge_tables(
    folder: str, parts: Sequence[tuple[str, RunReceipt]], files: Sequence[FileId], run_bytes: int
) -> StoredDay:
    """Merge day tables of one day, given by folder and receipt, into one, as `finish_day` does for all their rows."""
    target = Folder.at(folder)
    receipt = add_up([part for _, part in parts])
    runs: list[Run] = []
    for i, (path, part) in enumerate(parts):
        source = Folder.at(path)
        for run in part.runs:
            name = f"run-part-{len(runs):06d}"
            target.link(source, _name(run.path), name)
            runs.append(replace(run, path=f"{folder}/{name}"))
        for j, bad in enumerate(source.matching(BAD_PARTS)):
            target.link(source, bad, f"bad-{i:06d}-{j:06d}.parquet")
    return finish_day(folder, replace(receipt, runs=runs), files, run_bytes)


def checksum(content: bytes, start: int = 0) -> int:
    """Return the CRC-32 of bytes, to find damaged files, at 4 GB/s. start : checksum of the preceding bytes."""
    return zlib.crc32(content, start)


def _checksums(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """Return the checksum of each file; none in an object store, which checks its files itself."""
    return {name: _checksum_of(f"{folder.root}/{name}") for name in names} if not folder.remote else {}


def _checksum_of(path: str) -> int:
    facts = os.stat(path)  # noqa: PTH116 - several times a file
    return _read_checksum(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _read_checksum(path: str, *_: int) -> int:
    """Read a file's checksum; cached while the file is unchanged, since a fit reads its day tables several times."""
    crc = 0
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            crc = checksum(block, crc)
    return crc


def drop_unused_files(folder: str) -> None:
    """Remove files that a complete table does not use: merged runs, and files of lost workers."""
    table = Folder.at(folder)
    facts = table.read_json(FACTS) or {}
    run_names = {run["name"] for run in facts.get("runs", ())}
    for name in table.matching("run-*", ".*"):
        if name not in run_names:
            table.remove(name)


def read_day(folder: str) -> StoredDay | None:
    """Read a day table; return None if it is missing, incomplete or damaged."""
    stored = Folder.at(folder)
    try:
        facts = parse_checked(stored.read(FACTS) or b"null")
        if facts is None or facts["checksums"] != _checksums(stored, list(facts["checksums"])):
            return None
        file_sizes = stored.sizes()
        numbers = np.load(io.BytesIO(stored.read(SAMPLES) or b""))
        receipt = RunReceipt(
            **{name: facts[name] for name in _NUMBERS},
            sums=None if (sums := facts.get("sums")) is None else WeightSums(*map(np.array, sums)),
            labels=None if (labels := facts.get("labels")) is None else LabelCounts.from_json(labels),
            bad=BadRows(
                facts["bad"],
                {reason: [Example(*e) for e in rows] for reason, rows in facts["examples"].items()},
            ),
        )
        run_segments: list[RunSegments | None] = [None] * len(facts["runs"])
        if facts["segments"]:
            run_segments = [*_read_segments(f"{folder}/{SEGMENTS}", len(run_segments))]
        for entry, segments in zip(facts["runs"], run_segments, strict=True):
            run, numbers = restore_run(f"{folder}/{entry['name']}", entry["sizes"], numbers, segments)
            if run.file_bytes != file_sizes.get(entry["name"]):
                return None
            receipt.runs.append(run)
        files = frozenset((name, size, stamp) for name, size, stamp in facts["files"])
    except (ValueError, KeyError, EOFError, TypeError):
        return None
    except stored.damaging:
        return None
    return None if numbers.size else StoredDay(files, receipt)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _pack_segments(runs: Sequence[Run]) -> bytes | None:
    """Return a Parquet file of the runs' segments, ordered by run and code; None without segments."""
    segments = [run.segments for run in runs if run.segments is not None]
    if not segments:
        return None
    owner = np.repeat(np.arange(len(segments), dtype=np.int32), [len(part.counts) for part in segments])
    counts = np.concatenate([part.counts for part in segments]).astype(np.int64)
    parts = unified_values([part.values for part in segments])
    values = [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
    columns = [as_column(owner), as_column(counts[:, 0]), as_column(counts[:, 1]), *values]
    names = ["run", "negatives", "positives", *(str(i) for i in range(len(values)))]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, names=names), sink, compression="lz4")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_segments(path: str, runs: int) -> list[RunSegments]:
    """Read the segments of `runs` runs that `_pack_segments` has written."""
    with pq.ParquetFile(pa.BufferReader(read_blob(path) or b""), pre_buffer=False) as file:
        table = file.read(use_threads=False).combine_chunks()
    run, negatives, positives, *values = table.columns
    ends = np.searchsorted(as_numpy(run), np.arange(runs + 1))
    counts = np.stack([as_numpy(negatives), as_numpy(positives)], axis=1)
    columns = [column.chunk(0) if column.num_chunks else column.combine_chunks() for column in values]
    return [
        RunSegments([column.slice(a, b - a) for column in columns], counts[a:b])
        for a, b in itertools.pairwise(ends.tolist())
    ]
