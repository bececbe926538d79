"""Recursive listing of a local folder, with symbolic links and skipped entries; values of hive folders."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from logcal.arrow_columns import as_column
from logcal.errors import InputRejectedError


@dataclass
class Entries:
    """Entries below a path.

    Attributes
    ----------
    files : by path, the path relative to the log's root, and the file's info (size, modification time)
    skipped : relative paths of skipped files and folders; folders end in '/'
    unnamed : relative paths of Parquet files without a Parquet suffix
    problems : reasons why the log cannot be used
    snapshots : the `Snapshot` of the table, if the path is a table
    """

    files: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    snapshots: list[Any] = field(default_factory=list)


TEMPORARY = ("._COPYING_", ".tmp")
"""Ends of the names of files that are being copied (by Hadoop) or written."""


def all_visible(relative: str) -> bool:
    """Tell whether no part of a path begins with "_" or ".", or ends as names of temporary files do."""
    return not any(part.startswith(("_", ".")) or part.endswith(TEMPORARY) for part in relative.split("/"))


def local_tree(root: str, passed_over: Callable[[str], bool] | None = None) -> Entries:
    """List all regular files below a folder, following links.

    Problems are links to a folder or file that is listed already, whose rows would count twice, and broken links.
    Devices, FIFOs and sockets, whose reads may never end, are skipped.

    passed_over : tells of a folder's name whether the folder is not listed
    """
    entries = Entries()
    _TreeWalk(root, entries, passed_over).walk(root, ())
    return entries


class _TreeWalk:
    def __init__(self, root: str, entries: Entries, passed_over: Callable[[str], bool] | None) -> None:
        self.root = root.rstrip("/")
        self.entries = entries
        self.passed_over = passed_over
        self.folders: dict[tuple[int, int], str] = {}
        self.files: dict[tuple[int, int], tuple[str, bool]] = {}

    def walk(self, folder: str, ancestors: tuple[tuple[int, int], ...]) -> None:
        try:
            status = Path(folder).stat()
        except FileNotFoundError:  # removed since it was listed
            return
        key = (status.st_dev, status.st_ino)
        name = self._relative(folder) or "."
        if key in ancestors:
            self._problem(f"the link {name} leads back to a folder that it lies in, round in a circle")
            return
        if key in self.folders:
            self._problem(f"{name} and {self.folders[key]} are one folder, whose rows would count twice")
            return
        self.folders[key] = name
        # Folders precede links, so that a message on duplicates names the folder as the first of the two.
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: (entry.is_symlink(), entry.name))
        except PermissionError:
            self.entries.problems.append(
                f"expected to be allowed to read the folder {name}, found no permission"
            )
            return
        except FileNotFoundError:
            return
        for entry in entries:
            self._add(entry, (*ancestors, key))

    def _add(self, entry: os.DirEntry[str], ancestors: tuple[tuple[int, int], ...]) -> None:
        relative = self._relative(entry.path)
        is_folder = entry.is_dir()
        if not all_visible(entry.name):
            self.entries.skipped.append(f"{relative}/" if is_folder else relative)
        elif is_folder:
            if self.passed_over is None or not self.passed_over(entry.name):
                self.walk(entry.path, ancestors)
        elif entry.is_file():
            self._add_file(entry, relative)
        elif entry.is_symlink() and not Path(entry.path).exists():
            self._problem(
                f"the link {relative} leads to {Path(entry.path).readlink()}, where there is nothing"
            )
        else:
            self.entries.skipped.append(relative)

    def _add_file(self, entry: os.DirEntry[str], relative: str) -> None:
        try:
            status = entry.stat()
        except FileNotFoundError:
            return
        key = (status.st_dev, status.st_ino)
        earlier, earlier_is_link = self.files.setdefault(key, (relative, entry.is_symlink()))
        # Two names of one inode, neither a symbolic link (hard links), count as two files.
        if earlier != relative and (earlier_is_link or entry.is_symlink()):
            self._problem(f"{relative} and {earlier} are one file, whose rows would count twice")
            return
        self.entries.files[entry.path] = (relative, {"size": status.st_size, "mtime": status.st_mtime})

    def _relative(self, path: str) -> str:
        return path[len(self.root) :].lstrip("/")

    def _problem(self, text: str) -> None:
        self.entries.problems.append(f"{text}: remove the link, or give $[paths] the folders one by one")


# Hive folders: their names hold the values of columns that the files lack, such as `country=DE/`.

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The null value in a folder's name."""


def hive_keys(path: str) -> dict[str, str]:
    """Return the keys of a file's folders and their values; the innermost folder of a key counts."""
    folders = (part.partition("=") for part in path.split("/")[:-1] if "=" in part) if "=" in path else ()
    return {unquote(key): unquote(value) for key, _, value in folders}


def hive_value(path: str, key: str) -> str | None:
    """Return the value of a key in a file's folders; None without one."""
    return hive_keys(path).get(key)


def keys_in(path: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the keys of a file's folders that are among the names of its columns."""
    return tuple(key for key in hive_keys(path) if key in names)


def _check_equal(column: pa.Array, path: str, name: str) -> None:
    """Check a column that is a key of the file's folders, too: all values must equal that of the folder.

    Raises
    ------
    InputRejectedError
        A value differs.
    """
    text = hive_value(path, name)
    if text is None:
        return
    distinct = column.dictionary if pa.types.is_dictionary(column.type) else column.unique()
    other = [value for value in distinct.to_pylist() if not _means(value, text)]
    if other or (column.null_count and text != NO_VALUE):
        found = str(other[0]) if other else "null"
        raise InputRejectedError(
            f"{path}: column '{name}': expected the value of its folder, {name}={text}, in every row, found {found}: "
            "leave out the column, or name the folder by another key"
        )


def _means(value: Any, text: str) -> bool:
    """Tell whether a value of a column is the one that a folder's name spells."""
    if value is None:
        return True  # nulls are counted
    if isinstance(value, bool):
        return str(value).lower() == text.lower()
    if isinstance(value, dt.datetime):
        value = value.date()
    if isinstance(value, dt.date):
        return value.isoformat() == text or value.strftime("%Y%m%d") == text
    if isinstance(value, int | Decimal):
        try:
            return bool(Decimal(text) == value)
        except InvalidOperation:
            return False
    return bool(value == text) or str(value).startswith((f"{text}T", f"{text} "))  # a date and time


def with_keys(schema: pa.Schema, path: str, names: Iterable[str]) -> pa.Schema:
    """Add to a file's schema, as strings, those of the named columns that only its hive folders have."""
    for name in names:
        if name not in schema.names and hive_value(path, name) is not None:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def with_values(batch: pa.RecordBatch, path: str, names: Iterable[str]) -> pa.RecordBatch:
    """Add to a batch of a file's rows, as strings, those of the named columns that only its hive folders have."""
    for name in names:
        if name in batch.schema.names:
            _check_equal(batch.column(name), path, name)
            continue
        value = hive_value(path, name)
        values = [] if value is None or value == NO_VALUE else [value]
        dictionary = pa.array(values, pa.string())
        rows = batch.num_rows
        indices = as_column(np.zeros(rows, np.int32)) if values else pa.nulls(rows, pa.int32())
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(indices, dictionary))
    return batch
