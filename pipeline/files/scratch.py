"""Scratch space: a folder of this run's own that all workers see, gone when the run ends.

It is on a mounted file system, or in an object store, where a run's folder is held by an object that is renewed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from logcal.errors import ConfigError
from pipeline.files.faults import as_fault, write_fault
from pipeline.files.folders import Folder, check_free, check_writable, is_url, remove
from pipeline.files.locks import hold, living, locking, make, remove_dead

_HEADROOM = 1.1
_NAME = "logcal-scratch-"
_MODE = 0o700
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_KEPT = ("run-", "receipt-sort-", "bad-")
"""Files that a resumed run takes over: sorted runs, facts about them, and the rows that they left out."""

_UNSEEN = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)


def check_space(folder: str | None, needed: int) -> None:
    """Check that scratch can be made in `folder` and holds `needed` bytes; nothing is changed.

    Raises
    ------
    ConfigError
        The folder cannot be made or written to.
    TemporaryError
        Too little space.
    """
    if folder is not None and is_url(folder):
        Folder.at(folder, "scratch")
        return
    check_free(check_writable(_base(folder), "scratch"), int(needed * _HEADROOM), "scratch")


@contextmanager
def scratch_folder(folder: str | None, resume: str | None = None) -> Iterator[str]:
    """A new folder below `folder` (null: the system's temporary folder), removed at the end in any case.

    What a killed run left behind there (on a mounted file system: of this machine) is removed first, unless it is to be
    resumed.

    resume : what tells a run that does the same from others. The folder of one that was killed is then taken over, with
        the sorted runs and receipts in it; but not after the machine was started anew, which may have lost their bytes,
        and not in an object store, where others may have written them.

    Returns
    -------
    its path, or its URL

    Raises
    ------
    ConfigError
        The folder cannot be made; or some worker does not see it, or may not write to it.
    TemporaryError
        A file operation failed, such as for want of space.
    """
    if folder is not None and is_url(folder):
        with _remote_folder(Folder.at(folder, "scratch")) as url:
            yield url
    else:
        with _local_folder(_base(folder), resume) as path:
            yield str(path)


@contextmanager
def _local_folder(base: Path, resume: str | None) -> Iterator[Path]:
    try:
        base.mkdir(parents=True, exist_ok=True)
        own = None if resume is None else base / f"{_prefix()}{_same_start(resume)}"
        for left in base.glob(f"{_prefix()}*"):
            if left != own:
                remove_dead(left)
        path, lock = _take_over(own) or _new(base, own)
    except OSError as error:
        raise write_fault(error, f"scratch: {base}") from error
    try:
        yield path
    except OSError as error:
        if error.errno is None:  # no file operation's
            raise
        if error.errno in _UNSEEN:
            raise ConfigError(
                f"scratch: expected a folder that all workers see and can write to, found {path} ({error}): choose "
                "another place"
            ) from error
        raise write_fault(error, f"scratch: {path.parent}", "nothing was published") from error
    finally:
        remove(path)
        if lock is not None:
            os.close(lock)


@contextmanager
def _remote_folder(base: Folder) -> Iterator[str]:
    name = f"{_NAME}{uuid.uuid4().hex}"
    with ExitStack() as held:
        try:
            lock = held.enter_context(locking(base / name))
            others = [left for left in base.matching(f"{_NAME}*") if left != name]
            now = lock.now() if others else None
            for left in others:
                if now is not None and not living(base / left, now):
                    base.remove(left)
        except Exception as error:
            fault = as_fault(error, f"scratch: {base}")
            if fault is None:
                raise
            raise fault from error
        held.callback(_remove, base, name)
        yield str(base / name)


def _remove(base: Folder, name: str) -> None:
    # What cannot be removed now the next run removes.
    with suppress(Exception):
        base.remove(name)


def _same_start(resume: str) -> str:
    try:
        started = _BOOT.read_text()
    except OSError:
        started = uuid.uuid4().hex
    return hashlib.sha256(f"{resume} {started}".encode()).hexdigest()[:32]


def _take_over(own: Path | None) -> tuple[Path, int] | None:
    """A folder of this user that no living process holds, without what is not worth keeping; None: there is none."""
    lock = None
    with suppress(OSError):
        lock = None if own is None else hold(own)
    if own is None or lock is None:
        return None
    # Receipts are unpickled: nobody else may have written them.
    facts = os.fstat(lock)
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != _MODE:
        os.close(lock)
        return None
    for path in own.iterdir():
        if not path.name.startswith(_KEPT):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return own, lock


def _new(base: Path, own: Path | None) -> tuple[Path, int | None]:
    if own is not None and not own.exists():
        try:
            return own, make(own, mode=_MODE)
        except OSError:  # another run was quicker
            pass
    path = base / f"{_prefix()}{uuid.uuid4().hex}"
    return path, make(path, mode=_MODE)


def _prefix() -> str:
    """Prefix of this host's folders: another host's locks may not be visible here."""
    return f"{_NAME}{socket.gethostname()}-"


def _base(folder: str | None) -> Path:
    if folder is None:
        return Path(tempfile.gettempdir())
    return Path(folder.removeprefix("file://")).expanduser().absolute()
