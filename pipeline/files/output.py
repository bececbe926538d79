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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from logcal.errors import ConfigError, NothingToDoError, TemporaryError, examples
from logcal.storage import open_filesystem, parse_json
from pipeline.files.faults import write_fault
from pipeline.files.folders import (
    Folder,
    LocalFolder,
    StoreFolder,
    exchange,
    remove_abandoned,
    staging,
    sync_files,
    sync_folder,
)
from pipeline.files.requests import together
from pipeline.files.storage import records_beside, redacted

MANIFEST = "_logcal.json"
_UNFINISHED = "_logcal_unfinished.json"
MANIFEST_BESIDE = "manifest.json"
_UNFINISHED_BESIDE = "unfinished.json"
_HEADROOM = 1.02


class Output(ABC):
    """Output folder of a run; `at` returns its kind.

    Attributes
    ----------
    folder, filesystem, root, url : the folder, its file system and its path there; its path or URL
    setting : name of the setting that holds the path, for messages
    beside : folder of the manifest beside the output; None if it lies in the output
    """

    def __init__(self, folder: Folder, setting: str, beside: str | None, *, replace: bool | None) -> None:
        self.folder, self.url = folder, str(folder)
        self.filesystem, self.root = folder.filesystem, folder.root
        self.setting = setting
        self.beside = beside
        self.replace = replace
        self._side = folder if beside is None else Folder.of(folder.filesystem, beside)
        self._manifest = MANIFEST if beside is None else MANIFEST_BESIDE
        self._marker = _UNFINISHED if beside is None else _UNFINISHED_BESIDE

    @staticmethod
    def at(
        path: str,
        setting: str = "$[output]",
        *,
        beside: bool = False,
        among: str | None = None,
        replace: bool | None = None,
    ) -> Output:
        """Return the output at a local path or fsspec URL.

        Parameters
        ----------
        setting : name of the setting that holds the path, for messages
        beside : whether the manifest lies beside the folder, instead of in it
        among : folder whose readers take all files in it; the manifest then lies beside that folder, unless it is a
            mount point or the top of a file system, or nothing can be written beside it
        replace : whether the output may replace another run's; None: never, and there is no setting `mode` for it

        Raises
        ------
        ConfigError
            The path cannot be opened.
        """
        folder = Folder.of(*open_filesystem(path, setting)).resolved()
        side = records_beside(folder.root) if beside else None
        if beside and among is not None:
            side = _beside_parent(folder, among) or side
        return _KINDS[type(folder)](folder, setting, side, replace=replace)

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the finished output at this path, or None."""
        manifest = self._read(self._manifest)
        return None if manifest is None or not self._matches(manifest) else manifest

    def settle(self) -> None:
        """Write the manifest beside the folder if the folder was renamed and only its marker is there."""
        return

    def _matches(self, manifest: dict[str, Any]) -> bool:
        """Tell whether the folder still has the first file that a manifest beside it names."""
        if self.beside is None:
            return True
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
        self._check_empty(run_id)

    def overlaps(self, filesystem: Any, path: str) -> bool:
        """Tell whether a path is this folder, lies in it, or contains it."""
        if type(filesystem) is not type(self.filesystem):
            return False
        mine, other = self.folder.resolved().root, Folder.of(filesystem, path).resolved().root
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
            with self._staging(run_id, names) as staged:
                yield staged
        except OSError as error:
            raise write_fault(error, f"{self.setting}: {self.root}", "nothing was written") from error

    def publish(
        self, run_id: str, contents: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write the output from contents in memory; see `writing`. facts : entries of the manifest."""
        with self.writing(run_id, list(contents)) as staged:
            for name, content in contents.items():
                staged.folder.write(name, content)
            staged.files += list(contents)
            staged.facts = dict(facts or {})

    @abstractmethod
    def _staging(self, run_id: str, names: Sequence[str]) -> AbstractContextManager[Staging]:
        """Make a staging folder that becomes the output when the block ends."""

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the marker of an unfinished output whose files the next run removes."""
        return None

    def _check_empty(self, run_id: str) -> None:
        requests: list[Callable[[], Any]] = [
            self.manifest,
            self._unfinished,
            partial(self.filesystem.exists, self.root),
        ]
        manifest, marker, exists = together(lambda request: request(), requests, remote=self.folder.remote)
        if manifest is not None and manifest.get("run_id") == run_id:
            raise NothingToDoError(f"{self.root} holds the result of this run already: nothing was written")
        if not exists or (marker if manifest is None else self.replace):
            return
        names = [] if self.filesystem.isfile(self.root) else self.folder.names()
        if names or self.filesystem.isfile(self.root):
            origin = "" if manifest is None else f", the result of another run ({manifest.get('run_id')})"
            mode = f"{self.setting.removesuffix('.path')}.mode"
            remedy = f", or set {mode}=replace" if manifest is not None and self.replace is not None else ""
            raise ConfigError(
                f"{self.setting}: expected a folder that is new or empty, found {examples(names, 3) or 'a file'} in "
                f"{self.root}{origin}: choose another, or remove it{remedy}"
            )

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = parse_json(self._side.read(name) or b"")
        except ValueError:
            return None
        return content if isinstance(content, dict) else None


class LocalOutput(Output):
    """Output on a mounted file system: a folder beside it is renamed."""

    def manifest(self) -> dict[str, Any] | None:
        """See `Output.manifest`."""
        marker = self._renamed()
        return super().manifest() if marker is None else marker["manifest"]

    def _renamed(self) -> dict[str, Any] | None:
        """Return the marker of a folder that was renamed and has no manifest beside it yet."""
        marker = None if self.beside is None else self._read(self._marker)
        return marker if marker is not None and marker.get("inode") == _inode(self.root) else None

    def check(self, run_id: str, needed: int = 0) -> None:
        """See `Output.check`."""
        self.settle()
        super().check(run_id, needed)
        above = Folder.of(self.filesystem, self.root.rpartition("/")[0])
        above.check_writable(self.setting, int(needed * _HEADROOM))

    def settle(self) -> None:
        """See `Output.settle`."""
        marker = self._renamed()
        if marker is not None:
            self._side.write(self._manifest, as_json(marker["manifest"]))
            self._side.remove(self._marker)

    @contextmanager
    def _staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
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
            staged = Staging(Folder.of(self.filesystem, str(folder)))
            yield staged
            if self.beside is None:
                staged.folder.write(MANIFEST, staged.manifest(run_id))
                staged.files.append(MANIFEST)
            finished = {f"{folder}/{name}" for name in staged.files}
            for subfolder, _, names in os.walk(folder):
                paths = {f"{subfolder}/{name}" for name in names}
                for path in paths - finished:  # lost workers may have left them
                    Path(path).unlink()
                sync_files(list(paths & finished))
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
        side = Path(self.beside)
        new = not side.exists()
        marker = {"run_id": manifest["run_id"], "inode": _inode(str(folder)), "manifest": manifest}
        self._side.write(self._marker, as_json(marker))
        remove_abandoned(side)
        try:
            yield
        except BaseException:
            if self._read(self._marker) == marker and marker["inode"] != _inode(self.root):
                self._side.remove(self._marker)
                if new:
                    side.rmdir()
            raise
        self.settle()


class StoreOutput(Output):
    """Output in an object store: its files are written in place, or copied there, and its manifest last."""

    def _unfinished(self) -> dict[str, Any] | None:
        return self._read(self._marker)

    @contextmanager
    def _staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        """See `Output._staging`. After an error there is the old output, or none that is finished, with a marker."""
        unfinished = self._unfinished()
        if unfinished is not None:
            if unfinished["files"]:  # a finished output whose files it began to replace is none without them
                self._side.remove(self._manifest)
            self._remove(self._paths(unfinished))
        marker: dict[str, Any] = {"run_id": run_id, "token": uuid.uuid4().hex, "files": list(names)}
        staged = Staging(self.folder)
        replaces = self.replace and self.manifest() is not None
        if replaces:
            side = self.beside or records_beside(self.root)
            staged = Staging(Folder.of(self.filesystem, f"{side}/staging-{marker['token']}"))
            marker |= {"files": [], "staging": staged.folder.root}
        marker_path, manifest_path = (f"{self._side.root}/{name}" for name in (self._marker, self._manifest))
        self._side.write(self._marker, json.dumps(marker).encode())
        try:
            yield staged
            if self._read(self._marker) != marker:
                raise TemporaryError(f"{self.setting}: another run began to write to {self.root}: run again")
            if replaces:
                old = [path for path in self._found(self.root) if path not in (marker_path, manifest_path)]
                old_names = {path.removeprefix(f"{self.root}/") for path in old}
                both = {**marker, "files": sorted({*old_names, *staged.files})}
                self._side.write(self._marker, json.dumps(both).encode())
            else:
                self._side.write(self._manifest, staged.manifest(run_id))
        except BaseException:
            if self._read(self._marker) == marker:
                self._remove([*self._paths(marker), *([] if replaces else [manifest_path]), marker_path])
            raise
        if replaces:
            self.filesystem.rm_file(manifest_path)
            self._remove([f"{self.root}/{name}" for name in sorted(old_names.difference(staged.files))])
            for name in staged.files:
                self.filesystem.cp_file(f"{staged.folder.root}/{name}", f"{self.root}/{name}")
            self._side.write(self._manifest, staged.manifest(run_id))
            self._remove(self._found(staged.folder.root))
        self._remove([marker_path])

    def _paths(self, marker: dict[str, Any]) -> list[str]:
        """Return the paths of the files that a marker names, and of those in its staging folder."""
        staged = self._found(marker["staging"]) if "staging" in marker else []
        return [*(f"{self.root}/{name}" for name in marker["files"]), *staged]

    def _found(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder."""
        self.filesystem.invalidate_cache()
        return list(self.filesystem.find(folder))

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(OSError):
                self.filesystem.rm_file(path)


_KINDS: dict[Any, type[Output]] = {LocalFolder: LocalOutput, StoreFolder: StoreOutput}


def _beside_parent(folder: Folder, among: str) -> str | None:
    """Return the manifest's folder beside the folder `among`; None if it cannot be there."""
    parent = Folder.of(folder.filesystem, folder.filesystem._strip_protocol(among)).resolved()
    above, _, name = parent.root.rpartition("/")
    relative = folder.root.removeprefix(f"{parent.root}/")
    if not above or not name or relative == folder.root or not parent.may_have_sibling():
        return None
    return f"{records_beside(parent.root)}/{relative}"


@dataclass
class Staging:
    """Folder that a run writes its output to.

    Attributes
    ----------
    files : relative paths of the finished files, which the run appends; other files are removed
    facts : entries of the manifest, which the run sets
    """

    folder: Folder
    files: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def target(self, relative: str) -> str:
        """Return the path of a file to write."""
        return f"{self.folder.root}/{relative}"

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
