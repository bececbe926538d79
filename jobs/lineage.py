"""Events for OpenLineage, by its own library, which is an extra: `pip install 'logcal[lineage]'`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

NAMESPACE = "logcal"
_PRODUCER = "urn:logcal"
_INTERRUPTED = (130, 143)
_SECONDS = 5.0


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
        inputs = [InputDataset(NAMESPACE, path) for path in record["inputs"]["path"]]
        outputs = [OutputDataset(NAMESPACE, path) for path in record["outputs"]]
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


def _state(code: int) -> Any:
    from openlineage.client.event_v2 import RunState

    if code in (0, 99):
        return RunState.COMPLETE
    return RunState.ABORT if code in _INTERRUPTED else RunState.FAIL
