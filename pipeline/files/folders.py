"""A folder on a mounted file system or an object store: the one place where published files are written and synced.

A local file is written under a name of its own, synced and given its name by one rename, or appended to, or made where
nobody looks for it yet; an object is put as a whole. `write_synced`, `_append`, `_rename` and `_put` are all that
changes what others see: tests kill a process before, within and after each of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from pipeline.files.locks import remove

_TEMPORARY = ".tmp"


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

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.filesystem, f"{self.root}/{name}")

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None where there is none."""
        try:
            data: bytes = self.filesystem.cat_file(f"{self.root}/{name}")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return data

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

    def copy(self, source: Path, name: str) -> dict[str, Any]:
        """Copy a local file to a new one, which nobody looks for yet; return its size and SHA-256."""
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if self.local:
            target = Path(self.root, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as reader, target.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
                writer.flush()
                os.fsync(writer.fileno())
        else:
            self.filesystem.put_file(str(source), f"{self.root}/{name}")
        return {"bytes": source.stat().st_size, "sha256": digest}

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, or write it anew: readers see the old content or the new, whole."""
        if not self.local:
            _put(self.filesystem, f"{self.root}/{name}", data)
            return
        path = Path(self.root, name)
        temporary = path.with_name(f"{name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            write_synced(temporary, data)
            _rename(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

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

    def tidy(self, name: str) -> None:
        """Remove what killed processes left of a file that they were replacing; for those who alone may write it."""
        if self.local:
            for left in Path(self.root).glob(f"{name}.*{_TEMPORARY}"):
                left.unlink(missing_ok=True)

    def located(self, name: str) -> str:
        """A path as those understand it who do not have this file system."""
        path = f"{self.root}/{name}"
        return path if self.local else str(self.filesystem.unstrip_protocol(path))


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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems do not know it
        pass
    finally:
        os.close(descriptor)
