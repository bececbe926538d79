"""Output of a job: either all files become visible at once, with a manifest, or none.

On a mounted file system a run writes into a staging folder beside its output and renames it at the end. Object
stores cannot rename: there the files are written in place and the manifest last, and an output without a manifest is
not finished. A marker names the files of an unfinished output, so that the next run can remove them. What replaces an
output there is written in a hidden folder first, then copied within the store; meanwhile there is no manifest.

The manifest lies in the output's folder; or beside it, in the hidden folder `.<output>.logcal/`, if readers take all
files of the folder. It is then written after the rename. If a run ends between the two, its marker there identifies the
complete folder and contains its manifest. If readers take many outputs in one folder together, such as days, their
manifests and staging folders lie beside that folder, in `.<folder>.logcal/<output>/`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, NothingToDoError, TemporaryError, examples
from logcal.storage import open_filesystem, parse_json
from pipeline.files.faults import write_fault
from pipeline.files.folders import (
    Folder,
    check_free,
    check_writable,
    exchange,
    remove_abandoned,
    sync_files,
    sync_folder,
    write_whole,
)
from pipeline.files.locks import staging
from pipeline.files.requests import together
from pipeline.files.storage import records_beside, redacted

MANIFEST = "_logcal.json"
_UNFINISHED = "_logcal_unfinished.json"
MANIFEST_BESIDE = "manifest.json"
_UNFINISHED_BESIDE = "unfinished.json"
_HEADROOM = 1.02


class Output:
    """Output folder of a run.

    Parameters
    ----------
    path : local path or fsspec URL
    setting : name of the setting that holds the path, for messages
    beside : whether the manifest lies beside the folder, instead of in it
    among : folder whose readers take all files in it; the manifest then lies beside that folder, unless it is a mount
        point or the top of a file system, or nothing can be written beside it
    replace : whether the output may replace another run's; None: never, and there is no setting `mode` for it

    Raises
    ------
    ConfigError
        The path cannot be opened.
    """

    def __init__(
        self,
        path: str,
        setting: str = "$output",
        *,
        beside: bool = False,
        among: str | None = None,
        replace: bool | None = None,
    ) -> None:
        self.filesystem, self.root = open_filesystem(path, setting)
        self.local = isinstance(self.filesystem, LocalFileSystem)
        self.root = os.path.realpath(self.root) if self.local else self.root.rstrip("/")
        self.setting = setting
        self.url = self.root if self.local else str(self.filesystem.unstrip_protocol(self.root))
        self.beside = records_beside(self.root) if beside else None
        if beside and among is not None:
            self.beside = self._beside_parent(among) or self.beside
        self.replace = replace
        self._manifest_path = f"{self.beside}/{MANIFEST_BESIDE}" if beside else f"{self.root}/{MANIFEST}"
        self._marker = f"{self.beside}/{_UNFINISHED_BESIDE}" if beside else f"{self.root}/{_UNFINISHED}"

    def _beside_parent(self, among: str) -> str | None:
        """Return the manifest's folder beside the folder `among`; None if it cannot be there."""
        parent = self._plain(self.filesystem._strip_protocol(among))
        folder, _, name = parent.rpartition("/")
        relative = self.root.removeprefix(f"{parent}/")
        if not folder or not name or relative == self.root:
            return None
        if self.local:
            existing = next(path for path in Path(parent).parents if path.exists())
            if os.path.ismount(parent) or not os.access(existing, os.W_OK | os.X_OK):
                return None
        return f"{records_beside(parent)}/{relative}"

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the finished output at this path, or None."""
        if self.beside is None:
            return self._read(self._manifest_path)
        marker = self._read(self._marker) if self.local else None
        if marker is not None and marker.get("inode") == _inode(self.root):
            pending: dict[str, Any] = marker["manifest"]
            return pending
        manifest = self._read(self._manifest_path)
        return manifest if manifest is not None and self._matches(manifest) else None

    def _matches(self, manifest: dict[str, Any]) -> bool:
        """Tell whether the folder still has the first file that a manifest beside it names."""
        files = manifest.get("files") or [{"path": ""}]
        return bool(self.filesystem.exists(f"{self.root}/{files[0]['path']}".rstrip("/")))

    def check(self, run_id: str, needed: int = 0) -> None:
        """Check that a run may write this output.

        Parameters
        ----------
        run_id : identity of the run
        needed : bytes that the run will write

        Raises
        ------
        NothingToDoError
            This run has already written the output.
        ConfigError
            The folder holds something else, or cannot be written to.
        TemporaryError
            There is too little space.
        """
        self.filesystem.invalidate_cache()
        self._settle()
        self._check_empty(run_id)
        if not self.local:
            return
        folder = check_writable(Path(self.root).parent, self.setting)
        check_free(folder, int(needed * _HEADROOM), self.setting)

    def overlaps(self, filesystem: Any, path: str) -> bool:
        """Tell whether a path is this folder, lies in it, or contains it."""
        if type(filesystem) is not type(self.filesystem):
            return False
        mine, other = self._plain(self.root), self._plain(path)
        return mine == other or mine.startswith(f"{other}/") or other.startswith(f"{mine}/")

    def check_apart(self, folders: Iterable[tuple[Any, str]]) -> None:
        """Check that this folder does not overlap the folders of a log and its outcomes.

        folders : file system and path of each

        Raises
        ------
        ConfigError
            This folder is one of them, lies in one, or contains one.
        """
        overlapping = sorted(path for filesystem, path in folders if self.overlaps(filesystem, path))
        if overlapping:
            raise ConfigError(
                f"{self.setting}: expected a folder apart from the log and its outcomes, found {self.root}, which "
                f"overlaps {overlapping[0]}: what is written there would be read as rows; choose another place"
            )

    @contextmanager
    def writing(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        """Yield a staging folder that becomes the output when the block ends; after an error nothing is visible.

        Parameters
        ----------
        run_id : identity of the run
        names : relative paths of the files that will be written

        Raises
        ------
        NothingToDoError, ConfigError, TemporaryError
            See `check`; also if another run finished its output first.
        """
        self.check(run_id)
        try:
            stage = self._local_staging if self.local else self._remote_staging
            with stage(run_id, names) as staged:
                yield staged
        except OSError as error:
            raise write_fault(error, f"{self.setting}: {self.root}", "nothing was written") from error

    def publish(
        self, run_id: str, contents: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write the output from contents in memory; see `writing`. facts : entries of the manifest."""
        with self.writing(run_id, list(contents)) as staged:
            for name, content in contents.items():
                staged.write(name, content)
            staged.files += list(contents)
            staged.facts = dict(facts or {})

    @contextmanager
    def _local_staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        root = Path(self.root)
        root.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{root.name}.logcal-staging-"
        home = root.parent
        if self.beside is not None and self.beside != records_beside(self.root):
            # Some readers skip no names, so staging folders must not lie among the outputs.
            home = Path(self.beside).parent
            home.mkdir(parents=True, exist_ok=True)
            if home.stat().st_dev != root.parent.stat().st_dev:  # renames do not cross file systems
                home = root.parent
        # A replacement keeps the permissions of the old folder.
        mode = stat.S_IMODE(root.stat().st_mode) | stat.S_IRWXU if root.is_dir() else None
        with staging(home, prefix, [root.parent]) as folder:
            if mode is not None:
                folder.chmod(mode)
            # Tasks do not create folders: a task that outlives its run must not create the folder again.
            for parent in {(folder / name).parent for name in names}:
                parent.mkdir(parents=True, exist_ok=True)
            staged = Staging(self.filesystem, str(folder))
            yield staged
            if self.beside is None:
                staged.write(MANIFEST, staged.manifest(run_id))
                staged.files.append(MANIFEST)
            _keep_only(folder, staged.files)
            for subfolder, _, names in os.walk(folder):
                sync_files([f"{subfolder}/{name}" for name in names])
                sync_folder(Path(subfolder))
            with self._finishing(folder, {"run_id": run_id, **staged.facts}):
                try:
                    self._place(folder, root)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        self._check_empty(run_id)
                    raise

    def _place(self, folder: Path, root: Path) -> None:
        """Rename the finished staging folder to the output's name."""
        if self.replace and root.exists() and any(root.iterdir()):
            exchange(folder, root)  # the old output is then removed as the staging folder
        else:
            folder.rename(root)
        sync_folder(root.parent)

    @contextmanager
    def _finishing(self, folder: Path, manifest: dict[str, Any]) -> Iterator[None]:
        """Write a marker before the block renames the folder, and the manifest beside the folder afterwards."""
        if self.beside is None:
            yield
            return
        side, path = Path(self.beside), Path(self._marker)
        new = not side.exists()
        side.mkdir(exist_ok=True)
        remove_abandoned(side)
        marker = {"run_id": manifest["run_id"], "inode": _inode(str(folder)), "manifest": manifest}
        write_whole(path, as_json(marker))
        try:
            yield
        except BaseException:
            if self._read(self._marker) == marker and marker["inode"] != _inode(self.root):
                path.unlink()
                if new:
                    side.rmdir()
            raise
        self._settle()

    def _settle(self) -> None:
        """Write the manifest beside the folder if the folder was renamed and only its marker is there."""
        if self.beside is None or not self.local:
            return
        marker = self._read(self._marker)
        if marker is not None and marker.get("inode") == _inode(self.root):
            write_whole(Path(self._manifest_path), as_json(marker["manifest"]))
            Path(self._marker).unlink(missing_ok=True)

    @contextmanager
    def _remote_staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        unfinished = self._read(self._marker)
        if unfinished is not None:
            self._remove_paths([f"{self.root}/{name}" for name in unfinished["files"]])
            self._remove_paths(self._found(unfinished.get("staging")))
        replaces = self.replace and self.manifest() is not None
        with self._replacing(run_id) if replaces else self._in_place(run_id, names) as staged:
            yield staged

    @contextmanager
    def _replacing(self, run_id: str) -> Iterator[Staging]:
        """Replace an object store's output. An error leaves the old one, or none that is finished, and the marker."""
        folder, _, marker_name = self._marker.rpartition("/")
        side, token = Folder(self.filesystem, folder), uuid.uuid4().hex
        staged = Staging(self.filesystem, f"{self.beside or records_beside(self.root)}/staging-{token}")
        marker = {"run_id": run_id, "token": token, "files": [], "staging": staged.root}
        side.write(marker_name, json.dumps(marker).encode())
        try:
            yield staged
            self._check_marker(marker)
            old = [path[len(self.root) + 1 :] for path in self._found(self.root)]
            old = [name for name in old if f"{self.root}/{name}" not in (self._marker, self._manifest_path)]
            both = {**marker, "files": sorted({*old, *staged.files})}
            side.write(marker_name, json.dumps(both).encode())
        except BaseException:
            if self._read(self._marker) == marker:
                self._remove_paths([*self._found(staged.root), self._marker])
            raise
        self.filesystem.rm_file(self._manifest_path)
        self._remove_paths([f"{self.root}/{name}" for name in old if name not in staged.files])
        for name in staged.files:
            self.filesystem.cp_file(f"{staged.root}/{name}", f"{self.root}/{name}")
        side.write(self._manifest_path.rpartition("/")[2], staged.manifest(run_id))
        self._remove_paths([*self._found(staged.root), self._marker])

    def _found(self, folder: str | None) -> list[str]:
        """Return the paths of all files below a folder of an object store."""
        if folder is None:
            return []
        self.filesystem.invalidate_cache()
        return list(self.filesystem.find(folder))

    def _check_marker(self, marker: dict[str, Any]) -> None:
        if self._read(self._marker) != marker:
            raise TemporaryError(f"{self.setting}: another run began to write to {self.root}: run again")

    @contextmanager
    def _in_place(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        marker = {"run_id": run_id, "token": uuid.uuid4().hex, "files": list(names)}
        folder, _, marker_name = self._marker.rpartition("/")
        side = Folder(self.filesystem, folder)
        side.write(marker_name, json.dumps(marker).encode())
        staged = Staging(self.filesystem, self.root)
        try:
            yield staged
            self._check_marker(marker)
            side.write(self._manifest_path.rpartition("/")[2], staged.manifest(run_id))
        except BaseException:
            if self._read(self._marker) == marker:
                self._remove_paths([f"{self.root}/{name}" for name in names])
                self._remove_paths([self._manifest_path, self._marker])
            raise
        self._remove_paths([self._marker])

    def _check_empty(self, run_id: str) -> None:
        requests: list[Callable[[], Any]] = [
            self.manifest,
            partial(self._read, self._marker),
            partial(self.filesystem.exists, self.root),
        ]
        manifest, marker, exists = together(lambda request: request(), requests, remote=not self.local)
        if manifest is not None and manifest.get("run_id") == run_id:
            raise NothingToDoError(f"{self.root} holds the result of this run already: nothing was written")
        if manifest is None and not self.local and marker is not None:
            return
        if not exists or (self.replace and manifest is not None):
            return
        names = [] if self.filesystem.isfile(self.root) else self.filesystem.ls(self.root, detail=False)
        if names or self.filesystem.isfile(self.root):
            shown = examples(sorted(name.rstrip("/").rpartition("/")[2] for name in names), 3)
            origin = "" if manifest is None else f", the result of another run ({manifest.get('run_id')})"
            mode = f"{self.setting.removesuffix('.path')}.mode"
            remedy = f", or set {mode}=replace" if manifest is not None and self.replace is not None else ""
            raise ConfigError(
                f"{self.setting}: expected a folder that is new or empty, found {shown or 'a file'} in "
                f"{self.root}{origin}: choose another, or remove it{remedy}"
            )

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            content = parse_json(self.filesystem.cat_file(path))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _remove_paths(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self.filesystem.rm_file(path)
            except OSError:
                continue

    def _plain(self, path: str) -> str:
        return os.path.realpath(path) if self.local else path.rstrip("/")


class Staging(Folder):
    """Folder that a run writes its output to.

    Attributes
    ----------
    files : relative paths of the finished files, which the run appends; other files are removed
    facts : entries of the manifest, which the run sets
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self.files: list[str] = []
        self.facts: dict[str, Any] = {}

    def target(self, relative: str) -> str:
        """Return the path of a file to write."""
        return f"{self.root}/{relative}"

    def manifest(self, run_id: str) -> bytes:
        """Encode the manifest."""
        return as_json({"run_id": run_id, **self.facts})


def as_json(content: dict[str, Any]) -> bytes:
    """Encode a manifest as JSON."""
    return f"{json.dumps(redacted(content), indent=2, allow_nan=False)}\n".encode()


def _inode(path: str) -> int | None:
    """Return a folder's inode number, which a rename does not change; None if the folder does not exist."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None


def _keep_only(folder: Path, files: Sequence[str]) -> None:
    """Remove all but these files, since lost workers may have left others."""
    wanted = {f"{folder}/{name}" for name in files}
    for subfolder, _, names in os.walk(folder):
        for path in (f"{subfolder}/{name}" for name in names):
            if path not in wanted:
                Path(path).unlink()
