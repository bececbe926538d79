"""Folders on a mounted file system or in an object store: all atomic writes and all syncs are made here.

A local file is written under a temporary name (`temporary_sibling`), synced if it must survive a power cut, and then
renamed; or linked, if no file of that name may exist. Other files are appended to, or created where no reader looks
yet. An object is put as a whole. Only `write_synced`, `_append`, `_rename` and `_put` change what others see of a
store: tests kill a process before, within and after each of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.storage import open_filesystem, parse_checked
from pipeline.files.requests import together

_TEMPORARY = ".tmp"
ABANDONED = 3600.0
"""Age in seconds from which a temporary file counts as abandoned by its writer."""
_BLOCK = 1 << 20
_SYNC_THREADS = 4


class Folder(Protocol):
    """Folder, which need not exist; `of` and `at` return its kind.

    Attributes
    ----------
    filesystem : fsspec file system
    root : path in the file system
    remote : whether each operation is a request, so that many should be concurrent
    damaging : errors of reading that mean that a file is missing or damaged, not that a request failed
    """

    filesystem: Any
    root: str
    remote: bool = True
    damaging: tuple[type[OSError], ...] = ()

    def __init__(self, filesystem: Any, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")

    @staticmethod
    def of(filesystem: Any, root: str) -> Folder:
        """Return the folder at a path of a file system."""
        kind = LocalFolder if isinstance(filesystem, LocalFileSystem) else StoreFolder
        return kind(filesystem, root)

    @staticmethod
    def at(path: str | Path, setting: str = "") -> Folder:
        """Return the folder at a local path or a URL.

        setting : name of the setting that holds the path, for messages

        Raises
        ------
        ConfigError
            The URL cannot be opened.
        """
        if not is_url(path):
            local = str(path).removeprefix("file://")
            return Folder.of(LocalFileSystem(), os.path.abspath(local))  # noqa: PTH100 - `Path` resolves more
        return Folder.of(*open_filesystem(str(path), setting))

    def __str__(self) -> str:
        return str(self.filesystem.unstrip_protocol(self.root))

    def __truediv__(self, name: str) -> Folder:
        return type(self)(self.filesystem, f"{self.root}/{name}")

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
        self.filesystem.invalidate_cache(self.root)
        infos = self.filesystem.ls(self.root, detail=True)
        return {info["name"].rpartition("/")[2]: info["size"] for info in infos if info["type"] == "file"}

    def holding(self, name: str) -> list[str]:
        """List the names of the subfolders that have a file of this name, sorted."""

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """Write or replace a file atomically: readers see the old content or the new. Return its size and SHA-256."""

    def copy(self, source: Folder, name: str, new: str | None = None) -> dict[str, Any]:
        """Copy a file of another folder to a new file that no reader looks for yet; return its size and SHA-256.

        new : name of the copy, if it differs
        """

    def link(self, source: Folder, name: str, new: str) -> None:
        """Give a file a second name by a hard link, or copy it if there are no links. Repeating it is harmless."""
        self.copy(source, name, new)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file atomically unless it exists; return whether this call wrote it.

        On an object store this is a conditional PUT.

        Raises
        ------
        ConfigError
            The store does not support it.
        """

    def append(self, file: str, objects: str, lines: Sequence[bytes]) -> None:
        """Append lines to a file, and sync them; an incomplete last line, which a crash left, is dropped.

        In an object store each line is an object `<objects>/<number>-<token>.json`, whose numbers ascend if the callers
        share a lock.
        """

    def lines(self, file: str, objects: str, *, newest_first: bool) -> Iterator[tuple[str, bytes]]:
        """Yield the lines of `append`, oldest first, without an incomplete one: place, for messages, and content."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder if it exists."""

    def make(self) -> None:
        """Create the folder; object stores have no folders."""
        return

    def staging(self, prefix: str) -> AbstractContextManager[LocalFolder | None]:
        """Make a hidden folder in this one, in which a new one is completed; None in an object store, without renames.

        What killed runs left under this prefix is removed.
        """
        return nullcontext()

    def tidy(self) -> None:
        """Remove temporary files of killed processes; only for a caller that has the exclusive right to write."""
        return

    def sync(self, names: Iterable[str] = (), *, missing_ok: bool = False) -> None:
        """Sync the folder's entries, and the content of the named files, to the disk.

        missing_ok : whether files may be missing
        """
        return

    def check_writable(self, setting: str, needed: int = 0) -> None:
        """Check that files of so many bytes can be written, under a lock.

        Raises
        ------
        ConfigError
            There is no permission, or a file is in the way; or the object store has no conditional writes.
        TemporaryError
            There is too little space.
        """

    def resolved(self) -> Folder:
        """Return the folder without symbolic links in its path."""
        return self

    def may_have_sibling(self) -> bool:
        """Tell whether another folder can be made beside this one and be renamed into it."""
        return True


class LocalFolder(Folder):
    """Folder on a mounted file system."""

    remote = False
    damaging = (OSError,)

    def __str__(self) -> str:
        return self.root

    def holding(self, name: str) -> list[str]:
        """See `Folder.holding`."""
        return [folder for folder in self.names() if os.path.exists(f"{self.root}/{folder}/{name}")]  # noqa: PTH110

    def make(self) -> None:
        """See `Folder.make`."""
        Path(self.root).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """See `Folder.write`."""
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        return _facts(data)

    def copy(self, source: Folder, name: str, new: str | None = None) -> dict[str, Any]:
        """See `Folder.copy`."""
        target, digest = Path(self.root, new or name), hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.filesystem.open(f"{source.root}/{name}", "rb") as reader, target.open("wb") as writer:
            while block := reader.read(_BLOCK):
                digest.update(block)
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
            return {"bytes": writer.tell(), "sha256": digest.hexdigest()}

    def link(self, source: Folder, name: str, new: str) -> None:
        """See `Folder.link`."""
        if source.remote:
            self.copy(source, name, new)
            return
        target = Path(self.root, new)
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(f"{source.root}/{name}")
        except OSError:
            self.copy(source, name, new)

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder.create`."""
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(path) as temporary:
            write_synced(temporary, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            sync_folder(path.parent)
        return True

    def append(self, file: str, objects: str, lines: Sequence[bytes]) -> None:
        """See `Folder.append`."""
        self.make()
        _append(Path(self.root, file), b"".join(lines))

    def lines(self, file: str, objects: str, *, newest_first: bool) -> Iterator[tuple[str, bytes]]:
        """See `Folder.lines`."""
        content = self.read(file) or b""
        lines = list(enumerate(content[: _complete(content)].split(b"\n"), 1))
        return ((f"line {i} of {file}", line) for i, line in (lines[::-1] if newest_first else lines) if line)

    @contextmanager
    def staging(self, prefix: str) -> Iterator[LocalFolder]:
        """See `Folder.staging`."""
        self.make()
        with staging(Path(self.root), prefix) as folder:
            yield LocalFolder(self.filesystem, str(folder))

    def appear(self, name: str) -> None:
        """Rename this complete folder atomically to a name that readers see."""
        folder = Path(self.root)
        for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            sync_folder(inner)
        _rename(folder, folder.with_name(name))

    def remove(self, name: str) -> None:
        """See `Folder.remove`."""
        path = Path(self.root, name)
        if path.is_dir() and not path.is_symlink():
            remove(path)
        else:
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """See `Folder.tidy`."""
        for path in Path(self.root).glob(f".*{_TEMPORARY}"):
            path.unlink(missing_ok=True)

    def sync(self, names: Iterable[str] = (), *, missing_ok: bool = False) -> None:
        """See `Folder.sync`."""
        sync_files([f"{self.root}/{name}" for name in names], missing_ok=missing_ok)
        sync_folder(Path(self.root))

    def check_writable(self, setting: str, needed: int = 0) -> None:
        """See `Folder.check_writable`."""
        check_free(check_writable(Path(self.root or "/"), setting), needed, setting)

    def resolved(self) -> Folder:
        """See `Folder.resolved`."""
        return LocalFolder(self.filesystem, os.path.realpath(self.root))

    def may_have_sibling(self) -> bool:
        """See `Folder.may_have_sibling`."""
        above = next(path for path in Path(self.root).parents if path.exists())
        return not os.path.ismount(self.root) and os.access(above, os.W_OK | os.X_OK)


class StoreFolder(Folder):
    """Folder in an object store, which only takes whole objects."""

    def holding(self, name: str) -> list[str]:
        """See `Folder.holding`."""
        # One listing instead of one request per subfolder.
        paths = [path.partition("/") for path in self.files_below()]
        return [folder for folder, _, file in paths if file == name]

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """See `Folder.write`."""
        _put(self.filesystem, f"{self.root}/{name}", data)
        return _facts(data)

    def copy(self, source: Folder, name: str, new: str | None = None) -> dict[str, Any]:
        """See `Folder.copy`."""
        return self.write(new or name, source.filesystem.cat_file(f"{source.root}/{name}"))

    def create(self, name: str, data: bytes) -> bool:
        """See `Folder.create`."""
        path = f"{self.root}/{name}"
        self.check_writable(path)
        try:
            _put(self.filesystem, path, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError, ValueError) as error:
            # Other errors of these kinds tell of the store's other options.
            if isinstance(error, NotImplementedError) or "mode" in str(error):
                raise _unconditional(path, str(error)) from None
            raise
        return True

    def append(self, file: str, objects: str, lines: Sequence[bytes]) -> None:
        """See `Folder.append`."""
        entries = self / objects
        newest = max((int(name.partition("-")[0]) for name in entries.matching("[0-9]*")), default=0)
        names = [f"{newest + 1 + i:06d}-{uuid.uuid4().hex[:8]}.json" for i in range(len(lines))]
        list(together(lambda entry: entries.write(*entry), list(zip(names, lines, strict=True))))

    def lines(self, file: str, objects: str, *, newest_first: bool) -> Iterator[tuple[str, bytes]]:
        """See `Folder.lines`."""
        names = sorted((self / objects).matching("[0-9]*"), reverse=newest_first)
        names = [f"{objects}/{name}" for name in names]
        return zip(names, together(lambda name: self.read(name) or b"", names), strict=True)

    def check_writable(self, setting: str, needed: int = 0) -> None:
        """See `Folder.check_writable`."""
        if getattr(self.filesystem.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:
            raise _unconditional(setting, f"the client of {self} looks first and writes afterwards")

    def remove(self, name: str) -> None:
        """See `Folder.remove`."""
        with suppress(FileNotFoundError):
            self.filesystem.rm(f"{self.root}/{name}", recursive=True)


def _unconditional(subject: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{subject}: expected a store that creates a file only where nothing is (conditional PUT), found one that does "
        f"not ({reason}): use a mounted folder, or a store that does"
    )


def _facts(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


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


def hold(folder: Path) -> int | None:
    """Lock a folder exclusively until this process ends or the returned descriptor is closed.

    Return None if another process holds the lock, or if the file system has no locks.

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


def make(folder: Path, mode: int = 0o777) -> int | None:
    """Create a folder and lock it as `hold` does. It gets its name only once it is locked."""
    remove_abandoned(folder.parent)
    new = folder.with_name(f"{NEW}{uuid.uuid4().hex}")
    new.mkdir(mode)
    lock = hold(new)
    new.rename(folder)
    return lock


@contextmanager
def staging(home: Path, prefix: str, elsewhere: Collection[Path] = (), mode: int = 0o777) -> Iterator[Path]:
    """Create a locked staging folder in `home`; remove it at the end unless it was renamed.

    Staging folders of killed runs, with the same prefix, are removed first.

    elsewhere : further folders in which earlier runs may have left staging folders
    """
    for stale in (path for parent in {home, *elsewhere} for path in parent.glob(f"{prefix}*")):
        remove_dead(stale)
    folder = home / f"{prefix}{uuid.uuid4().hex}"
    lock = make(folder, mode)
    try:
        yield folder
    finally:
        remove(folder)
        if lock is not None:
            os.close(lock)


def remove_dead(folder: Path) -> None:
    """Remove a folder unless a living process holds its lock."""
    try:
        lock = hold(folder)
    except OSError:
        return
    if lock is not None:
        remove(folder)
        os.close(lock)


def free_for(folder: Path, marker: str) -> bool:
    """Tell whether a job may use a path of a mounted file system as its folder, which it identifies by a marker file.

    It may if the folder is new or empty, has the marker, or holds only temporary files of the marker.
    """
    if not folder.exists() or (folder / marker).exists():
        return True
    return folder.is_dir() and all(path.match(f".{marker}.*{_TEMPORARY}") for path in folder.iterdir())


def write_synced(path: Path, data: bytes) -> None:
    """Write a local file and sync its content to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _append(path: Path, line: bytes) -> None:
    with path.open("a+b") as file:
        # What another process appends between the reading and the truncation would be lost.
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = file.read()
        end = file.truncate(_complete(content))
        file.write(b"\n" * (end > content.rfind(b"\n") + 1) + line)
        file.flush()
        os.fsync(file.fileno())


def _complete(content: bytes) -> int:
    """Return the end of the last complete line: one with a newline, or without one a whole JSON value."""
    end = content.rfind(b"\n") + 1
    try:
        json.JSONDecoder().raw_decode(content[end:].decode("utf-8", "replace"))
    except ValueError:
        return end
    except RecursionError:  # damage: no record is nested so deeply
        pass
    return len(content)


def _rename(old: Path, new: Path) -> None:
    old.replace(new)
    sync_folder(new.parent)


def _put(filesystem: Any, path: str, data: bytes, **mode: str) -> None:
    filesystem.pipe_file(path, data, **mode)


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
