"""The files of a log: finding them, and opening them so that a change while they are read is noticed.

Files are read with pread. If a file is truncated meanwhile, a mapped one would end the process with SIGBUS; a read ends
early and can be reported.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import (
    ConfigError,
    FileChangedError,
    FileRejectedError,
    InputRejectedError,
    LogcalError,
    examples,
    listing,
)
from logcal.storage import open_filesystem
from pipeline.execution import tasks
from pipeline.files.faults import as_fault, out_of_memory
from pipeline.files.requests import SMALL_FILES, WHOLE_BYTES, StoreFile, together
from pipeline.log.chunks import CheckedFooter
from pipeline.log.folder_tree import Entries, local_tree, shown_names
from pipeline.log.snapshots import Snapshot, part_of, read_snapshot, table_above, table_in

SUFFIXES = (".parquet", ".parq", ".pq")

_MAGIC = b"PAR1"
"""First bytes of a Parquet file."""

_READ_BYTES = 1 << 20
_MOST_ASKED = 8
"""Files of a folder that are asked for one by one, since the folder may hold many more."""

_MOST_LOOKED_INTO = 100
"""Files of a remote folder without a suffix that are looked into: each costs a request."""


class Seen(NamedTuple):
    """A file as it was when the log was opened.

    size : bytes. stamp : modification time or entity tag: changes when the content does; empty where none is known.
    """

    size: int
    stamp: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes, stamp {self.stamp}"


class Piece(NamedTuple):
    """Some row groups of a file: what a task reads."""

    path: str
    row_groups: tuple[int, ...]
    first_row: int
    rows: int
    seen: Seen


@dataclass(frozen=True)
class LogFile:
    """A Parquet file of a log.

    Attributes
    ----------
    path : as `Log.filesystem` understands it.
    relative : path below the log's root, with its hive directories; a lone file's name.
    size, stamp : see `Seen`.
    row_groups : rows of each row group.
    fields : see `Snapshot`.
    """

    path: str
    relative: str
    size: int
    stamp: str
    row_groups: tuple[int, ...] = ()
    fields: tuple[tuple[str, int], ...] = ()

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return sum(self.row_groups)

    @property
    def seen(self) -> Seen:
        """File as it was when the log was opened."""
        return Seen(self.size, self.stamp)

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"path": self.path, "bytes": self.size, "rows": self.rows, "stamp": self.stamp}

    def piece(self, row_groups: tuple[int, ...], first_row: int, rows: int) -> Piece:
        """Some of its row groups, which begin with its row `first_row` and have so many rows."""
        return Piece(self.path, row_groups, first_row, rows, self.seen)


@dataclass
class Found:
    """Entries at a log's paths.

    Attributes
    ----------
    root, filesystem : of the first path
    files : sorted, without row groups: no footer has been read
    skipped : relative paths of files and folders that are passed over; folders end in '/'
    snapshots : format and version of each table among the paths
    """

    filesystem: Any = None
    root: str = ""
    files: tuple[LogFile, ...] = ()
    skipped: tuple[str, ...] = ()
    snapshots: tuple[dict[str, Any], ...] = ()


def find_files(paths: str | Sequence[str], setting: str = "log.path") -> Found:
    """The Parquet files at a path, directory, glob or fsspec URL, or several of one file system.

    Directories are searched whole, through symbolic links too. Names that start with "_" or "." are passed over, as
    Spark and Dask do, and so are files that are not Parquet. `setting` is the one that holds the paths, for messages.

    Raises
    ------
    InputRejectedError
        No such path; nothing there that looks like Parquet; Parquet files that are not named as such; links that lead
        round in a circle, nowhere, or to what is there already.
    """
    patterns = [paths] if isinstance(paths, str) else list(paths)
    problems: list[str] = []
    all_files = Found()
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
            files[file_path] = LogFile(file_path, relative, *_seen(info), fields=fields)
    if problems:
        raise InputRejectedError(f"{setting} names no log that can be used.\n{listing(problems)}")
    all_files.files = tuple(file for _, file in sorted(files.items()))
    return all_files


def folders_of(filesystem: Any, root: str, files: Sequence[LogFile]) -> list[str]:
    """The folders that files make up, or the files where they do not make up whole ones.

    root : path at which they were found
    """
    if len(files) == 1 and root == files[0].path:
        return [root]
    if has_magic(root) and not filesystem.exists(root):
        # A glob reads what it matches, not all that lies beside it.
        return [file.path for file in files]
    return sorted({file.path.removesuffix(file.relative).rstrip("/") for file in files})


def expected_folder(paths: Sequence[str], setting: str = "log.path") -> tuple[Any, str]:
    """The file system and path of a log that is one folder, whatever is in it now.

    Raises
    ------
    ConfigError
        It is several paths, a glob or a file.
    """
    if len(paths) != 1:
        raise ConfigError(
            f"{setting}: expected one folder, found {len(paths)} paths: files are followed in one folder"
        )
    filesystem, root = open_filesystem(paths[0], setting)
    if has_magic(root) and not filesystem.exists(root):
        raise ConfigError(f"{setting}: expected a folder, found the glob {paths[0]}: name the folder itself")
    if filesystem.isfile(root):
        raise ConfigError(
            f"{setting}: expected a folder, found the file {paths[0]}: name the folder it lies in"
        )
    return filesystem, root.rstrip("/") or "/"


def _entries(filesystem: Any, path: str) -> Entries:
    """Find the entries at one path."""
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
    return _folder(filesystem, path)


def _has_buckets(filesystem: Any) -> bool:
    protocols = [filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol
    return not {"s3", "s3a", "gs", "gcs", "abfs", "az"}.isdisjoint(protocols)


def _matches(filesystem: Any, pattern: str) -> Entries:
    base = pattern[: min(pattern.find(c) for c in "*?[" if c in pattern)].rpartition("/")[0]
    entries = Entries()
    inside = table_above(filesystem, f"{base}/files")
    if inside is not None:
        entries.problems.append(part_of(*inside, pattern))
        return entries
    for path, info in filesystem.glob(pattern, detail=True).items():
        relative = _relative(path, base)
        if not shown_names(relative):
            continue
        if info.get("islink"):
            info = filesystem.info(path)
        if info["type"] == "directory":
            below = _folder(filesystem, path)
            entries.problems += [problem for problem in below.problems if below.files or below.unnamed]
            entries.files.update({p: (_relative(p, base), i) for p, (_, i) in below.files.items()})
            entries.skipped += [f"{relative}/{name}" for name in below.skipped]
        else:
            entries.files[path] = (relative, info)
    if not entries.files and not entries.problems:
        entries.problems.append("no files match")
    return entries


def _folder(filesystem: Any, path: str) -> Entries:
    """The Parquet files of a folder; of a table, its live ones."""
    entries = local_tree(path) if isinstance(filesystem, LocalFileSystem) else _remote_tree(filesystem, path)
    names = [*entries.skipped, *(relative for relative, _ in entries.files.values())]
    table = table_in(names)
    if table is not None and not table[1]:
        return _live_files(filesystem, path, read_snapshot(table[0], filesystem, path))
    inside = table or table_above(filesystem, path)
    if inside is not None:
        return Entries(problems=[part_of(*inside, path)])
    others = {p: entry for p, entry in entries.files.items() if not p.lower().endswith(SUFFIXES)}
    entries.files = {p: entry for p, entry in entries.files.items() if p not in others}
    names = sorted(relative for relative, _ in others.values())
    entries.unnamed = sorted(
        others[p][0] for p in sorted(others)[:_MOST_LOOKED_INTO] if _holds_parquet(filesystem, p)
    )
    if entries.unnamed:
        entries.problems.append(
            f"expected names that end in {', '.join(SUFFIXES)}, found Parquet files with others "
            f"({examples(entries.unnamed, 3)}), which would be left out: rename them, move them away, or give a glob "
            "that says which files to read"
        )
    elif not entries.files and not entries.problems:
        what = f"{len(names)} other files ({examples(names, 3)})" if names else "nothing"
        entries.problems.append(
            f"expected files ending in {', '.join(SUFFIXES)} in this directory, found {what}"
        )
    entries.skipped += names
    return entries


def _live_files(filesystem: Any, path: str, snapshot: Snapshot) -> Entries:
    found = Entries(snapshots=[snapshot])
    infos = together(filesystem.info, snapshot.paths, remote=not isinstance(filesystem, LocalFileSystem))
    for place, info in zip(snapshot.paths, infos, strict=True):
        found.files[place] = (_relative(place, path), info)
    if not found.files:
        found.problems.append(f"expected rows, found none in version {snapshot.version} of the table")
    return found


def _remote_tree(filesystem: Any, path: str) -> Entries:
    found = Entries()
    for place, info in sorted(filesystem.find(path, detail=True).items()):
        relative = _relative(place, path)
        if shown_names(relative):
            found.files[place] = (relative, info)
        else:
            found.skipped.append(relative)
    return found


def _holds_parquet(filesystem: Any, path: str) -> bool:
    with suppress(PermissionError):
        return bytes(filesystem.cat_file(path, start=0, end=len(_MAGIC))) == _MAGIC
    return False


def _relative(path: str, root: str) -> str:
    return path[len(root.rstrip("/")) :].lstrip("/") if root else path


def _seen(info: dict[str, Any]) -> Seen:
    return Seen(int(info["size"] or 0), stamp_of(info))


def stamp_of(info: dict[str, Any]) -> str:
    """Return the stamp that changes when a file does: its entity tag or modification time, by its file system."""
    for key in ("ETag", "etag", "mtime", "LastModified", "last_modified", "created"):
        if info.get(key) is not None:
            return str(info[key])
    return ""


@contextmanager
def open_parquet(
    filesystem: Any,
    path: str,
    seen: Seen | None,
    coded: Sequence[str] = (),
    *,
    footer: bool = False,
    content: bytes | None = None,
) -> Iterator[pq.ParquetFile]:
    """A Parquet file whose rows `read_batches` reads. Checksums of pages are verified where the writer made them.

    Parameters
    ----------
    path : of the file
    seen : as it must still be, now and when the block ends; None: as it may be
    coded : columns whose strings are read as dictionaries, once a row group and not once a row, where the file has them
        so
    footer : whether no more than the footer is read: a store's file is opened again for its rows, and whether it has
        changed is asked then; a small one is fetched whole, and held until then
    content : of the file, where `open_small` has given it

    Raises
    ------
    InputRejectedError
        The file was changed since the log was opened, is gone, or is no Parquet file.
    TemporaryError
        The file system does not give what the file holds.
    """
    with ExitStack() as stack:
        with reading(path):
            if content is not None:
                source = pa.BufferReader(content)
            elif footer and seen is not None and not isinstance(filesystem, LocalFileSystem):
                source = stack.enter_context(_footer_source(filesystem, path, seen))
                stack.enter_context(watched(filesystem, path, source, seen, first=False, last=False))
            else:
                source = stack.enter_context(_source(filesystem, path))
                stack.enter_context(watched(filesystem, path, _with_number(stack, path, source), seen))
            options: dict[str, Any] = {
                "pre_buffer": False,
                "page_checksum_verification": True,
                "buffer_size": _READ_BYTES if content is None else 0,
            }
            parquet = stack.enter_context(pq.ParquetFile(source, **options))
            # A checked footer looks at every column, which files of a kilobyte would feel.
            if coded and (dictionaries := _dictionaries(CheckedFooter(parquet.metadata, path), coded)):
                known = {"metadata": parquet.metadata, "read_dictionary": dictionaries}
                parquet = stack.enter_context(pq.ParquetFile(source, **known, **options))
        yield parquet


def checked_footer(filesystem: Any, file: LogFile) -> CheckedFooter:
    """The footer of a file, which is read once more. Errors: as `open_parquet`."""
    with open_parquet(filesystem, file.path, file.seen, footer=True) as parquet:
        return CheckedFooter(parquet.metadata, file.path)


def row_groups_of(footer: pq.FileMetaData, path: str) -> tuple[int, ...]:
    """The rows of each row group, which Arrow hands out as they are: negative ones, too.

    Raises
    ------
    FileRejectedError
        They are not those of the whole file.
    """
    counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != footer.num_rows:
        raise FileRejectedError(
            f"{path}: expected row groups that add up to the {footer.num_rows:,} rows of the file, found "
            f"{examples([f'{count:,}' for count in counts], 3)}: the file is damaged; write it again"
        )
    return tuple(counts)


_MOST_CODE_BYTES = 6
"""Bytes of a value, with its share of the dictionary: where a column takes more, its writer gave the dictionary up, and
reading it as one means to look up each text twice."""


def _dictionaries(footer: CheckedFooter, names: Sequence[str]) -> list[str]:
    """Find the columns that exist and are written as dictionaries."""
    size = {
        name: sum(chunk.total_uncompressed_size for chunk in footer.chunks(name))
        for name in names
        if footer.has(name)
    }
    return [name for name, found in size.items() if found <= _MOST_CODE_BYTES * footer.footer.num_rows]


def read_batches(
    parquet: pq.ParquetFile,
    path: str,
    columns: Sequence[str],
    row_groups: Sequence[int],
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """The rows of row groups, with some columns, batch by batch.

    Raises
    ------
    InputRejectedError
        The pages do not decode, or hold more or fewer rows than the footer says.
    """
    groups = list(row_groups)
    expected = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    found = 0
    with reading(path):
        for batch in parquet.iter_batches(
            batch_size=batch_rows, row_groups=groups, columns=list(columns), use_threads=False
        ):
            # A log is read by a task, and the task's command may have ended meanwhile.
            tasks.check()
            found += batch.num_rows
            yield batch
    if found != expected:
        raise FileRejectedError(
            f"{path}: expected {expected:,} rows as its footer says, found {found:,} in its pages: the file is "
            "damaged; write it again"
        )


def _footer_source(filesystem: Any, path: str, seen: Seen) -> Any:
    if seen.size > WHOLE_BYTES:
        return StoreFile(filesystem, path, seen.size)
    content = SMALL_FILES.fetch(filesystem, path, *seen, again=True)
    if len(content) != seen.size:
        raise _changed(path, seen, Seen(len(content), seen.stamp))
    return pa.BufferReader(content)


def _source(filesystem: Any, path: str) -> Any:
    if isinstance(filesystem, LocalFileSystem):
        # Bytes, since a name need not be UTF-8.
        return pa.OSFile(os.fsencode(path))
    return closing(filesystem.open(path, "rb"))


def _with_number(stack: ExitStack, path: str, source: Any) -> Any:
    """The file, or the same one open once more, so that its number is to be had.

    PyArrow before 25 does not know those of its own. A file that took the name in between is seen as a change.
    """
    if not isinstance(source, pa.OSFile):
        return source
    try:
        source.fileno()
    except AttributeError:
        return stack.enter_context(Path(path).open("rb", buffering=0))
    return source


@contextmanager
def open_bytes(filesystem: Any, path: str, seen: Seen) -> Iterator[Any]:
    """The file's bytes, to be copied. Otherwise as `open_parquet`."""
    with ExitStack() as stack:
        with reading(path):
            source = stack.enter_context(
                Path(path).open("rb")  # noqa: SIM115 - which the stack closes
                if isinstance(filesystem, LocalFileSystem)
                else filesystem.open(path, "rb")
            )
            stack.enter_context(watched(filesystem, path, source, seen))
        yield source


@contextmanager
def open_small(filesystem: Any, path: str, seen: Seen, *, last: bool = True) -> Iterator[bytes]:
    """All of a file that is small enough to be held. Otherwise as `open_parquet`.

    Of a store it takes two requests, one if its footer was read: it gives one version of an object, and what is there
    in the end says which. last : whether that is asked, or `check_unchanged` does it for many files
    """
    with ExitStack() as stack:
        with reading(path):
            if isinstance(filesystem, LocalFileSystem):
                source = stack.enter_context(open(path, "rb", buffering=0))  # noqa: PTH123 - such files are many
                stack.enter_context(watched(filesystem, path, source, seen))
                content: bytes = source.read()
            else:
                content = SMALL_FILES.fetch(filesystem, path, *seen, again=False)
                stack.enter_context(watched(filesystem, path, None, seen, first=False, last=last))
            if len(content) != seen.size:
                raise _changed(path, seen, Seen(len(content), seen.stamp))
        yield content


@contextmanager
def watched(
    filesystem: Any, path: str, source: Any, seen: Seen | None, *, first: bool = True, last: bool = True
) -> Iterator[None]:
    """While a file is being read: it must be what it was, at the beginning, at the end and when reading fails.

    first, last : whether to look at the beginning, and at the end
    """
    if seen is None:
        yield
        return
    if first:
        _check_unchanged(filesystem, path, source, seen, opened=True)
    try:
        yield
    except (pa.ArrowException, OSError, InputRejectedError):
        _check_unchanged(filesystem, path, source, seen)
        raise
    if last:
        _check_unchanged(filesystem, path, source, seen)


def _check_unchanged(filesystem: Any, path: str, source: Any, seen: Seen, *, opened: bool = False) -> None:
    """Raise what a change is. opened : of a store's file, what opening it has told is enough."""
    told = getattr(source, "details", None) if opened else None
    if isinstance(filesystem, LocalFileSystem):
        # Of the file that is open: another that has taken its name since does no harm.
        status = os.fstat(source.fileno())
        now = Seen(status.st_size, str(status.st_mtime))
    elif isinstance(told, dict) and told.get("size") is not None:
        now = _seen(told)
    else:
        filesystem.invalidate_cache(path.rpartition("/")[0])
        now = _seen(filesystem.info(path))
    _compare(path, seen, now)


def _compare(path: str, seen: Seen, now: Seen) -> None:
    if now.size != seen.size or not _same_stamp(now.stamp, seen.stamp):
        raise _changed(path, seen, now)


def check_unchanged(filesystem: Any, files: Sequence[LogFile]) -> None:
    """Check that a store's files are those that were listed, with a request for each folder that has several.

    Raises
    ------
    InputRejectedError
        One was changed or is gone.
    """
    filesystem.invalidate_cache()
    folders = Counter(file.path.rpartition("/")[0] for file in files)
    several = [folder for folder, count in folders.items() if count >= _MOST_ASKED]
    listed = {
        info["name"]: info
        for infos in together(partial(filesystem.ls, detail=True), several)
        for info in infos
    }

    def check(file: LogFile) -> None:
        with reading(file.path):
            info = listed.get(file.path) or filesystem.info(file.path)
            _compare(file.path, file.seen, _seen(info))

    deque(together(check, files), 0)


def _changed(path: str, seen: Seen, now: Seen) -> FileChangedError:
    return FileChangedError(
        f"{path}: expected the file as it was when the log was opened ({seen}), found it changed ({now}): the log is "
        "being written to; run again when it is complete"
    )


def _same_stamp(one: str, other: str) -> bool:
    """Tell whether stamps agree as far as they say anything: some stores list and tell times in different ways."""
    if one == other or not one or not other:
        return True
    times = [_time(stamp) for stamp in (one, other)]
    return times[0] is not None and times[0] == times[1]


def _time(stamp: str) -> float | None:
    for parse in (float, lambda text: dt.datetime.fromisoformat(text).timestamp()):
        try:
            return round(parse(stamp), 3)
        except ValueError:
            continue
    return None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """While a file is being read: what does not decode, or is not there any more, is the file's fault."""
    try:
        yield
    except (LogcalError, MemoryError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        if error.errno is None:
            raise (as_fault(error, path) or error) from None
        raise FileChangedError(
            f"{path}: expected the file that was there when the log was opened, found none: the log is being written "
            "to; run again when it is complete"
        ) from None
    except PermissionError:
        raise InputRejectedError(
            f"{path}: expected a file that may be read, found no permission: give it, or leave the file out"
        ) from None
    except Exception as error:
        # Arrow's own OSErrors have no number.
        of_file = isinstance(error, pa.ArrowException) and not out_of_memory(error)
        fault = None if of_file else as_fault(error, path)
        if fault is not None:
            raise fault from None
        if not isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            raise
        raise FileRejectedError(
            f"{path}: expected a Parquet file, found one that cannot be read ({reason(error)}): write it again"
        ) from None


def reason(error: BaseException) -> str:
    """Describe an error in one line."""
    return " ".join(str(error).split())[:200]
