"""Metrics of the last runs as a file for Prometheus' textfile collector: several jobs and tables share one file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.files.folders import write_whole

_HELP = {
    "logcal_last_run_timestamp_seconds": "When the last run ended.",
    "logcal_last_success_timestamp_seconds": "When the last run ended that was done, or had nothing to do.",
    "logcal_last_exit_code": "Exit code of the last run.",
    "logcal_last_duration_seconds": "How long the last run took.",
    "logcal_rows": "Rows of the last run that was done, by kind.",
    "logcal_measure": "Measures of the last evaluation, after calibration.",
}
_STREAM_HELP = {
    "logcal_stream_seen_timestamp_seconds": "When the follower last listed its log.",
    "logcal_stream_batch_timestamp_seconds": "When the last batch ended.",
    "logcal_stream_batch_seconds": "How long the last batch took.",
    "logcal_stream_table_timestamp_seconds": "When the version of the last batch was published.",
    "logcal_stream_batches": "Batches since the follower's start.",
    "logcal_stream_files": "Files since the follower's start, by what became of them.",
    "logcal_stream_rows": "Rows since the follower's start, by kind.",
    "logcal_stream_backlog_files": "Files that are listed and not scored yet.",
    "logcal_stream_waiting_files": "Files that cannot be read yet.",
    "logcal_stream_refit_timestamp_seconds": "When the last refit began.",
    "logcal_stream_refits": "Refits since the follower's start, by what became of them.",
    "logcal_stream_label_coverage": "Share of the rows with a label, of the days of the last refit.",
}
_KEPT_ON_FAILURE = ("logcal_last_success_timestamp_seconds", "logcal_rows", "logcal_measure")
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def update(path: Path, record: dict[str, Any]) -> None:
    """Put a run's metrics into a file, in place of those of the same job and table.

    Raises
    ------
    OSError
        The file cannot be written; it is as it was.
    """
    run_labels = _labels({"job": record["job"], "table": record.get("table", "")})
    done = record["exit_code"] in (0, 99)
    kept = _KEPT_ON_FAILURE if record["exit_code"] != 0 else ()
    lines = {
        (name, labels): value
        for (name, labels), value in _read(path).items()
        if name in kept or not _is_of(labels, run_labels)
    }
    end = datetime.fromisoformat(record["end"]).timestamp()
    lines["logcal_last_run_timestamp_seconds", run_labels] = f"{end:.3f}"
    lines["logcal_last_exit_code", run_labels] = str(record["exit_code"])
    lines["logcal_last_duration_seconds", run_labels] = str(record["seconds"])
    if done:
        lines["logcal_last_success_timestamp_seconds", run_labels] = f"{end:.3f}"
    if record["exit_code"] == 0:
        for kind, rows in record["rows"].items():
            lines["logcal_rows", f"{run_labels},{_labels({'kind': kind})}"] = str(rows)
        for measure, value in record["measures"].items():
            if value is not None:
                lines["logcal_measure", f"{run_labels},{_labels({'measure': measure})}"] = _number(
                    float(value)
                )
    write_whole(path, _text(lines).encode())


def update_stream(path: Path, table: str, output: str, values: Mapping[str, Any]) -> None:
    """Put a stream's metrics into a file, in place of those of the same table and output.

    values : by name without `logcal_stream_`; a mapping has a value for each `kind`

    Raises
    ------
    OSError
        The file cannot be written; it is as it was.
    """
    own = _labels({"table": table, "output": output})
    lines = {key: value for key, value in _read(path).items() if not _is_of(key[1], own)}
    for name, value in values.items():
        by_kind = value if isinstance(value, Mapping) else {None: value}
        for kind, number in by_kind.items():
            if number is not None:
                labels = own if kind is None else f"{own},{_labels({'kind': kind})}"
                lines[f"logcal_stream_{name}", labels] = _number(float(number))
    write_whole(path, _text(lines).encode())


def _read(path: Path) -> dict[tuple[str, str], str]:
    found = _LINE.findall(path.read_text() if path.exists() else "")
    return {(name, labels): value for name, labels, value in found}


def _is_of(labels: str, own: str) -> bool:
    return labels == own or labels.startswith(f"{own},")


def _text(lines: dict[tuple[str, str], str]) -> str:
    found = []
    for name, meaning in {**_HELP, **_STREAM_HELP}.items():
        of_name = sorted((labels, value) for (other, labels), value in lines.items() if other == name)
        if of_name:
            found += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
            found += [f"{name}{{{labels}}} {value}" for labels, value in of_name]
    return "\n".join(found) + "\n"


def _labels(values: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
