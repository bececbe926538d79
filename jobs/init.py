"""Configurations for a log that nobody has described: written after a look at its footers, ready to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.config.loading import known_keys, read_values
from jobs.config.rendering import render_job
from jobs.outcome import Outcome
from jobs.registry import JOBS
from logcal.errors import ConfigError, InputRejectedError, listing
from pipeline.files.folders import check_writable
from pipeline.log.column_facts import ColumnFacts, LogFacts, Roles, find_roles, log_facts

WRITTEN = ("compare", "fit", "score", "evaluate")
"""The jobs that get a file, those that logcal has of them, in the order in which they are run."""

_HEADER = (
    "Configuration of `logcal {job}`, written by `logcal init` after a look at the log's footers: every key, with its "
    "meaning, and its default unless a line says what was found. Keys marked REQUIRED have no value yet: set them "
    "here or with --set."
)
_DAYS = 30


def init(folder: str, log: str, settings: Sequence[str] = ()) -> Outcome:
    """Write a folder of configurations for a log.

    Parameters
    ----------
    folder : of the configurations; made if it is not there
    log : as log.path
    settings : KEY.PATH=VALUE, over what was found

    Raises
    ------
    ConfigError
        A file is there already, or the folder cannot be written to.
    InputRejectedError
        The footers cannot be read, or no column can be a score, or none a label.
    """
    place = Path(folder).expanduser().absolute()
    jobs = [name for name in WRITTEN if name in JOBS]
    _check_place(place, jobs)
    facts = log_facts(log)
    roles = find_roles(facts.columns)
    given = _flat(read_values((), settings).values)
    _check_keys(given, jobs)
    _check_roles(log, facts, roles, given)
    values, notes = _found(log, place, facts, roles)
    values.update(given)
    notes.update(dict.fromkeys(given, "As given."))
    place.mkdir(parents=True, exist_ok=True)
    for name in jobs:
        (place / f"{name}.yaml").write_text(_rendered(name, values, notes, place), encoding="utf-8")
    shown = {key: values[key] for key in sorted(values) if key.startswith(("log.", "window."))}
    files = [str(place / f"{name}.yaml") for name in jobs]
    lines = [
        f"{facts.files:,} files, {facts.rows:,} rows",
        *(f"  {key}: {_said(value)}{_because(notes.get(key, ''))}" for key, value in shown.items()),
        *_candidates(roles),
        "",
        "Look at the files, then run:",
        *(f"  logcal {name} --config {_shell(folder)}/{name}.yaml" for name in jobs if name != "evaluate"),
    ]
    summary = {"files": files, "rows": facts.rows, "settings": shown, "notes": notes}
    return Outcome(summary, lines)


def _check_place(place: Path, jobs: Sequence[str]) -> None:
    check_writable(place, "FOLDER")
    there = [str(place / f"{name}.yaml") for name in jobs if (place / f"{name}.yaml").exists()]
    if there:
        raise ConfigError(
            f"FOLDER: expected one without configurations, found {', '.join(there)}: choose another, or remove them"
        )


def _check_keys(given: dict[str, Any], jobs: Sequence[str]) -> None:
    known = {key for name in jobs for key in known_keys(JOBS[name].config_class())}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigError(f"--set {unknown[0]}: unknown key; `logcal config fit` shows all keys")


def _check_roles(log: str, facts: LogFacts, roles: Roles, given: dict[str, Any]) -> None:
    wanted = {
        "score": "a column of floats",
        "label": "a column of booleans, or of numbers from 0 to 1",
    }
    problems = [
        f"log.{role}: expected {kind}, found none"
        for role, kind in wanted.items()
        if not getattr(roles, role) and f"log.{role}" not in given
    ]
    if problems:
        columns = [f"{column.name} ({column.described()})" for column in facts.columns]
        raise InputRejectedError(
            f"the log at {log} has no column that looks like what is missing; name it, such as with --set "
            f"{problems[0].partition(':')[0]}=NAME.\n{listing(problems)}\nIts columns:\n{listing(columns)}"
        )


def _found(log: str, place: Path, facts: LogFacts, roles: Roles) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of keys, and why."""
    values: dict[str, Any] = {
        "log.path": log if "://" in log else str(Path(log).expanduser().absolute()),
        "store.path": str(place / "tables"),
        "store.table": _table_name(log),
    }
    notes = {"log.path": f"Found: {facts.files:,} files, {facts.rows:,} rows."}
    for role in ("score", "label", "weight"):
        columns: tuple[ColumnFacts, ...] = getattr(roles, role)
        if columns:
            values[f"log.{role}"] = columns[0].name
            notes[f"log.{role}"] = _note(columns)
    if roles.margin:
        values["log.score_transform"] = "sigmoid"
        notes["log.score_transform"] = "Found: the score's name says that it is a margin."
    used = [columns[0] for columns in (roles.score, roles.label, roles.weight) if columns]
    nulls = {column.name: column.nulls for column in used if column.nulls}
    if nulls:
        values["log.on_bad_rows"] = "quarantine"
        values["log.max_bad_fraction"] = _share(max(nulls.values()), sum(nulls.values()), facts.rows)
        found = ", ".join(f"{count:,} nulls in {name}" for name, count in nulls.items())
        notes["log.on_bad_rows"] = f"Found: {found}."
    if roles.date:
        values["window.column"] = roles.date[0].name
        notes["window.column"] = _note(roles.date)
    if roles.segment:
        names = ", ".join(column.name for column in roles.segment)
        notes["log.segment"] = f"Found, and left out until you choose: [{names}]."
    return values, notes


def _share(largest: int, total: int, rows: int) -> float:
    """A limit somewhat above the fraction of rows that would be quarantined now."""
    return max(0.01, min(1.0, round(1.2 * max(largest, total) / max(rows, 1), 2)))


def _note(columns: tuple[ColumnFacts, ...]) -> str:
    others = ", ".join(f"{column.name} ({column.described()})" for column in columns[1:6])
    return f"Found: {columns[0].described()}." + (f" Could be too: {others}." if others else "")


def _rendered(name: str, values: dict[str, Any], notes: dict[str, str], place: Path) -> str:
    own = {
        "output.path": str(place / {"score": "scored"}.get(name, name)),
        "report.path": str(place / "report"),
    }
    values, notes = {**own, **values}, dict(notes)
    if name == "evaluate":
        # Rows that the table was fitted to say little of it.
        del values["log.path"]
        notes["log.path"] = "A log that the fit has not read."
    known = set(known_keys(JOBS[name].config_class()))
    return render_job(
        name,
        JOBS[name].config_class(),
        {key: value for key, value in values.items() if key in known},
        {key: note for key, note in notes.items() if key in known},
        _HEADER,
    )


def _candidates(roles: Roles) -> list[str]:
    if not roles.segment:
        return []
    names = ",".join(column.name for column in roles.segment)
    return [f"  a map for each segment: --set 'log.segment=[{names}]', or some of them"]


def _table_name(log: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[*?\[]", log)[0].rstrip("/").rpartition("/")[2])
    return name.removesuffix(".parquet").lstrip("._-") or "table"


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and not f"{above}{key}".endswith((".params", ".arguments")):
            found.update(_flat(value, f"{above}{key}."))
        else:
            found[above + key] = value
    return found


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _because(note: str) -> str:
    return f"  ({note.removeprefix('Found: ').removesuffix('.')})" if note else ""


def _shell(folder: str) -> str:
    import shlex

    return shlex.quote(folder.rstrip("/"))
