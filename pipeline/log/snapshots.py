"""Tables of Delta Lake, Apache Iceberg and Apache Hudi: recognising them, and listing the live files of a snapshot.

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
    """Version of a table.

    Attributes
    ----------
    format : 'Delta' or 'Iceberg'
    version : version number or snapshot id in the table's log
    paths : paths of the live files
    fields : name and field id of each column of an Iceberg table
    """

    format: str
    version: int
    paths: tuple[str, ...]
    fields: tuple[tuple[str, int], ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return JSON values for manifests and for the identity of a run."""
        return {"format": self.format, "version": self.version}


def table_in(names: Iterable[str]) -> tuple[str, str] | None:
    """Find a table among relative paths: return its format and folder ('' for the root), or None."""
    for name in names:
        for format_, mark in _MARKS:
            match = mark.match(name)
            if match is not None:
                return format_, match["folder"].rstrip("/")
    return None


def table_above(filesystem: Any, path: str) -> tuple[str, str] | None:
    """Find a table that contains a folder, directly or above its hive folders; return its format and folder."""
    folder = path.rstrip("/")
    while "/" in folder.strip("/"):
        is_hive_folder = "=" in folder.rpartition("/")[2]
        folder = folder.rpartition("/")[0]
        marks = [f"{folder}/{name}" for name in ("_delta_log", ".hoodie", "metadata")]
        remote = not isinstance(filesystem, LocalFileSystem)
        delta, hudi, metadata = together(filesystem.exists, marks, remote=remote)
        if delta or hudi:
            return DELTA if delta else HUDI, folder
        if metadata and table_in(
            f"metadata/{entry.rpartition('/')[2]}"
            for entry in filesystem.ls(f"{folder}/metadata", detail=False)
        ):
            return ICEBERG, folder
        if not is_hive_folder:
            return None
    return None


def read_snapshot(format_: str, filesystem: Any, folder: str) -> Snapshot:
    """Read the newest snapshot of the table in a folder.

    Raises
    ------
    ConfigError
        The package that reads the format is not installed.
    InputRejectedError
        The table cannot be read, or its live files contain deleted rows.
    """
    if format_ == HUDI:
        raise InputRejectedError(
            f"{folder} is a Hudi table, whose files hold superseded rows too: write the wanted rows as plain Parquet, "
            "and give $[paths] that folder"
        )
    try:
        return (_delta if format_ == DELTA else _iceberg)(filesystem, folder)
    except ImportError:
        raise ConfigError(
            f"{folder} is a table of format {format_}, whose files hold deleted and superseded rows too: "
            f"pip install {_EXTRAS[format_]} to read the live ones"
        ) from None
    except Exception as error:  # noqa: BLE001 - the libraries may raise errors of any type
        fault = as_fault(error, folder)
        if fault is not None:
            raise fault from None
        message = " ".join(str(error).split())[:200]
        raise InputRejectedError(
            f"{folder}: expected a table of format {format_}, found one that cannot be read ({message})"
        ) from None


def without_reused_names(schema: pa.Schema, fields: Sequence[tuple[str, int]]) -> pa.Schema:
    """Rename the columns of a file whose field id is not that of the table's column of the same name.

    A column that was dropped and added again, or renamed, has another field id in older files, where the name belongs
    to another column. Columns of files without field ids are matched by name, as in Iceberg.
    """
    ids = dict(fields)
    columns = []
    for field in schema:
        field_id = (field.metadata or {}).get(b"PARQUET:field_id")
        if ids and field_id is not None and ids.get(field.name) != int(field_id):
            field = field.with_name(
                f"{field.name} (another column of the table: its field id is {int(field_id)})"
            )
        columns.append(field)
    return pa.schema(columns, schema.metadata)


def overlap(format_: str, folder: str, path: str) -> str:
    """Describe the problem that a path lies inside a table or contains one."""
    return (
        f"{path} overlaps the {format_} table {folder}, whose files hold deleted and superseded rows too: give "
        "$[paths] the table's own folder"
    )


def _delta(filesystem: Any, folder: str) -> Snapshot:
    from deltalake import DeltaTable

    # deltalake has its own storage clients, which ignore storage.options; so it reads a local copy of a remote log.
    local = isinstance(filesystem, LocalFileSystem)
    with nullcontext(folder) if local else tempfile.TemporaryDirectory(prefix="logcal-") as root:
        if not local:
            filesystem.get(f"{folder}/{_DELTA_LOG}", f"{root}/{_DELTA_LOG}", recursive=True)
        table = DeltaTable(root)
        features = set(table.protocol().reader_features or ())
        mapping = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
        if "deletionVectors" in features or mapping != "none":
            feature = "deletion vectors" if "deletionVectors" in features else "column mapping"
            raise InputRejectedError(
                f"{folder}: expected a Delta table whose live files hold live rows only, found one with {feature}: "
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

    entries = [path.rpartition("/")[2] for path in filesystem.ls(f"{folder}/metadata", detail=False)]
    names = sorted((name for name in entries if name.endswith(".metadata.json")), key=_metadata_version)
    newest = [name for name in names if _metadata_version(name) == _metadata_version(names[-1])]
    if len(newest) > 1:
        raise InputRejectedError(
            f"{folder}: expected one metadata file of each version, found {examples(newest)}: only the table's "
            "catalog knows the current one; move the others away"
        )
    location = str(Folder.of(filesystem, folder) / f"metadata/{names[-1]}")
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


def _metadata_version(name: str) -> int:
    digits = re.match(r"v?(\d+)", name)
    return int(digits[1]) if digits else -1


def _paths(filesystem: Any, urls: Iterable[str]) -> tuple[str, ...]:
    """Convert URLs to paths of the file system; tables may write names with or without percent escapes."""
    paths = []
    for url in urls:
        path = filesystem._strip_protocol(url)
        unescaped = unquote(path)
        paths.append(unescaped if unescaped != path and filesystem.exists(unescaped) else path)
    return tuple(sorted(paths))
