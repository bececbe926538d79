"""Tables of Delta Lake, Apache Iceberg and Apache Hudi: which folders are such, and the files that are live in them.

Their folders also hold files with deleted or superseded rows, which a plain Parquet reader would return.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import ConfigError, InputRejectedError, counted, examples
from pipeline.files.faults import as_fault
from pipeline.files.folders import Folder
from pipeline.files.requests import together

_DELTA_LOG = "_delta_log"

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
    fields : of an Iceberg table, the name of each column and the number by which its files know it.
    """

    format: str
    version: int
    paths: tuple[str, ...]
    fields: tuple[tuple[str, int], ...] = ()

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
        marks = [f"{folder}/{name}" for name in ("_delta_log", ".hoodie", "metadata")]
        remote = not isinstance(filesystem, LocalFileSystem)
        delta, hudi, metadata = together(filesystem.exists, marks, remote=remote)
        if delta or hudi:
            return DELTA if delta else HUDI, folder
        if metadata and table_in(
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
    try:
        return (_delta if format_ == DELTA else _iceberg)(filesystem, folder)
    except ImportError:
        raise ConfigError(
            f"{folder} is a table of format {format_}, whose files hold deleted and superseded rows too: "
            f"pip install {_EXTRAS[format_]} to read the live ones"
        ) from None
    except Exception as error:  # noqa: BLE001 - the libraries' own kinds of errors are not known here
        fault = as_fault(error, folder)
        if fault is not None:
            raise fault from None
        said = " ".join(str(error).split())[:200]
        raise InputRejectedError(
            f"{folder}: expected a table of format {format_}, found one that cannot be read ({said})"
        ) from None


def own_columns(schema: pa.Schema, fields: Sequence[tuple[str, int]]) -> pa.Schema:
    """The schema of a table's file, without columns that are not the table's of the same name.

    A column that was dropped and added again, or renamed, has another number in older files: their rows belong to
    another column. Files without numbers are known by names, as Iceberg does it.
    """
    numbers = dict(fields)
    found = []
    for field in schema:
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if numbers and number is not None and numbers.get(field.name) != int(number):
            field = field.with_name(
                f"{field.name} (another column of the table: its number is {int(number)})"
            )
        found.append(field)
    return pa.schema(found, schema.metadata)


def part_of(format_: str, folder: str, path: str) -> str:
    """Describe the fault of a path inside a table, or around one."""
    return (
        f"{path} overlaps the {format_} table {folder}, whose files hold deleted and superseded rows too: give "
        "log.path the table's own folder"
    )


def _delta(filesystem: Any, folder: str) -> Snapshot:
    from deltalake import DeltaTable

    # The library has clients of its own, which know nothing of storage.options: it reads a copy of a store's log.
    local = isinstance(filesystem, LocalFileSystem)
    with nullcontext(folder) if local else tempfile.TemporaryDirectory(prefix="logcal-") as root:
        if not local:
            filesystem.get(f"{folder}/{_DELTA_LOG}", f"{root}/{_DELTA_LOG}", recursive=True)
        table = DeltaTable(root)
        features = set(table.protocol().reader_features or ())
        mapping = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
        if "deletionVectors" in features or mapping != "none":
            what = "deletion vectors" if "deletionVectors" in features else "column mapping"
            raise InputRejectedError(
                f"{folder}: expected a Delta table whose live files hold live rows only, found one with {what}: "
                "rewrite it without (purge), or write the wanted rows as plain Parquet"
            )
        files = (uri.removeprefix("file://") for uri in table.file_uris())
        urls = [folder + file[len(root) :] if file.startswith(f"{root}/") else file for file in files]
        return Snapshot(DELTA, table.version(), _paths(filesystem, urls))


def _iceberg(filesystem: Any, folder: str) -> Snapshot:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    from pipeline.log.iceberg_files import FilesOfIceberg

    found = [path.rpartition("/")[2] for path in filesystem.ls(f"{folder}/metadata", detail=False)]
    names = sorted((name for name in found if name.endswith(".metadata.json")), key=_number)
    same = [name for name in names if _number(name) == _number(names[-1])]
    if len(same) > 1:
        raise InputRejectedError(
            f"{folder}: expected one metadata file of each number, found {examples(same)}: which is the table's only "
            "its catalog knows; move the others away"
        )
    location = Folder(filesystem, folder).located(f"metadata/{names[-1]}")
    files_of = FilesOfIceberg({})
    metadata = FromInputFile.table_metadata(files_of.new_input(location))
    table = StaticTable(("log",), metadata, location, files_of, NoopCatalog("log"))
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise InputRejectedError(
            f"{folder}: expected an Iceberg table with rows, found one without a snapshot"
        )
    files = list(table.scan().plan_files())
    deletions = sum(1 for file in files if file.delete_files)
    if deletions:
        raise InputRejectedError(
            f"{folder}: expected an Iceberg table whose live files hold live rows only, found "
            f"{counted(deletions, 'file')} with deletions beside them (merge-on-read): rewrite its data files, or "
            "write the wanted rows as plain Parquet"
        )
    fields = tuple((field.name, field.field_id) for field in table.schema().fields)
    paths = _paths(filesystem, (file.file.file_path for file in files))
    return Snapshot(ICEBERG, snapshot.snapshot_id, paths, fields)


def _number(name: str) -> int:
    digits = re.match(r"v?(\d+)", name)
    return int(digits[1]) if digits else -1


def _paths(filesystem: Any, urls: Iterable[str]) -> tuple[str, ...]:
    """URLs as the file system's own paths; a table may write its names with or without escapes."""
    found = []
    for url in urls:
        path = filesystem._strip_protocol(url)
        plain = unquote(path)
        found.append(plain if plain != path and filesystem.exists(plain) else path)
    return tuple(sorted(found))
