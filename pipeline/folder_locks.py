"""Folders that belong to a living process: held by a lock, which ends with the process however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path


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
