"""Metrics of the last runs as a file for Prometheus' textfile collector: several jobs and tables share one file."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.files.folders import write_whole

_HELP = {
    "logcal_last_run_timestamp_seconds": "When the last run ended.",
    "logcal_last_success_timestamp_seconds": "When the last run ended that was done, or had nothing to do.",
    "logcal_last_exit_code": "Exit code of the last run.",
    "logcal_last_duration_seconds": "How long the last run took.",
    "logcal_rows": "Rows of the last run that was done, by kind.",
    "logcal_measure": "Measures of the last evaluation, after calibration.",
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
    own, code = _labels({"job": record["job"], "table": record.get("table", "")}), record["exit_code"]
    end = datetime.fromisoformat(record["end"]).timestamp()
    values = {
        "last_run_timestamp_seconds": round(end, 3),
        "last_exit_code": code,
        "last_duration_seconds": record["seconds"],
        "last_success_timestamp_seconds": round(end, 3) if code in (0, 99) else None,
        "rows": record["rows"] if code == 0 else None,
        "measure": record["measures"] if code == 0 else None,
    }
    _replace(path, own, "logcal_", values, () if code == 0 else _KEPT_ON_FAILURE)


def update_stream(path: Path, table: str, output: str, values: Mapping[str, Any]) -> None:
    """Put a stream's metrics into a file, in place of those of the same table and output.

    values : by name without `logcal_stream_`; a mapping has a value for each `kind`

    Raises
    ------
    OSError
        The file cannot be written; it is as it was.
    """
    _replace(path, _labels({"table": table, "output": output}), "logcal_stream_", values)


def _replace(
    path: Path, own: str, prefix: str, values: Mapping[str, Any], kept: Collection[str] = ()
) -> None:
    """Put values into a file, in place of those with the same labels. kept : names whose lines stay."""
    before = _LINE.findall(path.read_text() if path.exists() else "")
    lines = {
        (name, labels): value
        for name, labels, value in before
        if name in kept or not f"{labels},".startswith(f"{own},")
    }
    for name, value in values.items():
        kind = "measure" if name == "measure" else "kind"
        for which, number in value.items() if isinstance(value, Mapping) else [(None, value)]:
            if number is not None:
                labels = own if which is None else f"{own},{_labels({kind: which})}"
                lines[prefix + name, labels] = _number(float(number))
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


NAMESPACE = "logcal"
"""Namespace of jobs; datasets have those of OpenLineage's naming specification."""
_PRODUCER = "urn:logcal"
_INTERRUPTED = (130, 143)
_SECONDS = 5.0
_MAKE_TABLES = ("fit", "compare")
_LEDGER = ".logcal"
_SCHEMES = {"s3a": "s3", "gcs": "gs", "abfs": "abfss"}


def emit(
    where: str, job: str, attempt: str, at: datetime, table: dict[str, Any], record: dict[str, Any] | None
) -> None:
    """Send an event: START, or with a record COMPLETE, FAIL or ABORT.

    Parameters
    ----------
    where : URL of a server that takes events, or a file to which they are appended, a line each
    job, attempt : the job's name, and this run's id, a UUID
    at : when
    table : store and table, for the job's name
    record : of the run that has ended

    Raises
    ------
    Exception
        Whatever the library raises; ImportError without it.
    """
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    transport = (
        HttpTransport(HttpConfig(url=where, timeout=_SECONDS, retry={"total": 1}))
        if where.startswith(("http://", "https://"))
        else FileTransport(FileConfig(log_file_path=where, append=True))
    )
    state, inputs, outputs = RunState.START, [], []
    if record is not None:
        code = record["exit_code"]
        ended = RunState.ABORT if code in _INTERRUPTED else RunState.FAIL
        state = RunState.COMPLETE if code in (0, 99) else ended
        own = f"{table['store'].rstrip('/')}/{table['table']}" if table else None
        read = [*record["inputs"]["path"], *([own] if own and job not in _MAKE_TABLES else [])]
        names = _datasets(read, own)
        inputs = [InputDataset(*name) for name in names]
        outputs = [OutputDataset(*name) for name in _datasets(record["outputs"], own) if name not in names]
    event = RunEvent(
        eventTime=at.isoformat(),
        producer=_PRODUCER,
        run=Run(runId=attempt),
        job=Job(namespace=NAMESPACE, name=f"{job}.{table['table']}" if table else job),
        eventType=state,
        inputs=inputs,
        outputs=outputs,
    )
    OpenLineageClient(transport=transport).emit(event)


def _datasets(paths: Iterable[str], table: str | None) -> list[tuple[str, str]]:
    """Namespaces and names of datasets, each once; all that lies in the table's folder is the table."""
    found = [_dataset(path) for path in paths if not path.rstrip("/").endswith(_LEDGER)]
    if table is not None:
        space, own = _dataset(table)
        found = [
            (space, own) if one == space and f"{name}/".startswith(f"{own}/") else (one, name)
            for one, name in found
        ]
    return list(dict.fromkeys(found))


def _dataset(path: str) -> tuple[str, str]:
    """Namespace and name: `file` and the absolute path, or a store's bucket and what is below it.

    >>> _dataset("s3://ads/log/date=*/")
    ('s3://ads', 'log')
    """
    parts = list(itertools.takewhile(lambda part: not re.search(r"[*?\[]", part), path.split("/")))
    plain = "/".join(parts).rstrip("/") or "/"
    url = urlsplit(plain)
    if "://" not in plain or url.scheme in ("file", "local"):
        return "file", str(Path(url.path if "://" in plain else plain).expanduser().absolute())
    return f"{_SCHEMES.get(url.scheme, url.scheme)}://{url.netloc}", url.path.strip("/") or "/"
