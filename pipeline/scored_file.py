"""One file of a scored log.

Scoring decodes no column but the score. A file is copied as it is, the new columns' pages follow its own, and its
footer is extended (see `pipeline.parquet`): so the log's columns keep their bytes, with every type, encoding, codec,
statistic and row group, and scoring costs little more than copying.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import ConfigError, InputRejectedError, examples
from pipeline.logs import numbers
from pipeline.lookup_table import LookupTable, cached_lookup_table
from pipeline.parquet.append import append_columns, open_target
from pipeline.parquet.footer import NewColumn, NotExtensibleError
from pipeline.parquet.pages import BYTE_ARRAY, DOUBLE, ChunkWriter, codec_number
from pipeline.schema import TABLE_VERSION_COLUMN
from pipeline.transforms import apply_transform

PAGE_ROWS = 1 << 17
"""Rows scored at a time, and values a page: what a task holds is some tens of bytes times this."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Scoring:
    """How a log is scored.

    Attributes
    ----------
    score : name of the log's score column.
    lookup : path or URL of a lookup table; its score transform is applied first.
    probability, table_version : names of the columns that are added.

    Raises
    ------
    ConfigError
        Both new columns have one name.
    """

    score: str
    lookup: str
    probability: str = "probability"
    table_version: str = TABLE_VERSION_COLUMN

    def __post_init__(self) -> None:
        if self.probability.casefold() == self.table_version.casefold():
            raise ConfigError(
                f"output.column: expected another name than that of output.version_column, found "
                f"'{self.probability}' for both"
            )


def score_file(
    filesystem: Any, path: str, rows: int, target_filesystem: Any, target: str, scoring: Scoring
) -> tuple[int, int]:
    """Write one file with its probabilities, whole or not at all. May run again.

    Parameters
    ----------
    filesystem, path : the file
    rows : that it had when the log was opened
    target_filesystem, target : where the result goes
    scoring : how

    Returns
    -------
    rows without a probability, bytes written

    Raises
    ------
    InputRejectedError
        The file cannot be read, was changed, or has a column that is named like a new one.
    """
    lookup = cached_lookup_table(scoring.lookup)
    try:
        with _open_source(filesystem, path) as source, _open_parquet(filesystem, path) as parquet:
            _check_file(path, parquet, rows, scoring)
            file = _File(parquet, lookup, scoring)
            with open_target(target_filesystem, target) as copy:
                written = append_columns(source, copy, file.write_columns)
            return file.null_rows, written
    except (pa.ArrowException, NotExtensibleError) as error:
        raise _unreadable(path, error) from None
    except OSError as error:
        if error.errno is None:  # so Arrow reports what does not decode
            raise _unreadable(path, error) from None
        raise


def _open_source(filesystem: Any, path: str) -> Any:
    return Path(path).open("rb") if isinstance(filesystem, LocalFileSystem) else filesystem.open(path, "rb")


def _open_parquet(filesystem: Any, path: str) -> pq.ParquetFile:
    """Open for reading a column piece by piece. Not mapped: mapped pages count as the worker's memory."""
    source = path if isinstance(filesystem, LocalFileSystem) else filesystem.open(path, "rb")
    return pq.ParquetFile(source, pre_buffer=False, buffer_size=_READ_BYTES)


def _check_file(path: str, parquet: pq.ParquetFile, rows: int, scoring: Scoring) -> None:
    if parquet.metadata.num_rows != rows:
        raise InputRejectedError(
            f"{path}: expected {rows:,} rows as when the log was opened, found {parquet.metadata.num_rows:,}: "
            "the log is being written to; run again when it is complete"
        )
    names = parquet.schema_arrow.names
    partitions = [part.partition("=")[0] for part in path.split("/")[:-1] if "=" in part]
    # Many readers take no notice of case.
    taken = {name.casefold() for name in [*names, *partitions]}
    for setting, name in (
        ("output.column", scoring.probability),
        ("output.version_column", scoring.table_version),
    ):
        if name.casefold() in taken:
            raise InputRejectedError(
                f"{path}: expected no column '{name}', found the columns {examples([*names, *partitions], 12)}: "
                f"set {setting} to another name"
            )
    if scoring.score not in names:
        raise InputRejectedError(
            f"{path}: expected a column '{scoring.score}' (log.score), found {examples(names, 12)}"
        )


def _unreadable(path: str, error: Exception) -> InputRejectedError:
    reason = " ".join(str(error).split())[:200]
    return InputRejectedError(f"{path}: cannot be scored ({reason}): write the file again")


class _File:
    """The new columns of one file."""

    def __init__(self, parquet: pq.ParquetFile, lookup: LookupTable, scoring: Scoring) -> None:
        self.parquet = parquet
        self.lookup = lookup
        self.scoring = scoring
        self.null_rows = 0

    def write_columns(self, writer: ChunkWriter) -> list[NewColumn]:
        """Write the chunks of all row groups."""
        version = self.lookup.facts.version.encode()
        probabilities, versions = [], []
        for index in range(self.parquet.num_row_groups):
            group = self.parquet.metadata.row_group(index)
            codec = self._codec(group)
            chunk = writer.write_doubles(self._probabilities(index), group.num_rows, codec)
            self.null_rows += chunk.nulls
            probabilities.append(chunk)
            versions.append(writer.write_constant(version, group.num_rows, codec))
        return [
            NewColumn(self.scoring.probability, DOUBLE, probabilities),
            NewColumn(self.scoring.table_version, BYTE_ARRAY, versions),
        ]

    def _codec(self, group: pq.RowGroupMetaData) -> int:
        """The score's codec, which the new columns take over."""
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == self.scoring.score:
                return codec_number(column.compression)
        raise AssertionError(f"no column {self.scoring.score}")

    def _probabilities(self, row_group: int) -> Iterator[npt.NDArray[np.float64]]:
        batches = self.parquet.iter_batches(
            batch_size=PAGE_ROWS, row_groups=[row_group], columns=[self.scoring.score], use_threads=False
        )
        for batch in batches:
            scores = numbers(batch.column(self.scoring.score))
            yield self.lookup.map.predict(apply_transform(scores, self.lookup.facts.score_transform))
