"""The files of a day table: its runs and their index, and its facts, which are written last and make it a table.

day.json          files, rows, runs and bad rows of the day
samples.npy       what is known of each run's blocks
segments.parquet  of a log with segments: those of each run
run-*             see `pipeline.sort.run_files`
bad-*.parquet     unusable rows, where they are kept
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

from calibrators.arithmetic.sampling import WeightSums
from logcal.arrow_columns import as_column, as_numpy
from logcal.storage import parse_checked, with_checksum
from pipeline.files.blobs import read_blob
from pipeline.files.folders import Folder
from pipeline.log.label_counts import LabelCounts
from pipeline.log.quarantine import BAD_PARTS, BadRows, Example
from pipeline.sort.run_files import Run, RunSegments, restore_run
from pipeline.sort.run_merging import merge_small
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import add_up

FACTS, SAMPLES, SEGMENTS = "day.json", "samples.npy", "segments.parquet"
_NUMBERS = ("rows", "used", "used_positive", "lowest", "highest", "largest_move")
"""Fields of a receipt that stand in the facts as they are."""

FileId = tuple[str, int, str]
"""Path, size and stamp of a log's file: a changed file is another one."""


class Kept(NamedTuple):
    """Content of a day table's folder.

    files : that it is of. receipt : its runs, rows and bad rows
    """

    files: frozenset[FileId]
    receipt: RunReceipt


def finish_day(folder: str, receipt: RunReceipt, files: Sequence[FileId], run_bytes: int) -> Kept:
    """Make a day's runs a day table: few files, its facts beside them, all of it on the disk.

    A repeated task does the same again.

    files : that the rows are of. run_bytes : of a run, as far as smaller ones are merged
    """
    stored = Folder.at(folder)
    runs = merge_small(receipt.runs, folder, run_bytes)
    numbers = io.BytesIO()
    np.save(numbers, np.concatenate([np.empty(0), *(run.index for run in runs)]))
    stored.replace(SAMPLES, numbers.getvalue())
    segments = _segments_of(runs)
    if segments is not None:
        stored.replace(SEGMENTS, segments)
    facts = {
        "files": files,
        **{name: getattr(receipt, name) for name in _NUMBERS},
        "sums": None if receipt.sums is None else [column.tolist() for column in receipt.sums],
        "labels": None if receipt.labels is None else receipt.labels.kept(),
        "bad": receipt.bad.counts,
        "examples": receipt.bad.examples,
        "runs": [{"name": _name(run.path), "sizes": run.sizes} for run in runs],
        "segments": segments is not None,
    }
    kept = [_name(run.path) for run in runs]
    stored.sync([*kept, *stored.matching(BAD_PARTS)])
    facts["checksums"] = _checksums(stored, [*kept, SAMPLES, *([] if segments is None else [SEGMENTS])])
    stored.replace(FACTS, json.dumps(with_checksum(facts)).encode())
    return Kept(frozenset(files), replace(receipt, runs=runs))


def file_digests(files: Iterable[FileId]) -> set[str]:
    """Tell files apart, each as it is."""
    return {hashlib.sha256(json.dumps(file).encode()).hexdigest()[:16] for file in files}


def digests_of_day(folder: Folder, day: str) -> set[str]:
    """Digests of the files of a day's tables.

    folder : of day tables. day : such as 2026-01-31
    """
    found = (read_day(str(folder / name)) for name in folder.names() if name.startswith(f"{day}-"))
    return set().union(*(file_digests(kept.files) for kept in found if kept is not None))


def merge_tables(
    folder: str, parts: Sequence[tuple[str, RunReceipt]], files: Sequence[FileId], run_bytes: int
) -> Kept:
    """Make one day table of several of a day, each with its folder; as `finish_day` of all their rows."""
    place = Folder.at(folder)
    receipt = add_up([part for _, part in parts])
    runs: list[Run] = []
    for i, (path, part) in enumerate(parts):
        source = Folder.at(path)
        for run in part.runs:
            name = f"run-part-{len(runs):06d}"
            place.link(source, _name(run.path), name)
            runs.append(replace(run, path=f"{folder}/{name}"))
        for j, bad in enumerate(source.matching(BAD_PARTS)):
            place.link(source, bad, f"bad-{i:06d}-{j:06d}.parquet")
    return finish_day(folder, replace(receipt, runs=runs), files, run_bytes)


def checksum(content: bytes, before: int = 0) -> int:
    """CRC-32, which finds damaged files, at 4 GB/s. before : the checksum of the bytes that come before."""
    return zlib.crc32(content, before)


def _checksums(place: Folder, names: Sequence[str]) -> dict[str, int]:
    """Compute the checksum of each file; none in an object store, which compares its own."""
    return {name: _checksum_of(f"{place.root}/{name}") for name in names} if place.local else {}


def _checksum_of(path: str) -> int:
    facts = os.stat(path)  # noqa: PTH116 - several times a file
    return _read_checksum(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _read_checksum(path: str, *_: int) -> int:
    """Once while a file is as it is: a fit looks for its days several times."""
    found = 0
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            found = checksum(block, found)
    return found


def drop_unused(folder: str) -> None:
    """Remove the runs that were merged, and what lost workers may have left, of a table that is whole."""
    place = Folder.at(folder)
    facts = place.read_json(FACTS) or {}
    kept = {run["name"] for run in facts.get("runs", ())}
    for name in place.matching("run-*", ".*"):
        if name not in kept:
            place.remove(name)


def read_day(folder: str) -> Kept | None:
    """A day table, or None where there is none that is whole."""
    stored = Folder.at(folder)
    try:
        facts = parse_checked(stored.read(FACTS) or b"null")
        if facts is None or facts["checksums"] != _checksums(stored, list(facts["checksums"])):
            return None
        sizes = stored.sizes()
        numbers = np.load(io.BytesIO(stored.read(SAMPLES) or b""))
        receipt = RunReceipt(
            **{name: facts[name] for name in _NUMBERS},
            sums=None if (sums := facts.get("sums")) is None else WeightSums(*map(np.array, sums)),
            labels=None if (labels := facts.get("labels")) is None else LabelCounts.of(labels),
            bad=BadRows(
                facts["bad"],
                {reason: [Example(*e) for e in found] for reason, found in facts["examples"].items()},
            ),
        )
        run_segments: list[RunSegments | None] = [None] * len(facts["runs"])
        if facts["segments"]:
            run_segments = [*_read_segments(f"{folder}/{SEGMENTS}", len(run_segments))]
        for run, segments in zip(facts["runs"], run_segments, strict=True):
            one, numbers = restore_run(f"{folder}/{run['name']}", run["sizes"], numbers, segments)
            if one.file_bytes != sizes.get(run["name"]):
                return None
            receipt.runs.append(one)
        files = frozenset((path, size, stamp) for path, size, stamp in facts["files"])
    except (ValueError, KeyError, EOFError, TypeError):
        return None
    except OSError:
        if not stored.local:  # what a store did not give now may be there
            raise
        return None
    return None if numbers.size else Kept(files, receipt)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _segments_of(runs: Sequence[Run]) -> bytes | None:
    """The segments of runs, by run and by code, as a Parquet file; None where there are none."""
    known = [run.segments for run in runs if run.segments is not None]
    if not known:
        return None
    owner = np.repeat(np.arange(len(known), dtype=np.int32), [len(own.counts) for own in known])
    counts = np.concatenate([own.counts for own in known]).astype(np.int64)
    values = [pa.concat_arrays(column) for column in zip(*(own.values for own in known), strict=True)]
    columns = [as_column(owner), as_column(counts[:, 0]), as_column(counts[:, 1]), *values]
    names = ["run", "negatives", "positives", *(str(i) for i in range(len(values)))]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, names=names), sink, compression="lz4")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_segments(path: str, runs: int) -> list[RunSegments]:
    """Read the result of `_segments_of` for so many runs."""
    with pq.ParquetFile(pa.BufferReader(read_blob(path) or b""), pre_buffer=False) as file:
        table = file.read(use_threads=False).combine_chunks()
    owner, negatives, positives, *values = table.columns
    ends = np.searchsorted(as_numpy(owner), np.arange(runs + 1))
    counts = np.stack([as_numpy(negatives), as_numpy(positives)], axis=1)
    whole = [column.chunk(0) if column.num_chunks else column.combine_chunks() for column in values]
    return [
        RunSegments([column.slice(a, b - a) for column in whole], counts[a:b])
        for a, b in itertools.pairwise(ends.tolist())
    ]
