"""Folders on a mounted file system or in an object store: all atomic writes and all syncs are made here.

A local file is written under a temporary name (`temporary_sibling`), synced if it must survive a power cut, and then
renamed; or linked, if no file of that name may exist. Other files are appended to, or created where no reader looks
yet. An object is put as a whole. Only `write_synced`, `_append`, `_rename` and `_put` change what others see of a
store: tests kill a process before, within and after each of them.
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
"""Age in seconds from which a temporary file counts as abandoned by its writer."""
_BLOCK = 1 << 20
_SYNC_THREADS = 4


class Folder:
    """Folder, which need not exist.

    Parameters
    ----------
    filesystem : fsspec file system
    root : path in the file system

    Attributes
    ----------
    local : whether the file system is mounted
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self.local = isinstance(filesystem, LocalFileSystem)

    @classmethod
    def at(cls, path: str | Path, setting: str = "") -> Folder:
        """Return the folder at a local path or a URL.

        setting : name of the setting that holds the path, for messages

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
        """Return a file's content, or None if it does not exist."""
        try:
            data: bytes = self.filesystem.cat_file(f"{self.root}/{name}")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return data

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a file with one JSON object; return None if it does not exist.

        Raises
        ------
        InputRejectedError
            The file is damaged, or holds something else.
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
        """List the names of the folder's entries, sorted; empty if the folder does not exist."""
        self.filesystem.invalidate_cache(self.root)
        try:
            paths = self.filesystem.ls(self.root, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {path.rstrip("/").rpartition("/")[2] for path in paths if path.rstrip("/") != self.root}
        return sorted(names)

    def files_below(self) -> list[str]:
        """List the relative paths of all files in the folder and its subfolders, sorted."""
        self.filesystem.invalidate_cache(self.root)
        start = len(self.root) + 1
        return sorted(path[start:] for path in self.filesystem.find(self.root))

    def matching(self, *patterns: str) -> list[str]:
        """List the names of the entries that match any of these shell patterns, sorted."""
        return [name for name in self.names() if any(fnmatch.fnmatchcase(name, p) for p in patterns)]

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file in the folder, by name."""
        if self.local:
            with os.scandir(self.root) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        self.filesystem.invalidate_cache(self.root)
        infos = self.filesystem.ls(self.root, detail=True)
        return {info["name"].rpartition("/")[2]: info["size"] for info in infos if info["type"] == "file"}

    def make(self) -> None:
        """Create the folder if it is local: object stores have no folders."""
        if self.local:
            Path(self.root).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a new file that no reader looks for yet; return its size and SHA-256."""
        if self.local:
            write_synced(Path(self.root, name), data)
        else:
            _put(self.filesystem, f"{self.root}/{name}", data)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def copy(self, source: Folder, name: str, new: str | None = None) -> dict[str, Any]:
        """Copy a file of another folder to a new file that no reader looks for yet; return its size and SHA-256.

        new : name of the copy, if it differs
        """
        target = f"{self.root}/{new or name}"
        if not self.local:
            # Object stores only take whole objects.
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
        """Give a file a second name by a hard link, or copy it if there are no links. Repeating it is harmless."""
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
        """Write or replace a file atomically: readers see the old content or the new."""
        if self.local:
            path = Path(self.root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        else:
            _put(self.filesystem, f"{self.root}/{name}", data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file atomically unless it exists; return whether this call wrote it.

        On an object store this is a conditional PUT.

        Raises
        ------
        ConfigError
            The store does not support it.
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
        """Append a line to a local file. If a crash left an incomplete last line, the new line starts after it."""
        _append(Path(self.root, name), line)

    def appear(self, staging: Path, name: str) -> None:
        """Rename a complete local folder into this folder atomically."""
        for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            sync_folder(folder)
        _rename(staging, Path(self.root, name))

    def remove(self, name: str) -> None:
        """Remove a file or a folder if it exists; of a version on an object store the manifest is removed first."""
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
        """Remove temporary files of killed processes; only for a caller that has the exclusive right to write."""
        if self.local:
            for path in Path(self.root).glob(f"*{_TEMPORARY}"):
                path.unlink(missing_ok=True)

    def sync(self, names: Iterable[str] = ()) -> None:
        """Sync the folder's entries, and the content of the named files, to the disk."""
        if self.local:
            for name in names:
                sync_file(Path(self.root, name))
            sync_folder(Path(self.root))

    def located(self, name: str) -> str:
        """Return the path or URL of an entry, for code that does not have this file system object."""
        path = f"{self.root}/{name}"
        return path if self.local else str(self.filesystem.unstrip_protocol(path))


def remove(folder: Path) -> None:
    """Remove a folder if it exists, although tasks that outlive their run may still write to it."""
    # After the rename it gets no new files while it is being emptied.
    removed = folder.with_name(f"{folder.name}-removed")
    try:
        folder.rename(removed)
    except OSError:
        removed = folder
    shutil.rmtree(removed, ignore_errors=True)


def is_url(path: str | Path) -> bool:
    """Tell whether a path is a URL of an object store, or of anything else that is not a mounted file system."""
    return "://" in str(path) and not str(path).startswith("file://")


def relative_location(path: str, folder: str) -> str:
    """Return a local path relative to a local folder, which stays the same if both are moved; a URL as it is."""
    if is_url(path) or is_url(folder):
        return path.rstrip("/")
    return os.path.relpath(path.removeprefix("file://"), folder.removeprefix("file://"))


def temporary_name(name: str) -> str:
    """Return a new name for a temporary file that will be renamed to `name`."""
    # A long name is cut: with the suffix it could exceed the file system's limit.
    return f".{name[:100]}.{uuid.uuid4().hex}{_TEMPORARY}"


@contextmanager
def temporary_sibling(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder as `path`; a file that remains there is removed."""
    temporary = path.with_name(temporary_name(path.name))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write or replace a file of a mounted file system atomically: readers see the old file or the new one.

    After a replacement, abandoned temporary files in the folder are removed.

    Raises
    ------
    OSError
        The file could not be written. Nothing has changed.
    """
    existed = path.exists()
    with temporary_sibling(path) as temporary:
        write_synced(temporary, data)
        _rename(temporary, path)
    if existed:  # a folder of files with unique names, such as records, may be large
        remove_abandoned(path.parent)


NEW = ".new-"
_ABANDONED = re.compile(rf"{re.escape(NEW)}[0-9a-f]{{32}}|.+\.[0-9a-f]{{32}}\.tmp")


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and new folders that killed processes left in a folder.

    Only those at least an hour old are removed, since nothing tells whether their writer is alive.
    """
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if _ABANDONED.fullmatch(path.name)]:
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > ABANDONED:
                    # A new folder is empty until it is renamed.
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def free_for(folder: Path, marker: str) -> bool:
    """Tell whether a job may use a path of a mounted file system as its folder, which it identifies by a marker file.

    It may if the folder is new or empty, has the marker, or holds only temporary files of the marker.
    """
    if not folder.exists() or (folder / marker).exists():
        return True
    return folder.is_dir() and all(path.match(f".{marker}.*{_TEMPORARY}") for path in folder.iterdir())


def _create(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_sibling(path) as temporary:
        write_synced(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    return True


def write_synced(path: Path, data: bytes) -> None:
    """Write a local file and sync its content to the disk."""
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
    """Sync the entries of a folder to the disk, if its file system can."""
    with suppress(OSError):  # some network file systems do not support it
        sync_file(path)


def begin_sync(file: BinaryIO) -> None:
    """Start writing a local file's content to the disk, so that `sync_file` waits for less."""
    file.flush()
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync_files(paths: Sequence[str], *, missing_ok: bool = False) -> None:
    """Sync the content of files to the disk, on threads, since each call waits for the disk.

    missing_ok : whether files may be missing
    """

    def sync(path: str) -> None:
        with suppress(*([FileNotFoundError] if missing_ok else [])):
            sync_file(path)

    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(sync, paths))


def sync_file(path: str | Path) -> None:
    """Sync a file's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""Error numbers of systems, file systems and containers that cannot exchange names."""


def exchange(new: Path, old: Path) -> None:
    """Exchange the names of two folders of one file system.

    This is atomic if the system can (Linux, on most file systems). Otherwise the folders are renamed one after the
    other, and for a moment no folder has the name `old`.

    Raises
    ------
    OSError
        The exchange failed. Both folders have their names of before.
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
    """Return the nearest existing folder at or above `path`, if it can be written to.

    setting : name of the setting that holds the path, for messages

    Raises
    ------
    ConfigError
        There is no permission, or a file is in the way.
    """
    probe = path
    # `Path.exists` raises below a folder that may not be entered.
    while not os.path.exists(probe):  # noqa: PTH110
        probe = probe.parent
    if not probe.is_dir():
        problem = f"the file {probe}" if probe == path else f"the file {probe} in the way of {path}"
    elif not os.access(probe, os.W_OK | os.X_OK):
        problem = f"no permission in {probe}"
    elif any(probe.is_relative_to(name) for name in _NO_FILES):
        problem = f"{probe}, where the system shows itself and no files are kept"
    else:
        return probe
    raise ConfigError(
        f"{setting}: expected a folder that can be written to, found {problem}: choose another place"
    )


_NO_FILES = ("/proc", "/sys")
"""Folders that seem writable to root but hold no files."""


def check_free(folder: Path, needed: int, setting: str) -> None:
    """Check that the file system of `folder`, which exists, has `needed` bytes of free space.

    Raises
    ------
    TemporaryError
        There is too little space. A file system that does not report its size passes.
    """
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:
        raise TemporaryError(
            f"{setting}: expected about {size(needed)} of free space, found {size(usage.free)} in {folder}: free some, "
            "or choose a place with more"
        )


def size(count: float) -> str:
    """Format a number of bytes for people.

    >>> size(999), size(1_500_000), size(2e13)
    ('999 bytes', '1.5 MB', '20,000.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:.0f} bytes"
