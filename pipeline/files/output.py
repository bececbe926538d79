"""Where a job's files go: all of them become visible at once, with a manifest, or none.

On a mounted file system a run writes into a staging folder beside its output and renames it at the end. Object
stores cannot rename: there the files are written in place and the manifest last, and an output without a manifest is
not finished. A marker names the files of an unfinished output, so that the next run can remove them.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import ConfigError, NothingToDoError, TemporaryError, examples
from pipeline.files.locks import make, remove, remove_dead
from pipeline.files.writable import check_free, check_writable

MANIFEST = "_logcal.json"
_UNFINISHED = "_logcal_unfinished.json"
_HEADROOM = 1.02


class Output:
    """An output folder, not yet written.

    Parameters
    ----------
    path : local path or fsspec URL
    setting : the setting that holds it, for messages

    Raises
    ------
    ConfigError
        The path cannot be opened.
    """

    def __init__(self, path: str, setting: str = "output.path") -> None:
        try:
            self.filesystem, self.root = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{setting}: cannot open {path}: {error}") from None
        self.local = isinstance(self.filesystem, LocalFileSystem)
        self.root = os.path.realpath(self.root) if self.local else self.root.rstrip("/")
        self.setting = setting

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of what is there, or None."""
        return self._read(MANIFEST)

    def check(self, run_id: str, needed: int = 0) -> None:
        """Check that a run may write here; nothing is changed.

        Parameters
        ----------
        run_id : of the run
        needed : bytes that it will write

        Raises
        ------
        NothingToDoError
            This run has finished here before.
        ConfigError
            Something else is here, or it cannot be written to.
        TemporaryError
            Too little space.
        """
        self.filesystem.invalidate_cache()
        self._check_empty(run_id)
        if not self.local:
            return
        folder = check_writable(Path(self.root).parent, self.setting)
        check_free(folder, int(needed * _HEADROOM), self.setting)

    def overlaps(self, filesystem: Any, path: str) -> bool:
        """Whether a path of a file system is this folder, lies in it, or contains it."""
        if type(filesystem) is not type(self.filesystem):
            return False
        mine, other = self._plain(self.root), self._plain(path)
        return mine == other or mine.startswith(f"{other}/") or other.startswith(f"{mine}/")

    def check_apart(self, filesystem: Any, places: Iterable[str]) -> None:
        """Check that what is written here does not become part of a log, which lies at some places.

        Raises
        ------
        ConfigError
            This folder is in one of them, or one of them in it.
        """
        over = [place for place in sorted(places) if self.overlaps(filesystem, place)]
        if over:
            raise ConfigError(
                f"{self.setting}: expected a folder apart from the log, found {self.root}, which overlaps {over[0]}: "
                "what is written there would become part of the log; choose another place"
            )

    @contextmanager
    def writing(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        """Write files: what is raised inside leaves nothing visible behind.

        Parameters
        ----------
        run_id : of the run
        names : relative paths of the files that will be written

        Raises
        ------
        NothingToDoError, ConfigError, TemporaryError
            As in `check`; also when another run finished here first.
        """
        self.check(run_id)
        try:
            stage = self._local_staging if self.local else self._remote_staging
            with stage(run_id, names) as staging:
                yield staging
        except OSError as error:
            raise _as_logcal_error(error, self.setting, self.root) from error

    @contextmanager
    def _local_staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        root = Path(self.root)
        root.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{root.name}.logcal-staging-"
        for left in root.parent.glob(f"{prefix}*"):
            remove_dead(left)
        folder = root.parent / f"{prefix}{uuid.uuid4().hex}"
        lock = make(folder)
        try:
            # Made here, not by the tasks: one that outlives its run must not bring the folder back.
            for parent in {(folder / name).parent for name in names}:
                parent.mkdir(parents=True, exist_ok=True)
            staging = Staging(self.filesystem, str(folder))
            yield staging
            staging.finish(run_id)
            _keep_only(folder, staging.files)
            try:
                folder.rename(root)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                self._check_empty(run_id)
                raise
        finally:
            remove(folder)
            if lock is not None:
                os.close(lock)

    @contextmanager
    def _remote_staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        marker = f"{self.root}/{_UNFINISHED}"
        left = self._read(_UNFINISHED)
        if left is not None:
            self._remove(left["files"])
        content = {"run_id": run_id, "token": uuid.uuid4().hex, "files": list(names)}
        self.filesystem.pipe_file(marker, json.dumps(content).encode())
        staging = Staging(self.filesystem, self.root)
        try:
            yield staging
            if self._read(_UNFINISHED) != content:
                raise TemporaryError(f"{self.setting}: another run began to write to {self.root}: run again")
            staging.finish(run_id)
        except BaseException:
            if self._read(_UNFINISHED) == content:
                self._remove([*names, MANIFEST, _UNFINISHED])
            raise
        self._remove([_UNFINISHED])

    def _check_empty(self, run_id: str) -> None:
        manifest = self.manifest()
        if manifest is not None and manifest.get("run_id") == run_id:
            raise NothingToDoError(f"{self.root} holds the result of this run already: nothing was written")
        if manifest is None and self._read(_UNFINISHED) is not None:
            return
        if not self.filesystem.exists(self.root):
            return
        names = [] if self.filesystem.isfile(self.root) else self.filesystem.ls(self.root, detail=False)
        if names or self.filesystem.isfile(self.root):
            found = examples(sorted(name.rstrip("/").rpartition("/")[2] for name in names), 3)
            whose = "" if manifest is None else f", the result of another run ({manifest.get('run_id')})"
            raise ConfigError(
                f"{self.setting}: expected a folder that is new or empty, found {found or 'a file'} in "
                f"{self.root}{whose}: choose another, or remove it"
            )

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads(self.filesystem.cat_file(f"{self.root}/{name}"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self.filesystem.rm_file(f"{self.root}/{name}")
            except OSError:
                continue

    def _plain(self, path: str) -> str:
        return os.path.realpath(path) if self.local else path.rstrip("/")


class Staging:
    """A folder that a run writes to.

    Attributes
    ----------
    files : relative paths of the files that stay: the run appends them.
    facts : of the run, for the manifest: the run fills them in.
    """

    def __init__(self, filesystem: Any, folder: str) -> None:
        self.filesystem = filesystem
        self.folder = folder
        self.files: list[str] = []
        self.facts: dict[str, Any] = {}

    def target(self, relative: str) -> str:
        """Where a file goes."""
        return f"{self.folder}/{relative}"

    def finish(self, run_id: str) -> None:
        """Write the manifest."""
        content = json.dumps({"run_id": run_id, **self.facts}, indent=2, allow_nan=False)
        self.filesystem.pipe_file(self.target(MANIFEST), f"{content}\n".encode())
        self.files.append(MANIFEST)


def _keep_only(folder: Path, files: Sequence[str]) -> None:
    """Remove what lost workers may have left beside the files."""
    wanted = {folder / name for name in files}
    for path in folder.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()


def _as_logcal_error(error: OSError, setting: str, root: str) -> ConfigError | TemporaryError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        return ConfigError(f"{setting}: cannot write to {root} ({error}): choose another place")
    return TemporaryError(f"{setting}: nothing was written to {root}, a file operation failed: {error}")
