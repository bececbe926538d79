"""Tables of Delta Lake, Apache Iceberg and Apache Hudi: which folders are such, and the files that are live in them.

Their folders hold files of rows that have been deleted or superseded as well: read as plain Parquet they give those
back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import InputRejectedError
from pipeline.files.faults import as_fault

DELTA, ICEBERG, HUDI = "Delta", "Iceberg", "Hudi"
_EXTRAS = {DELTA: "logcal[delta]", ICEBERG: "logcal[iceberg]"}
_MARKS = (
    (DELTA, re.compile(r"^(?P<folder>(?:.*/)?)_delta_log(?:/|$)")),
    (HUDI, re.compile(r"^(?P<folder>(?:.*/)?)\.hoodie(?:/|$)")),
    (ICEBERG, re.compile(r"^(?P<folder>(?:.*/)?)metadata/[^/]+\.metadata\.json$")),
)


@dataclass(frozen=True)
class Snapshot:
    """A table as it was at one version.

    format : 'Delta' or 'Iceberg'. version : the table's own number of it. paths : of the live files.
    """

    format: str
    version: int
    paths: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """For manifests, and for the identity of a run."""
        return {"format": self.format, "version": self.version}


def table_in(names: Iterable[str]) -> tuple[str, str] | None:
    """The format of a table among relative paths, and the folder that it is ('' for the root); None without one."""
    for name in names:
        for format_, mark in _MARKS:
            match = mark.match(name)
            if match is not None:
                return format_, match["folder"].rstrip("/")
    return None


def table_above(filesystem: Any, path: str) -> tuple[str, str] | None:
    """The format and folder of a table that a folder is a part of: of its parent, or above its hive folders."""
    folder = path.rstrip("/")
    while "/" in folder.strip("/"):
        inside = "=" in folder.rpartition("/")[2]
        folder = folder.rpartition("/")[0]
        for name, format_ in (("_delta_log", DELTA), (".hoodie", HUDI)):
            if filesystem.exists(f"{folder}/{name}"):
                return format_, folder
        if filesystem.exists(f"{folder}/metadata") and table_in(
            f"metadata/{found.rpartition('/')[2]}"
            for found in filesystem.ls(f"{folder}/metadata", detail=False)
        ):
            return ICEBERG, folder
        if not inside:
            return None
    return None


def read_snapshot(format_: str, filesystem: Any, folder: str) -> Snapshot:
    """The newest snapshot of the table that a folder is.

    Raises
    ------
    InputRejectedError
        Its format cannot be read (here), or not without reading deletions as well.
    """
    if format_ == HUDI:
        raise InputRejectedError(
            f"{folder} is a Hudi table, whose files hold superseded rows too: write the rows that are wanted as plain "
            "Parquet, and give log.path that folder"
        )
    url = folder if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(folder))
    try:
        return (_delta if format_ == DELTA else _iceberg)(filesystem, folder, url)
    except ImportError:
        raise InputRejectedError(
            f"{folder} is {_article(format_)} table, whose files hold deleted and superseded rows too: install "
            f"{_EXTRAS[format_]} to read the live ones"
        ) from None
    except InputRejectedError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries' own kinds of errors are not known here
        fault = as_fault(error, folder)
        if fault is not None:
            raise fault from None
        said = " ".join(str(error).split())[:200]
        raise InputRejectedError(
            f"{folder}: expected {_article(format_)} table, found one that cannot be read ({said})"
        ) from None


def part_of(format_: str, folder: str, path: str) -> str:
    """What is wrong with a path inside of a table, or around one."""
    return (
        f"{path} overlaps the {format_} table {folder}, whose files hold deleted and superseded rows too: give "
        "log.path the table's own folder"
    )


def _article(format_: str) -> str:
    return f"an {format_}" if format_ == ICEBERG else f"a {format_}"


def _delta(filesystem: Any, folder: str, url: str) -> Snapshot:
    from deltalake import DeltaTable

    table = DeltaTable(url)
    features = set(table.protocol().reader_features or ())
    mapping = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if "deletionVectors" in features or mapping != "none":
        what = "deletion vectors" if "deletionVectors" in features else "column mapping"
        raise InputRejectedError(
            f"{folder}: expected a Delta table whose live files hold live rows only, found one with {what}: rewrite it "
            "without (purge), or write the wanted rows as plain Parquet"
        )
    return Snapshot(DELTA, table.version(), _paths(filesystem, table.file_uris()))


def _iceberg(filesystem: Any, folder: str, url: str) -> Snapshot:
    from pyiceberg.table import StaticTable

    newest = max(
        (
            path
            for path in filesystem.ls(f"{folder}/metadata", detail=False)
            if path.endswith(".metadata.json")
        ),
        key=_number,
    )
    table = StaticTable.from_metadata(f"{url}/metadata/{newest.rpartition('/')[2]}")
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise InputRejectedError(
            f"{folder}: expected an Iceberg table with rows, found one without a snapshot"
        )
    files = list(table.scan().plan_files())
    deletions = sum(1 for file in files if file.delete_files)
    if deletions:
        raise InputRejectedError(
            f"{folder}: expected an Iceberg table whose live files hold live rows only, found {deletions} files with "
            "deletions beside them (merge-on-read): rewrite its data files, or write the wanted rows as plain Parquet"
        )
    return Snapshot(
        ICEBERG, snapshot.snapshot_id, _paths(filesystem, (file.file.file_path for file in files))
    )


def _number(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2].lstrip("v")
    digits = re.match(r"\d+", name)
    return (int(digits[0]) if digits else -1, name)


def _paths(filesystem: Any, urls: Iterable[str]) -> tuple[str, ...]:
    """URLs as the file system's own paths; a table may write its names with or without escapes."""
    found = []
    for url in urls:
        path = filesystem._strip_protocol(url)
        plain = unquote(path)
        found.append(plain if plain != path and filesystem.exists(plain) else path)
    return tuple(sorted(found))
