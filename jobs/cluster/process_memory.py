"""Memory of a process that runs tasks: what one gives back is kept for the next, in large pages.

Buffers of some MB come and go with every task. The system's allocators hand them back at once, and whoever asks again
gets pages that the kernel must clear first, one thread after the other: of a sort of weighted rows it was a third.
Tables and buffers that are read at any place need more small pages than a processor can hold the places of: where the
kernel gives large ones to those who ask for them, a look-up of a score takes 3 instead of 5 ns.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys

from logcal.errors import TemporaryError

_LARGE = 1 << 30
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt."""

_RESERVED = _LARGE - (1 << 20)
"""Bytes of addresses that the heap is given at once: less than what it would give back."""

_PAGE = 1 << 21
"""A large page of x86-64, and of most others."""


class _State:
    begun = False


def begin() -> None:
    """Let this process keep what it frees, in large pages where the kernel has them for those who ask for them.

    To be called before its first thread starts: how many heaps there may be is settled then, and one that a thread has
    to itself cannot hold large buffers.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if _State.begun or libc is None or not hasattr(libc, "mallopt"):
        return
    _State.begun = True
    libc.mallopt(_TRIM_THRESHOLD, _LARGE)
    libc.mallopt(_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_ARENA_MAX, 1)
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY and hasattr(mmap, "MADV_HUGEPAGE"):
        _ask_for_large_pages(libc)


def _ask_for_large_pages(libc: ctypes.CDLL) -> None:
    """For what the heap will grow to: it grows by reserving addresses, and none of it is used yet."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    place = libc.malloc(_RESERVED)
    if place is None:
        return
    libc.free(place)
    first = -(-place // _PAGE) * _PAGE
    # A kernel without large pages says so, which makes no difference.
    libc.madvise(first, (place + _RESERVED - first) // _PAGE * _PAGE, mmap.MADV_HUGEPAGE)


def keep() -> None:
    """Let Arrow keep what it frees, too, from here on."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


FEWEST_BYTES = 1 << 30
"""Of addresses: OpenBLAS, which scipy loads, waits for ever for buffers that it cannot map, deaf to signals."""


def check_address_space() -> None:
    """Check that the libraries can be loaded at all.

    Raises
    ------
    TemporaryError
        The process may not map enough memory (ulimit -v).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < FEWEST_BYTES:
        raise TemporaryError(
            f"out of memory: expected {FEWEST_BYTES:,} bytes that it may map (ulimit -v), which its libraries "
            f"need to start, found {limit:,}: raise the limit"
        )
