"""Processes that run tasks on this machine: forked from one process that has imported what tasks need.

A process that starts from nothing imports for a second what each of its siblings imports as well.

Memory that one task frees is kept for the next. Buffers of some MB come and go with every task. The system's allocators
return them at once, and the next task gets pages that the kernel must clear first, one thread after the other: a tenth
of a fit's processor time, and a third of a sort of weighted rows.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from logcal.errors import TemporaryError

log = logging.getLogger("logcal")

PRELOADED = ["logcal.insist", "jobs.cluster.worker_preload"]
"""First imports of that process; modules that the command's main module imports add themselves."""

_LARGE = 1 << 30
ENVIRONMENT = {
    # A worker runs one task at a time, on one thread.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Buffers of some MB come and go with every task: keep them, rather than ask the system for zeroed pages anew.
    "MALLOC_TRIM_THRESHOLD_": str(_LARGE),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGE),
}


def begin(*modules: str) -> str:
    """Begin to start the process that workers are forked from; return the start method for `multiprocessing`.

    'forkserver' on Linux; 'spawn' elsewhere, where forking is not safe once system libraries are loaded, and where
    the server's socket cannot be made, such as below a temporary folder with a long name.

    modules : imported there besides what all tasks need, unless the process has begun to start before
    """
    if sys.platform != "linux":
        return "spawn"
    import multiprocessing
    from multiprocessing import forkserver, resource_tracker

    os.environ.update(ENVIRONMENT)
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *modules])
    # Starting the tracker, which the server would do otherwise, unblocks signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Started with Ctrl-C blocked, as it can only ignore it once Python runs.
        forkserver.ensure_running()
    except OSError as error:
        log.debug("workers are spawned: %s", error)
        return "spawn"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return "forkserver"


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of glibc's mallopt."""


def keep_heaps() -> None:
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
