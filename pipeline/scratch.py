"""Scratch space: a folder of this run's own that all workers see, gone when the run ends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigError, TemporaryError

_PREFIX = "logcal-scratch-"
_OWNER = "owner.json"
_HEADROOM = 1.1


def check_space(folder: str | None, needed: int) -> None:
    """Check that scratch can be made in `folder` and holds `needed` bytes.

    Raises
    ------
    ConfigError
        The folder cannot be made or written to.
    TemporaryError
        Too little space.
    """
    base = _base(folder)
    probe = base
    while not probe.exists():
        probe = probe.parent
    if not probe.is_dir() or not os.access(probe, os.W_OK | os.X_OK):
        raise ConfigError(
            f"scratch: expected a folder that can be written to, found no permission in {probe}"
        )
    free = shutil.disk_usage(probe).free
    if free < needed * _HEADROOM:
        raise TemporaryError(
            f"scratch: sorting needs about {needed * _HEADROOM / 1e9:.2f} GB, found {free / 1e9:.2f} GB free in "
            f"{base}: free some, or set scratch to a folder with more"
        )


@contextmanager
def scratch_folder(folder: str | None) -> Iterator[Path]:
    """A new folder below `folder` (null: the system's temporary folder), removed at the end in any case.

    What a killed run on this machine left behind there is removed first.

    Raises
    ------
    ConfigError
        The folder cannot be made.
    """
    base = _base(folder)
    try:
        base.mkdir(parents=True, exist_ok=True)
        _sweep(base)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        (path / _OWNER).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    except OSError as error:
        raise ConfigError(
            f"scratch: cannot make a folder in {base} ({error.strerror}): set scratch to one that can be written to"
        ) from None
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _base(folder: str | None) -> Path:
    return Path(folder).expanduser().absolute() if folder else Path(tempfile.gettempdir())


def _sweep(base: Path) -> None:
    """Remove scratch folders whose process on this host is gone."""
    for path in base.glob(_PREFIX + "*"):
        try:
            owner = json.loads((path / _OWNER).read_text())
            if owner["host"] == socket.gethostname() and not _alive(int(owner["pid"])):
                shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError, KeyError):
            continue


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
