"""Memory of a process that runs tasks: memory that one task frees is kept for the next.

Buffers of some MB come and go with every task. The system's allocators return them at once, and the next task gets
pages that the kernel must clear first, one thread after the other: a tenth of a fit's processor time, and a third of a
sort of weighted rows.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

from logcal.errors import TemporaryError

_LARGE = 1 << 30
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of glibc's mallopt."""


def begin() -> None:
    """Let this process keep what it frees.

    To be called before its first thread starts: how many heaps there may be is settled then, and one that a thread has
    to itself cannot hold large buffers.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_TRIM_THRESHOLD, _LARGE)
    libc.mallopt(_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_ARENA_MAX, 1)


def keep() -> None:
    """Let Arrow keep what it frees, too, from here on."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


FEWEST_BYTES, _AT_START = 1 << 30, 1 << 26
"""Fewest bytes of addresses: OpenBLAS waits for ever for buffers that it cannot map, deaf to signals."""


def check_address_space() -> None:
    """Check that the libraries can be loaded at all.

    Raises
    ------
    TemporaryError
        The process may not map enough memory (ulimit -v).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    # A process that was forked may have mapped all of it already: Python's threads then never say that they started.
    mapped = max(0, _mapped_bytes() - _AT_START)
    if limit - mapped < FEWEST_BYTES:
        raise TemporaryError(
            f"out of memory: expected {FEWEST_BYTES:,} bytes that it may map (ulimit -v), which its libraries "
            f"need to start, found {limit:,}, {mapped:,} of them in use: raise the limit"
        )


def _mapped_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
