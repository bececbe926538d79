"""The files of a log: finding them, and reading them so that a change during the read is detected.

Files are read with pread, not mapped: if a file is truncated during the read, access to a mapping would end the process
with SIGBUS, whereas a read ends early and can be reported.
"""

from __future__ import annotations

import datetime as dt
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import (
    ConfigError,
    FileBeingWrittenError,
    FileChangedError,
    FileRejectedError,
    InputRejectedError,
    LogcalError,
    counted,
    examples,
    listing,
)
from logcal.storage import open_filesystem
from pipeline.execution import tasks
from pipeline.files import clock
from pipeline.files.faults import as_fault, out_of_memory
from pipeline.files.requests import SMALL_FILES, WHOLE_BYTES, StoreFile, together
from pipeline.log.chunks import CheckedFooter
from pipeline.log.conversion import folder_advice
from pipeline.log.folder_tree import Entries, all_visible, local_tree
from pipeline.log.snapshots import Snapshot, overlap, read_snapshot, table_above, table_in

SUFFIXES = (".parquet", ".parq", ".pq")

_MAGIC = b"PAR1"
"""First bytes of a Parquet file."""

_OTHER = "other"
"""Type of devices, FIFOs and sockets in fsspec, whose reads may never end."""

_TOO_DEEP = "too deeply nested"
"""In Arrow's error for a schema of more levels than it reads: the file is whole."""

_READ_BYTES = 1 << 20
_FEW_FILES = 8
"""Up to this many files of a folder are looked up one by one, since listing it may return many more."""

_MOST_PROBED = 100
"""Most files without a Parquet suffix that are probed for Parquet content; each costs a request."""


class FileState(NamedTuple):
    """State of a file, to detect changes.

    size : bytes
    stamp : modification time or entity tag, which changes with the content; '' if unknown
    """

    size: int
    stamp: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes, stamp {self.stamp}"


FileId = tuple[str, int, str]
"""Name, size and stamp of a log's file; a changed file has another identity, a moved log's files have the same."""


class WrongFooterError(FileRejectedError):
    """A file's footer is readable and wrong, so the file is not half-written."""


class Piece(NamedTuple):
    """Row groups of a file, read by one task."""

    path: str
    row_groups: tuple[int, ...]
    first_row: int
    rows: int
    state: FileState


@dataclass(frozen=True)
class LogFile:
    """A Parquet file of a log.

    Attributes
    ----------
    path : path on `Log.filesystem`
    relative : path relative to the log's root, with hive folders; the name of a single file
    size, stamp : see `FileState`
    row_groups : number of rows of each row group
    fields : see `Snapshot`
    keys : keys of its hive folders that are columns of the file, too
    name : path relative to `log.path`, or to the folder above all its paths; '': `relative`
    """

    path: str
    relative: str
    size: int
    stamp: str
    row_groups: tuple[int, ...] = ()
    fields: tuple[tuple[str, int], ...] = ()
    name: str = ""
    keys: tuple[str, ...] = ()

    @property
    def identity(self) -> FileId:
        """Name, size and stamp: what is remembered of a file. It does not change if the whole log is moved."""
        return self.name or self.relative, self.size, self.stamp

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(self.row_groups)

    @property
    def state(self) -> FileState:
        """State of the file when the log was opened."""
        return FileState(self.size, self.stamp)

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        name, size, stamp = self.identity
        return {"path": self.path, "name": name, "bytes": size, "rows": self.rows, "stamp": stamp}

    def piece(self, row_groups: tuple[int, ...], first_row: int, rows: int) -> Piece:
        """Return the piece of the given row groups. first_row : its first row. rows : number of rows."""
        return Piece(self.path, row_groups, first_row, rows, self.state)


@dataclass
class FileListing:
    """Listing of a log's files.

    Attributes
    ----------
    filesystem, root : file system and path of the first path given
    files : files in the order of their paths, without row groups, since no footer has been read
    skipped : relative paths of skipped files and folders; folders end in '/'
    snapshots : format and version of each table among the paths
    """

    filesystem: Any = None
    root: str = ""
    files: tuple[LogFile, ...] = ()
    skipped: tuple[str, ...] = ()
    snapshots: tuple[dict[str, Any], ...] = ()


def find_files(paths: str | Sequence[str], setting: str = "$[paths]") -> FileListing:
    """Find the Parquet files at a path, directory, glob or fsspec URL, or at several on one file system.

    Directories are searched recursively, through symbolic links. Names that start with "_" or "." are skipped, as in
    Spark and Dask, and so are names of temporary files and files that are not Parquet.

    setting : name of the setting with the paths, for messages

    Raises
    ------
    InputRejectedError
        A path does not exist or has no Parquet files; Parquet files lack a Parquet suffix; symbolic links are circular,
        broken, or lead to files that are listed already.
    """
    patterns = [paths] if isinstance(paths, str) else list(paths)
    problems: list[str] = []
    all_files = FileListing()
    files: dict[str, LogFile] = {}
    for pattern in patterns:
        all_files.filesystem, path = open_filesystem(pattern, setting)
        all_files.root = all_files.root or path
        entries = _entries(all_files.filesystem, path)
        problems += [f"{pattern}: {problem}" for problem in entries.problems]
        all_files.skipped += tuple(entries.skipped)
        all_files.snapshots += tuple(snapshot.facts() for snapshot in entries.snapshots)
        fields = next((snapshot.fields for snapshot in entries.snapshots), ())
        for file_path, (relative, info) in entries.files.items():
            files[file_path] = LogFile(file_path, relative, *_state_of(info), fields=fields)
    if problems:
        raise InputRejectedError(f"{setting} names no log that can be used.\n{listing(problems)}")
    all_files.files = tuple(file for _, file in sorted(files.items()))
    if len(patterns) > 1:
        all_files.files = _named_from_above(all_files.files)
    return all_files


def _named_from_above(files: Sequence[LogFile]) -> tuple[LogFile, ...]:
    """Name the files of several paths relative to the folder above these, since two may have one relative path."""
    above = os.path.commonpath({file.path.removesuffix(file.relative).rstrip("/") or "/" for file in files})
    return tuple(replace(file, name=_relative(file.path, above)) for file in files)


class FittedFiles:
    """Files that a version was fitted to.

    A file is one of them if its path, size and number of rows are the same; or, in a log that has been moved, its
    name, size, number of rows and stamp.

    Parameters
    ----------
    files : facts of the files, as in a manifest
    """

    def __init__(self, files: Iterable[Mapping[str, Any]]) -> None:
        facts = list(files)
        self._there = {(file["path"], file["bytes"], file["rows"]) for file in facts}
        self._moved = {
            (file["name"], file["bytes"], file["rows"], file["stamp"]) for file in facts if "name" in file
        }

    def __contains__(self, file: LogFile) -> bool:
        """Tell whether the version was fitted to a file."""
        name, size, stamp = file.identity
        return (file.path, size, file.rows) in self._there or (
            bool(stamp) and (name, size, file.rows, stamp) in self._moved
        )


def folders_of(filesystem: Any, root: str, files: Sequence[LogFile]) -> list[str]:
    """Return the folders that consist of the files, or the files themselves if a glob selected them.

    root : path at which they were found
    """
    if len(files) == 1 and root == files[0].path:
        return [root]
    if has_magic(root) and not filesystem.exists(root):
        # A glob may select only some files of a folder.
        return [file.path for file in files]
    return sorted({file.path.removesuffix(file.relative).rstrip("/") for file in files})


def expected_folder(paths: Sequence[str]) -> tuple[Any, str]:
    """Return the file system and path of a log that is one folder, which may be empty or not exist yet.

    Raises
    ------
    ConfigError
        There are several paths, or the path is a glob or a file.
    """
    if len(paths) != 1:
        raise ConfigError(
            f"$[paths]: expected one folder, found {len(paths)} paths: files are followed in one folder"
        )
    filesystem, root = open_filesystem(paths[0], "$[paths]")
    if has_magic(root) and not filesystem.exists(root):
        raise ConfigError(f"$[paths]: expected a folder, found the glob {paths[0]}: name the folder itself")
    if filesystem.isfile(root):
        raise ConfigError(
            f"$[paths]: expected a folder, found the file {paths[0]}: name the folder it lies in"
        )
    return filesystem, root.rstrip("/") or "/"


def _entries(filesystem: Any, path: str) -> Entries:
    """List the entries at one path."""
    if _has_buckets(filesystem) and (not path.partition("/")[0] or has_magic(path.partition("/")[0])):
        raise ConfigError(
            f"expected a URL that names a bucket, found {filesystem.unstrip_protocol(path)}: correct it"
        )
    try:
        info = filesystem.info(path)
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError) and not isinstance(filesystem, LocalFileSystem):
            raise
        if has_magic(path):
            return _matches(filesystem, path)
        bucket = path.partition("/")[0]
        if _has_buckets(filesystem) and not filesystem.exists(bucket):
            raise ConfigError(
                f"expected a bucket that exists, found none named {bucket}: correct the URL"
            ) from None
        return Entries(problems=["no such file or directory"])
    if info["type"] == "file":
        return Entries({path: (path.rpartition("/")[2], info)})
    if info["type"] == _OTHER:
        return Entries(
            problems=["expected a file or a folder, found a device, FIFO or socket: name another path"]
        )
    return _folder(filesystem, path)


def _has_buckets(filesystem: Any) -> bool:
    protocols = [filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol
    return not {"s3", "s3a", "gs", "gcs", "abfs", "az"}.isdisjoint(protocols)


def _matches(filesystem: Any, pattern: str) -> Entries:
    base = pattern[: min(pattern.find(c) for c in "*?[" if c in pattern)].rpartition("/")[0]
    entries = Entries()
    table = table_above(filesystem, f"{base}/files")
    if table is not None:
        entries.problems.append(overlap(*table, pattern))
        return entries
    for path, info in filesystem.glob(pattern, detail=True).items():
        relative = _relative(path, base)
        if not all_visible(relative):
            continue
        if info.get("islink"):
            info = filesystem.info(path)
        if info["type"] == "directory":
            nested = _folder(filesystem, path)
            entries.problems += [problem for problem in nested.problems if nested.files or nested.unnamed]
            entries.files.update({p: (_relative(p, base), i) for p, (_, i) in nested.files.items()})
            entries.skipped += [f"{relative}/{name}" for name in nested.skipped]
        elif info["type"] == _OTHER:
            entries.skipped.append(relative)
        else:
            entries.files[path] = (relative, info)
    if not entries.files and not entries.problems:
        entries.problems.append("no files match")
    return entries


def _folder(filesystem: Any, path: str) -> Entries:
    """List the Parquet files of a folder, or the live files of a table."""
    entries = tree(filesystem, path)
    names = [*entries.skipped, *(relative for relative, _ in entries.files.values())]
    table = table_in(names)
    if table is not None and not table[1]:
        return _snapshot_files(filesystem, path, read_snapshot(table[0], filesystem, path))
    outer = table or table_above(filesystem, path)
    if outer is not None:
        return Entries(problems=[overlap(*outer, path)])
    others = {p: entry for p, entry in entries.files.items() if not p.lower().endswith(SUFFIXES)}
    entries.files = {p: entry for p, entry in entries.files.items() if p not in others}
    names = sorted(relative for relative, _ in others.values())
    entries.unnamed = sorted(
        others[p][0] for p in sorted(others)[:_MOST_PROBED] if _holds_parquet(filesystem, p)
    )
    if entries.unnamed:
        entries.problems.append(
            f"expected names that end in {', '.join(SUFFIXES)}, found Parquet files with others "
            f"({examples(entries.unnamed, 3)}), which would be left out: rename them, move them away, or give a glob "
            "that matches the files to read"
        )
    elif not entries.files and not entries.problems:
        content = f"{counted(len(names), 'other file')} ({examples(names, 3)})" if names else "nothing"
        entries.problems.append(
            f"expected files ending in {', '.join(SUFFIXES)} in this directory, found {content}"
            f"{folder_advice(path, names)}"
        )
    entries.skipped += names
    return entries


def _snapshot_files(filesystem: Any, path: str, snapshot: Snapshot) -> Entries:
    entries = Entries(snapshots=[snapshot])
    infos = together(filesystem.info, snapshot.paths, remote=not isinstance(filesystem, LocalFileSystem))
    for file_path, info in zip(snapshot.paths, infos, strict=True):
        entries.files[file_path] = (_relative(file_path, path), info)
    if not entries.files:
        entries.problems.append(f"expected rows, found none in version {snapshot.version} of the table")
    return entries


def tree(filesystem: Any, path: str, passed_over: Callable[[str], bool] | None = None) -> Entries:
    """List all files below a folder; see `local_tree`."""
    if isinstance(filesystem, LocalFileSystem):
        return local_tree(path, passed_over)
    entries = Entries()
    for file_path, info in sorted(filesystem.find(path, detail=True).items()):
        relative = _relative(file_path, path)
        if passed_over is not None and any(map(passed_over, relative.split("/")[:-1])):
            continue
        if all_visible(relative):
            entries.files[file_path] = (relative, info)
        else:
            entries.skipped.append(relative)
    return entries


def _holds_parquet(filesystem: Any, path: str) -> bool:
    with suppress(PermissionError):
        return bytes(filesystem.cat_file(path, start=0, end=len(_MAGIC))) == _MAGIC
    return False


def _relative(path: str, root: str) -> str:
    return path[len(root.rstrip("/")) :].lstrip("/") if root else path


def _state_of(info: dict[str, Any]) -> FileState:
    return FileState(int(info["size"] or 0), stamp_of(info))


def stamp_of(info: dict[str, Any]) -> str:
    """Return the entity tag or modification time in a file's info; '' if it has neither."""
    for key in ("ETag", "etag", "mtime", "LastModified", "last_modified", "created"):
        if info.get(key) is not None:
            return str(info[key])
    return ""


GIVE_UP: ContextVar[float] = ContextVar("give_up", default=300.0)
"""Seconds after its last modification during which a file without a readable footer is taken to be half-written
(`log.give_up`)."""


def is_being_written(filesystem: Any, path: str, now: dt.datetime | None = None) -> bool:
    """Tell whether a file was modified less than `GIVE_UP` ago. now : present time; None: by the clock."""
    try:
        filesystem.invalidate_cache(path.rpartition("/")[0])
        modified = filesystem.modified(path)
    except (OSError, NotImplementedError, KeyError, ValueError):
        return False
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=dt.UTC)
    # Clocks differ; a file far in the future is not being written.
    return bool(abs(((now or clock.now()) - modified).total_seconds()) < GIVE_UP.get())


def unreadable_file(filesystem: Any, file: LogFile, error: InputRejectedError) -> InputRejectedError:
    """Return the error for a file whose footer cannot be read: it is half-written if it is young."""
    if type(error) is not FileRejectedError or not is_being_written(filesystem, file.path):
        return error
    return FileBeingWrittenError(
        f"{error}. Modified less than {GIVE_UP.get():g} s ago ($[give_up]), it may still be being written: run again "
        "later"
    )


@contextmanager
def open_parquet(
    filesystem: Any,
    path: str,
    state: FileState | None,
    coded: Sequence[str] = (),
    *,
    footer: bool = False,
    content: bytes | None = None,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for `read_batches`; checksums of pages are verified if the file has them.

    Parameters
    ----------
    path : path of the file
    state : expected state of the file, checked now and at the end of the block; None: not checked
    coded : columns of strings to read as dictionaries, once per row group instead of once per row, if the file encodes
        them so
    footer : whether only the footer is read. A remote file is opened again for its rows and checked for changes then;
        a small one is fetched whole and cached until then
    content : bytes of the file, if `open_small` has read them

    Raises
    ------
    InputRejectedError
        The file was changed or removed since the log was opened, or is not a Parquet file.
    TemporaryError
        The file system fails to read the file.
    """
    with ExitStack() as stack:
        with reading(path):
            if content is not None:
                source = pa.BufferReader(content)
            elif footer and state is not None and not isinstance(filesystem, LocalFileSystem):
                source = stack.enter_context(_footer_source(filesystem, path, state))
                stack.enter_context(watched(filesystem, path, source, state, first=False, last=False))
            else:
                source = stack.enter_context(_source(filesystem, path))
                stack.enter_context(watched(filesystem, path, _with_descriptor(stack, path, source), state))
            options: dict[str, Any] = {
                "pre_buffer": False,
                "page_checksum_verification": True,
                # INT96 holds more years than nanoseconds do.
                "coerce_int96_timestamp_unit": "us",
                "buffer_size": _READ_BYTES if content is None else 0,
            }
            parquet = stack.enter_context(pq.ParquetFile(source, **options))
            # CheckedFooter reads the metadata of every column, which is slow for files of a kilobyte.
            if coded and (dictionaries := _dictionaries(CheckedFooter(parquet.metadata, path), coded)):
                reopened = {"metadata": parquet.metadata, "read_dictionary": dictionaries}
                parquet = stack.enter_context(pq.ParquetFile(source, **reopened, **options))
        yield parquet


def checked_footer(filesystem: Any, file: LogFile) -> CheckedFooter:
    """Read the footer of a file again. Raises: see `open_parquet`."""
    with open_parquet(filesystem, file.path, file.state, footer=True) as parquet:
        return CheckedFooter(parquet.metadata, file.path)


def row_groups_of(footer: pq.FileMetaData, path: str) -> tuple[int, ...]:
    """Return the number of rows of each row group; Arrow does not check these numbers.

    Raises
    ------
    WrongFooterError
        They are negative, or do not add up to the rows of the file.
    """
    counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != footer.num_rows:
        raise WrongFooterError(
            f"{path}: expected row groups that add up to the {footer.num_rows:,} rows of the file, found "
            f"{examples([f'{count:,}' for count in counts], 3)}: the file is damaged; write it again"
        )
    return tuple(counts)


_MOST_VALUE_BYTES = 6
"""Most bytes per value, with its share of the dictionary. If a column takes more, its writer has abandoned dictionary
encoding, and reading the column as a dictionary would hash each text twice."""


def _dictionaries(footer: CheckedFooter, names: Sequence[str]) -> list[str]:
    """Return the columns that the file has and encodes as dictionaries."""
    size = {
        name: sum(chunk.total_uncompressed_size for chunk in footer.chunks(name))
        for name in names
        if footer.has(name)
    }
    return [name for name, total in size.items() if total <= _MOST_VALUE_BYTES * footer.footer.num_rows]


def read_batches(
    parquet: pq.ParquetFile,
    path: str,
    columns: Sequence[str],
    row_groups: Sequence[int],
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Read columns of row groups batch by batch.

    Raises
    ------
    InputRejectedError
        Pages cannot be decoded, or have more or fewer rows than the footer says.
    """
    groups = list(row_groups)
    expected = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    count = 0
    with reading(path):
        for batch in parquet.iter_batches(
            batch_size=batch_rows, row_groups=groups, columns=list(columns), use_threads=False
        ):
            # End the task if its command has ended.
            tasks.check()
            count += batch.num_rows
            yield batch
    if count != expected:
        raise FileRejectedError(
            f"{path}: expected {expected:,} rows as its footer says, found {count:,} in its pages: the file is "
            "damaged; write it again"
        )


def _footer_source(filesystem: Any, path: str, state: FileState) -> Any:
    if state.size > WHOLE_BYTES:
        return StoreFile(filesystem, path, state.size)
    content = SMALL_FILES.fetch(filesystem, path, *state, again=True)
    _check_state(path, state, FileState(len(content), state.stamp))
    return pa.BufferReader(content)


def _source(filesystem: Any, path: str) -> Any:
    if isinstance(filesystem, LocalFileSystem):
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - files are many
            raise FileChangedError(
                f"{path}: expected the file that was there when the log was opened, found a folder, device, FIFO or "
                "socket: run again when the log is complete"
            )
        # As bytes, since a path need not be valid UTF-8.
        return pa.OSFile(os.fsencode(path))
    return closing(filesystem.open(path, "rb"))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO that has replaced it would wait for a writer. `watched` refuses it then."""
    return os.open(path, flags | os.O_NONBLOCK)


def _with_descriptor(stack: ExitStack, path: str, source: Any) -> Any:
    """Return a file object with a file descriptor: the source, or the file opened again.

    PyArrow before 25 does not return the descriptor of an OSFile. If the path has got another file in between, that is
    detected as a change.
    """
    if not isinstance(source, pa.OSFile):
        return source
    try:
        source.fileno()
    except AttributeError:
        return stack.enter_context(Path(path).open("rb", buffering=0))
    return source


@contextmanager
def open_bytes(filesystem: Any, path: str, state: FileState) -> Iterator[Any]:
    """Open a file to copy its bytes. State and errors: see `open_parquet`."""
    with ExitStack() as stack:
        with reading(path):
            source = stack.enter_context(
                open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the stack closes it
                if isinstance(filesystem, LocalFileSystem)
                else filesystem.open(path, "rb")
            )
            stack.enter_context(watched(filesystem, path, source, state))
        yield source


@contextmanager
def open_small(filesystem: Any, path: str, state: FileState, *, last: bool = True) -> Iterator[bytes]:
    """Read all bytes of a small file. State and errors: see `open_parquet`.

    A remote file takes two requests, or one if its footer was read: a read returns one version of the object, and the
    state at the end tells which. last : whether to check it; otherwise `check_unchanged` does, for many files together
    """
    with ExitStack() as stack:
        with reading(path):
            if isinstance(filesystem, LocalFileSystem):
                source = stack.enter_context(open(path, "rb", buffering=0, opener=_without_waiting))
                stack.enter_context(watched(filesystem, path, source, state))
                # One byte more shows that a file has grown; it may grow without end.
                content: bytes = source.read(state.size + 1)
            else:
                content = SMALL_FILES.fetch(filesystem, path, *state, again=False)
                stack.enter_context(watched(filesystem, path, None, state, first=False, last=last))
            _check_state(path, state, FileState(len(content), state.stamp))
        yield content


@contextmanager
def watched(
    filesystem: Any, path: str, source: Any, state: FileState | None, *, first: bool = True, last: bool = True
) -> Iterator[None]:
    """Check that a file is unchanged, before the block, after it, and if it fails.

    first, last : whether to check before, and after
    """
    if state is None:
        yield
        return
    if first:
        _check_unchanged(filesystem, path, source, state, opened=True)
    try:
        yield
    except (pa.ArrowException, OSError, InputRejectedError):
        _check_unchanged(filesystem, path, source, state)
        raise
    if last:
        _check_unchanged(filesystem, path, source, state)


def _check_unchanged(
    filesystem: Any, path: str, source: Any, expected: FileState, *, opened: bool = False
) -> None:
    """Raise an error if a file has changed. opened : a remote file's details, known since it was opened, suffice."""
    details = getattr(source, "details", None) if opened else None
    if isinstance(filesystem, LocalFileSystem):
        # The state of the open file: replacing the file at its path meanwhile does no harm.
        status = os.fstat(source.fileno())
        state = FileState(status.st_size, str(status.st_mtime))
    elif isinstance(details, dict) and details.get("size") is not None:
        state = _state_of(details)
    else:
        filesystem.invalidate_cache(path.rpartition("/")[0])
        state = _state_of(filesystem.info(path))
    _check_state(path, expected, state)


def _check_state(path: str, expected: FileState, state: FileState) -> None:
    if state.size != expected.size or not _same_stamp(state.stamp, expected.stamp):
        raise _change_error(path, expected, state)


def check_unchanged(filesystem: Any, files: Sequence[LogFile]) -> None:
    """Check that remote files are unchanged since they were listed, with one request for each folder of several files.

    Raises
    ------
    InputRejectedError
        A file was changed or removed.
    """
    filesystem.invalidate_cache()
    folders = Counter(file.path.rpartition("/")[0] for file in files)
    several = [folder for folder, count in folders.items() if count >= _FEW_FILES]
    listed = {
        info["name"]: info
        for infos in together(partial(filesystem.ls, detail=True), several)
        for info in infos
    }

    def check(file: LogFile) -> None:
        with reading(file.path):
            info = listed.get(file.path) or filesystem.info(file.path)
            _check_state(file.path, file.state, _state_of(info))

    deque(together(check, files), 0)


def _change_error(path: str, expected: FileState, state: FileState) -> FileChangedError:
    return FileChangedError(
        f"{path}: expected the file as it was when the log was opened ({expected}), found it changed ({state}): "
        "the log is being written to; run again when it is complete"
    )


def _same_stamp(one: str, other: str) -> bool:
    """Tell whether stamps are equal, unknown, or times equal to a millisecond: stores format times in several ways."""
    if one == other or not one or not other:
        return True
    times = [_parsed_time(stamp) for stamp in (one, other)]
    return times[0] is not None and times[0] == times[1]


def _parsed_time(stamp: str) -> float | None:
    for parse in (float, lambda text: dt.datetime.fromisoformat(text).timestamp()):
        try:
            return round(parse(stamp), 3)
        except ValueError:
            continue
    return None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn errors of reading a file into the project's: changed or removed, damaged, no permission, storage fault."""
    try:
        yield
    except (LogcalError, MemoryError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        if error.errno is None:
            raise (as_fault(error, path) or error) from None
        raise FileChangedError(
            f"{path}: expected the file that was there when the log was opened, found none: the log is being written "
            "to; run again when it is complete",
            missing=path,
        ) from None
    except PermissionError:
        raise InputRejectedError(
            f"{path}: expected a file that may be read, found no permission: grant it, or leave the file out"
        ) from None
    except Exception as error:
        # Arrow raises OSErrors without an errno if the content is damaged.
        damaged = isinstance(error, pa.ArrowException) and not out_of_memory(error)
        fault = None if damaged else as_fault(error, path)
        if fault is not None:
            raise fault from None
        if not isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            raise
        if _TOO_DEEP in str(error):
            raise WrongFooterError(
                f"{path}: expected columns that Arrow reads, found one of too many levels ({reason(error)}): write the "
                "file without it, or with fewer levels"
            ) from None
        raise FileRejectedError(
            f"{path}: expected a Parquet file, found one that cannot be read ({reason(error)}): write it again"
        ) from None


def reason(error: BaseException) -> str:
    """Describe an error in one line."""
    return " ".join(str(error).split())[:200]
