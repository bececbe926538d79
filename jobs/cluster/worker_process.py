"""Worker processes of this machine, forked from a fork server that has imported what tasks need.

A worker that is not forked spends a second on these imports.
"""

from __future__ import annotations

import ast
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from logcal.errors import ConfigError

log = logging.getLogger("logcal")

_CALLED = ["logcal", "runs"]
"""Module whose functions programs call."""

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


def _check_main(frame: FrameType | None) -> None:
    """Raise ConfigError if a program's main module calls outside any `if`: new processes run that module again."""
    called = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        called = called or name.split(".") == _CALLED
        if called and name == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    path = None if frame is None else frame.f_globals.get("__file__")
    if frame is None or path is None:  # interactive: new processes run nothing again
        return
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    line = frame.f_lineno
    statement = next((s for s in body if s.lineno <= line <= (s.end_lineno or s.lineno)), None)
    if statement is not None and not any(isinstance(part, ast.If) for part in ast.walk(statement)):
        raise ConfigError(
            f'{path}, line {line}: expected the call below `if __name__ == "__main__":`, found it outside: the worker '
            "processes of this job would run the program again; put it there, or set cluster.kind to inline"
        )


def begin(*modules: str) -> str:
    """Begin to start the fork server; return the start method for `multiprocessing`.

    The method is 'forkserver' on Linux. It is 'spawn' elsewhere, where forking is not safe once system libraries are
    loaded, and if the server's socket cannot be made, such as below a temporary folder with a long name.

    modules : imports besides what all tasks need; without effect if the server has started before

    Raises
    ------
    ConfigError
        A program calls `logcal.run` where each worker process would call it again.
    """
    _check_main(sys._getframe())
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
