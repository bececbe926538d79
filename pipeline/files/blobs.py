"""Files that tasks leave each other: written once, whole, then read by ranges; on a mounted file system or in a store.

A run can make them again, so they are not synced. A store's fault becomes the user's error here, with the file's URL:
repeating the task would not help, since fsspec's clients repeat requests.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from logcal.errors import TemporaryError
from logcal.storage import open_filesystem
from pipeline.files.faults import as_fault
from pipeline.files.folders import beside, is_url
from pipeline.files.requests import together

_DIGEST = hashlib.sha256

T = TypeVar("T")
R = TypeVar("R")


def write_blob(path: str, parts: Iterable[memoryview]) -> None:
    """Write a file that appears whole; a repeated task writes the same file again.

    parts : each is done with when the next one is asked for
    """
    with writing(path) as file:
        raw = getattr(file, "raw", file)  # parts are large: a buffer would cut them
        for part in parts:
            rest = part.cast("B") if part.nbytes else part
            while rest.nbytes:
                rest = rest[raw.write(rest) :]


@contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Open a file that appears whole when the block ends without an error; one of a store is memory until then."""
    if is_url(path):
        content = io.BytesIO()
        yield content
        filesystem, key = open_filesystem(path)
        with _asking(path):
            filesystem.pipe_file(key, content.getvalue())
        return
    with beside(Path(path)) as temporary:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)


@contextmanager
def reading(path: str) -> Iterator[Any]:
    """Open a source for Arrow: a path, or an open file of a store."""
    if not is_url(path):
        yield path
        return
    with _asking(path):
        filesystem, key = open_filesystem(path)
        with filesystem.open(key, "rb", cache_type="readahead") as file:
            yield file


def read_blob(path: str) -> bytes | None:
    """All of a file, or None where there is none, also because what would be its folder is a file."""
    if not is_url(path):
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    filesystem, key = open_filesystem(path)
    with _asking(path):
        try:
            data: bytes = filesystem.cat_file(key)
        except FileNotFoundError:
            return None
    return data


class Blob:
    """An open file.

    Not mapped into memory: the pages of all runs together would count as the process's.

    ahead : of a file in a store, ranges that are there already, by where they start
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
        """Fill memory with the bytes from `start` on."""
        if self._file is None:
            self._fetch(start, view)
            return
        while view:
            count = os.preadv(self._file.fileno(), [view], start)
            if count == 0:
                raise OSError(f"{self.path}: expected {start + len(view):,} bytes, found {start:,}")
            view, start = view[count:], start + count

    def _fetch(self, start: int, view: memoryview) -> None:
        found = self._ahead.get(start)
        if found is None or len(found) != len(view):
            found = fetch([(self.path, start, start + len(view))])[self.path][start]
        if len(found) != len(view):
            raise TemporaryError(
                f"{self.path}: expected {start + len(view):,} bytes, found {start + len(found):,}: run again"
            )
        view[:] = found


def fetch(ranges: Sequence[tuple[str, int, int]]) -> dict[str, dict[int, bytes]]:
    """Read ranges (path, start, stop) of files in one store together; by path and start."""
    held: dict[str, dict[int, bytes]] = {}
    if not ranges:
        return held
    filesystem, _ = open_filesystem(ranges[0][0])
    keys = [filesystem._strip_protocol(path) for path, *_ in ranges]
    with _asking(ranges[0][0]):
        starts, stops = [start for _, start, _ in ranges], [stop for *_, stop in ranges]
        # Some versions of fsspec give errors back whatever they are asked to do with them.
        found = filesystem.cat_ranges(keys, starts, stops, on_error="return")
        for data in found:
            if isinstance(data, BaseException):
                raise data
    for (path, start, _), data in zip(ranges, found, strict=True):
        held.setdefault(path, {})[start] = data
    return held


def each(function: Callable[[T], R], items: Sequence[T], path: str) -> list[R]:
    """The results of a function that reads files like the one at `path`: of a store, several at a time."""
    return list(together(function, items, remote=is_url(path)))


@dataclass(frozen=True)
class Receipts:
    """Folder of the tasks' results; they are unpickled, so nobody else may write them.

    folder : on a mounted file system it is this user's alone. key : elsewhere they are signed
    """

    folder: str
    key: bytes | None

    def read(self, name: str) -> bytes | None:
        """Read the result under a name, or return None."""
        data = read_blob(f"{self.folder}/{name}")
        if data is None or self.key is None:
            return data
        size = _DIGEST().digest_size
        mark, content = data[:size], data[size:]
        return content if hmac.compare_digest(mark, self._mark(self.key, name, content)) else None

    def write(self, name: str, content: bytes) -> None:
        """Leave something under a name."""
        mark = b"" if self.key is None else self._mark(self.key, name, content)
        write_blob(f"{self.folder}/{name}", [memoryview(mark), memoryview(content)])

    @staticmethod
    def _mark(key: bytes, name: str, content: bytes) -> bytes:
        return hmac.digest(key, name.encode() + b"\0" + content, _DIGEST)


def receipts_in(folder: str) -> Receipts:
    """For the receipts of one graph."""
    return Receipts(folder, secrets.token_bytes(32) if is_url(folder) else None)


@contextmanager
def _asking(path: str) -> Iterator[None]:
    """While a store is asked: what it says becomes an error for the user."""
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
