"""Requests to object stores: several at a time, and files of which only the ranges read are requested."""

from __future__ import annotations

import io
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec.config import conf

from calibrators.arithmetic.processors import processors
from pipeline.execution import tasks

TOGETHER = 32
"""Requests at a time: they wait for the store and need no processor."""

# The client of S3 has ten connections, whatever waits for them, unless it is told otherwise.
conf.setdefault("s3", {}).setdefault("config_kwargs", {}).setdefault("max_pool_connections", 2 * TOGETHER)

WHOLE_BYTES = 1 << 20
"""Size up to which a store's file is fetched whole: a request takes as long as about a megabyte."""

_HELD_BYTES = 1 << 26
"""Contents of files that are held between their footer and their rows."""

_WAITING = "logcal-waiting"
_COMPUTING = ThreadPoolExecutor(processors(), "logcal-computing")

_T = TypeVar("_T")
_R = TypeVar("_R")


def together(function: Callable[[_T], _R], items: Sequence[_T], *, remote: bool = True) -> Iterator[_R]:
    """Yield a function's results for items in order, with `TOGETHER` calls under way; otherwise one after the other.

    function : waits for requests, and is safe on threads
    """
    if not remote or len(items) < 2:
        yield from map(function, items)
        return
    rest, function = iter(items), tasks.carried(function)
    with ThreadPoolExecutor(TOGETHER, _WAITING) as pool:
        waiting: deque[Future[_R]] = deque(
            pool.submit(function, item) for item in itertools.islice(rest, TOGETHER)
        )
        try:
            while waiting:
                first = waiting.popleft()
                waiting.extend(pool.submit(function, item) for item in itertools.islice(rest, 1))
                yield first.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def in_turn(function: Callable[[], _R]) -> _R:
    """Return a function's result; threads that wait for requests have it computed by as many as there are processors.

    All at once they would wait for the interpreter at each call that gives it away, and each hold memory of its own.
    """
    if not threading.current_thread().name.startswith(_WAITING):
        return function()
    return _COMPUTING.submit(tasks.carried(lambda _: function()), None).result()


class StoreFile(io.RawIOBase):
    """A file of a store whose size is known: each read is one request, and nothing is asked before the first."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        super().__init__()
        self._filesystem, self._path, self._size, self._at = filesystem, path, size, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read a range."""
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if stop <= self._at:
            return b""
        data: bytes = self._filesystem.cat_file(self._path, start=self._at, end=stop)
        if len(data) > stop - self._at:
            raise ValueError(f"{self._path}: the server does not support range requests")
        self._at += len(data)
        return data


class SmallFiles:
    """Contents of small files of stores, fetched whole for their footers and held until their rows are read, once."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def fetch(self, filesystem: Any, path: str, size: int, stamp: str, *, again: bool) -> bytes:
        """Return all of a file. again : whether to hold it for the next call, in the place of those held longest."""
        key = (str(filesystem.unstrip_protocol(path)), size, stamp)
        with self._lock:
            content = self._held.pop(key, None)
            self._size -= 0 if content is None else len(content)
        if content is None:
            # Some clients ask for the size first, unless a range is given: one byte more, to see that a file has grown.
            content = filesystem.cat_file(path, start=0, end=size + 1) if size else filesystem.cat_file(path)
        if again and stamp and len(content) == size:
            with self._lock:
                self._size += len(content) - len(self._held.pop(key, b""))
                self._held[key] = content
                while self._size > _HELD_BYTES:
                    self._size -= len(self._held.popitem(last=False)[1])
        return content


SMALL_FILES = SmallFiles()
"""Those of this process."""
