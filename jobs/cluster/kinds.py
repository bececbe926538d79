"""The kinds of clusters: made on this machine, made by a class, or reached where they run; jobs of a manager."""

from __future__ import annotations

import importlib
import logging
import os
import time
from concurrent.futures import Future as Answer
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from calibrators.arithmetic.processors import processors
from jobs.cluster import worker_process
from jobs.config.cluster import ADDRESS, ClusterConfig
from logcal.errors import ConfigError, TemporaryError
from logcal.storage import parse_json

PAUSE = 5.0
"""Seconds between questions to the cluster manager, which has others to answer."""

_LONGEST_PAUSE = 300.0
"""Jobs that end again and again before their workers come are not submitted for ever at the same pace."""

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
    """Resubmits jobs whose workers have not come; Dask assumes that every submitted job becomes a worker.

    A job that was not taken is submitted again, with every cluster class. Whether one that was taken has ended only
    its manager knows: Slurm is asked for it; other managers are not.

    Parameters
    ----------
    cluster : of a class, adaptive, so that what it forgets it starts anew

    Attributes
    ----------
    said : what the manager last said of a job whose worker has not come; empty where nothing
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.said = ""
        self.came: set[str] = set()
        self.known: set[str] = set()
        self.pause = PAUSE
        self.next = time.monotonic() + PAUSE
        self.answer: Answer[None] | None = None

    def __call__(self) -> None:
        """Look, without waiting for what the manager says."""
        if self.answer is None or self.answer.done():
            import asyncio  # of a cluster of jobs alone

            self.answer = asyncio.run_coroutine_threadsafe(self._look(), self.cluster.loop.asyncio_loop)

    async def _look(self) -> None:
        jobs = dict(getattr(self.cluster, "workers", {}))
        for name, job in jobs.items():
            if getattr(getattr(job, "status", None), "name", "running") in ("created", "failed", "closed"):
                self._forget(name)
        waiting = self._waiting(jobs)
        if not waiting:
            self.said, self.pause = "", PAUSE
        if not waiting or time.monotonic() < self.next:
            return
        states = await _slurm_states()
        self.next = time.monotonic() + self.pause
        if states is None:
            return
        # One that it never had may be another Slurm's, where several share a submission host.
        self.known |= states.keys()
        known = {name: job.job_id for name, job in waiting.items() if job.job_id in self.known}
        ended = [name for name, own in known.items() if states.get(own, "COMPLETED").split()[0] in _ENDED]
        first = next((job.job_id for job in waiting.values() if job.job_id in states), None)
        self.said = f"Slurm has job {first} as {states[first]}" if first else ""
        if ended:
            self.said = self.said or f"Slurm no longer has job {waiting[ended[0]].job_id}"
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        for name in ended:
            self._forget(name)

    def _waiting(self, jobs: dict[Any, Any]) -> dict[Any, Any]:
        """Slurm's jobs whose workers have never come, by the names of the workers."""
        here = [str(worker["name"]) for worker in self.cluster.scheduler_info["workers"].values()]
        found = {}
        for name, job in jobs.items():
            submitted = str(getattr(job, "submit_command", ""))
            if not getattr(job, "job_id", None) or not submitted.startswith("sbatch"):
                continue
            # Where a job has several workers, they are called after it.
            if any(worker == str(name) or worker.startswith(f"{name}-") for worker in here):
                self.came.add(job.job_id)
            elif job.job_id not in self.came:
                found[name] = job
        return found

    def _forget(self, name: Any) -> None:
        from distributed.core import Status

        job = self.cluster.workers.pop(name, None)
        if job is not None:
            job.status = Status.failed


async def _slurm_states() -> dict[str, str] | None:
    """State and reason of each of the user's jobs that Slurm knows, by number; None if it does not answer."""
    import asyncio

    try:
        process = await asyncio.create_subprocess_exec(*_SLURM, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
        output, _ = await process.communicate()
    except OSError:
        return None
    if process.returncode != 0:
        return None
    lines = [line.split(maxsplit=2) for line in output.decode(errors="replace").splitlines()]
    return {line[0]: " ".join(line[1:]) for line in lines if len(line) > 1}


_KEPT_MESSAGES = 100
_STARTS = 3
"""Attempts to start worker processes on this machine."""


def local_cluster(config: ClusterConfig, method: str) -> Any:
    """Worker processes on this machine; method : how they are started, see `multiprocessing`."""
    import dask
    import distributed.utils

    # The fork server imports what workers need; otherwise distributed would import pandas here to tell it so.
    distributed.utils._forkserver_preload_set = True
    dask.config.set(
        {
            "distributed.worker.multiprocessing-method": method,
            "distributed.nanny.pre-spawn-environ": worker_process.ENVIRONMENT,
            "distributed.scheduler.work-stealing": False,
            # The last messages and transitions are kept for Dask's developers: a thousand of each are megabytes.
            "distributed.admin.low-level-log-length": _KEPT_MESSAGES,
        }
    )
    for attempt in range(_STARTS):
        try:
            return _started(config, local_workers(config))
        except (RuntimeError, OSError, TimeoutError) as error:
            # A worker that was killed while it started.
            if attempt == _STARTS - 1:
                raise TemporaryError(
                    f"the {local_workers(config)} worker processes on this machine do not start ({error}): try "
                    "cluster.kind=inline"
                ) from error
    raise AssertionError


def _started(config: ClusterConfig, workers: int) -> Any:
    from distributed import LocalCluster

    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=config.memory_bytes,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        # Other users of this machine could run code as this one. Dask has no comms on Unix sockets.
        security=True,
        # What a task raises, again and again where it is repeated, is raised here once.
        silence_logs=logging.CRITICAL,
    )
    _forget_spans(cluster.scheduler)
    cluster.adapt(minimum=workers, maximum=workers)
    return cluster


def _forget_spans(scheduler: Any) -> None:
    """Keep nothing of graphs that have ended.

    A scheduler keeps a span of each for its dashboard, with its groups of tasks and, on the workers, their metrics, for
    as long as it lives: some kilobytes for each graph, and a stream has a graph for each batch.
    """
    spans = scheduler.extensions["spans"]
    spans.observe_tasks = spans.heartbeat = lambda *_, **__: {}


def local_workers(config: ClusterConfig) -> int:
    """Choose the number of workers: as asked for; otherwise one a core, as far as the machine's memory goes."""
    if config.workers is not None:
        return config.workers
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(processors(), memory // config.memory_bytes))


class Refusals(logging.Handler):
    """Answers of a cluster manager that was asked for workers; Dask puts them into its log alone.

    Attributes
    ----------
    count : how often in all. last : what it said then; empty while it has said nothing.
    permanent : whether it refused what it was asked, rather than failed at it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.last = ""
        self.permanent = False

    def emit(self, record: logging.LogRecord) -> None:
        """Take the words out of an error."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        self.count += 1
        text = str(error)
        self.permanent = "non-zero exit code" in text or isinstance(error, FileNotFoundError)
        # dask-jobqueue quotes the command's script, and what it said last.
        said = text.rpartition("stderr:")[2].strip() or text
        self.last = " ".join(said.split())[:500]

    def listen(self) -> None:
        """From now on, until `close`."""
        adaptive = logging.getLogger(_ADAPTIVE)
        adaptive.setLevel(logging.WARNING)
        adaptive.propagate = False
        adaptive.addHandler(self)

    def close(self) -> None:
        """No more."""
        logging.getLogger(_ADAPTIVE).removeHandler(self)
        super().close()


_ADAPTIVE = "distributed.deploy.adaptive"


def check_class(config: ClusterConfig) -> Any:
    """The cluster class that a configuration names; None where it names a kind.

    Raises
    ------
    ConfigError
        It cannot be imported, or is none.
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
    """A cluster of the class that the configuration names, with as many workers as it wants."""
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
    """A client of a cluster that was made here."""
    from distributed import Client

    try:
        return Client(cluster, timeout=config.timeout)
    except OSError as error:
        raise TemporaryError(
            f"the scheduler of {config.kind} does not answer within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None


def connect(config: ClusterConfig) -> Any:
    """A client of a cluster that is running."""
    from distributed import Client

    address = str(config.address) if config.kind == ADDRESS else _address_in(config.scheduler_file or "")
    security = _security(address, config)
    try:
        return Client(address, timeout=config.timeout, security=security)
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
        found = f"none at {path} ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        found = f"another file at {path}"
    else:
        return str(address)
    raise ConfigError(
        f"cluster.scheduler_file: expected the file of a running scheduler, found {found}: start "
        f"`dask scheduler --scheduler-file {path}` first"
    )


def _security(address: str, config: ClusterConfig) -> Any:
    """Certificates for an address, of the configuration or of Dask's own; None where there are none.

    Raises
    ------
    ConfigError
        A tls address without certificates; a file that is not there.
    """
    from distributed.security import Security

    security = config.security
    if not security.given:
        own = Security()
        if address.startswith("tls://") and not (own.tls_ca_file and own.tls_client_cert):
            raise ConfigError(
                f"cluster.security: expected certificates for {address}, found none: set cluster.security.ca_file, "
                "cert_file and key_file, or Dask's own configuration (distributed.comm.tls)"
            )
        return own if own.tls_ca_file else None
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
