"""Scratch space: a folder of this run's own that all workers see, gone when the run ends."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigError, TemporaryError
from pipeline.files.locks import make, remove, remove_dead
from pipeline.files.writable import check_free, check_writable

_HEADROOM = 1.1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_space(folder: str | None, needed: int) -> None:
    """Check that scratch can be made in `folder` and holds `needed` bytes; nothing is changed.

    Raises
    ------
    ConfigError
        The folder cannot be made or written to, or is not on a mounted file system.
    TemporaryError
        Too little space.
    """
    check_free(check_writable(_base(folder), "scratch"), int(needed * _HEADROOM), "scratch")


@contextmanager
def scratch_folder(folder: str | None) -> Iterator[Path]:
    """A new folder below `folder` (null: the system's temporary folder), removed at the end in any case.

    What a killed run on this machine left behind there is removed first.

    Raises
    ------
    ConfigError
        The folder cannot be made; or some worker does not see it, or may not write to it.
    TemporaryError
        A file operation failed, such as for want of space.
    """
    base = _base(folder)
    try:
        base.mkdir(parents=True, exist_ok=True)
        for left in base.glob(f"{_prefix()}*"):
            remove_dead(left)
        path = base / f"{_prefix()}{uuid.uuid4().hex}"
        lock = make(path, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"scratch: expected a folder that can be written to, cannot make one in {base} ({error.strerror}): "
            "choose another place"
        ) from None
    try:
        yield path
    except OSError as error:
        if error.errno is None:  # no file operation's
            raise
        raise _as_logcal_error(error, path) from error
    finally:
        remove(path)
        if lock is not None:
            os.close(lock)


def _prefix() -> str:
    """Of this host's folders: another host's locks may not be seen here."""
    return f"logcal-scratch-{socket.gethostname()}-"


def _base(folder: str | None) -> Path:
    if folder is None:
        return Path(tempfile.gettempdir())
    if "://" in folder and not folder.startswith("file://"):
        raise ConfigError(
            f"scratch: expected a folder on a mounted file system, found the URL {folder}: choose another place"
        )
    return Path(folder.removeprefix("file://")).expanduser().absolute()


def _as_logcal_error(error: OSError, path: Path) -> ConfigError | TemporaryError:
    if error.errno in _FULL:
        return TemporaryError(
            f"scratch: no space left in {path.parent} ({error}): free some, or choose a place with more; nothing was "
            "published"
        )
    if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
        return ConfigError(
            f"scratch: expected a folder that all workers see and can write to, found {path} ({error}): choose "
            "another place"
        )
    return TemporaryError(f"scratch: a file operation failed: {error}; nothing was published")
