"""Command that writes a version's map for other programs."""

from __future__ import annotations

import json
from typing import Any

from jobs.outcome import Outcome
from jobs.tables import write_file
from logcal.errors import ConfigError
from logcal.reading import read_table
from pipeline.table.json_map import json_map
from pipeline.table.onnx_map import onnx_map
from pipeline.table.pmml_map import pmml_map
from pipeline.table.store import TableStore

FORMATS = ("json", "pmml", "onnx")


def export(store: str, table: str, name: str | None, format_: str, output: str) -> Outcome:
    """Write a version's map to a file, or print it.

    Parameters
    ----------
    store, table : the published table
    name : name of a version, or a beginning of it; None: the live version
    format_ : one of FORMATS
    output : the file; '-': standard output

    Raises
    ------
    ConfigError
        The format is unknown or not for this table, or the file cannot be written.
    InputRejectedError
        There is no such version, or it is damaged.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"--format: expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, found {format_!r}")
    if format_ == "onnx" and output == "-":
        raise ConfigError("--output: expected a file, since ONNX is no text, found '-'")
    version = TableStore(store, table).version(name)
    lookup = read_table(version.lookup_path)
    summary: dict[str, Any] = {"table": table, "version": version.name, "format": format_, "output": output}
    summary |= {
        "maps": lookup.levels.size,
        "rows": lookup.facts.rows,
    }
    found: Any
    if format_ == "json":
        grid = str(version.manifest["config"]["score_table"]["grid"])
        found = json_map(lookup, table, None if grid == "none" else grid)
        content = json.dumps(found, allow_nan=False)
    elif lookup.columns:
        raise ConfigError(
            f"--format {format_}: table '{table}' has maps of segments ({', '.join(lookup.columns)}), and the format "
            "has room for one map: give --format json, or use `logcal tables sql`"
        )
    elif format_ == "pmml":
        found = content = pmml_map(lookup, table)
    else:
        write_file(output, onnx_map(lookup, table), "--output")
        return Outcome(summary, [output])
    if output == "-":
        return Outcome(summary | {"map": found}, [content])
    write_file(output, f"{content}\n".encode(), "--output")
    return Outcome(summary, [output])
