"""Concurrent requests to object stores, and files that request only the byte ranges that are read."""

from __future__ import annotations

import io
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from fsspec.config import conf

from pipeline.execution import tasks
from pipeline.execution.processors import processors

TOGETHER = 32
"""Concurrent requests: they wait for the store and need no processor."""

# The S3 client's default of ten connections would limit the concurrent requests.
conf.setdefault("s3", {}).setdefault("config_kwargs", {}).setdefault("max_pool_connections", 2 * TOGETHER)

WHOLE_BYTES = 1 << 20
"""Size up to which a store's file is fetched whole: a request takes as long as reading about a megabyte."""

_CACHE_BYTES = 1 << 26
"""Total size of the file contents that are cached between reading their footer and reading their rows."""

_WAITING = "logcal-waiting"
_COMPUTING = ThreadPoolExecutor(processors(), "logcal-computing")

_T = TypeVar("_T")
_R = TypeVar("_R")


def together(function: Callable[[_T], _R], items: Sequence[_T], *, remote: bool = True) -> Iterator[_R]:
    """Yield a function's results for items, in order; if `remote`, with `TOGETHER` concurrent calls on threads.

    function : thread-safe; it spends its time waiting for requests
    """
    if not remote or len(items) < 2:
        yield from map(function, items)
        return
    remaining, function = iter(items), tasks.carried(function)
    with ThreadPoolExecutor(TOGETHER, _WAITING) as pool:
        waiting: deque[Future[_R]] = deque(
            pool.submit(function, item) for item in itertools.islice(remaining, TOGETHER)
        )
        try:
            while waiting:
                first = waiting.popleft()
                waiting.extend(pool.submit(function, item) for item in itertools.islice(remaining, 1))
                yield first.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def in_turn(function: Callable[[], _R]) -> _R:
    """Return a function's result; a thread of `together` has it computed by a pool with a thread for each processor.

    If all threads of `together` computed at once, they would contend for the GIL, and each would use its own memory.
    """
    if not threading.current_thread().name.startswith(_WAITING):
        return function()
    return _COMPUTING.submit(tasks.carried(lambda _: function()), None).result()


class StoreFile(io.RawIOBase):
    """File of a store, of known size: each read is one request, and opening it makes none."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        super().__init__()
        self._filesystem, self._path, self._size, self._pos = filesystem, path, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._pos

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        self._pos = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._pos, io.SEEK_END: self._size}[whence]
        return self._pos

    def read(self, size: int | None = -1) -> bytes:
        """Read a range."""
        stop = self._size if size is None or size < 0 else min(self._size, self._pos + size)
        if stop <= self._pos:
            return b""
        data: bytes = self._filesystem.cat_file(self._path, start=self._pos, end=stop)
        if len(data) > stop - self._pos:
            raise ValueError(f"{self._path}: the server does not support range requests")
        self._pos += len(data)
        return data


class SmallFiles:
    """Cache of small files of stores: fetched whole for their footers, and cached until their rows are read, once."""

    def __init__(self) -> None:
        self._contents: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def fetch(self, filesystem: Any, path: str, size: int, stamp: str, *, again: bool) -> bytes:
        """Return a file's content. again : whether to cache it for the next call; the oldest contents are dropped."""
        key = (str(filesystem.unstrip_protocol(path)), size, stamp)
        with self._lock:
            content = self._contents.pop(key, None)
            self._size -= 0 if content is None else len(content)
        if content is None:
            # Without a range some clients request the size first. The extra byte shows that a file has grown.
            content = filesystem.cat_file(path, start=0, end=size + 1) if size else filesystem.cat_file(path)
        if again and stamp and len(content) == size:
            with self._lock:
                self._size += len(content) - len(self._contents.pop(key, b""))
                self._contents[key] = content
                while self._size > _CACHE_BYTES:
                    self._size -= len(self._contents.popitem(last=False)[1])
        return content


SMALL_FILES = SmallFiles()
"""Cache of this process."""
