"""Looking after published tables: list their versions, show one, point CURRENT to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.records import RUNS
from jobs.run import Outcome
from pipeline.errors import InputRejectedError
from pipeline.files.records import read_records
from pipeline.table.lookup_table import read_lookup_table
from pipeline.table.segment_lookup import read_segmented_lookup
from pipeline.table.sql import query
from pipeline.table.store import TableStore
from pipeline.table.version import Version, segments_of

_SHOWN = (
    "table", "version", "created", "method", "parameters", "monotone", "lookup_rows", "score_transform",
    "fingerprint", "run_id", "previous_version", "seconds",
)  # fmt: skip


def list_versions(store: str, table: str) -> Outcome:
    """All versions of a table, oldest first, with the current one marked."""
    found = TableStore(store, table)
    versions = found.versions()
    current = found.readable_current()
    if not versions and current is None:
        raise InputRejectedError(
            f"expected a published table '{table}', found none in {found.url}: see `logcal fit`"
        )
    rows = [_row(version, current) for version in versions]
    lines = []
    for row in rows:
        mark = "*" if row["current"] else " "
        lines.append(
            f"{mark} {row['version']}  {row['created']}  {row['method']}  {row['rows_used']:,} rows  "
            f"{row['lookup_rows']:,} lookup rows"
        )
    if all(not row["current"] for row in rows):
        trouble = "is not there" if current is None else f"names {current}, which is not there"
        lines.append(f"CURRENT {trouble}: use `logcal tables rollback`")
    return Outcome(summary={"table": table, "current": current, "versions": rows}, lines=lines)


def _row(version: Version, current: str | None) -> dict[str, Any]:
    manifest = version.manifest
    return {
        "version": version.name,
        "current": version.name == current,
        "created": manifest["created"],
        "method": manifest["method"],
        "rows_used": manifest["data"]["rows_used"],
        "lookup_rows": manifest["lookup_rows"],
        "fingerprint": manifest["fingerprint"],
    }


def show(store: str, table: str, name: str | None) -> Outcome:
    """One version: its manifest for machines, its main facts for people."""
    version = TableStore(store, table).version(name)
    manifest = version.manifest
    lines = [f"{key}: {manifest[key]}" for key in _SHOWN]
    lines += [f"{key}: {value}" for key, value in manifest["data"].items()]
    lines += [f"lookup table: {version.lookup_path}"]
    return Outcome(summary=manifest, lines=lines)


def history(store: str, table: str) -> Outcome:
    """What was done with a table: its run records, oldest first."""
    folder = f"{store.rstrip('/')}/{table}/{RUNS}"
    records, damaged = read_records(folder)
    lines = [_history_line(record) for record in records] or [f"no run records in {folder}"]
    if damaged:
        lines.append(f"{damaged} files in {folder} cannot be read")
    return Outcome(summary={"table": table, "runs": records, "damaged": damaged}, lines=lines)


def sql(
    store: str, table: str, name: str | None, dialect: str, inline: bool, log: str, score: str
) -> Outcome:
    """The query that applies a version elsewhere."""
    version = TableStore(store, table).version(name)
    segmented = bool(segments_of(version))
    found = (
        read_segmented_lookup(version.lookup_path) if segmented else read_lookup_table(version.lookup_path)
    )
    path = version.lookup_path if "://" in version.lookup_path else str(Path(version.lookup_path).absolute())
    text = query(found, path, dialect, inline=inline, log=log, score=score)
    summary = {"table": table, "version": version.name, "dialect": dialect, "sql": text}
    return Outcome(summary=summary, lines=[f"{text};"])


def _history_line(record: dict[str, Any]) -> str:
    rows, measures = record.get("rows", {}), record.get("measures", {})
    parts = [record["start"][:19], f"{record['job']:8}", f"exit {record['exit_code']}"]
    parts.append(f"{record.get('seconds', 0):.1f} s")
    parts += [f"version {record['version']}"] if record.get("version") else []
    used = rows.get("rows_used", rows.get("rows"))
    parts += [f"{used:,} rows"] if used is not None else []
    if isinstance(measures.get("ece_frequency"), float):
        parts.append(f"ECE {measures['ece_frequency']:.4f}")
    if record.get("message"):
        parts.append(f"({' '.join(record['message'].split())[:100]})")
    return "  ".join(parts)


def rollback(store: str, table: str, name: str | None) -> Outcome:
    """Point CURRENT to the named version, or to the one before the current."""
    before, version = TableStore(store, table).rollback(name)
    summary = {"table": table, "previous_version": before, "version": version.name}
    return Outcome(summary=summary, lines=[f"{table}: CURRENT was {before}, is now {version.name}"])


def promote(store: str, table: str, name: str) -> Outcome:
    """Point CURRENT to the named version, such as a candidate."""
    before, version = TableStore(store, table).promote(name)
    summary = {"table": table, "previous_version": before, "version": version.name}
    return Outcome(summary=summary, lines=[f"{table}: CURRENT was {before}, is now {version.name}"])
