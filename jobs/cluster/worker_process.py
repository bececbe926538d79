"""Processes that run tasks on this machine: forked from one process that has imported what tasks need.

A process that starts from nothing imports for a second what each of its siblings imports as well.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker

log = logging.getLogger("logcal")

PRELOAD = "logcal.worker_preload"
_LOOK = 0.05
"""Seconds between looks at whether the command has ended."""

_LARGE = str(1 << 30)
ENVIRONMENT = {
    # A worker runs one task at a time, on one thread.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
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
    os.environ.update(ENVIRONMENT)
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD, *modules])
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


@contextmanager
def pool_of_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes, started as workers are; they end with the block, or with this process."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context(begin()), _end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when the one that made it ends: a pool's waits for work for ever otherwise."""
    ignore_interrupts()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="logcal-parent", daemon=True).start()


@contextmanager
def while_command_lives() -> Iterator[None]:
    """Meanwhile end this process soon after the command that started it.

    A command may end before it wants workers. A process that goes on importing for them holds the command's output
    open, and who reads that through a pipe waits for both.
    """
    command = os.getppid()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            if os.getppid() != command:
                os._exit(0)

    watching = threading.Thread(target=watch, name="logcal-command", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()  # workers are forked from this process next, which is no time for threads


def ignore_interrupts() -> None:
    """Let Ctrl-C, which a terminal sends to every process, be the command's alone: it stops its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load() -> None:
    """Import what tasks need, and let numba load what its compiled functions need."""
    for module in (
        "distributed.worker",
        "jobs.cli",
        "pipeline.sort.score_table",
        "pipeline.score.scored_file",
    ):
        importlib.import_module(module)
    import numpy as np

    from calibrators._kernels.sums import expansion_of
    from jobs.logging_setup import announce_compiling, log_to_stderr

    log_to_stderr()
    announce_compiling()
    expansion_of(np.ones(1))
