"""Whether a folder could be made and written to, without making it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from logcal.errors import ConfigError, TemporaryError


def check_writable(path: Path, setting: str) -> Path:
    """The nearest folder at or above `path` that exists, if it can be written to.

    Raises
    ------
    ConfigError
        There is no permission, or a file is in the way. `setting` is what the message names.
    """
    probe = path
    while not _exists(probe):
        probe = probe.parent
    if not probe.is_dir():
        found = f"the file {probe}" if probe == path else f"the file {probe} in the way of {path}"
    elif not os.access(probe, os.W_OK | os.X_OK):
        found = f"no permission in {probe}"
    else:
        return probe
    raise ConfigError(
        f"{setting}: expected a folder that can be written to, found {found}: choose another place"
    )


def _exists(path: Path) -> bool:
    # Below a file or a folder that may not be entered nothing can be seen.
    try:
        return path.exists()
    except PermissionError:
        return False


def check_free(folder: Path, needed: int, setting: str) -> None:
    """Check that the file system of `folder`, which exists, has room for `needed` bytes.

    Raises
    ------
    TemporaryError
        It has not. A file system that does not say how large it is passes.
    """
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:
        raise TemporaryError(
            f"{setting}: expected about {size(needed)} of free space, found {size(usage.free)} in {folder}: free some, "
            "or choose a place with more"
        )


def size(count: float) -> str:
    """Bytes for people.

    >>> size(999), size(1_500_000), size(2e13)
    ('999 bytes', '1.5 MB', '20,000.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:.0f} bytes"
