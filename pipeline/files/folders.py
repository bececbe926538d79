"""A folder on a mounted file system or an object store: the one place where files appear whole and are synced.

A local file is written under a temporary name (`beside`), synced if it must outlive a power cut, and renamed; or
linked, if no file of the name may exist. Other files are appended to, or made where no reader looks yet. An object is
put as a whole. Only `write_synced`, `_append`, `_rename` and `_put` change what others see of a store: tests kill a
process before, within and after each of them.
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.storage import open_filesystem, parse_checked

_TEMPORARY = ".tmp"
ABANDONED = 3600.0
"""Seconds after which nobody is taken to write a temporary file any more."""
_BLOCK = 1 << 20
_SYNC_THREADS = 4


class Folder:
    """A folder, which need not exist.

    Parameters
    ----------
    filesystem : of fsspec
    root : its path there

    Attributes
    ----------
    local : whether it is on a mounted file system
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self.local = isinstance(filesystem, LocalFileSystem)

    @classmethod
    def at(cls, path: str | Path, setting: str = "") -> Folder:
        """The folder at a local path or a URL.

        setting : that holds it, for messages

        Raises
        ------
        ConfigError
            The URL cannot be opened.
        """
        if not is_url(path):
            local = str(path).removeprefix("file://")
            return cls(LocalFileSystem(), os.path.abspath(local))  # noqa: PTH100 - `Path` resolves more
        return cls(*open_filesystem(str(path), setting))

    def __str__(self) -> str:
        return self.root if self.local else str(self.filesystem.unstrip_protocol(self.root))

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.filesystem, f"{self.root}/{name}")

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None where there is none."""
        try:
            data: bytes = self.filesystem.cat_file(f"{self.root}/{name}")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return data

    def read_json(self, name: str) -> dict[str, Any] | None:
        """An object in a file, or None where there is no file.

        Raises
        ------
        InputRejectedError
            It is damaged, or holds something else.
        """
        data = self.read(name)
        if data is None:
            return None
        try:
            content = parse_checked(data)
        except ValueError as error:
            raise InputRejectedError(
                f"{self.root}/{name}: expected JSON, found a file that is damaged ({error}): restore it, "
                "or remove it"
            ) from None
        if not isinstance(content, dict):
            raise InputRejectedError(
                f"{self.root}/{name}: expected an object, found {type(content).__name__}: restore it, or remove it"
            )
        return content

    def names(self) -> list[str]:
        """The names of what is in it, sorted; empty where it does not exist."""
        self.filesystem.invalidate_cache(self.root)
        try:
            found = self.filesystem.ls(self.root, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {path.rstrip("/").rpartition("/")[2] for path in found if path.rstrip("/") != self.root}
        return sorted(names)

    def files_below(self) -> list[str]:
        """The paths of all files below it, relative to it, sorted."""
        self.filesystem.invalidate_cache(self.root)
        start = len(self.root) + 1
        return sorted(path[start:] for path in self.filesystem.find(self.root))

    def matching(self, *patterns: str) -> list[str]:
        """The names of what is in it and matches one of some patterns of the shell, sorted."""
        return [name for name in self.names() if any(fnmatch.fnmatchcase(name, one) for one in patterns)]

    def sizes(self) -> dict[str, int]:
        """The bytes of each file in it, by name."""
        if self.local:
            with os.scandir(self.root) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        self.filesystem.invalidate_cache(self.root)
        found = self.filesystem.ls(self.root, detail=True)
        return {one["name"].rpartition("/")[2]: one["size"] for one in found if one["type"] == "file"}

    def make(self) -> None:
        """Make it, if it is local: object stores have no folders."""
        if self.local:
            Path(self.root).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a new file, which nobody looks for yet; return its size and SHA-256."""
        if self.local:
            write_synced(Path(self.root, name), data)
        else:
            _put(self.filesystem, f"{self.root}/{name}", data)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def copy(self, source: Folder, name: str, new: str | None = None) -> dict[str, Any]:
        """Copy a file of another folder to a new one, which nobody looks for yet; return its size and SHA-256.

        new : its name here, if it is another
        """
        target = f"{self.root}/{new or name}"
        if not self.local:
            # Whole, since stores have no other way to write one.
            data = source.filesystem.cat_file(f"{source.root}/{name}")
            return self.write(new or name, data)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with source.filesystem.open(f"{source.root}/{name}", "rb") as reader, open(target, "wb") as writer:  # noqa: PTH123
            while block := reader.read(_BLOCK):
                digest.update(block)
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
            return {"bytes": writer.tell(), "sha256": digest.hexdigest()}

    def link(self, source: Folder, name: str, new: str) -> None:
        """The same file under a second name; a copy where there are no links. May run again."""
        if not (self.local and source.local):
            self.copy(source, name, new)
            return
        target = Path(self.root, new)
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(f"{source.root}/{name}")
        except OSError:
            shutil.copyfile(f"{source.root}/{name}", target)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, or write it anew: readers see the old content or the new, whole."""
        if self.local:
            path = Path(self.root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        else:
            _put(self.filesystem, f"{self.root}/{name}", data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; return whether this call wrote it. Readers see the whole file or none.

        On an object store it is a conditional PUT.

        Raises
        ------
        ConfigError
            The store does not know it.
        """
        if self.local:
            return _create(Path(self.root, name), data)
        path = f"{self.root}/{name}"
        try:
            self.filesystem.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError, ValueError) as error:
            raise ConfigError(
                f"{path}: expected a store that creates a file only where nothing is (conditional PUT), found one "
                f"that does not ({error}): use a mounted folder, or a store that does"
            ) from None
        return True

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a local file. One that a crash left unfinished before it stays, as a line of its own."""
        _append(Path(self.root, name), line)

    def appear(self, staging: Path, name: str) -> None:
        """Give a local folder, which is complete, its name here, as one step."""
        for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            sync_folder(folder)
        _rename(staging, Path(self.root, name))

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it is there; of a version on an object store the manifest goes first."""
        path = f"{self.root}/{name}"
        try:
            if not self.local:
                self.filesystem.rm(path, recursive=True)
            elif Path(path).is_dir() and not Path(path).is_symlink():
                remove(Path(path))
            else:
                Path(path).unlink()
        except FileNotFoundError:
            return

    def tidy(self) -> None:
        """Remove what killed processes left of files that they were replacing; for those who alone may write them."""
        if self.local:
            for left in Path(self.root).glob(f"*{_TEMPORARY}"):
                left.unlink(missing_ok=True)

    def sync(self, names: Iterable[str] = ()) -> None:
        """Have its names on the disk, and the content of some of its files."""
        if self.local:
            for name in names:
                sync_file(Path(self.root, name))
            sync_folder(Path(self.root))

    def located(self, name: str) -> str:
        """A path as those understand it who do not have this file system."""
        path = f"{self.root}/{name}"
        return path if self.local else str(self.filesystem.unstrip_protocol(path))


def remove(folder: Path) -> None:
    """Remove a folder, if it is there, while tasks that outlive their run may still write to it."""
    # Under another name it gets no new files while it is being emptied.
    removed = folder.with_name(f"{folder.name}-removed")
    try:
        folder.rename(removed)
    except OSError:
        removed = folder
    shutil.rmtree(removed, ignore_errors=True)


def is_url(path: str | Path) -> bool:
    """Tell whether a path is of an object store, or of something else that is no mounted file system."""
    return "://" in str(path) and not str(path).startswith("file://")


def temporary_name(name: str) -> str:
    """The name of what a file of this name is written to, in its folder, before it appears."""
    # With all of a long name it could be too long.
    return f".{name[:100]}.{uuid.uuid4().hex}{_TEMPORARY}"


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside a file that is to appear; what is left under it is removed."""
    temporary = path.with_name(temporary_name(path.name))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of a mounted file system, whatever was there: readers see the old one or the new one.

    It removes what killed processes left unfinished in the folder an hour ago or earlier.

    Raises
    ------
    OSError
        Nothing has changed.
    """
    there = path.exists()
    with beside(path) as temporary:
        write_synced(temporary, data)
        _rename(temporary, path)
    if there:  # files of names of their own, such as records, may be many
        remove_abandoned(path.parent)


NEW = ".new-"
_ABANDONED = re.compile(rf"{re.escape(NEW)}[0-9a-f]{{32}}|.+\.[0-9a-f]{{32}}\.tmp")


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder: files that they were writing, folders that they were making.

    Only what is an hour old is removed, since nothing tells whether its writer is alive.
    """
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if _ABANDONED.fullmatch(path.name)]:
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > ABANDONED:
                    # Nothing is ever in such a folder.
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def free_for(folder: Path, marker: str) -> bool:
    """Tell whether a path of a mounted file system may become, or is, a folder that a job marks as its own by a file.

    It is new or empty, or has the marker, or no more than what a killed run was writing of it.
    """
    if not folder.exists() or (folder / marker).exists():
        return True
    return folder.is_dir() and all(path.match(f".{marker}.*{_TEMPORARY}") for path in folder.iterdir())


def _create(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as temporary:
        write_synced(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    return True


def write_synced(path: Path, data: bytes) -> None:
    """Write a local file, and have its content on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _append(path: Path, line: bytes) -> None:
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _rename(old: Path, new: Path) -> None:
    old.replace(new)
    sync_folder(new.parent)


def _put(filesystem: Any, path: str, data: bytes) -> None:
    filesystem.pipe_file(path, data)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, where its file system can."""
    with suppress(OSError):  # some network file systems do not know it
        sync_file(path)


def begin_sync(file: BinaryIO) -> None:
    """Let what was written to a local file go to the disk from now on, so that `sync_file` finds little to wait for."""
    file.flush()
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync_files(paths: Sequence[str], *, missing_ok: bool = False) -> None:
    """Have the content of files on the disk; several at a time, since each waits for it.

    missing_ok : whether some may be gone
    """

    def sync(path: str) -> None:
        with suppress(*([FileNotFoundError] if missing_ok else [])):
            sync_file(path)

    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(sync, paths))


def sync_file(path: str | Path) -> None:
    """Have a file's content on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""Errors of systems, file systems and containers that have no exchange."""


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
    if rename is not None:
        if rename(*names, _RENAME_EXCHANGE) == 0:
            return
        if (error := ctypes.get_errno()) not in _NO_EXCHANGE:
            raise OSError(error, os.strerror(error), str(old))
    aside = new.with_name(f"{new.name}-replaced")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)


def check_writable(path: Path, setting: str) -> Path:
    """The nearest folder at or above `path` that exists, if it can be written to.

    Raises
    ------
    ConfigError
        There is no permission, or a file is in the way. `setting` is what the message names.
    """
    probe = path
    # Of what is below a folder that may not be entered `Path.exists` raises.
    while not os.path.exists(probe):  # noqa: PTH110
        probe = probe.parent
    if not probe.is_dir():
        found = f"the file {probe}" if probe == path else f"the file {probe} in the way of {path}"
    elif not os.access(probe, os.W_OK | os.X_OK):
        found = f"no permission in {probe}"
    elif any(probe.is_relative_to(name) for name in _NO_FILES):
        found = f"{probe}, where the system shows itself and no files are kept"
    else:
        return probe
    raise ConfigError(
        f"{setting}: expected a folder that can be written to, found {found}: choose another place"
    )


_NO_FILES = ("/proc", "/sys")
"""Places that root seems to be allowed to write, and is not."""


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
