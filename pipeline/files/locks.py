"""Folders that belong to a living process: held by a lock, which ends with the process however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
import uuid
from pathlib import Path

_NEW = ".new-"
_ABANDONED = re.compile(rf"{re.escape(_NEW)}[0-9a-f]{{32}}|.+\.[0-9a-f]{{32}}\.tmp")
_LONG = 3600.0
"""Seconds."""


def hold(folder: Path) -> int | None:
    """Hold a folder as long as this process lives, or until the descriptor returned is closed.

    None: another process holds it, or the file system has no locks.

    Raises
    ------
    OSError
        There is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def share(folder: Path) -> int | None:
    """Hold a folder together with others who share it, so that nobody can `hold` it; wait for one who does.

    None: the file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def make(folder: Path, mode: int = 0o777) -> int | None:
    """Make a folder and hold it; return what `hold` does. Nobody sees it by its name before it is held."""
    remove_abandoned(folder.parent)
    new = folder.with_name(f"{_NEW}{uuid.uuid4().hex}")
    new.mkdir(mode)
    lock = hold(new)
    new.rename(folder)
    return lock


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder: files that they were writing, folders that they were making.

    Only what is an hour old, since nothing says whether whoever writes it lives.
    """
    try:
        left = [path for path in folder.iterdir() if _ABANDONED.fullmatch(path.name)]
    except OSError:
        return
    for path in left:
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if time.time() - facts.st_mtime > _LONG:
                # Nothing is ever in such a folder.
                path.rmdir() if stat.S_ISDIR(facts.st_mode) else path.unlink()


def remove(folder: Path) -> None:
    """Remove a folder, if it is there, while tasks that outlive their run may still write to it."""
    # Under another name it gets no new files while it is being emptied.
    removed = folder.with_name(f"{folder.name}-removed")
    try:
        folder.rename(removed)
    except OSError:
        removed = folder
    shutil.rmtree(removed, ignore_errors=True)


def remove_dead(folder: Path) -> None:
    """Remove a folder that no living process holds."""
    try:
        lock = hold(folder)
    except OSError:
        return
    if lock is not None:
        remove(folder)
        os.close(lock)
