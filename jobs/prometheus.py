"""Metrics of the last runs as a file for Prometheus' textfile collector: several jobs and tables share one file."""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.files.whole import write_whole

_HELP = {
    "logcal_last_run_timestamp_seconds": "When the last run ended.",
    "logcal_last_success_timestamp_seconds": "When the last run ended that was done, or had nothing to do.",
    "logcal_last_exit_code": "Exit code of the last run.",
    "logcal_last_duration_seconds": "How long the last run took.",
    "logcal_rows": "Rows of the last run that was done, by kind.",
    "logcal_measure": "Measures of the last evaluation, after calibration.",
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
    own = _labels({"job": record["job"], "table": record.get("table", "")})
    done = record["exit_code"] in (0, 99)
    lines: dict[tuple[str, str], str] = {}
    for name, labels, value in _LINE.findall(path.read_text() if path.exists() else ""):
        mine = labels == own or labels.startswith(f"{own},")
        if not mine or (name in _KEPT_ON_FAILURE and record["exit_code"] != 0):
            lines[name, labels] = value
    end = datetime.fromisoformat(record["end"]).timestamp()
    lines["logcal_last_run_timestamp_seconds", own] = f"{end:.3f}"
    lines["logcal_last_exit_code", own] = str(record["exit_code"])
    lines["logcal_last_duration_seconds", own] = str(record["seconds"])
    if done:
        lines["logcal_last_success_timestamp_seconds", own] = f"{end:.3f}"
    if record["exit_code"] == 0:
        for kind, rows in record["rows"].items():
            lines["logcal_rows", f"{own},{_labels({'kind': kind})}"] = str(rows)
        for measure, value in record["measures"].items():
            if value is not None:
                lines["logcal_measure", f"{own},{_labels({'measure': measure})}"] = _number(float(value))
    write_whole(path, _text(lines).encode())


def _text(lines: dict[tuple[str, str], str]) -> str:
    found = []
    for name, meaning in _HELP.items():
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
