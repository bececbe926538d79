"""Commands run in the process of the tests, which has loaded Python, the libraries and the compiled kernels."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from unittest import mock

import fsspec

from jobs import cli  # it sets variables of its process: now, so that all commands have the same
from logcal import reading

util.get_temp_dir()
"""Of this process, and removed at its end: made now, not within a test, whose folder is gone by then."""

CLUSTERED = ("fit", "score", "evaluate", "generate", "compare", "follow", "monitor")
"""Commands that start processes, unless they are told to work inline: these are run as a user runs them."""
OWN = ("AWS_", "COLUMNS", "MINE", "NO_PROXY", "no_proxy", "PYTEST_", "TMPDIR")
"""How the names of variables begin that nothing reads before a command does, beside what it imports."""


def suits(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command may run here: it starts no processes, and no library is told otherwise than the tests'."""
    if arguments and arguments[0] in CLUSTERED and "cluster.kind=inline" not in arguments:
        return False
    told = environment.items() ^ {(key, text) for key, text in os.environ.items() if key != "PYTHONWARNINGS"}
    alone = threading.current_thread() is threading.main_thread()
    return alone and all(name.startswith(OWN) for name, _ in told)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `logcal ARGUMENTS` in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with _as_its_own(folder, environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(list(arguments), prog_name="logcal")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _as_its_own(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Put back whatever a command sets for its process; it finds nothing that an earlier one has kept."""
    log, sleep = logging.getLogger("logcal"), asyncio.sleep
    before = log.handlers[:], log.level, log.propagate, os.getcwd(), dict(os.environ)  # noqa: PTH109
    log.handlers.clear()
    reading._read_cached.cache_clear()
    for kind in {*fsspec.registry.values()}:
        kind.clear_instance_cache()  # its servers and credentials may be others
    with (
        mock.patch("gc.freeze"),
        # Storage that is made to fail does not recover by itself: it is asked again as often as ever, without pauses.
        mock.patch("pipeline.execution.tasks._PAUSE", 0.001),
        # What waits so in a command that starts no processes are clients of object stores.
        mock.patch("asyncio.sleep", lambda delay, result=None: sleep(min(delay, 0.001), result)),
        mock.patch.object(tempfile, "tempdir", None),
        mock.patch.object(sys, "argv", ["logcal"]),
    ):
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        try:
            yield
        finally:
            log.handlers[:], log.level, log.propagate = before[:3]
            os.chdir(before[3])
            os.environ.clear()
            os.environ.update(before[4])
