"""A folder that takes another's place."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(new: Path, old: Path) -> None:
    """Give two folders of one file system each other's names.

    At once where the system can (Linux, on most file systems). Otherwise by renames, between which there is, for a
    moment, nothing under the name `old`.

    Raises
    ------
    OSError
        Neither has another name than before.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old))
    if rename is not None and rename(*names, _RENAME_EXCHANGE) == 0:
        return
    aside = new.with_name(f"{new.name}-replaced")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)
