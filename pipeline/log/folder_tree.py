"""Files below a folder of a mounted file system, also through links, and skipped entries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from logcal.arrow_columns import as_column


@dataclass
class Entries:
    """Entries below a path.

    Attributes
    ----------
    files : by path, the path below the log's root, and size and modification
    skipped : relative paths of what is passed over; folders end in '/'
    unnamed : relative paths of Parquet files that do not end as such
    problems : why the log cannot be used
    snapshots : what `pipeline.log.snapshots` found, where the path is a table
    """

    files: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    snapshots: list[Any] = field(default_factory=list)


def shown_names(relative: str) -> bool:
    """Tell whether no part of a path begins with "_" or "."."""
    return not any(part.startswith(("_", ".")) for part in relative.split("/"))


def local_tree(root: str) -> Entries:
    """All files below a folder, also those that links lead to.

    A link to a folder or a file that is there already would count rows twice, and one that leads nowhere loses them:
    these are problems.
    """
    found = Entries()
    _Walk(root, found).walk(root, ())
    return found


class _Walk:
    def __init__(self, root: str, found: Entries) -> None:
        self.root = root.rstrip("/")
        self.found = found
        self.folders: dict[tuple[int, int], str] = {}
        self.files: dict[tuple[int, int], tuple[str, bool]] = {}

    def walk(self, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        status = Path(folder).stat()
        key = (status.st_dev, status.st_ino)
        name = self._relative(folder) or "."
        if key in above:
            self._problem(f"the link {name} leads back to a folder that it lies in, round in a circle")
            return
        if key in self.folders:
            self._problem(f"{name} and {self.folders[key]} are one folder, whose rows would count twice")
            return
        self.folders[key] = name
        # Folders before links, so that what is said to be there already is the folder itself.
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: (entry.is_symlink(), entry.name))
        except PermissionError:
            self.found.problems.append(
                f"expected to be allowed to read the folder {name}, found no permission"
            )
            return
        for entry in entries:
            self._take(entry, (*above, key))

    def _take(self, entry: os.DirEntry[str], above: tuple[tuple[int, int], ...]) -> None:
        relative = self._relative(entry.path)
        folder = entry.is_dir()
        if not shown_names(entry.name):
            self.found.skipped.append(f"{relative}/" if folder else relative)
        elif folder:
            self.walk(entry.path, above)
        elif entry.is_file():
            self._take_file(entry, relative)
        elif entry.is_symlink():
            self._problem(
                f"the link {relative} leads to {Path(entry.path).readlink()}, where there is nothing"
            )
        else:
            self.found.skipped.append(relative)

    def _take_file(self, entry: os.DirEntry[str], relative: str) -> None:
        status = entry.stat()
        key = (status.st_dev, status.st_ino)
        other, link = self.files.setdefault(key, (relative, entry.is_symlink()))
        # Two names of one file that are both no links are two files of one content, as far as one can tell.
        if other != relative and (link or entry.is_symlink()):
            self._problem(f"{relative} and {other} are one file, whose rows would count twice")
            return
        self.found.files[entry.path] = (relative, {"size": status.st_size, "mtime": status.st_mtime})

    def _relative(self, path: str) -> str:
        return path[len(self.root) :].lstrip("/")

    def _problem(self, text: str) -> None:
        self.found.problems.append(f"{text}: remove the link, or give log.path the folders one by one")


# Hive folders: values of columns that stand in the names of folders, such as `country=DE/`, and not in the files.

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Name of a folder whose value is null."""


def hive_value(path: str, key: str) -> str | None:
    """The value that a file's folders have for a key, the nearest one's; None where they have none."""
    for part in path.split("/")[-2::-1]:
        name, equals, value = part.partition("=")
        if equals and unquote(name) == key:
            return unquote(value)
    return None


def with_keys(schema: pa.Schema, path: str, names: Iterable[str]) -> pa.Schema:
    """A file's schema, and as strings those of some columns that only its folders have."""
    for name in names:
        if name not in schema.names and hive_value(path, name) is not None:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def with_values(batch: pa.RecordBatch, path: str, names: Iterable[str]) -> pa.RecordBatch:
    """A batch of a file's rows, and as columns of strings those that only its folders have."""
    for name in names:
        if name in batch.schema.names:
            continue
        value = hive_value(path, name)
        known = [] if value is None or value == NO_VALUE else [value]
        dictionary = pa.array(known, pa.string())
        rows = batch.num_rows
        indices = as_column(np.zeros(rows, np.int32)) if known else pa.nulls(rows, pa.int32())
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(indices, dictionary))
    return batch
