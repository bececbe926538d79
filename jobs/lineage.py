"""Events for OpenLineage, by its own library, which is an extra: `pip install 'logcal[lineage]'`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
        state = _state(record["exit_code"])
        own = f"{table['store'].rstrip('/')}/{table['table']}" if table else None
        read = [*record["inputs"]["path"], *([own] if own and job not in _MAKE_TABLES else [])]
        inputs = [InputDataset(*named) for named in _datasets(read, own)]
        outputs = [OutputDataset(*named) for named in _datasets(record["outputs"], own)]
        outputs = [
            one for one in outputs if (one.namespace, one.name) not in {(i.namespace, i.name) for i in inputs}
        ]
    name = f"{job}.{table['table']}" if table else job
    event = RunEvent(
        eventTime=at.isoformat(),
        producer=_PRODUCER,
        run=Run(runId=attempt),
        job=Job(namespace=NAMESPACE, name=name),
        eventType=state,
        inputs=inputs,
        outputs=outputs,
    )
    OpenLineageClient(transport=transport).emit(event)


def _datasets(paths: Iterable[str], table: str | None) -> list[tuple[str, str]]:
    """Namespaces and names of datasets, each once; all that lies in the table's folder is the table."""
    whole = [] if table is None else [_dataset(table)]
    found = [_dataset(path) for path in paths if not path.rstrip("/").endswith(_LEDGER)]
    inside = [(next((one for one in whole if _is_in(named, one)), named)) for named in found]
    return list(dict.fromkeys(inside))


def _is_in(named: tuple[str, str], folder: tuple[str, str]) -> bool:
    return named[0] == folder[0] and f"{named[1]}/".startswith(f"{folder[1]}/")


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


def _state(code: int) -> Any:
    from openlineage.client.event_v2 import RunState

    if code in (0, 99):
        return RunState.COMPLETE
    return RunState.ABORT if code in _INTERRUPTED else RunState.FAIL
