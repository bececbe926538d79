"""The init command: write a configuration for a log from its Parquet footers."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from jobs.config.loading import Values, known_keys, path_keys, read_values
from jobs.config.naming import in_keys
from jobs.config.paths import relative_to
from jobs.outcome import Outcome
from jobs.registry import JOBS
from logcal.errors import ConfigError, InputRejectedError, counted, listing
from pipeline.files.folders import check_writable, write_whole
from pipeline.log.calendars import UTC
from pipeline.log.column_facts import ColumnFacts, LikelyRoles, LogFacts, find_roles, log_facts

SERVED = ("compare", "fit", "evaluate", "monitor", "score", "days")
"""Jobs that share the configuration; each ignores the keys of the others."""
_OUTCOMES = "log.labels.path"
PLAIN, DAILY = "logcal.yaml", "day.yaml"


def init(log: str, folder: str, settings: Sequence[str] = (), *, daily: bool = False) -> Outcome:
    """Write a configuration for a log. Its relative paths are relative to its folder.

    Parameters
    ----------
    log : value of log.path
    folder : folder of the configuration and of the jobs' outputs; created if it does not exist
    settings : KEY.PATH=VALUE, which override the derived values
    daily : write a configuration of `logcal days run`, the daily job

    Raises
    ------
    ConfigError
        A file exists already, or the folder cannot be written to.
    InputRejectedError
        The footers cannot be read, or a required column is missing.
    """
    target = Path(folder).expanduser().absolute()
    name = DAILY if daily else PLAIN
    _check_folder(target, name)
    facts = log_facts(log)
    roles = find_roles(facts.columns)
    overrides = _flat(read_values((), settings).values)
    _check_keys(overrides)
    _check_roles(log, facts, roles, overrides, daily=daily)
    values, notes = _infer(_from_folder("log.path", log, target), facts, roles)
    if daily:
        values |= _daily()
        notes["evaluate.require"] = (
            "none; {calibration_in_the_large: 0.05} makes evaluate exit with 4 if the mean probability differs by more "
            "than 0.05 from the share of positives"
        )
        notes["evaluate.against"] = "measures the previous version of the table too"
        if overrides.get("log.labels.wait") is not None and _OUTCOMES in overrides:
            # Fits use complete days only, so that `evaluate` and `monitor` get days that no fit has used in part.
            values["window.min_labelled"] = 1.0
    else:
        values |= {"report.path": "{job}", "output.path": "scored"}
        notes["log.path"] = "for fit; give other rows to evaluate and score"
    if overrides.get("window.column", values.get("window.column")) != values.get("window.column"):
        values["window.timezone"] = UTC  # of another column it is not known
        notes.pop("window.timezone", None)
    values |= {key: _from_folder(key, value, target) for key, value in overrides.items()}
    if values.get(_OUTCOMES):
        values.pop("log.label", None)
    notes |= dict.fromkeys(overrides, "as given")
    refused, read = facts.reading(_used(values))
    for key, text in in_keys(read).items():
        notes[key] = f"{notes[key]}; {text}" if notes.get(key) else text
    target.mkdir(parents=True, exist_ok=True)
    path = shlex.quote(str(Path(folder) / name))
    run = [f"logcal {job} --config {path}" for job in ("compare", "fit")]
    run += [f"logcal {job} --config {path} --set log.path=OTHER_ROWS" for job in ("evaluate", "score")]
    if daily:
        program = shlex.quote(str(Path(sys.executable).parent / "logcal"))
        run = [
            f"logcal days run --config {path} --new    (the first time; from then on without --new)",
            f"in crontab: 30 6 * * * {program} days run --config {shlex.quote(str(target / name))}",
        ]
    write_whole(target / name, _rendered(values, notes, facts, roles).encode())
    shown = {key: values[key] for key in sorted(values) if key.startswith(("log.", "window."))}
    lines = [f"{counted(facts.files, 'file')}, {facts.rows:,} rows"]
    for key, value in shown.items():
        lines.append(f"  {key}: {_as_text(value)}" + (f"  ({notes[key]})" if notes.get(key) else ""))
    lines += [f"  `logcal fit` will refuse: {problem}" for problem in refused]
    if segments := _segments(roles, values):
        lines.append(
            f"  for a map per segment add to this command: --set 'log.segment=[{','.join(segments)}]'"
        )
    lines += ["", f"Look at {path}, then run{' once a day' if daily else ''}:"]
    lines += [f"  {command}" for command in run]
    return Outcome(
        {
            "files": [str(target / name)],
            "rows": facts.rows,
            "settings": shown,
            "notes": notes,
            "refused": refused,
        },
        lines,
    )


def _check_folder(folder: Path, name: str) -> None:
    check_writable(folder, "FOLDER")
    if (folder / name).exists():
        raise ConfigError(
            f"FOLDER: expected one without a configuration, found {folder / name}: choose another, or remove it"
        )


def _check_keys(overrides: dict[str, Any]) -> None:
    all_keys = {key for name in SERVED for key in known_keys(JOBS[name].config_class())}
    if unknown := sorted(set(overrides) - all_keys):
        raise ConfigError(f"--set {unknown[0]}: unknown key; `logcal config fit` shows all keys")


def _check_roles(
    log: str, facts: LogFacts, roles: LikelyRoles, overrides: dict[str, Any], *, daily: bool
) -> None:
    expected = {"log.score": (roles.score, "a column of floats")}
    if _OUTCOMES not in overrides:
        kind = "a column of booleans, or of numbers from 0 to 1 (or log.key and log.labels.path)"
        expected["log.label"] = (roles.label, kind)
    else:
        expected["log.key"] = ((), "the columns by which outcomes belong to rows, such as request_id")
    if daily:
        expected["window.column"] = (roles.date, "a column of dates, or hive folders such as date=2026-01-31")
    problems = [
        f"{key}: expected {kind}, found none"
        for key, (columns, kind) in expected.items()
        if not columns and key not in overrides
    ]
    if problems:
        columns = [f"{column.name} ({column.described()})" for column in facts.columns]
        raise InputRejectedError(
            f"the log at {log} has no column that fits the keys below; name it, such as with --set "
            f"{problems[0].partition(':')[0]}=NAME.\n{listing(problems)}\nIts columns:\n{listing(columns)}"
        )


def _infer(log: str, facts: LogFacts, roles: LikelyRoles) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values of keys by the log's columns, and notes that explain them."""
    values: dict[str, Any] = {"log.path": log, "store.path": "tables", "store.table": _table_name(log)}
    notes: dict[str, str] = {}
    named = {"log.score": roles.score, "log.label": roles.label, "log.weight": roles.weight}
    for key, columns in (named | {"window.column": roles.date}).items():
        if columns:
            values[key], notes[key] = columns[0].name, _note(columns)
    if roles.date:
        values["window.last"] = "30d"
        notes["window.last"] = "a fit uses these days, not earlier ones"
        values["window.timezone"] = UTC
        notes["window.timezone"] = "by its clock days end; timestamps with a time zone are of its days"
    if facts.zone is not None:
        values |= {"window.column": facts.zone.column, "window.timezone": facts.zone.zone}
        notes["window.column"] = "its days, in window.timezone, are those of the folders"
        others = f", and in {counted(facts.zone.others, 'other zone')}" if facts.zone.others else ""
        notes["window.timezone"] = (
            f"the folders have the days of {facts.zone.column} in it{others}: is it yours?"
        )
    if roles.label and (nulls := roles.label[0].nulls):
        notes["log.label"] += f"; {nulls:,} nulls: labels not known yet, these rows are not fitted to"
    if roles.margin:
        values["log.score_transform"] = "sigmoid"
        notes["log.score_transform"] = "the score's name says that it is a margin"
    # A row with a null label waits for it and is not a bad row.
    used = [columns[0] for columns in (roles.score, roles.weight) if columns]
    bad = {column.name: column.nulls for column in used if column.nulls}
    if bad:
        values["log.on_bad_rows"] = "quarantine"
        values["log.max_bad_fraction"] = _share(sum(bad.values()), facts.rows)
        notes["log.on_bad_rows"] = ", ".join(f"{count:,} nulls in {name}" for name, count in bad.items())
    return values, notes


def _used(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return role and name of each column that the configuration names."""
    used = {
        role: values.get(f"log.{role}") for role in ("score", "label", "weight", "segment", "key", "time")
    }
    used["day"] = values.get("window.column")
    return [
        (role, name)
        for role, names in used.items()
        for name in (names if isinstance(names, list) else [names])
        if isinstance(name, str)
    ]


def _from_folder(key: str, value: Any, folder: Path) -> Any:
    """Return a value of the command line, with paths relative to the configuration's folder if it holds paths."""
    if key not in path_keys():
        return value
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) for path in paths):
        raise ConfigError(f"--set {key}: expected paths, found {value!r}")
    found = [relative_to(path, folder) for path in paths]
    return found if isinstance(value, list) else found[0]


def _daily() -> dict[str, Any]:
    return {
        "window.last": "28d",
        "evaluate.last": "1d",
        "evaluate.against": "previous",
        "evaluate.allow_in_sample": False,
        "report.path": "reports/{day}",
        "report.mode": "replace",
        "score.last": "1d",
        "score.max_outside_range": 0.05,
        "score.on_shift": "write",
        "output.path": "scored/{day}",
        "output.mode": "replace",
    }


def _share(total: int, rows: int) -> float:
    """Return a limit somewhat above the current fraction of unusable rows."""
    return max(0.01, min(1.0, round(1.2 * total / max(rows, 1), 2)))


def _note(columns: tuple[ColumnFacts, ...]) -> str:
    others = ", ".join(f"{column.name} ({column.described()})" for column in columns[1:6])
    return columns[0].described() + (f"; could be too: {others}" if others else "")


def _rendered(values: dict[str, Any], notes: dict[str, str], facts: LogFacts, roles: LikelyRoles) -> str:
    """Format the configuration as YAML, one line per section, with notes as comments."""
    sections = Values()
    for key, value in values.items():
        sections.put(tuple(key.split(".")), value, {})
    dated = values.get("window.column")
    left_out = {"monitor"} if not dated or values.get("log.weight") else set()
    left_out |= set() if dated and "{day}" in str(values.get("report.path")) else {"days"}
    jobs = ["days run" if job == "days" else job for job in SERVED if job not in left_out]
    lines = [
        f"# Written by `logcal init` after a look at {counted(facts.files, 'file')} with {facts.rows:,} rows.",
        f"# For {', '.join(jobs)}; `logcal config JOB` lists every key.",
        *(f"# {key}: {note}" for key, note in notes.items()),
    ]
    if segments := _segments(roles, values):
        lines.append(
            f"# log.segment: none; for one map per segment add segment: [{', '.join(segments)}] to log"
        )
    for name, inner in sections.values.items():
        text = yaml.safe_dump(
            {name: inner}, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True
        )
        lines.append(text.strip()[1:-1])
    return "\n".join(lines) + "\n"


def _segments(roles: LikelyRoles, values: dict[str, Any]) -> list[str]:
    """Return columns that could define segments, if none are given."""
    return [] if "log.segment" in values else [column.name for column in roles.segment]


def _table_name(log: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[*?\[]", log)[0].rstrip("/").rpartition("/")[2])
    return name.removesuffix(".parquet").lstrip("._-") or "table"


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and not f"{above}{key}".endswith((".params", ".arguments", ".require")):
            flat.update(_flat(value, f"{above}{key}."))
        else:
            flat[above + key] = value
    return flat


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
