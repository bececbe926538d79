"""Output of a job: all files become visible at once, with a manifest, or none.

On a mounted file system a run writes into a staging folder beside its output and renames it at the end. Object
stores cannot rename: there the files are written in place and the manifest last, and an output without a manifest is
not finished. A marker names the files of an unfinished output, so that the next run can remove them.

The manifest lies in the output's folder; or beside it, in `<output>.logcal/`, if readers take all files of the folder.
It is then written after the rename. If a run ends between the two, its marker there names the complete folder and holds
its manifest. Outputs of many days in one folder are read together, too: their manifests and staging folders lie beside
that folder, in `<folder>.logcal/<output>/`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from pipeline.files.storage import redacted

MANIFEST = "_logcal.json"
_UNFINISHED = "_logcal_unfinished.json"
BESIDE = ".logcal"
"""Ends the name of the folder beside an output."""
MANIFEST_BESIDE = "manifest.json"
_UNFINISHED_BESIDE = "unfinished.json"
_HEADROOM = 1.02


class Output:
    """An output folder, not yet written.

    Parameters
    ----------
    path : local path or fsspec URL
    setting : the setting that holds it, for messages
    beside : whether the manifest lies beside the folder, instead of in it
    among : the folder whose readers are to meet nothing but outputs; the manifest then lies beside that one, unless it
        is a file system of its own, or the top of one, or nothing can be written beside it
    replace : whether the output may take the place of another run's

    Raises
    ------
    ConfigError
        The path cannot be opened.
    """

    def __init__(
        self,
        path: str,
        setting: str = "output.path",
        *,
        beside: bool = False,
        among: str | None = None,
        replace: bool = False,
    ) -> None:
        self.filesystem, self.root = open_filesystem(path, setting)
        self.local = isinstance(self.filesystem, LocalFileSystem)
        self.root = os.path.realpath(self.root) if self.local else self.root.rstrip("/")
        self.setting = setting
        self.url = self.root if self.local else str(self.filesystem.unstrip_protocol(self.root))
        self.beside = f"{self.root}{BESIDE}" if beside else None
        # Where earlier versions, which knew no `among`, left it.
        self._older = self.beside
        if beside and among is not None:
            self.beside = self._beside_all(among) or self.beside
        self.replace = replace
        self._mode = f"{setting.removesuffix('path')}mode"
        self._manifest_path = f"{self.beside}/{MANIFEST_BESIDE}" if beside else f"{self.root}/{MANIFEST}"
        self._marker = f"{self.beside}/{_UNFINISHED_BESIDE}" if beside else f"{self.root}/{_UNFINISHED}"

    def _beside_all(self, among: str) -> str | None:
        """The folder of the manifest, beside the one that many outputs are in; None where it cannot be there."""
        whole = self._plain(self.filesystem._strip_protocol(among))
        folder, _, name = whole.rpartition("/")
        inside = self.root.removeprefix(f"{whole}/")
        if not folder or not name or inside == self.root:
            return None
        if self.local:
            there = next(path for path in Path(whole).parents if path.exists())
            if os.path.ismount(whole) or not os.access(there, os.W_OK | os.X_OK):
                return None
        return f"{whole}{BESIDE}/{inside}"

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of what is there, or None."""
        if self.beside is None:
            return self._read(self._manifest_path)
        for side in dict.fromkeys((self.beside, self._older)):
            left = self._read(f"{side}/{_UNFINISHED_BESIDE}") if self.local else None
            if left is not None and left.get("inode") == _inode(self.root):
                manifest: dict[str, Any] = left["manifest"]
                return manifest
            found = self._read(f"{side}/{MANIFEST_BESIDE}")
            if found is not None and self._holds(found):
                return found
        # The earliest versions left it in the folder.
        return self._read(f"{self.root}/{MANIFEST}")

    def _holds(self, manifest: dict[str, Any]) -> bool:
        """Tell whether the folder is still the one that a manifest beside it was written for."""
        files = manifest.get("files") or [{"path": ""}]
        return bool(self.filesystem.exists(f"{self.root}/{files[0]['path']}".rstrip("/")))

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
        if self.replace and not self.local:
            raise ConfigError(
                f"{self.setting}: expected a mounted folder with {self._mode}=replace, found {self.root} in an object "
                "store, which cannot rename: write to a new place, or remove what is there"
            )
        self._settle()
        self._check_empty(run_id)
        if not self.local:
            return
        folder = check_writable(Path(self.root).parent, self.setting)
        check_free(folder, int(needed * _HEADROOM), self.setting)

    def overlaps(self, filesystem: Any, path: str) -> bool:
        """Tell whether a path of a file system is this folder, lies in it, or contains it."""
        if type(filesystem) is not type(self.filesystem):
            return False
        mine, other = self._plain(self.root), self._plain(path)
        return mine == other or mine.startswith(f"{other}/") or other.startswith(f"{mine}/")

    def check_apart(self, places: Iterable[tuple[Any, str]]) -> None:
        """Check that what is written here does not become part of a log or its outcomes.

        places : file system and path of each of their folders

        Raises
        ------
        ConfigError
            This folder is in one of them, or one of them in it.
        """
        over = sorted(place for filesystem, place in places if self.overlaps(filesystem, place))
        if over:
            raise ConfigError(
                f"{self.setting}: expected a folder apart from the log and its outcomes, found {self.root}, which "
                f"overlaps {over[0]}: what is written there would be read as rows; choose another place"
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
            with stage(run_id, names) as staged:
                yield staged
        except OSError as error:
            raise write_fault(error, f"{self.setting}: {self.root}", "nothing was written") from error

    def publish(
        self, run_id: str, contents: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write files whose contents are there, as `writing` does. facts : for the manifest."""
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
        if self.beside != self._older:
            # Some readers pass over no name.
            home = Path(str(self.beside)).parent
            home.mkdir(parents=True, exist_ok=True)
            if home.stat().st_dev != root.parent.stat().st_dev:  # a rename leads nowhere else
                home = root.parent
        # Whom the user kept out stays out.
        mode = stat.S_IMODE(root.stat().st_mode) | stat.S_IRWXU if root.is_dir() else None
        with staging(home, prefix, [root.parent]) as folder:
            if mode is not None:
                folder.chmod(mode)
            # Made here, not by the tasks: one that outlives its run must not bring the folder back.
            for parent in {(folder / name).parent for name in names}:
                parent.mkdir(parents=True, exist_ok=True)
            staged = Staging(self.filesystem, str(folder))
            yield staged
            if self.beside is None:
                staged.write(MANIFEST, staged.manifest(run_id))
                staged.files.append(MANIFEST)
            _keep_only(folder, staged.files)
            for inside, _, names in os.walk(folder):
                sync_files([f"{inside}/{name}" for name in names])
                sync_folder(Path(inside))
            with self._finishing(folder, {"run_id": run_id, **staged.facts}):
                try:
                    self._place(folder, root)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        self._check_empty(run_id)
                    raise

    def _place(self, folder: Path, root: Path) -> None:
        """Give a finished folder its name."""
        if self.replace and root.exists() and any(root.iterdir()):
            exchange(folder, root)  # what was there is removed as the staging folder
        else:
            folder.rename(root)
        sync_folder(root.parent)

    @contextmanager
    def _finishing(self, folder: Path, manifest: dict[str, Any]) -> Iterator[None]:
        """While a folder gets its name: say beforehand whose manifest will lie beside it, and let it lie there then."""
        if self.beside is None:
            yield
            return
        side, marker = Path(self.beside), Path(self._marker)
        new = not side.exists()
        side.mkdir(exist_ok=True)
        remove_abandoned(side)
        left = {"run_id": manifest["run_id"], "inode": _inode(str(folder)), "manifest": manifest}
        write_whole(marker, as_json(left))
        try:
            yield
        except BaseException:
            if self._read(self._marker) == left and left["inode"] != _inode(self.root):
                marker.unlink()
                if new:
                    side.rmdir()
            raise
        self._settle()

    def _settle(self) -> None:
        """Put the manifest beside a folder that got its name, if that is still to be done."""
        if self.beside is None or not self.local:
            return
        left = self._read(self._marker)
        if left is not None and left.get("inode") == _inode(self.root):
            write_whole(Path(self._manifest_path), as_json(left["manifest"]))
            Path(self._marker).unlink(missing_ok=True)
            if self._older != self.beside:
                self._remove_older()

    def _remove_older(self) -> None:
        """Remove the manifest of what this output replaces, where an earlier version left it among the outputs."""
        older = Path(str(self._older))
        for name in (MANIFEST_BESIDE, _UNFINISHED_BESIDE):
            (older / name).unlink(missing_ok=True)
        with suppress(OSError):
            older.rmdir()

    @contextmanager
    def _remote_staging(self, run_id: str, names: Sequence[str]) -> Iterator[Staging]:
        left = self._read(self._marker)
        if left is not None:
            self._remove_paths([f"{self.root}/{name}" for name in left["files"]])
        content = {"run_id": run_id, "token": uuid.uuid4().hex, "files": list(names)}
        folder, _, marker = self._marker.rpartition("/")
        side = Folder(self.filesystem, folder)
        side.write(marker, json.dumps(content).encode())
        staged = Staging(self.filesystem, self.root)
        try:
            yield staged
            if self._read(self._marker) != content:
                raise TemporaryError(f"{self.setting}: another run began to write to {self.root}: run again")
            side.write(self._manifest_path.rpartition("/")[2], staged.manifest(run_id))
        except BaseException:
            if self._read(self._marker) == content:
                self._remove_paths([f"{self.root}/{name}" for name in names])
                self._remove_paths([self._manifest_path, self._marker])
            raise
        self._remove_paths([self._marker])

    def _check_empty(self, run_id: str) -> None:
        asked: list[Callable[[], Any]] = [
            self.manifest,
            partial(self._read, self._marker),
            partial(self.filesystem.exists, self.root),
        ]
        manifest, left, there = together(lambda ask: ask(), asked, remote=not self.local)
        if manifest is not None and manifest.get("run_id") == run_id:
            raise NothingToDoError(f"{self.root} holds the result of this run already: nothing was written")
        if manifest is None and not self.local and left is not None:
            return
        if not there or (self.replace and manifest is not None):
            return
        names = [] if self.filesystem.isfile(self.root) else self.filesystem.ls(self.root, detail=False)
        if names or self.filesystem.isfile(self.root):
            found = examples(sorted(name.rstrip("/").rpartition("/")[2] for name in names), 3)
            whose = "" if manifest is None else f", the result of another run ({manifest.get('run_id')})"
            has_mode = self.beside is not None or self.setting == "report.path"
            instead = f", or set {self._mode}=replace" if manifest is not None and has_mode else ""
            raise ConfigError(
                f"{self.setting}: expected a folder that is new or empty, found {found or 'a file'} in "
                f"{self.root}{whose}: choose another, or remove it{instead}"
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
    """A folder that a run writes to.

    Attributes
    ----------
    files : relative paths of the files that stay: the run appends them.
    facts : of the run, for the manifest: the run fills them in.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self.files: list[str] = []
        self.facts: dict[str, Any] = {}

    def target(self, relative: str) -> str:
        """Return the target of a file."""
        return f"{self.root}/{relative}"

    def manifest(self, run_id: str) -> bytes:
        """The manifest's bytes."""
        return as_json({"run_id": run_id, **self.facts})


def as_json(content: dict[str, Any]) -> bytes:
    """A manifest's bytes."""
    return f"{json.dumps(redacted(content), indent=2, allow_nan=False)}\n".encode()


def _inode(path: str) -> int | None:
    """Identify a folder whatever its name; None if there is none."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None


def _keep_only(folder: Path, files: Sequence[str]) -> None:
    """Remove what lost workers may have left beside the files."""
    wanted = {f"{folder}/{name}" for name in files}
    for inside, _, names in os.walk(folder):
        for path in (f"{inside}/{name}" for name in names):
            if path not in wanted:
                Path(path).unlink()
