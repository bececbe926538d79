"""Commands without their start: forked from a process that has imported what `logcal` imports.

Such a command is a process of its own, too, with its own arguments, folder, environment, streams and exit code; but
Python and its libraries are not loaded anew for each, which takes most of a second. The process that they are forked
from runs no command itself. It imports what an earlier command has imported, and loads the compiled kernels that it has
used, so that it need not know what commands need.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import io
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CLUSTERED = ("fit", "score", "evaluate", "generate", "compare", "follow", "monitor")
"""Commands that start processes, unless they are told to work inline: these are run as a user runs them."""
OWN = ("AWS_", "COLUMNS", "MINE", "NO_PROXY", "no_proxy", "PYTEST_", "TMPDIR")
"""How the names of variables begin that nothing reads before a command does, beside what it imports."""


class Forks:
    """Runs commands, by a server that is started when the first is run."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._starting = threading.Lock()

    def suits(self, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a command may be forked: it starts no processes, and no library is told otherwise than others."""
        if arguments and arguments[0] in CLUSTERED and "cluster.kind=inline" not in arguments:
            return False
        self._start()
        told = environment.items() ^ self._environment.items()
        return all(name.startswith(OWN) for name, _ in told)

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `logcal ARGUMENTS` in a folder."""
        control = self._start()
        command = ["logcal", *arguments]
        reply, theirs = socket.socketpair()
        request, *streams = (os.memfd_create(name) for name in ("request", "stdout", "stderr"))
        try:
            os.write(request, pickle.dumps((command, str(folder), dict(environment))))
            with theirs:
                socket.send_fds(control, [b"!"], [request, *streams, theirs.fileno()])
            code = _awaited(reply, timeout, command)
            out, err = (io.TextIOWrapper(io.BytesIO(_content(stream))).read() for stream in streams)
        finally:
            reply.close()
            for descriptor in (request, *streams):
                os.close(descriptor)
        return subprocess.CompletedProcess(command, code, out, err)

    def stop(self) -> None:
        """End the server."""
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.wait()
        self._control = self._server = None

    def _start(self) -> socket.socket:
        with self._starting:
            if self._control is None:
                self._control, theirs = socket.socketpair()
                self._environment = {key: text for key, text in os.environ.items() if key != "PYTHONWARNINGS"}
                with theirs:
                    self._server = subprocess.Popen(
                        [sys.executable, "-P", __file__, str(theirs.fileno())],
                        env=self._environment,
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                    )
            return self._control


FORKS = Forks()
"""Of this process; ended with the session."""


def _awaited(reply: socket.socket, timeout: float, command: list[str]) -> int:
    pid = int.from_bytes(reply.recv(8), "little")
    if not pid:
        raise RuntimeError("what commands are forked from has ended: what it said is above")
    reply.settimeout(timeout)
    try:
        status = reply.recv(8)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(command, timeout) from None
    return os.waitstatus_to_exitcode(int.from_bytes(status, "little"))


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


# The server


class _Command(NamedTuple):
    """A process that is running."""

    pid: int
    reply: socket.socket
    loaded: int
    """A file where it leaves what it has loaded."""


def _serve(control: socket.socket) -> tuple[list[str], int]:
    """Fork a process a request; return in each of these: its arguments, and where it leaves what it has loaded."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    running: dict[int, _Command] = {}
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                _finish(ready, running.pop(ready))
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1, 4)
            if not message:
                os._exit(0)
            loaded = os.memfd_create("loaded")
            pid = os.fork()
            if pid == 0:
                control.close()
                for watched, command in running.items():
                    command.reply.close()
                    os.close(command.loaded)
                    os.close(watched)
                return _become(descriptors), loaded
            *streams, reply = descriptors
            for descriptor in streams:
                os.close(descriptor)
            command = _Command(pid, socket.socket(fileno=reply), loaded)
            command.reply.send(pid.to_bytes(8, "little"))
            watched = os.pidfd_open(pid)
            running[watched] = command
            poll.register(watched, select.POLLIN)


def _finish(watched: int, command: _Command) -> None:
    """Say how a command ended, and load what it has loaded."""
    _, status = os.waitpid(command.pid, 0)
    with contextlib.suppress(OSError), command.reply:
        command.reply.send(status.to_bytes(8, "little"))
    if content := _content(command.loaded):
        # What cannot be loaded here is loaded by those that need it.
        with contextlib.suppress(Exception):
            _learn(*pickle.loads(content))
    os.close(watched)
    os.close(command.loaded)


def _learn(modules: list[str], kernels: list[tuple[str, str, tuple[object, ...]]]) -> None:
    new = False
    for name in modules:
        if name not in sys.modules:
            importlib.import_module(name)
            new = True
    for module, name, types in kernels:
        kernel = getattr(sys.modules[module], name)
        if types not in kernel.overloads:
            kernel.compile(types)
            new = True
    if new:
        # What is never looked at again stays shared with those that are forked.
        gc.collect()
        gc.freeze()


# A command


def _become(descriptors: list[int]) -> list[str]:
    """Take over the folder, the environment and the streams of a command; return its arguments."""
    request, out, err, reply = descriptors
    command, folder, environment = pickle.loads(_content(request))
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (request, out, err, reply):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(folder)
    return list(command)


def _end(code: int, loaded: int) -> None:
    """End as Python does, but take no module to pieces."""
    kernels = sys.modules.get("calibrators._kernels.compiled")
    used = [
        (kernel.py_func.__module__, kernel.py_func.__name__, types)
        for kernel in getattr(kernels, "KERNELS", ())
        for types in kernel.overloads
    ]
    os.write(loaded, pickle.dumps(([*_modules()], used)))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _modules() -> Sequence[str]:
    """What is imported, without what a test has made."""
    project = str(Path(__file__).parents[1])
    return [
        name
        for name, module in sys.modules.items()
        if name != "__main__"
        and (file := getattr(getattr(module, "__spec__", None), "origin", None))
        and module.__spec__.name == name
        and (file.startswith((project, sys.base_prefix)) or "site-packages" in file)
    ]


def _try_again_at_once() -> None:
    """Storage that is made to fail does not recover by itself: it is asked again as often as ever, without pauses."""
    from pipeline.execution import tasks

    tasks._PAUSE = 0.001
    sleep = asyncio.sleep
    # What waits so in a command that starts no processes are clients of object stores.
    asyncio.sleep = lambda delay, result=None: sleep(min(delay, 0.001), result)  # type: ignore[assignment]


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.fsync = lambda descriptor: None  # as in the process that asks: see conftest.py
    from jobs import cli

    _try_again_at_once()
    sys.argv, loaded = _serve(control)
    code = 1
    try:
        cli.run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at its end
        traceback.print_exc()
    _end(code, loaded)


if __name__ == "__main__":
    _main()
