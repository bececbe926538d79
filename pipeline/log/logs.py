"""The prediction log: its files, its columns, and its rows as arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from logcal.arrow_columns import as_numpy, null_mask
from logcal.errors import (
    FileBeingWrittenError,
    FileChangedError,
    FileRejectedError,
    InputRejectedError,
    counted,
    examples,
    listing,
)
from logcal.segment_types import segment_column
from pipeline.files.requests import WHOLE_BYTES, together
from pipeline.log import conversion, decimals, folder_tree, nested
from pipeline.log.calendars import ANY_DAY, Calendar
from pipeline.log.column_types import Schemas, check_roles, date_columns, file_types
from pipeline.log.label_counts import Joined
from pipeline.log.log_files import (
    FileListing,
    LogFile,
    Piece,
    WrongFooterError,
    find_files,
    folders_of,
    open_parquet,
    open_small,
    read_batches,
    row_groups_of,
    unreadable_file,
)
from pipeline.log.snapshots import without_reused_names

BATCH_ROWS = 1 << 18
"""Rows decoded at a time; a task holds one such batch besides its buffers."""

MOST_NAMED = 1000
"""Most skipped files that a manifest names; it counts all of them."""


class Labels(Protocol):
    """Labels in other files; see `pipeline.labels.outcomes.Outcomes`."""

    @property
    def source(self) -> Any:
        """Place of the labels, and the columns of the log that are read for the join."""

    @property
    def rows(self) -> int:
        """Number of outcomes."""

    @property
    def locations(self) -> list[tuple[Any, str]]:
        """Folders of all files with their file system."""

    def opened(self, log: Log, schemas: Schemas) -> Labels:
        """Read and check the footers."""

    def of_days(self, first: int, last: int) -> Labels:
        """Restrict the outcomes to those for predictions of a range of days."""

    def matching(self) -> Any:
        """Return a matcher of rows and outcomes."""

    def known_day(self, share: float) -> int | None:
        """Return the last day with labels for a share of its time."""

    def identity(self, day: int | None = None) -> dict[str, Any]:
        """Return what the labels of a day or of all rows depend on."""

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a log that a job uses; None for unused roles.

    sampling : whether weights are inverse sampling rates (rows that a row stands for) and not frequencies
    labels : where the labels are, if not in the log; `label` is then the name that joined labels get
    dates : segment columns that are dates, also where a file has them as text
    calendar : days of the rows
    """

    score: str
    label: str | None = None
    weight: str | None = None
    segments: tuple[str, ...] = ()
    date: str | None = None
    sampling: bool = False
    labels: Labels | None = None
    dates: tuple[str, ...] = ()
    calendar: Calendar = ANY_DAY

    @property
    def names(self) -> list[str]:
        """The columns to read."""
        label = self.label if self.labels is None else None
        names = (self.score, label, self.weight, *self.folders, self.date)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def folders(self) -> tuple[str, ...]:
        """Columns that may be keys of hive folders instead of columns in the files."""
        return self.segments if self.labels is None else (*self.segments, *self.labels.source.columns)

    @property
    def outcomes(self) -> int:
        """Number of outcomes, if labels are in other files."""
        return 0 if self.labels is None else self.labels.rows

    def of_days(self, first: int, last: int) -> Columns:
        """Restrict outcomes to those for predictions of a range of days (inclusive, days since 1970-01-01)."""
        return self if self.labels is None else replace(self, labels=self.labels.of_days(first, last))


@dataclass(frozen=True)
class Log:
    """A prediction log whose footers have been read and checked.

    Attributes
    ----------
    root : the first of its paths
    types : types of the used columns
    file_types : number of files by type, see `column_types.file_types`
    skipped : relative paths of skipped files and folders; folders end in '/'
    snapshots : format and version of the tables (Delta, Iceberg) that the files belong to
    """

    root: str
    filesystem: Any
    files: tuple[LogFile, ...]
    columns: Columns
    types: dict[str, str] = field(default_factory=dict)
    file_types: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    snapshots: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(file.size for file in self.files)

    @property
    def local(self) -> bool:
        """True if the files are on a mounted file system."""
        return isinstance(self.filesystem, LocalFileSystem)

    def described(self) -> str:
        """Describe the log's size and skipped files in one line."""
        text = f"{counted(len(self.files), 'file')}, {self.rows:,} rows, {self.size:,} bytes"
        if self.skipped:
            text += f"; {len(self.skipped)} others are skipped ({examples(self.skipped, 3)})"
        if self.columns.labels is not None:
            text += f"; labels of {self.columns.outcomes:,} outcomes in other files"
        return text

    def sources(self) -> dict[str, Any]:
        """Return the provenance of the rows for the manifest."""
        return {
            "files": [file.facts() for file in self.files],
            "files_skipped": len(self.skipped),
            "files_skipped_names": list(self.skipped[:MOST_NAMED]),
            **({"snapshots": list(self.snapshots)} if self.snapshots else {}),
            **({"column_types": self.file_types} if self.file_types else {}),
            **({"labels": self.columns.labels.facts()} if self.columns.labels else {}),
        }

    def locations(self) -> list[tuple[Any, str]]:
        """Return the folders of the log and of its outcomes, with their file systems."""
        labels = () if self.columns.labels is None else self.columns.labels.locations
        folders = folders_of(self.filesystem, self.root, self.files)
        return [*((self.filesystem, path) for path in folders), *labels]


def open_log(
    paths: str | Sequence[str],
    columns: Columns,
    skip: Collection[str] = (),
    select: Callable[[Sequence[LogFile]], Sequence[LogFile]] = tuple,
) -> Log:
    """Find a log's files, read their footers, and check everything that footers can tell.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    columns : names of the columns that the job uses
    skip : paths, relative to the log's folder, of damaged files to skip
    select : function that selects the files to open

    Raises
    ------
    InputRejectedError
        All problems at once: no files; a file that is not Parquet; a column that is missing, has an unusable type, or
        differs in type between files; no rows.
    """
    opened = open_files(
        paths,
        columns.folders,
        lambda files: select([f for f in files if f.relative not in skip]),
        columns.names,
    )
    types, column_problems = check_columns(opened.schemas, columns)
    kind: type[InputRejectedError] = InputRejectedError
    if opened.unreadable and not column_problems:
        changed = any(isinstance(error, FileChangedError) for error in opened.unreadable)
        kind = FileChangedError if changed else FileRejectedError
        if all(isinstance(error, FileBeingWrittenError) for error in opened.unreadable):
            kind = FileBeingWrittenError
    opened.check("log", paths, column_problems, kind)
    columns = replace(columns, dates=date_columns(opened.schemas, columns.segments))
    log = replace(opened.log(columns, types), file_types=file_types(opened.schemas, list(types)))
    if columns.labels is None:
        return log
    return replace(log, columns=replace(columns, labels=columns.labels.opened(log, opened.schemas)))


class OpenedFiles(NamedTuple):
    """Files of a log, of outcomes or of features, whose footers have been read.

    listing : all files that were found
    files : files with readable footers
    schemas : relative path and schema of each of these files, with the columns of hive folders
    unreadable : errors of the other files
    """

    listing: FileListing
    files: tuple[LogFile, ...]
    schemas: list[tuple[str, pa.Schema]]
    unreadable: list[InputRejectedError]

    def check(
        self,
        subject: str,
        paths: str | Sequence[str],
        problems: Sequence[str],
        kind: type[InputRejectedError] = InputRejectedError,
    ) -> None:
        """Raise an error of type `kind` if there are problems; `problems` are those of the columns."""
        problems = [*map(str, self.unreadable), *problems]
        if not problems and not any(file.rows for file in self.files):
            problems = [f"expected rows, found none in {counted(len(self.files), 'file')}"]
        if problems:
            shown = paths if isinstance(paths, str) else examples(list(paths), 3)
            raise kind(f"the {subject} at {shown} cannot be used.\n{listing(problems)}")

    def log(self, columns: Columns, types: dict[str, str]) -> Log:
        """Return the files as a log with these columns and their types."""
        tree = self.listing
        return Log(
            tree.root,
            tree.filesystem,
            self.files,
            columns,
            types,
            skipped=tree.skipped,
            snapshots=tree.snapshots,
        )


def open_files(
    paths: str | Sequence[str],
    folders: Sequence[str] = (),
    select: Callable[[Sequence[LogFile]], Sequence[LogFile]] = tuple,
    names: Sequence[str] = (),
    setting: str = "$[paths]",
) -> OpenedFiles:
    """Find files and read their footers.

    folders : columns that may be keys of hive folders
    select : see `open_log`
    names : columns that may be fields of structs
    """
    source = find_files(paths, setting)
    good, unreadable = read_footers(source.filesystem, select(source.files))
    complete = {id(schema): nested.with_fields(schema, names) for _, schema in good}
    schemas = [
        (file.relative, folder_tree.with_keys(complete[id(schema)], file.path, folders))
        for file, schema in good
    ]
    return OpenedFiles(source, tuple(file for file, _ in good), schemas, unreadable)


def read_footers(
    filesystem: Any, files: Sequence[LogFile]
) -> tuple[list[tuple[LogFile, pa.Schema]], list[InputRejectedError]]:
    """Read the footers of files; return readable files with their schemas, and the errors of the others."""
    footers = list(together(partial(_read_footer, filesystem), files))
    problems = [
        unreadable_file(filesystem, file, footer)
        for file, footer in zip(files, footers, strict=True)
        if isinstance(footer, InputRejectedError)
    ]
    return _with_shared_schemas([footer for footer in footers if isinstance(footer, tuple)]), problems


def _with_shared_schemas(footers: Sequence[tuple[LogFile, pa.Schema]]) -> list[tuple[LogFile, pa.Schema]]:
    """Replace equal schemas of consecutive files by one object; most logs have only one schema."""
    shared: list[tuple[LogFile, pa.Schema]] = []
    last: pa.Schema | None = None
    for file, schema in footers:
        if last is None or not schema.equals(last, check_metadata=True):
            last = schema
        shared.append((file, last))
    return shared


def _read_footer(filesystem: Any, file: LogFile) -> tuple[LogFile, pa.Schema] | InputRejectedError:
    if file.size == 0:
        return FileRejectedError(
            f"{file.path}: expected a Parquet file, found an empty one (0 bytes): remove it or write it again"
        )
    try:
        with open_parquet(filesystem, file.path, file.state, footer=True) as parquet:
            groups = row_groups_of(parquet.metadata, file.path)
            schema = without_reused_names(parquet.schema_arrow, file.fields)
    except FileRejectedError as error:
        other = None if isinstance(error, FileChangedError) else conversion.found(filesystem, file.path)
        return (
            error
            if other is None
            else WrongFooterError(f"{file.path}: expected a Parquet file, found {other}")
        )
    except InputRejectedError as error:
        return error
    return replace(file, row_groups=groups, keys=folder_tree.keys_in(file.path, schema.names)), schema


def check_columns(schemas: Schemas, columns: Columns) -> tuple[dict[str, str], list[str]]:
    """Return the type of each used column, and the problems found. Used for logs and for single files."""
    roles = [("score", columns.score), ("weight", columns.weight)]
    if columns.labels is None:
        roles.insert(1, ("label", columns.label))
    else:
        roles += [("key", name) for name in columns.labels.source.key]
    roles += [("segment", name) for name in columns.segments]
    return check_roles(schemas, [(role, name) for role, name in roles if name is not None])


_T = TypeVar("_T")


def batched_by_size(
    items: Iterable[_T], size: Callable[[_T], int], most_size: int, most: int = sys.maxsize
) -> Iterator[tuple[_T, ...]]:
    """Group consecutive items: each group gets as many as the limits on size and number allow, but at least one."""
    group: list[_T] = []
    group_size = 0
    for item in items:
        item_size = size(item)
        if group and (len(group) >= most or group_size + item_size > most_size):
            yield tuple(group)
            group, group_size = [], 0
        group.append(item)
        group_size += item_size
    if group:
        yield tuple(group)


def cut(log: Log, rows: int) -> list[tuple[Piece, ...]]:
    """Cut a log into tasks of about `rows` rows: consecutive row groups, from several files if these are small.

    A row group is never cut; a task reads a larger one batch by batch.
    """
    groups = [
        (file, (index, start, count))
        for file in log.files
        for index, (start, count) in enumerate(
            zip(accumulate((0, *file.row_groups)), file.row_groups, strict=False)
        )
        if count
    ]

    def piece(path: str, run: Iterable[tuple[LogFile, tuple[int, int, int]]]) -> Piece:
        files, groups_found = zip(*run, strict=True)
        indices, starts, counts = zip(*groups_found, strict=True)
        return files[0].piece(indices, starts[0], sum(counts))

    tasks = batched_by_size(groups, lambda group: group[1][2], rows)
    return [tuple(piece(*run) for run in groupby(task, lambda group: group[0].path)) for task in tasks]


class Rows(NamedTuple):
    """Batch of rows as arrays.

    score : float64 array, NaN where null
    label : uint8 array: 0, 1, or one of the codes below
    weight : float64 array, NaN where null; or None
    batch : the Arrow batch, for details of unusable rows
    day : int32 array, days since 1970-01-01 or one of the codes below; None if all rows have the same day
    code : int32 array, the encoder's code of each row's segment; None without segments
    joined : result of the join with outcomes; None if labels are in the log
    """

    first_row: int
    score: npt.NDArray[np.float64]
    label: npt.NDArray[np.uint8]
    weight: npt.NDArray[np.float64] | None
    batch: pa.RecordBatch
    day: npt.NDArray[np.int32] | None = None
    code: npt.NDArray[np.int32] | None = None
    joined: Joined | None = None

    def some(self, chosen: slice | npt.NDArray[Any]) -> Rows:
        """Select rows; the Arrow batch stays the same."""
        score, label = self.score[chosen], self.label[chosen]
        weight = None if self.weight is None else self.weight[chosen]
        code = None if self.code is None else self.code[chosen]
        return self._replace(score=score, label=label, weight=weight, code=code)


LABEL_NULL = 2
LABEL_OTHER = 3

DAY_NULL = -(1 << 31)
DAY_INVALID = DAY_NULL + 1
DAY_OUT_OF_RANGE = DAY_NULL + 2


def pieces_ahead(filesystem: Any, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, bytes | None]]:
    """Yield pieces with the bytes of small remote files (otherwise None), which are fetched ahead concurrently."""

    def fetch(piece: Piece) -> bytes | None:
        if isinstance(filesystem, LocalFileSystem) or piece.state.size > WHOLE_BYTES:
            return None
        with open_small(filesystem, piece.path, piece.state) as content:
            return content

    remote = not isinstance(filesystem, LocalFileSystem)
    return zip(pieces, together(fetch, pieces, remote=remote), strict=True)


def read_rows(
    filesystem: Any,
    piece: Piece,
    columns: Columns,
    matching: Any = None,
    content: bytes | None = None,
) -> Iterator[Rows]:
    """Read the rows of a piece batch by batch, only the used columns.

    matching : joins labels that are in other files
    content : bytes of the file, if `pieces_ahead` has fetched them

    Raises
    ------
    InputRejectedError
        The file was changed, is truncated, or has pages that cannot be decoded.
    """
    row = piece.first_row
    coded = [name for name in columns.segments if folder_tree.hive_value(piece.path, name) is None]
    folders = columns.folders if columns.date is None else (*columns.folders, columns.date)
    for batch in read_piece(filesystem, piece, columns.names, folders, coded, content):
        batch = _with_segments(batch, columns, piece.path)
        joined = None if matching is None else matching.join(batch)
        yield _as_arrays(batch, columns, row, joined)
        row += batch.num_rows


def read_piece(
    filesystem: Any,
    piece: Piece,
    names: Sequence[str],
    folders: Sequence[str],
    coded: Sequence[str] = (),
    content: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read columns of a piece batch by batch; those of `folders` may be keys of hive folders.

    coded : see `open_parquet`. content and errors : see `read_rows`
    """
    with open_parquet(filesystem, piece.path, piece.state, coded, content=content) as parquet:
        present = nested.with_fields(parquet.schema_arrow, names).names
        # If hive folders have all the columns, another column is read for the number of rows.
        columns = [n for n in dict.fromkeys(names) if n in present or n not in folders] or present[:1]
        for batch in read_batches(parquet, piece.path, columns, piece.row_groups, BATCH_ROWS):
            yield folder_tree.with_values(nested.with_columns(batch, columns), piece.path, folders)


def _with_segments(batch: pa.RecordBatch, columns: Columns, path: str) -> pa.RecordBatch:
    """Convert segment columns; see `segment_column`."""
    for name in columns.segments:
        column = batch.column(name)
        try:
            converted = segment_column(column, name, pa.date32() if name in columns.dates else None)
        except InputRejectedError as error:
            raise InputRejectedError(f"{path}: {error}") from None
        if converted is not column:
            batch = batch.set_column(batch.schema.get_field_index(name), name, converted)
    return batch


def _as_arrays(batch: pa.RecordBatch, columns: Columns, first_row: int, joined: Joined | None) -> Rows:
    if joined is not None and columns.label is not None:
        batch = batch.append_column(columns.label, joined.column)
        label = joined.label
    else:
        label = (
            label_codes(batch.column(columns.label)) if columns.label else np.zeros(batch.num_rows, np.uint8)
        )
    score = numbers(batch.column(columns.score))
    weight = numbers(batch.column(columns.weight)) if columns.weight else None
    return Rows(first_row, score, label, weight, batch, joined=joined)


def numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """Convert a column to float64, nulls to NaN; does not copy float64 without nulls."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    decimal = pa.types.is_decimal(column.type)
    values = decimals.doubles_of(column) if decimal else as_numpy(column).astype(np.float64, copy=False)
    return np.where(null_mask(column), np.nan, values) if column.null_count else values


def label_codes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Convert a column of labels to codes: 0, 1, LABEL_NULL or LABEL_OTHER."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count == 0 and pa.types.is_boolean(column.type):
        return as_numpy(column).view(np.uint8)
    if pa.types.is_null(column.type):
        return np.full(len(column), LABEL_NULL, np.uint8)
    if pa.types.is_decimal(column.type):
        return _decimal_codes(column)
    dense = column.null_count == 0 and not pa.types.is_boolean(column.type)
    values = as_numpy(column) if dense else numbers(column)
    if values.dtype.itemsize == 1:
        labels = values.astype(np.uint8)
        if labels.max(initial=0) <= 1:
            return labels
    codes = (values == 1).astype(np.uint8)
    invalid = (values != 0) & (values != 1)
    if invalid.any():
        codes[invalid] = LABEL_OTHER
    if column.null_count:
        codes[null_mask(column)] = LABEL_NULL
    return codes


def _decimal_codes(column: pa.Array) -> npt.NDArray[np.uint8]:
    ones = decimals.are(column, 1)
    codes = np.where(ones | decimals.are(column, 0), ones.astype(np.uint8), np.uint8(LABEL_OTHER))
    return np.where(null_mask(column), np.uint8(LABEL_NULL), codes) if column.null_count else codes
