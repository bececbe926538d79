"""Worker processes of this machine, forked from a fork server that has imported what tasks need.

A worker that is not forked spends a second on these imports.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

log = logging.getLogger("logcal")

PRELOADED = ["logcal.preload", "jobs.cluster.worker_preload"]
"""First imports of the fork server; the command's main module adds itself."""

_LARGE = str(1 << 30)
ENVIRONMENT = {
    # A worker runs one task at a time, on one thread.
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")},
    # Keep freed buffers for the next task: see `process_memory`.
    "MALLOC_TRIM_THRESHOLD_": _LARGE,
    "MALLOC_MMAP_THRESHOLD_": _LARGE,
}


def begin(*modules: str) -> str:
    """Begin to start the fork server; return the start method for `multiprocessing`.

    The method is 'forkserver' on Linux. It is 'spawn' elsewhere, where forking is not safe once system libraries are
    loaded, and if the server's socket cannot be made, such as below a temporary folder with a long name.

    modules : imports besides what all tasks need; without effect if the server has started before
    """
    if sys.platform != "linux":
        return "spawn"
    import multiprocessing
    from multiprocessing import forkserver, resource_tracker

    os.environ.update(ENVIRONMENT)
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *modules])
    # Started first: otherwise the server starts the tracker, which unblocks signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # The server starts with Ctrl-C blocked, since it can only ignore it once Python runs.
        forkserver.ensure_running()
    except OSError as error:
        log.debug("workers are spawned: %s", error)
        return "spawn"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return "forkserver"
