"""The prediction log: which files, which columns, which rows are usable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from logcal.arrow_columns import as_numpy, null_mask
from logcal.errors import FileChangedError, FileRejectedError, InputRejectedError, counted, examples, listing
from pipeline.files.requests import WHOLE_BYTES, together
from pipeline.log import folder_tree, segment_values
from pipeline.log.label_counts import Joined
from pipeline.log.log_files import (
    Found,
    LogFile,
    Piece,
    find_files,
    folders_of,
    open_parquet,
    open_small,
    read_batches,
    row_groups_of,
)
from pipeline.log.outcome_index import kind_of
from pipeline.log.snapshots import own_columns

if TYPE_CHECKING:
    from pipeline.log.outcomes import Outcomes

BATCH_ROWS = 1 << 18
"""Rows decoded at a time: what a task holds beside its buffers."""

MOST_NAMED = 1000
"""Skipped files that a manifest names; all are counted."""


@dataclass(frozen=True)
class Columns:
    """The names of a log's columns that a job uses; None where it uses none.

    sampling : whether weights say how many others a row stands for, and not how often it counts
    labels : where labels are, if not in the log: `label` is no column of it then, but what they are called
    """

    score: str
    label: str | None = None
    weight: str | None = None
    segments: tuple[str, ...] = ()
    date: str | None = None
    sampling: bool = False
    labels: Outcomes | None = None

    @property
    def names(self) -> list[str]:
        """The columns to read."""
        label = self.label if self.labels is None else None
        own = (self.score, label, self.weight, *self.folders, self.date)
        return list(dict.fromkeys(name for name in own if name is not None))

    @property
    def folders(self) -> tuple[str, ...]:
        """Columns that may be keys of hive folders, and not in the files."""
        return self.segments if self.labels is None else (*self.segments, *self.labels.source.columns)

    @property
    def outcomes(self) -> int:
        """Rows of the files that labels are in, if not in the log."""
        return 0 if self.labels is None else self.labels.rows

    def of_days(self, first: int, last: int) -> Columns:
        """The same for rows of some days alone, both included; days since 1970-01-01."""
        return self if self.labels is None else replace(self, labels=self.labels.of_days(first, last))


@dataclass(frozen=True)
class Log:
    """A prediction log whose footers have been read and checked.

    Attributes
    ----------
    root : of its first path. types : of the columns that are used.
    skipped : what lies below its folders and is not read: relative paths, folders with '/' at the end.
    snapshots : format and version of the tables (Delta, Iceberg) that its files are live in.
    """

    root: str
    filesystem: Any
    files: tuple[LogFile, ...]
    columns: Columns
    types: dict[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    snapshots: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)

    @property
    def local(self) -> bool:
        """True if the files lie on a mounted file system."""
        return isinstance(self.filesystem, LocalFileSystem)

    def described(self) -> str:
        """Size of the log and skipped entries, in one line."""
        text = f"{counted(len(self.files), 'file')}, {self.rows:,} rows, {self.size:,} bytes"
        if self.skipped:
            text += f"; {len(self.skipped)} others are skipped ({examples(self.skipped, 3)})"
        if self.columns.labels is not None:
            text += f"; labels of {self.columns.outcomes:,} outcomes in other files"
        return text

    def sources(self) -> dict[str, Any]:
        """Origin of the rows, for the manifest."""
        return {
            "files": [file.facts() for file in self.files],
            "files_skipped": len(self.skipped),
            "files_skipped_names": list(self.skipped[:MOST_NAMED]),
            **({"snapshots": list(self.snapshots)} if self.snapshots else {}),
            **({"labels": self.columns.labels.facts()} if self.columns.labels else {}),
        }

    def places(self) -> list[tuple[Any, str]]:
        """The folders that it and its outcomes are, with their file systems."""
        labels = () if self.columns.labels is None else self.columns.labels.places
        own = folders_of(self.filesystem, self.root, self.files)
        return [*((self.filesystem, path) for path in own), *labels]


def open_log(
    paths: str | Sequence[str],
    columns: Columns,
    without: Collection[str] = (),
    among: Callable[[Sequence[LogFile]], Sequence[LogFile]] = tuple,
) -> Log:
    """Find a log's files, read their footers, and check everything that footers can tell.

    Parameters
    ----------
    paths : path, directory, glob or fsspec URL, or several
    columns : names of the columns that the job uses
    without : names of files, below the folder that is the log, that are passed over: they are known to be damaged
    among : picks the files that are opened; the others are passed over, too

    Raises
    ------
    InputRejectedError
        All problems at once: no files; a file that is not Parquet; a column that is missing, has a type that
        cannot be used, or differs in type between files; no rows.
    """
    opened = open_files(
        paths,
        "log.path",
        columns.folders,
        lambda files: among([f for f in files if f.relative not in without]),
    )
    types, column_problems = check_columns(opened.schemas, columns)
    kind: type[InputRejectedError] = InputRejectedError
    if opened.unreadable and not column_problems:
        changed = any(isinstance(error, FileChangedError) for error in opened.unreadable)
        kind = FileChangedError if changed else FileRejectedError
    opened.check("log", paths, column_problems, kind)
    log = opened.log(columns, types)
    if columns.labels is None:
        return log
    return replace(log, columns=replace(columns, labels=columns.labels.opened(log, opened.schemas)))


class OpenedFiles(NamedTuple):
    """Files of a log, of outcomes or of features, whose footers have been read.

    found : where they are. schemas : of each of the files, with its relative path and the columns that its folders have
    unreadable : what is wrong with the others
    """

    found: Found
    files: tuple[LogFile, ...]
    schemas: list[tuple[str, pa.Schema]]
    unreadable: list[InputRejectedError]

    def check(
        self,
        what: str,
        paths: str | Sequence[str],
        problems: Sequence[str],
        kind: type[InputRejectedError] = InputRejectedError,
    ) -> None:
        """Raise an error of this kind for all that is wrong. problems : of the columns."""
        problems = [*map(str, self.unreadable), *problems]
        if not problems and not any(file.rows for file in self.files):
            problems = [f"expected rows, found none in {counted(len(self.files), 'file')}"]
        if problems:
            shown = paths if isinstance(paths, str) else examples(list(paths), 3)
            raise kind(f"the {what} at {shown} cannot be used.\n{listing(problems)}")

    def log(self, columns: Columns, types: dict[str, str]) -> Log:
        """Return the log that they are. types : of the columns."""
        found = self.found
        return Log(found.root, found.filesystem, self.files, columns, types, found.skipped, found.snapshots)


def open_files(
    paths: str | Sequence[str],
    setting: str,
    folders: Sequence[str] = (),
    among: Callable[[Sequence[LogFile]], Sequence[LogFile]] = tuple,
) -> OpenedFiles:
    """Find files and read their footers.

    folders : columns that may be keys of hive folders. among : see `open_log`
    """
    found = find_files(paths, setting)
    good, unreadable = read_footers(found.filesystem, among(found.files))
    schemas = [(file.relative, folder_tree.with_keys(schema, file.path, folders)) for file, schema in good]
    return OpenedFiles(found, tuple(file for file, _ in good), schemas, unreadable)


def read_footers(
    filesystem: Any, found: Sequence[LogFile]
) -> tuple[list[tuple[LogFile, pa.Schema]], list[InputRejectedError]]:
    """The files with their row groups and schemas, and what is wrong with those that cannot be read."""
    footers = list(together(partial(_read_footer, filesystem), found))
    problems = [footer for footer in footers if isinstance(footer, InputRejectedError)]
    return _with_shared_schemas([footer for footer in footers if isinstance(footer, tuple)]), problems


def _with_shared_schemas(footers: Sequence[tuple[LogFile, pa.Schema]]) -> list[tuple[LogFile, pa.Schema]]:
    """The same with one object for neighbours of one schema, which is all that most logs have."""
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
        with open_parquet(filesystem, file.path, file.seen, footer=True) as parquet:
            groups = row_groups_of(parquet.metadata, file.path)
            schema = own_columns(parquet.schema_arrow, file.fields)
    except InputRejectedError as error:
        return error
    return replace(file, row_groups=groups), schema


def check_columns(
    schemas: Sequence[tuple[str, pa.Schema]], columns: Columns
) -> tuple[dict[str, str], list[str]]:
    """The type of each used column, and what is wrong with them: the one check for logs and for single files.

    schemas : of files, each with its path, and with the columns that its folders have (`folder_tree.with_keys`)
    """
    roles = [("score", columns.score), ("weight", columns.weight)]
    if columns.labels is None:
        roles.insert(1, ("label", columns.label))
    else:
        roles += [("key", name) for name in columns.labels.source.key]
    roles += [("segment", name) for name in columns.segments]
    return check_roles(schemas, [(role, name) for role, name in roles if name is not None])


def check_roles(
    schemas: Sequence[tuple[str, pa.Schema]], roles: Sequence[tuple[str, str]], section: str = "log"
) -> tuple[dict[str, str], list[str]]:
    """Do `check_columns` for columns with their roles, which a section of the configuration names."""
    types: dict[str, str] = {}
    problems = []
    for role, name in roles if schemas else ():
        setting = f"{section}.{role}"
        kind, problem = type_of(name, setting, schemas, f": set {setting}")
        if kind is None:
            problems.append(problem)
            continue
        types[name] = str(kind)
        if not _usable(role, kind):
            wanted = {
                "label": "booleans, or numbers 0 and 1 (a float or integer type)",
                "segment": "strings, integers, booleans or dates (date32)",
                "key": "integers, strings, bytes or dates (date32)",
                "time": "timestamps or dates",
            }.get(role, "numbers (a float or integer type)")
            problems.append(
                f"column '{name}' ({setting}): expected {wanted}, found {kind}: "
                f"set {setting} to another column or convert this one"
            )
    return types, problems


def type_of(
    name: str, role: str, schemas: Sequence[tuple[str, pa.Schema]], advice: str = ""
) -> tuple[pa.DataType | None, str]:
    """A column's type in all files, or what is wrong with it."""
    # Asking a schema takes a microsecond or two: each object is asked once, whatever the files that share it.
    different = {id(schema): schema for _, schema in schemas}
    times = {key: schema.names.count(name) for key, schema in different.items()}
    if missing := [path for path, schema in schemas if not times[id(schema)]]:
        names = dict(schemas)[missing[0]].names
        where = "any file" if len(missing) == len(schemas) else f"{len(missing)} of {len(schemas)} files"
        return None, (
            f"column '{name}' ({role}) is not in {where} ({examples(missing, 3)}), which have the columns "
            f"{examples(names, 12)}{advice}"
        )
    if twice := [path for path, schema in schemas if times[id(schema)] > 1]:
        return None, (
            f"column '{name}' ({role}): expected one column of this name, found several in "
            f"{counted(len(twice), 'file')} ({examples(twice, 3)}): give the others another name"
        )
    kinds = {key: str(schema.field(name).type) for key, schema in different.items()}
    by_type: dict[str, list[str]] = {}
    for path, schema in schemas:
        by_type.setdefault(kinds[id(schema)], []).append(path)
    if len(by_type) > 1:
        counts = "; ".join(
            f"{kind} in {counted(len(f), 'file')} ({examples(f, 2)})" for kind, f in by_type.items()
        )
        return None, (
            f"column '{name}' ({role}): expected one type in all files, found {counts}: "
            "write the files with one schema"
        )
    return schemas[0][1].field(name).type, ""


def _usable(role: str, kind: pa.DataType) -> bool:
    if role == "segment":
        return segment_values.usable(kind)
    if role == "key":
        return kind_of(kind) is not None
    if role == "time":
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return number or (role == "label" and pa.types.is_boolean(kind))


_T = TypeVar("_T")


def neighbours(
    items: Iterable[_T], size: Callable[[_T], int], most_size: int, most: int = sys.maxsize
) -> Iterator[tuple[_T, ...]]:
    """Groups of neighbours, in order: each has as many as the limits allow, and one at least."""
    group: list[_T] = []
    held = 0
    for item in items:
        own = size(item)
        if group and (len(group) >= most or held + own > most_size):
            yield tuple(group)
            group, held = [], 0
        group.append(item)
        held += own
    if group:
        yield tuple(group)


def cut(log: Log, rows: int) -> list[tuple[Piece, ...]]:
    """Cut a log into tasks of about `rows` rows: runs of row groups, of several files where they are small.

    A row group is never cut: a task that holds a larger one reads it batch by batch.
    """
    groups = [
        (file, (place, start, count))
        for file in log.files
        for place, (start, count) in enumerate(
            zip(accumulate((0, *file.row_groups)), file.row_groups, strict=False)
        )
        if count
    ]

    def piece(path: str, own: Iterable[tuple[LogFile, tuple[int, int, int]]]) -> Piece:
        files, found = zip(*own, strict=True)
        places, starts, counts = zip(*found, strict=True)
        return files[0].piece(places, starts[0], sum(counts))

    tasks = neighbours(groups, lambda group: group[1][2], rows)
    return [tuple(piece(*own) for own in groupby(task, lambda group: group[0].path)) for task in tasks]


class Rows(NamedTuple):
    """A batch of rows as arrays, with what is unusable marked.

    score : float64 array, NaN where null. label : uint8 array: 0, 1, or one of the codes below.
    weight : float64 array, NaN where null; or None. batch : the Arrow batch, for a second look.
    day : int32 array, days since 1970-01-01 or one of the codes below; None where all rows are of one day.
    code : int32 array, the segment of each row by an encoder's code; None where a log has no segments.
    joined : what was found where labels lie in other files; otherwise None.
    """

    first_row: int
    score: npt.NDArray[np.float64]
    label: npt.NDArray[np.uint8]
    weight: npt.NDArray[np.float64] | None
    batch: pa.RecordBatch
    day: npt.NDArray[np.int32] | None = None
    code: npt.NDArray[np.int32] | None = None
    joined: Joined | None = None

    def some(self, which: slice | npt.NDArray[Any]) -> Rows:
        """Some of the rows, of the same Arrow batch."""
        score, label = self.score[which], self.label[which]
        weight = None if self.weight is None else self.weight[which]
        code = None if self.code is None else self.code[which]
        return self._replace(score=score, label=label, weight=weight, code=code)


LABEL_NULL = 2
LABEL_OTHER = 3

DAY_NULL = -(1 << 31)
DAY_INVALID = DAY_NULL + 1


def pieces_ahead(filesystem: Any, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, bytes | None]]:
    """Yield pieces, with the contents if the file is a small one in a store; several are fetched at a time."""

    def fetched(piece: Piece) -> bytes | None:
        if isinstance(filesystem, LocalFileSystem) or piece.seen.size > WHOLE_BYTES:
            return None
        with open_small(filesystem, piece.path, piece.seen) as content:
            return content

    remote = not isinstance(filesystem, LocalFileSystem)
    return zip(pieces, together(fetched, pieces, remote=remote), strict=True)


def read_rows(
    filesystem: Any,
    piece: Piece,
    columns: Columns,
    matching: Any = None,
    content: bytes | None = None,
) -> Iterator[Rows]:
    """The rows of a piece, batch by batch, with only the used columns read.

    matching : finds labels that lie in other files. content : of the file, where `pieces_ahead` has fetched it

    Raises
    ------
    InputRejectedError
        If the file was changed, breaks off, or its pages do not decode.
    """
    row = piece.first_row
    coded = [name for name in columns.segments if folder_tree.hive_value(piece.path, name) is None]
    for batch in read_piece(filesystem, piece, columns.names, columns.folders, coded, content):
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
    """Columns of a piece's rows, batch by batch; those of `folders` may be keys of its hive folders.

    coded : see `open_parquet`. Otherwise as `read_rows`
    """
    with open_parquet(filesystem, piece.path, piece.seen, coded, content=content) as parquet:
        there = parquet.schema_arrow.names
        # Where folders have all of them, a column gives the number of rows.
        own = [name for name in dict.fromkeys(names) if name in there or name not in folders] or there[:1]
        for batch in read_batches(parquet, piece.path, own, piece.row_groups, BATCH_ROWS):
            yield folder_tree.with_values(batch, piece.path, folders)


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
    """A column of numbers as float64, NaN where null; without a copy where it is float64 and has no nulls."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = as_numpy(column).astype(np.float64, copy=False)
    return np.where(null_mask(column), np.nan, values) if column.null_count else values


def label_codes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Labels as 0, 1, LABEL_NULL or LABEL_OTHER."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count == 0 and pa.types.is_boolean(column.type):
        return as_numpy(column).view(np.uint8)
    plain = column.null_count == 0 and not pa.types.is_boolean(column.type)
    values = as_numpy(column) if plain else numbers(column)
    if values.dtype.itemsize == 1:
        own = values.astype(np.uint8)
        if own.max(initial=0) <= 1:
            return own
    codes = (values == 1).astype(np.uint8)
    other = (values != 0) & (values != 1)
    if other.any():
        codes[other] = LABEL_OTHER
    if column.null_count:
        codes[null_mask(column)] = LABEL_NULL
    return codes
