"""Spill files between tasks: written once, atomically, then read by ranges; on a mounted file system or in a store.

They are not synced, since a run can write them again. A store's error is raised as an error for the user, with the
file's URL: repeating the task would not help, since fsspec's clients repeat requests.
"""

from __future__ import annotations

import hmac
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from logcal.errors import TemporaryError
from logcal.storage import open_filesystem
from pipeline.files.faults import as_fault
from pipeline.files.folders import Folder, is_url, temporary_sibling
from pipeline.files.requests import together

_DIGEST_BYTES = 32

T = TypeVar("T")
R = TypeVar("R")


def write_blob(path: str, parts: Iterable[memoryview]) -> None:
    """Write a file atomically; a repeated task writes the same file again.

    parts : content in order; a part may be reused once the next one is requested
    """
    with writing(path) as file:
        for part in parts:
            file.write(part)


@contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Open a file that appears when the block ends without an error; a store's file is in memory until then."""
    if is_url(path):
        content = io.BytesIO()
        yield content
        filesystem, key = open_filesystem(path)
        with _store_errors(path):
            filesystem.pipe_file(key, content.getvalue())
        return
    with temporary_sibling(Path(path)) as temporary:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)


@contextmanager
def reading(path: str) -> Iterator[Any]:
    """Open a source for Arrow: a path, or an open file of a store."""
    if not is_url(path):
        yield path
        return
    with _store_errors(path):
        filesystem, key = open_filesystem(path)
        with filesystem.open(key, "rb", cache_type="readahead") as file:
            yield file


def read_blob(path: str) -> bytes | None:
    """Return a file's content, or None if there is no file, also if its folder's path is a file."""
    folder, _, name = path.rpartition("/")
    with _store_errors(path) if is_url(path) else nullcontext():
        return Folder.at(folder).read(name)


class Blob:
    """Open spill file.

    It is not mapped into memory: the pages of all runs would count as memory of the process.

    ahead : ranges of a store's file that were fetched before, by start
    """

    def __init__(self, path: str, ahead: dict[int, bytes] | None = None) -> None:
        self.path = path
        self._ahead = ahead or {}
        self._file = None if is_url(path) else Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, start: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `start` on."""
        if self._file is None:
            self._fetch(start, view)
            return
        while view:
            count = os.preadv(self._file.fileno(), [view], start)
            if count == 0:
                raise OSError(f"{self.path}: expected {start + len(view):,} bytes, found {start:,}")
            view, start = view[count:], start + count

    def _fetch(self, start: int, view: memoryview) -> None:
        data = self._ahead.get(start)
        if data is None or len(data) != len(view):
            data = fetch([(self.path, start, start + len(view))])[self.path][start]
        if len(data) != len(view):
            raise TemporaryError(
                f"{self.path}: expected {start + len(view):,} bytes, found {start + len(data):,}: run again"
            )
        view[:] = data


def fetch(ranges: Sequence[tuple[str, int, int]]) -> dict[str, dict[int, bytes]]:
    """Read ranges (path, start, stop) of files in one store concurrently; return the bytes by path and start."""
    by_path: dict[str, dict[int, bytes]] = {}
    if not ranges:
        return by_path
    filesystem, _ = open_filesystem(ranges[0][0])
    keys = [filesystem._strip_protocol(path) for path, *_ in ranges]
    with _store_errors(ranges[0][0]):
        starts, stops = [start for _, start, _ in ranges], [stop for *_, stop in ranges]
        # Some versions of fsspec return errors whatever `on_error` says.
        contents = filesystem.cat_ranges(keys, starts, stops, on_error="return")
        for data in contents:
            if isinstance(data, BaseException):
                raise data
    for (path, start, _), data in zip(ranges, contents, strict=True):
        by_path.setdefault(path, {})[start] = data
    return by_path


def each(function: Callable[[T], R], items: Sequence[T], path: str) -> list[R]:
    """Return a function's results for items; concurrently if it reads files of a store, as `path` tells."""
    return list(together(function, items, remote=is_url(path)))


@dataclass(frozen=True)
class Receipts:
    """Folder of the tasks' results. They are unpickled, so only this user may write them.

    A receipt begins with a digest of its call and its content, by which it is believed.

    folder : path or URL; on a mounted file system only this user has access
    key : key of the digests; in an object store only this run has it
    """

    folder: str
    key: bytes

    def read(self, name: str, call: bytes) -> bytes | None:
        """Read the result of a call under a name, or return None."""
        data = read_blob(f"{self.folder}/{name}") or b""
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hmac.compare_digest(digest, self._digest(call, content)) else None

    def write(self, name: str, call: bytes, content: bytes) -> None:
        """Write the result of a call under a name."""
        write_blob(f"{self.folder}/{name}", [memoryview(self._digest(call, content)), memoryview(content)])

    def _digest(self, call: bytes, content: bytes) -> bytes:
        return hmac.digest(self.key, call + content, "sha256")


def receipts_in(folder: str) -> Receipts:
    """Return the receipts of one graph; on a mounted file system those of a killed run are believed as well."""
    return Receipts(folder, secrets.token_bytes(_DIGEST_BYTES) if is_url(folder) else b"")


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    """Raise a store's errors as errors for the user."""
    try:
        yield
    except FileNotFoundError as error:
        raise TemporaryError(
            f"{path}: expected what this run has written, found that it has gone: run again"
        ) from error
    except Exception as error:
        fault = as_fault(error, path)
        if fault is None or fault is error:
            raise
        raise fault from error
