"""Processes that run tasks on this machine: forked from one process that has imported what tasks need.

A process that starts from nothing imports for a second what each of its siblings imports as well.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

log = logging.getLogger("logcal")

PRELOADED = ["logcal.insist", "jobs.cluster.worker_preload"]
"""First imports of that process; modules that the command's main module imports add themselves."""

_LARGE = str(1 << 30)
ENVIRONMENT = {
    # A worker runs one task at a time, on one thread.
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")},
    # Buffers of some MB come and go with every task: keep them, rather than ask the system for zeroed pages anew.
    "MALLOC_TRIM_THRESHOLD_": _LARGE,
    "MALLOC_MMAP_THRESHOLD_": _LARGE,
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
