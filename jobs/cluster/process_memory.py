"""Allocator settings of a process that runs tasks: memory that one task frees is kept for the next.

Every task allocates and frees buffers of some MB. By default the allocators return them to the system, and the kernel
clears new pages for the next task, one thread at a time: this takes a tenth of a fit's processor time, and a third of
the time of sorting weighted rows.
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
    """Make the C allocator of this process keep freed memory.

    Call it before the first thread starts: the number of heaps is fixed then, and a thread's own heap cannot hold large
    buffers.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_TRIM_THRESHOLD, _LARGE)
    libc.mallopt(_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_ARENA_MAX, 1)


def keep() -> None:
    """Make Arrow use the C allocator, so that it keeps freed memory too."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


FEWEST_BYTES, _AT_START = 1 << 30, 1 << 26
"""Minimum address space in bytes, and what a process maps at its start. With less OpenBLAS waits forever for buffers
that it cannot map, and ignores signals."""


def check_address_space() -> None:
    """Check that the process may map enough memory to load the libraries.

    Raises
    ------
    TemporaryError
        The limit is too low (ulimit -v).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    # A forked process may have mapped all of it already; then starting a thread in Python never returns.
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
