"""Metrics of the last runs for Prometheus' textfile collector, and events for OpenLineage.

Several jobs and tables share one file of metrics.
"""

from __future__ import annotations

import errno
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.files.folders import write_whole
from pipeline.files.storage import is_records_folder

_HELP = {
    "logcal_last_run_timestamp_seconds": "When the last run ended.",
    "logcal_last_success_timestamp_seconds": "When the last run ended that succeeded, or had nothing to do.",
    "logcal_last_exit_code": "Exit code of the last run.",
    "logcal_last_duration_seconds": "How long the last run took.",
    "logcal_rows": "Rows of the last run that succeeded, or of a daily job that scored some, by kind.",
    "logcal_measure": "Measures of the last evaluation, after calibration.",
    "logcal_days": "Days of the log by state, as `logcal days list` names them.",
    "logcal_day_observed_over_expected": "Observed over expected positives of the newest day that was evaluated.",
    "logcal_day_observed_over_expected_timestamp_seconds": "Beginning of that day.",
    "logcal_stream_listing_timestamp_seconds": "When the follower last listed its log.",
    "logcal_stream_batch_timestamp_seconds": "When the last batch ended.",
    "logcal_stream_batch_seconds": "How long the last batch took.",
    "logcal_stream_table_timestamp_seconds": "When the version of the last batch was published.",
    "logcal_stream_batches": "Batches since the follower's start.",
    "logcal_stream_files": "Files since the follower's start, by outcome.",
    "logcal_stream_rows": "Rows since the follower's start, by kind.",
    "logcal_stream_backlog_files": "Files that are listed and not scored yet.",
    "logcal_stream_waiting_files": "Files that cannot be read yet.",
    "logcal_stream_refit_timestamp_seconds": "When the last refit began.",
    "logcal_stream_refits": "Refits since the follower's start, by outcome.",
    "logcal_stream_label_coverage": "Share of the rows with a label, of the days of the last refit.",
}
_OF_DAYS = (
    "logcal_days",
    "logcal_day_observed_over_expected",
    "logcal_day_observed_over_expected_timestamp_seconds",
)
_KEPT_ON_FAILURE = ("logcal_last_success_timestamp_seconds", "logcal_rows", "logcal_measure")
_LABEL = {"measure": "measure", "days": "state"}
"""Label of a metric's values, by its name; of the others: kind."""
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def update(path: Path, record: dict[str, Any]) -> None:
    """Replace a job's and table's metrics in a file by those of its latest run.

    Raises
    ------
    OSError
        The file cannot be written; it is unchanged.
    """
    labels, code = _labels({"job": record["job"], "table": record.get("table", "")}), record["exit_code"]
    end = datetime.fromisoformat(record["end"]).timestamp()
    result = record.get("result") or {}
    states = result.get("states")
    # A daily job that ends with 4, since a person must decide on a day, has done the others.
    rows = record["rows"] if code == 0 or states else {}
    values = {
        "last_run_timestamp_seconds": round(end, 3),
        "last_exit_code": code,
        "last_duration_seconds": record["seconds"],
        "last_success_timestamp_seconds": round(end, 3) if code in (0, 99) else None,
        "rows": rows,
        "measure": record["measures"] if code == 0 else None,
    }
    retained = (
        () if code == 0 else tuple(name for name in _KEPT_ON_FAILURE if not (rows and name == "logcal_rows"))
    )
    _replace(
        path,
        labels,
        "logcal_",
        values | (_day_values(result) if states else {}),
        retained if states else (*retained, *_OF_DAYS),
    )


def _day_values(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the days of a log, which a daily job's result tells."""
    measured = result.get("newest_measured")
    values: dict[str, Any] = {"days": result["states"]}
    if measured is not None:
        begin = datetime.fromisoformat(measured["day"]).replace(tzinfo=UTC)
        values["day_observed_over_expected"] = measured["observed_over_expected"]
        values["day_observed_over_expected_timestamp_seconds"] = begin.timestamp()
    return values


def update_stream(path: Path, table: str, output: str, values: Mapping[str, Any]) -> None:
    """Replace a stream's metrics, those of its table and output, in a file.

    values : metrics by name without `logcal_stream_`; a mapping has one value per label `kind`

    Raises
    ------
    OSError
        The file cannot be written; it is unchanged.
    """
    _replace(path, _labels({"table": table, "output": output}), "logcal_stream_", values)


def _replace(
    path: Path, base_labels: str, prefix: str, values: Mapping[str, Any], retained: Collection[str] = ()
) -> None:
    """Replace all lines of a file with certain labels by new values. retained : metric names whose lines stay."""
    if path.exists() and not path.is_file():
        # A read of a device or FIFO may never end, and the replacement would remove it.
        raise OSError(errno.EINVAL, "expected a regular file, found a folder, device, FIFO or socket")
    before = _LINE.findall(path.read_text() if path.exists() else "")
    lines = {
        (name, labels): value
        for name, labels, value in before
        if name in retained or not f"{labels},".startswith(f"{base_labels},")
    }
    for name, value in values.items():
        label = _LABEL.get(name, "kind")
        for kind, number in value.items() if isinstance(value, Mapping) else [(None, value)]:
            if number is not None:
                labels = base_labels if kind is None else f"{base_labels},{_labels({label: kind})}"
                lines[prefix + name, labels] = _number(float(number))
    write_whole(path, _text(lines).encode())


def _text(values: dict[tuple[str, str], str]) -> str:
    lines = []
    for name, meaning in _HELP.items():
        samples = sorted((labels, value) for (other, labels), value in values.items() if other == name)
        if samples:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _labels(values: dict[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in values.items())


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


NAMESPACE = "logcal"
"""Namespace of jobs; the namespaces of datasets follow OpenLineage's naming specification."""
_PRODUCER = "urn:logcal"
_INTERRUPTED = (130, 143)
_SECONDS = 5.0
_MAKE_TABLES = ("fit", "compare")
_SCHEMES = {"s3a": "s3", "gcs": "gs", "abfs": "abfss"}


def emit(
    target: str, job: str, attempt: str, at: datetime, table: dict[str, Any], record: dict[str, Any] | None
) -> None:
    """Send an event: START, or with a record COMPLETE, FAIL or ABORT.

    Parameters
    ----------
    target : URL of an OpenLineage server, or a file to append the event to as one line
    job : the job's name
    attempt : the run's id, a UUID
    at : time of the event
    table : store and table, for the job's name
    record : run record of a run that has ended; None: it starts

    Raises
    ------
    Exception
        Any error of the OpenLineage library; ImportError without it.
    """
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    transport = (
        HttpTransport(HttpConfig(url=target, timeout=_SECONDS, retry={"total": 1}))
        if target.startswith(("http://", "https://"))
        else FileTransport(FileConfig(log_file_path=target, append=True))
    )
    state, inputs, outputs = RunState.START, [], []
    if record is not None:
        code = record["exit_code"]
        ended = RunState.ABORT if code in _INTERRUPTED else RunState.FAIL
        state = RunState.COMPLETE if code in (0, 99) else ended
        folder = f"{table['store'].rstrip('/')}/{table['table']}" if table else None
        paths = [*record["inputs"]["path"], *([folder] if folder and job not in _MAKE_TABLES else [])]
        names = _datasets(paths, folder)
        inputs = [InputDataset(*name) for name in names]
        outputs = [OutputDataset(*name) for name in _datasets(record["outputs"], folder) if name not in names]
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
    """Return distinct namespaces and names of datasets; paths inside the table's folder stand for the table."""
    datasets = [_dataset(path) for path in paths if not is_records_folder(path)]
    if table is not None:
        target = _dataset(table)
        datasets = [
            target if space == target[0] and f"{name}/".startswith(f"{target[1]}/") else (space, name)
            for space, name in datasets
        ]
    return list(dict.fromkeys(datasets))


def _dataset(path: str) -> tuple[str, str]:
    """Return a dataset's namespace and name: `file` and an absolute path, or a bucket and the path in it.

    >>> _dataset("s3://ads/log/date=*/")
    ('s3://ads', 'log')
    """
    parts = list(itertools.takewhile(lambda part: not re.search(r"[*?\[]", part), path.split("/")))
    base = "/".join(parts).rstrip("/") or "/"
    url = urlsplit(base)
    if "://" not in base or url.scheme in ("file", "local"):
        return "file", str(Path(url.path if "://" in base else base).expanduser().absolute())
    return f"{_SCHEMES.get(url.scheme, url.scheme)}://{url.netloc}", url.path.strip("/") or "/"
