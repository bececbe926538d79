"""Command that writes a version's map for other programs."""

from __future__ import annotations

import json
from typing import Any

from jobs.outcome import Outcome
from jobs.tables import write_text
from logcal.errors import ConfigError
from logcal.reading import read_table
from pipeline.table.json_map import json_map
from pipeline.table.store import TableStore

FORMATS = ("json",)


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
        The format is unknown, or the file cannot be written.
    InputRejectedError
        There is no such version, or it is damaged.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"--format: expected {' or '.join(FORMATS)}, found {format_!r}")
    version = TableStore(store, table).version(name)
    grid = str(version.manifest["config"].get("score_table", {}).get("grid", "none"))
    found = json_map(read_table(version.lookup_path), table, None if grid == "none" else grid)
    text = json.dumps(found, allow_nan=False)
    maps = found.get("maps", [found.get("rows")])
    summary: dict[str, Any] = {"table": table, "version": version.name, "format": format_, "output": output}
    summary |= {"maps": len(maps), "rows": sum(map(len, maps))}
    if output == "-":
        return Outcome(summary | {"map": found}, [text])
    write_text(output, f"{text}\n", "--output")
    return Outcome(summary, [output])
