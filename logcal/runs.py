"""Jobs from Python: `run` and `graph`.

This module is part of `logcal` because users may have packages named `jobs`. It imports `jobs`, a higher layer; the
contracts in pyproject.toml allow this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logcal import own_packages
from logcal.errors import ConfigError, LogcalError

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client

_RESULT_KEYS = ("path", "report", "lookup_path", "history", "log")
"""Keys of a job's facts that may hold the path of the result; the first one present is used."""


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a job.

    Parameters
    ----------
    job : name of the job
    path : path or URL of the result: a lookup table, a scored log, a report, a generated log
    version : name of the table's version that was made or used; None without a table
    facts : the object that the command prints with --json
    """

    job: str
    path: str | None
    version: str | None
    facts: dict[str, Any] = field(repr=False)


def run(job: str, config: Mapping[str, Any] | str | Path, client: Client | None = None) -> RunOutcome:
    """Run a job, as the command `logcal` does.

    Parameters
    ----------
    job : 'fit', 'score', 'evaluate', 'compare', 'monitor', 'generate', 'follow', 'days' (`logcal days run`) or 'demo'
    config : configuration: a mapping of sections, or the path of a YAML file. Keys of other jobs are ignored, so one
        configuration serves all jobs.
    client : `distributed.Client`, optional
        Its cluster does the work instead of the one that section `cluster` describes; `cluster.memory` still limits a
        task's memory.

    Returns
    -------
    RunOutcome

    Raises
    ------
    ConfigError, InputRejectedError, CheckFailedError, TemporaryError
        The command would end with exit code 2, 3, 4 or 75.
    NothingToDoError
        The same inputs and configuration were published before.

    Notes
    -----
    If a program has its own package called `jobs`, `pipeline` or `calibrators`, the job runs in a separate process that
    imports only this project's packages.

    Examples
    --------
    >>> import logcal
    >>> log, store = {"path": "log/"}, {"path": "store", "table": "ads"}
    >>> logcal.run("fit", {"log": log, "store": store}).version                     # doctest: +SKIP
    '000001-5c1d9f0a7b32'
    """
    if _foreign_package() is not None:
        return _run_in_process(job, config, client)
    from jobs import interface

    return _outcome(job, interface.run(job, config, client).summary)


def graph(job: str, config: Mapping[str, Any] | str | Path) -> Delayed:
    """Make a job a `dask.delayed.Delayed`, to be computed inside another Dask program with any scheduler.

    Parameters
    ----------
    job : 'fit'; the other jobs' results are files
    config : as in `run`. `store` is not needed, and only `cluster.memory` is used of `cluster`.

    Returns
    -------
    Delayed
        It computes a `logcal.lookup_table.LookupTable`: the map, or with log.segment maps, with their
        metadata. Nothing is published, and a window's days are not kept. All workers must be able to read `scratch`,
        which holds the sorted rows in a folder that is removed when this process ends. The last task runs sequentially:
        later passes of some methods, segments larger than a task, and partial pooling.

    Raises
    ------
    ConfigError, InputRejectedError
        As the job: at once for errors that the files' footers show, otherwise when the graph is computed. Also if the
        program has a package called `jobs`, `pipeline` or `calibrators`.
    """
    if (other := _foreign_package()) is not None:
        raise ConfigError(
            f"expected logcal's own packages in a program that computes its graphs, found {other}: rename that, or use "
            "logcal.run"
        )
    from jobs import interface

    return interface.graph(job, config)


def _foreign_package() -> str | None:
    """Describe a package of another project that this process imports under one of our names; None without one."""
    found = ((name, own_packages.foreign(name)) for name in own_packages.NAMES)
    return next((f"{name} at {path}" for name, path in found if path is not None), None)


def _outcome(job: str, facts: dict[str, Any]) -> RunOutcome:
    path = next((facts[key] for key in _RESULT_KEYS if facts.get(key)), None)
    return RunOutcome(job, path, facts.get("version"), facts)


def _run_in_process(job: str, config: Mapping[str, Any] | str | Path, client: Client | None) -> RunOutcome:
    """Run a job in a separate process."""
    # A mapping's relative paths are relative to the working folder, as those of a pipe are.
    mapping = None if isinstance(config, (str, Path)) else json.dumps(config, default=str)
    file = "/dev/stdin" if mapping is not None else str(config)
    command = [sys.executable, "-m", "logcal", job, "--config", file, "--json"]
    command += [] if client is None else _settings(client)
    done = subprocess.run(command, stdout=subprocess.PIPE, input=mapping, text=True, check=False)
    facts = json.loads(done.stdout or "{}")
    if done.returncode == 0:
        return _outcome(job, facts)
    raise _ERRORS.get(done.returncode, LogcalError)(
        facts.get("error", f"`logcal {job}` ended with {done.returncode}")
    )


_ERRORS = {error.exit_code: error for error in LogcalError.__subclasses__()}
"""Error classes by exit code."""


def _settings(client: Client) -> list[str]:
    """Return options that set the section `cluster` to a client's scheduler."""
    address, security = client.scheduler.address, client.security
    if address.startswith("inproc:"):
        raise ConfigError(
            f"client: expected one of a scheduler that other processes reach, found {address}: start it with "
            "processes=True"
        )
    cluster = {"kind": "address", "address": address, "arguments": {}}
    if security is not None and security.tls_ca_file:
        cluster["security"] = {
            "ca_file": security.tls_ca_file,
            "cert_file": security.tls_client_cert,
            "key_file": security.tls_client_key,
        }
    return ["--set", f"cluster={json.dumps(cluster)}"]
