"""Scratch space: a folder of one run that all its workers see, removed when the run ends.

It is on a mounted file system, or in an object store, where the run renews a lease on its folder.
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
from pipeline.files.folders import Folder, hold, is_url, make, remove, remove_dead
from pipeline.files.locks import live_leases, locking

_HEADROOM = 1.1
_NAME = "logcal-scratch-"
_MODE = 0o700
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_REUSED = ("run-", "receipt-sort-", "bad-")
"""Prefixes of the files that a resumed run reuses: sorted runs, their receipts, and the rows left out of them."""

_NOT_SHARED = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a worker that does not see the folder, or may not write to it."""


def check_space(folder: str | None, needed: int) -> None:
    """Check that a scratch folder can be created in `folder` and hold `needed` bytes; nothing is changed.

    Raises
    ------
    ConfigError
        The folder cannot be created or written to, or the object store has no conditional writes.
    TemporaryError
        There is too little space.
    """
    base = Folder.at(folder if folder is not None and is_url(folder) else _base(folder), "scratch")
    base.check_writable("scratch", int(needed * _HEADROOM))


@contextmanager
def scratch_folder(folder: str | None, resume: str | None = None) -> Iterator[str]:
    """Create a scratch folder in `folder` (None: the system's temporary folder); always remove it at the end.

    Scratch folders of killed runs (on a mounted file system: of this machine) are removed first, except the one that is
    resumed.

    Parameters
    ----------
    folder : path or URL
    resume : identity of the run's work. If a run with the same identity was killed, its folder is reused, with its
        sorted runs and receipts; but not after a reboot, which may have lost unsynced files, and not in an object
        store, where others may have written them.

    Returns
    -------
    path or URL of the new folder

    Raises
    ------
    ConfigError
        The folder cannot be created; or some worker does not see it, or may not write to it.
    TemporaryError
        A file operation failed, for example because the disk is full.
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
        resumable = None if resume is None else base / f"{_prefix()}{_digest(resume)}"
        for stale in base.glob(f"{_prefix()}*"):
            if stale != resumable:
                remove_dead(stale)
        path, lock = _take_over(resumable) or _new(base, resumable)
    except OSError as error:
        raise write_fault(error, f"scratch: {base}") from error
    try:
        yield path
    except OSError as error:
        if error.errno is None:  # not an error of a file operation
            raise
        if error.errno in _NOT_SHARED:
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
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(locking(base / name))
            others = [other for other in base.matching(f"{_NAME}*") if other != name]
            for other in others:
                if not live_leases(base / other, lock.now()):
                    base.remove(other)
        except Exception as error:
            fault = as_fault(error, f"scratch: {base}")
            if fault is None:
                raise
            raise fault from error
        try:
            yield str(base / name)
        finally:
            with suppress(Exception):  # the next run then removes it
                base.remove(name)


def _digest(resume: str) -> str:
    """Return a digest of a run's identity and of the machine's boot; without a boot id, one that never repeats."""
    try:
        boot = _BOOT.read_text()
    except OSError:
        boot = uuid.uuid4().hex
    return hashlib.sha256(f"{resume} {boot}".encode()).hexdigest()[:32]


def _take_over(folder: Path | None) -> tuple[Path, int] | None:
    """Lock a killed run's folder and remove all but its reusable files; return None if there is none to take over."""
    lock = None
    with suppress(OSError):
        lock = None if folder is None else hold(folder)
    if folder is None or lock is None:
        return None
    # Receipts are unpickled, so only this user may have written them.
    facts = os.fstat(lock)
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != _MODE:
        os.close(lock)
        return None
    for path in folder.iterdir():
        if not path.name.startswith(_REUSED):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return folder, lock


def _new(base: Path, resumable: Path | None) -> tuple[Path, int | None]:
    if resumable is not None and not resumable.exists():
        try:
            return resumable, make(resumable, mode=_MODE)
        except OSError:  # another run created it first
            pass
    path = base / f"{_prefix()}{uuid.uuid4().hex}"
    return path, make(path, mode=_MODE)


def _prefix() -> str:
    """Return the prefix of this host's folders; locks of other hosts may not be visible here."""
    return f"{_NAME}{socket.gethostname()}-"


def _base(folder: str | None) -> Path:
    if folder is None:
        return Path(tempfile.gettempdir())
    return Path(folder.removeprefix("file://")).expanduser().absolute()
