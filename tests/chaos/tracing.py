"""A forked process that stops before each system call that changes files below a folder: to die there, or to fail.

The kernel says what is written (ptrace, with a seccomp filter that lets all other calls pass), so that nothing is
missed because some library writes by itself. Linux on x86-64; what is traced may start threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITING = {
    1: "write", 18: "pwrite", 20: "writev", 40: "sendfile", 74: "fsync", 75: "fdatasync", 76: "truncate",
    77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat", 86: "link", 87: "unlink", 88: "symlink",
    257: "open", 258: "mkdir", 263: "unlink", 264: "rename", 265: "link", 266: "symlink", 285: "fallocate",
    296: "pwritev", 316: "rename", 326: "copy_file_range", 328: "pwritev2",
}  # fmt: skip
"""System calls by number."""
_OPENAT = 257
_BY_DESCRIPTOR = {1: 0, 18: 0, 20: 0, 40: 0, 74: 0, 75: 0, 77: 0, 285: 0, 296: 0, 326: 2, 328: 0}
"""Which argument is the file written to; of the others, paths."""
_BY_NAME = {
    76: [(None, 0)], 82: [(None, 0), (None, 1)], 83: [(None, 0)], 84: [(None, 0)], 85: [(None, 0)],
    86: [(None, 0), (None, 1)], 87: [(None, 0)], 88: [(None, 1)], 257: [(0, 1)], 258: [(0, 1)], 263: [(0, 1)],
    264: [(0, 1), (2, 3)], 265: [(0, 1), (2, 3)], 266: [(1, 2)], 316: [(0, 1), (2, 3)],
}  # fmt: skip
"""The arguments that are paths, each with that of the folder which it is relative to."""
PATIENCE = float(os.environ.get("LOGCAL_TEST_PATIENCE", "60"))
"""Seconds after which a process is taken to hang; more on a machine that is busy."""
REMOVING = frozenset(("unlink", "rmdir"))
_CREATES = os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC

_SEIZE, _CONT, _SYSCALL, _LISTEN, _GETREGS, _SETREGS, _GETEVENTMSG = 0x4206, 7, 24, 0x4208, 12, 13, 0x4201
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
"""Mark stops at calls; forks, vforks, clones and execs; seccomp; and end with the tracer."""
_EVENT_SECCOMP, _EVENT_STOP = 7, 128
_WALL = 0x40000000
_ARGUMENTS = (14, 13, 12, 7, 9, 8)
"""Where rdi, rsi, rdx, r10, r8, r9 stand among the registers."""
_RAX, _ORIG_RAX = 10, 15

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long] * 4
_libc.ptrace.restype = ctypes.c_long


@dataclass(frozen=True)
class Call:
    """A system call that is about to be made.

    Attributes
    ----------
    number : how many came before it
    name : such as write, rename
    paths : of the files that it changes, relative to the folder that is watched
    size : bytes that are to be written, where it writes
    """

    number: int
    name: str
    paths: tuple[str, ...]
    size: int = 0


@dataclass(frozen=True)
class Kill:
    """SIGKILL before the call; or, of a write, after half of it."""

    half: bool = False


@dataclass(frozen=True)
class Fail:
    """The call is not made, and returns an error."""

    error: int


@dataclass(frozen=True)
class Send:
    """A signal before the call."""

    signal: int


@dataclass(frozen=True)
class Meanwhile:
    """Something else happens while the process stands still before the call."""

    action: Callable[[], None]


Decision = Kill | Fail | Send | Meanwhile | None


@dataclass
class Ended:
    """How it went.

    Attributes
    ----------
    code : the exit code, or the negative number of the signal that ended it
    calls : what was written, in order
    said : its output
    """

    code: int
    calls: list[Call] = field(default_factory=list)
    said: str = ""


def possible() -> bool:
    """Whether processes can be traced here."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    try:
        return traced(lambda: 7, Path("/"), seconds=10).code == 7
    except OSError:
        return False


def forked(action: Callable[[], int], seconds: float = PATIENCE) -> Ended:
    """Carry out an action in a forked process; what takes too long ends by SIGALRM."""
    return started(action, seconds).wait()


@dataclass(frozen=True)
class Process:
    """A forked process that is running."""

    pid: int
    said: int

    def wait(self) -> Ended:
        """Wait for its end."""
        _, status = os.waitpid(self.pid, 0)
        return Ended(os.waitstatus_to_exitcode(status), said=_text_of(self.said))


def started(action: Callable[[], int], seconds: float = PATIENCE) -> Process:
    """Carry out an action in a forked process; what takes too long ends by SIGALRM."""
    said = os.memfd_create("said")
    pid, go = _fork(action, seconds, said, watched=False)
    os.close(go)
    return Process(pid, said)


def traced(
    action: Callable[[], int],
    below: Path,
    decide: Callable[[Call], Decision] = lambda call: None,
    seconds: float = PATIENCE,
) -> Ended:
    """Carry out an action in a forked process, which stops before each call that changes files below a folder.

    Parameters
    ----------
    action : returns the exit code
    below : only calls about this folder's files count
    decide : what happens before each call
    seconds : after which it is ended by SIGALRM

    Raises
    ------
    OSError
        Processes may not be traced here.
    """
    return _Tracer(action, str(below), decide, seconds).run()


class _Tracer:
    def __init__(
        self, action: Callable[[], int], below: str, decide: Callable[[Call], Decision], seconds: float
    ) -> None:
        self.below, self.decide = below.rstrip("/") + "/", decide
        self.ended = Ended(0)
        self.said = os.memfd_create("said")
        self.pid, go = _fork(action, seconds, self.said, watched=True)
        self.alive = True
        try:
            self._ptrace(_SEIZE, self.pid, 0, _OPTIONS)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        finally:
            os.close(go)

    def run(self) -> Ended:
        """See to its stops until it has ended."""
        while self.alive:
            pid, status = os.waitpid(-self.pid, _WALL)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if pid == self.pid:
                    self.ended.code = os.waitstatus_to_exitcode(status)
                    self.alive = False
                continue
            try:
                self._stopped(pid, status)
            except ProcessLookupError:  # it was killed meanwhile
                continue
        self.ended.said = _text_of(self.said)
        return self.ended

    def _stopped(self, pid: int, status: int) -> None:
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _EVENT_SECCOMP:
            self._call(pid)
        elif event:
            self._ptrace(_CONT, pid, 0, 0)
        else:
            self._ptrace(_CONT, pid, 0, 0 if number == signal.SIGTRAP | 0x80 else number)

    def _call(self, pid: int) -> None:
        registers = (ctypes.c_ulonglong * 27)()
        self._ptrace(_GETREGS, pid, 0, ctypes.addressof(registers))
        call = self._described(pid, registers)
        if call is None:
            self._ptrace(_CONT, pid, 0, 0)
            return
        self.ended.calls.append(call)
        decision = self.decide(call)
        if isinstance(decision, Kill):
            if decision.half and call.size > 1:
                registers[_ARGUMENTS[2]] = call.size // 2
                self._ptrace(_SETREGS, pid, 0, ctypes.addressof(registers))
                self._ptrace(_SYSCALL, pid, 0, 0)
                os.waitpid(pid, _WALL)
            os.kill(self.pid, signal.SIGKILL)
            return
        if isinstance(decision, Fail):
            registers[_ORIG_RAX] = ctypes.c_ulonglong(-1).value
            registers[_RAX] = ctypes.c_ulonglong(-decision.error).value
            self._ptrace(_SETREGS, pid, 0, ctypes.addressof(registers))
        elif isinstance(decision, Send):
            os.kill(self.pid, decision.signal)
        elif isinstance(decision, Meanwhile):
            decision.action()
        self._ptrace(_CONT, pid, 0, 0)

    def _described(self, pid: int, registers: Any) -> Call | None:
        """The call, if it is about files below the folder."""
        nr = registers[_ORIG_RAX]
        arguments = [registers[place] for place in _ARGUMENTS]
        if nr in _BY_DESCRIPTOR:
            paths = [_opened(pid, arguments[_BY_DESCRIPTOR[nr]])]
        else:
            paths = [self._named(pid, arguments, *pair) for pair in _BY_NAME[nr]]
        mine = tuple(path[len(self.below) :] for path in paths if path.startswith(self.below))
        if not mine:
            return None
        size = arguments[2] if nr in (1, 18) else 0
        return Call(len(self.ended.calls), WRITING[nr], mine, size)

    def _named(self, pid: int, arguments: list[int], folder: int | None, name: int) -> str:
        path = _text(pid, arguments[name])
        if path.startswith("/"):
            return os.path.normpath(path)
        at = -100 if folder is None else ctypes.c_int(arguments[folder]).value
        base = str(Path(f"/proc/{pid}/cwd").readlink()) if at == -100 else _opened(pid, at)
        return os.path.normpath(f"{base}/{path}")

    @staticmethod
    def _ptrace(request: int, pid: int, address: int, data: int) -> None:
        if _libc.ptrace(request, pid, address, data) == -1:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def _opened(pid: int, descriptor: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/{ctypes.c_int(descriptor).value}").readlink())
    except OSError:
        return ""


def _text(pid: int, address: int) -> str:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - no such path
        found = b""
        while b"\0" not in found:
            # Not over the end of a page: the next one may not be there.
            part = os.pread(memory.fileno(), 4096 - (address + len(found)) % 4096, address + len(found))
            if not part:
                break
            found += part
    return os.fsdecode(found.partition(b"\0")[0])


def _fork(action: Callable[[], int], seconds: float, said: int, *, watched: bool) -> tuple[int, int]:
    """Fork; return the process, and what lets it go, if it is watched, once that is closed.

    What it says goes to a file: nobody reads a pipe while the process stands still.
    """
    ready, go = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(ready)
        # Both set it, so that it is set for whoever comes first.
        _own_group(pid)
        return pid, go
    code = 70
    try:
        _own_group(0)
        os.close(go)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(said, descriptor)
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
        if watched:
            os.read(ready, 1)
            _install_filter()
        code = action()
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
        code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    raise AssertionError


def _own_group(pid: int) -> None:
    try:
        os.setpgid(pid, pid)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ESRCH):
            raise


def _text_of(said: int) -> str:
    os.lseek(said, 0, os.SEEK_SET)
    with os.fdopen(said, "rb") as file:
        return file.read().decode(errors="replace")


def _install_filter() -> None:
    """Have this process, and what it starts, stop at the calls of `WRITING`."""
    load, equal, some, give = 0x20, 0x15, 0x45, 0x06
    numbers = [number for number in WRITING if number != _OPENAT]
    code = [(load, 0, 0, 0)]
    # Each jump leads to the last instruction.
    for i, number in enumerate(numbers):
        code.append((equal, len(numbers) - i + 3, 0, number))
    code += [
        (equal, 0, 2, _OPENAT),
        (load, 0, 0, 16 + 8 * 2),
        (some, 1, 0, _CREATES),
        (give, 0, 0, 0x7FFF0000),
        (give, 0, 0, 0x7FF00000),
    ]
    packed = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(program, len(program))
    _libc.prctl(38, 1, 0, 0, 0)  # no new privileges, which the next asks for
    if _libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(holder)), 0, 0) != 0:
        code_ = ctypes.get_errno()
        raise OSError(code_, os.strerror(code_))
