"""Paths of a configuration: relative to the file that sets them; ~ and ${NAME} are expanded."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from pathlib import Path

from logcal.storage import is_url

NO_PATH = "none"
"""Value of `record.path` for no path."""

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|(?=[A-Za-z_{]))")


def folder_of(file: str) -> str:
    """Return the folder or URL that the relative paths in a configuration file are relative to.

    '' is the working folder: of a file in it, and of a pipe such as /dev/stdin.
    """
    if is_url(file):
        return file.partition("?")[0].rpartition("/")[0]
    return os.path.dirname(file) if Path(file).is_file() else ""  # noqa: PTH120 - Path says '.'


def resolve(text: str, folder: str) -> str:
    """Return a path with ~ and environment variables expanded, relative paths below a folder.

    folder : folder or URL of the file that sets it; '': the working folder, to which paths stay relative

    Raises
    ------
    ValueError
        An environment variable is not set, or is not written as ${NAME}.
    """
    path = _VARIABLE.sub(_value, os.path.expanduser(text))  # noqa: PTH111 - Path changes URLs
    if not folder or not path or path == NO_PATH or is_url(path) or Path(path).is_absolute():
        return path
    if is_url(folder):
        scheme, _, above = folder.rpartition("://")
        return f"{scheme}://{posixpath.normpath(f'{above}/{path}')}"
    # In a glob, the folder's own name is no pattern.
    return os.path.join(glob.escape(folder) if glob.has_magic(path) else folder, path)  # noqa: PTH118


def _value(variable: re.Match[str]) -> str:
    name = variable[1]
    if name is None:
        found = variable.string[variable.start() :].partition("/")[0]
        raise ValueError(f"expected environment variables as ${{NAME}}, found {found}")
    if name not in os.environ:
        raise ValueError(f"expected the environment variable {name} to be set, found none")
    return os.environ[name]


def relative_to(path: str, folder: Path) -> str:
    """Return a relative path, which is relative to the working folder, as relative to another folder.

    Absolute paths and URLs stay as they are; so does a path that symbolic links lead elsewhere, made absolute.
    """
    if is_url(path) or Path(path).is_absolute():
        return path
    relative = os.path.relpath(path, folder)
    there, here = (Path(part).resolve() for part in (folder / relative, path))
    return relative if there == here else str(Path(path).absolute())
