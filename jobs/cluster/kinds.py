"""Clusters: worker processes of this machine, cluster classes, running clusters, and the jobs of a cluster manager."""

from __future__ import annotations

import importlib
import logging
import os
import time
from concurrent.futures import Future as Answer
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from jobs.cluster import worker_process
from jobs.config.cluster import ADDRESS, ClusterConfig
from logcal.errors import ConfigError, TemporaryError
from logcal.storage import parse_json
from pipeline.execution.processors import processors

PAUSE = 5.0
"""Seconds between queries to the cluster manager, which serves other users too."""

QUERY = 60.0
"""Seconds to wait for the cluster manager's answer to a query."""

_LONGEST_PAUSE = 300.0
"""Longest pause, in seconds; the pause doubles while jobs end before their workers have started."""

_SLURM = ("squeue", "--noheader", "--me", "--states=all", "--format=%i %T %r")

_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)


class ClusterJobs:
    """Resubmits jobs whose workers have not started; Dask assumes that every submitted job becomes a worker.

    A job that the manager rejected is submitted again, with every cluster class. Only the manager knows whether an
    accepted job has ended: Slurm is queried; other managers are not.

    Parameters
    ----------
    cluster : adaptive cluster of a class; it starts the workers again that this class makes it forget

    Attributes
    ----------
    message : the manager's latest state of a job whose worker has not started; '': none
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.message = ""
        self.arrived: set[str] = set()
        self.slurm_jobs: set[str] = set()
        self.pause = PAUSE
        self.next = time.monotonic() + PAUSE
        self.answer: Answer[None] | None = None

    def __call__(self) -> None:
        """Check the jobs in the background, without waiting for the manager's answer."""
        if self.answer is None or self.answer.done():
            import asyncio  # only needed here

            self.answer = asyncio.run_coroutine_threadsafe(self._check_jobs(), self.cluster.loop.asyncio_loop)

    async def _check_jobs(self) -> None:
        jobs = dict(getattr(self.cluster, "workers", {}))
        for name, job in jobs.items():
            if getattr(getattr(job, "status", None), "name", "running") in ("created", "failed", "closed"):
                self._forget(name)
        waiting = self._waiting(jobs)
        if not waiting:
            self.message, self.pause = "", PAUSE
        if not waiting or time.monotonic() < self.next:
            return
        states = await _slurm_states()
        self.next = time.monotonic() + self.pause
        if states is None:
            return
        # A job that this Slurm never listed may belong to another Slurm with the same submission host.
        self.slurm_jobs |= states.keys()
        ids = {name: job.job_id for name, job in waiting.items() if job.job_id in self.slurm_jobs}
        ended = [name for name, job_id in ids.items() if states.get(job_id, "COMPLETED").split()[0] in _ENDED]
        first = next((job.job_id for job in waiting.values() if job.job_id in states), None)
        self.message = f"Slurm has job {first} as {states[first]}" if first else ""
        if ended:
            self.message = self.message or f"Slurm no longer has job {waiting[ended[0]].job_id}"
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        for name in ended:
            self._forget(name)

    def _waiting(self, jobs: dict[Any, Any]) -> dict[Any, Any]:
        """Slurm's jobs whose workers have never started, by worker name."""
        workers = [str(worker["name"]) for worker in self.cluster.scheduler_info["workers"].values()]
        waiting = {}
        for name, job in jobs.items():
            submitted = str(getattr(job, "submit_command", ""))
            if not getattr(job, "job_id", None) or not submitted.startswith("sbatch"):
                continue
            # A job's only worker has its name; several have it as a prefix.
            if any(worker == str(name) or worker.startswith(f"{name}-") for worker in workers):
                self.arrived.add(job.job_id)
            elif job.job_id not in self.arrived:
                waiting[name] = job
        return waiting

    def _forget(self, name: Any) -> None:
        from distributed.core import Status

        job = self.cluster.workers.pop(name, None)
        if job is not None:
            job.status = Status.failed


async def _slurm_states() -> dict[str, str] | None:
    """Query Slurm for the state and reason of each of the user's jobs, by job id; None if it does not answer."""
    import asyncio

    try:
        process = await asyncio.create_subprocess_exec(*_SLURM, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), QUERY)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    if process.returncode != 0:
        return None
    lines = [line.split(maxsplit=2) for line in output.decode(errors="replace").splitlines()]
    return {line[0]: " ".join(line[1:]) for line in lines if len(line) > 1}


_LOG_LENGTH = 100
_STARTS = 3
"""Attempts to start worker processes on this machine."""


def local_settings(method: str) -> AbstractContextManager[Any]:
    """Configure Dask for worker processes of this machine, as long as the context lasts.

    method : start method of `multiprocessing`
    """
    import dask

    return dask.config.set(
        {
            "distributed.worker.multiprocessing-method": method,
            "distributed.nanny.pre-spawn-environ": worker_process.ENVIRONMENT,
            "distributed.scheduler.work-stealing": False,
            # Logs of messages and transitions for Dask's developers: the default length takes megabytes.
            "distributed.admin.low-level-log-length": _LOG_LENGTH,
        }
    )


def local_cluster(config: ClusterConfig) -> Any:
    """Start worker processes on this machine, with `local_settings`."""
    import distributed.utils

    # The fork server imports what workers need; otherwise distributed would import pandas here to list it.
    distributed.utils._forkserver_preload_set = True
    for attempt in range(_STARTS):
        try:
            return _start_cluster(config, local_workers(config))
        except (RuntimeError, OSError, TimeoutError) as error:
            # A worker was killed while it started.
            if attempt == _STARTS - 1:
                raise TemporaryError(
                    f"the {local_workers(config)} worker processes on this machine do not start ({error}): try "
                    "cluster.kind=inline"
                ) from error
    raise AssertionError


def _start_cluster(config: ClusterConfig, workers: int) -> Any:
    from distributed import LocalCluster
    from distributed.security import Security

    try:
        # Without TLS, other users of this machine could run code as this user; Dask does not support Unix sockets.
        security = Security.temporary()
    except ImportError:
        raise ConfigError(
            "cluster.kind=local: expected the package cryptography, which makes the certificates of worker processes, "
            "found none: install it, or set cluster.kind=threads"
        ) from None
    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=config.memory_bytes,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        security=security,
        # An error of a task is raised here once; Dask would log it at every attempt.
        silence_logs=logging.CRITICAL,
    )
    _forget_spans(cluster.scheduler)
    cluster.adapt(minimum=workers, maximum=workers)
    return cluster


def _forget_spans(scheduler: Any) -> None:
    """Disable the scheduler's spans, which would grow with every graph.

    For its dashboard a scheduler keeps some kilobytes of task groups and metrics for each graph as long as it lives,
    and a stream has a graph for each batch.
    """
    spans = scheduler.extensions["spans"]
    spans.observe_tasks = spans.heartbeat = lambda *_, **__: {}


def local_workers(config: ClusterConfig) -> int:
    """Number of workers: the configured one; otherwise one per core, as far as the machine's memory allows."""
    if config.workers is not None:
        return config.workers
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(processors(), memory // config.memory_bytes))


class Refusals(logging.Handler):
    """Collects a cluster manager's refusals to start workers, which Dask only logs.

    Attributes
    ----------
    count : number of refusals
    last : message of the latest one; '': none
    permanent : whether the latest one was a rejected request, which would be rejected again
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.last = ""
        self.permanent = False

    def emit(self, record: logging.LogRecord) -> None:
        """Count an error and extract its message."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        self.count += 1
        text = str(error)
        self.permanent = "non-zero exit code" in text or isinstance(error, FileNotFoundError)
        # dask-jobqueue's message quotes the script, then the manager's stderr.
        message = text.rpartition("stderr:")[2].strip() or text
        self.last = " ".join(message.split())[:500]

    def listen(self) -> None:
        """Handle the records of Dask's adaptive scaling until `close`."""
        adaptive = logging.getLogger(_ADAPTIVE)
        adaptive.setLevel(logging.WARNING)
        adaptive.propagate = False
        adaptive.addHandler(self)

    def close(self) -> None:
        """Stop listening."""
        logging.getLogger(_ADAPTIVE).removeHandler(self)
        super().close()


_ADAPTIVE = "distributed.deploy.adaptive"


def check_class(config: ClusterConfig) -> Any:
    """Import the cluster class that a configuration names; None if it names another kind.

    Raises
    ------
    ConfigError
        The class cannot be imported, or is no cluster class.
    """
    if not config.by_class:
        return None
    module_name, _, name = config.kind.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        package = module_name.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"cluster.kind: cannot import {config.kind} ({error}): install it with `pip install {package}`, "
            "or correct the path"
        ) from None
    except AttributeError:
        raise ConfigError(f"cluster.kind: the module {module_name} has no class {name}") from None
    if not (isinstance(cls, type) and hasattr(cls, "scale")):
        raise ConfigError(f"cluster.kind: expected a Dask cluster class, found {cls!r:.80}")
    return cls


def cluster_of_class(config: ClusterConfig) -> Any:
    """Start a cluster of the configured class with the configured number of workers."""
    cls = check_class(config)
    try:
        cluster = cls(**config.arguments)
    except TypeError as error:
        raise ConfigError(f"cluster.arguments: {config.kind} does not take them: {error}") from None
    except Exception as error:
        raise TemporaryError(f"the cluster {config.kind} does not start: {error}") from error
    if config.workers is not None:
        # Unlike with `scale`, jobs that are preempted are submitted again.
        cluster.adapt(minimum=config.workers, maximum=config.workers)
    return cluster


def client_of(cluster: Any, config: ClusterConfig) -> Any:
    """Connect a client to a cluster that this command started."""
    from distributed import Client

    try:
        return Client(cluster, timeout=config.timeout)
    except OSError as error:
        raise TemporaryError(
            f"the scheduler of {config.kind} does not answer within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None


def connect(config: ClusterConfig, seconds: float) -> Any:
    """Connect a client to a running cluster. seconds : what is left of `cluster.timeout`."""
    from distributed import Client

    address = str(config.address) if config.kind == ADDRESS else _address_in(config.scheduler_file or "")
    security = _security(address, config)
    try:
        return Client(address, timeout=seconds, security=security)
    except ValueError as error:
        raise ConfigError(
            f"cluster.{config.kind}: expected an address such as tcp://10.0.0.5:8786, found {address} ({error})"
        ) from None
    except OSError as error:
        if "SSL" in repr(error) or "certificate" in str(error).lower():
            raise ConfigError(
                f"cluster.security: expected certificates that the scheduler at {address} takes, found that it does "
                f"not, or that it is none with TLS: {error}"
            ) from None
        raise TemporaryError(
            f"no Dask scheduler answers at {address} within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None


def _address_in(path: str) -> str:
    # distributed would wait for the file for ever.
    try:
        address = parse_json(Path(path).read_text())["address"]
    except OSError as error:
        problem = f"none at {path} ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        problem = f"another file at {path}"
    else:
        return str(address)
    raise ConfigError(
        f"cluster.scheduler_file: expected the file of a running scheduler, found {problem}: start "
        f"`dask scheduler --scheduler-file {path}` first"
    )


def _security(address: str, config: ClusterConfig) -> Any:
    """Certificates for an address, from the configuration or from Dask's own; None if there are none.

    Raises
    ------
    ConfigError
        A tls address has no certificates; a file cannot be read.
    """
    from distributed.security import Security

    security = config.security
    if not security.is_set:
        dask_security = Security()
        if address.startswith("tls://") and not (dask_security.tls_ca_file and dask_security.tls_client_cert):
            raise ConfigError(
                f"cluster.security: expected certificates for {address}, found none: set cluster.security.ca_file, "
                "cert_file and key_file, or Dask's own configuration (distributed.comm.tls)"
            )
        return dask_security if dask_security.tls_ca_file else None
    for key in ("ca_file", "cert_file", "key_file"):
        path = Path(str(getattr(security, key))).expanduser()
        if not os.access(path, os.R_OK):
            raise ConfigError(
                f"cluster.security.{key}: expected a file that can be read, found none at {path}"
            )
    return Security(
        tls_ca_file=security.ca_file,
        tls_client_cert=security.cert_file,
        tls_client_key=security.key_file,
        require_encryption=True,
    )
