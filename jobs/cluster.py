"""Where the work runs: in this process, on its threads, on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from jobs import process_memory, worker_process
from jobs.config import ADDRESS, AUTO, INLINE, THREADS, ClusterConfig
from jobs.progress import reporting
from pipeline.errors import ConfigError, TemporaryError
from pipeline.execution import DaskExecutor, Executor, InlineExecutor, ThreadExecutor

log = logging.getLogger("logcal")

_SLICE = 0.5
"""Seconds between looks at whether a cluster is still wanted."""

_LATE = 2.0
"""Seconds beyond the timeout after which a start that says nothing is given up."""

_STOP = 30.0
"""Seconds to wait, when a run ends early, for a cluster that is still being made: until then it cannot be stopped."""


class StartExecutor(Protocol):
    """Waits for a cluster and returns its executor."""

    def __call__(self, *, threads: bool = False) -> Executor:
        """`threads` : whether threads serve the work as well as processes; with kind auto they are used then."""


@contextmanager
def starting_executor(config: ClusterConfig) -> Iterator[StartExecutor]:
    """Begin to start a cluster; yield what waits for it and returns its executor.

    So that a job can be prepared meanwhile. With kind auto processes are started only for work that threads would not
    serve. Whatever was started is stopped at the end.

    Raises
    ------
    ConfigError
        The cluster class cannot be imported or made.
    TemporaryError
        The cluster cannot be reached, or no worker comes.
    """
    with ExitStack() as stack:

        def start() -> _Starting:
            starting = _Starting(config)
            stack.callback(starting.stop)
            return starting

        begun = None if config.kind in (AUTO, INLINE, THREADS) else start()

        def executor(*, threads: bool = False) -> Executor:
            if config.kind == INLINE:
                return InlineExecutor(stack.enter_context(reporting()))
            if config.kind == THREADS or (config.kind == AUTO and threads):
                process_memory.keep()
                return ThreadExecutor(_local_workers(config), stack.enter_context(reporting()))
            client, workers = (begun or start()).result()
            log.info("dashboard: %s%s", client.dashboard_link, _without_bokeh(config))
            return DaskExecutor(client, workers, stack.enter_context(reporting()))

        yield executor


def _without_bokeh(config: ClusterConfig) -> str:
    here = config.on_this_machine or config.by_class
    return " (its pages need bokeh)" if here and importlib.util.find_spec("bokeh") is None else ""


class _Starting:
    """A cluster, or a connection to one, on its way up in a thread of its own.

    The thread is a daemon: an interrupted run need not wait for a scheduler that does not answer.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.client: Any = None
        self.cluster: Any = None
        self.unwanted = threading.Event()
        self.deadline = time.monotonic() + config.timeout
        self._future: Future[tuple[Any, int]] = Future()
        self._method = worker_process.begin() if config.on_this_machine else "spawn"
        threading.Thread(target=self._run, name="logcal-cluster", daemon=True).start()

    def result(self) -> tuple[Any, int]:
        """A client with at least one worker, and the number of workers there are."""
        # A port that is open but silent has no timeout of its own.
        late = self.deadline - time.monotonic() + _LATE
        if not wait_for_futures([self._future], late).done:
            where = self.config.address or self.config.scheduler_file or self.config.kind
            raise TemporaryError(
                f"the cluster {where} did not start or answer within {self.config.timeout:g} s (cluster.timeout)"
            )
        return self._future.result()

    def stop(self) -> None:
        """Stop what was started."""
        self.unwanted.set()
        if self.config.on_this_machine or self.config.by_class:
            wait_for_futures([self._future], _STOP)
        if self.client is not None:
            self.client.close()
        if self.cluster is not None:
            self.cluster.close()

    def _run(self) -> None:
        try:
            self._future.set_result(self._start())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._future.set_exception(error)

    def _start(self) -> tuple[Any, int]:
        import distributed  # noqa: F401 - sets the levels of its loggers

        _quiet()
        if self.unwanted.is_set():
            raise TemporaryError("the run ended before the cluster started")
        config = self.config
        if config.on_this_machine:
            self.cluster = _local_cluster(config, self._method)
        elif config.by_class:
            self.cluster = _cluster_of_class(config)
        self.client = _connect(config) if self.cluster is None else _client_of(self.cluster, config)
        self._await_worker()
        if not config.on_this_machine:
            _check_versions(self.client)
        workers = list(self.client.scheduler_info(n_workers=-1)["workers"].values())
        _check_memory(workers, config)
        return self.client, len(workers)

    def _await_worker(self) -> None:
        from distributed import TimeoutError as DaskTimeoutError

        while True:
            try:
                self.client.wait_for_workers(1, timeout=_SLICE)
                return
            except (DaskTimeoutError, TimeoutError):
                if self.unwanted.is_set() or time.monotonic() > self.deadline:
                    raise TemporaryError(
                        f"no worker came within {self.config.timeout:g} s (cluster.timeout): see the cluster's own logs"
                    ) from None


def _check_versions(client: Any) -> None:
    # A worker that cannot read its tasks drops them without a word.
    ours = metadata.version("logcal")
    found = client.run(metadata.version, "logcal", on_error="return")
    others = {worker: version for worker, version in found.items() if version != ours}
    if others:
        worker, version = next(iter(others.items()))
        what = f"logcal {version}" if isinstance(version, str) else f"no logcal ({version!r})"
        raise ConfigError(
            f"cluster.kind: expected logcal {ours} on all workers, found {what} on {len(others)} of {len(found)}, such "
            f"as {worker}: install the same version there"
        )


def _check_memory(workers: list[dict[str, Any]], config: ClusterConfig) -> None:
    small = [
        w for w in workers if w["memory_limit"] and w["memory_limit"] / w["nthreads"] < config.memory_bytes
    ]
    if small:
        raise ConfigError(
            f"cluster.memory: expected workers with at least {config.memory} for each thread, found one with "
            f"{small[0]['memory_limit'] / 2**20:.0f} MiB and {small[0]['nthreads']} threads: start workers with more, "
            "or lower cluster.memory"
        )


def _quiet() -> None:
    """Leave out what Dask logs: restarts of workers, and with tracebacks what is raised here as one error."""
    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _local_cluster(config: ClusterConfig, method: str) -> Any:
    import dask
    import distributed.utils
    from distributed import LocalCluster

    # The fork server imports what workers need; otherwise distributed would import pandas here to tell it so.
    distributed.utils._forkserver_preload_set = True
    dask.config.set(
        {
            "distributed.worker.multiprocessing-method": method,
            "distributed.nanny.pre-spawn-environ": worker_process.ENVIRONMENT,
            "distributed.scheduler.work-stealing": False,
        }
    )
    workers = _local_workers(config)
    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=config.memory_bytes,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            # What a task raises, again and again where it is repeated, is raised here once.
            silence_logs=logging.CRITICAL,
        )
    except (RuntimeError, OSError, TimeoutError) as error:
        raise TemporaryError(
            f"the {workers} worker processes on this machine do not start ({error}): try cluster.kind=inline"
        ) from error


def _local_workers(config: ClusterConfig) -> int:
    """As asked for; otherwise one a core, as far as the machine's memory goes."""
    if config.workers is not None:
        return config.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, memory // config.memory_bytes))


def check_class(config: ClusterConfig) -> None:
    """Raise ConfigError if the configuration names a cluster class that cannot be imported."""
    if config.by_class:
        _cluster_class(config.kind)


def _cluster_of_class(config: ClusterConfig) -> Any:
    cls = _cluster_class(config.kind)
    try:
        cluster = cls(**config.arguments)
    except TypeError as error:
        raise ConfigError(f"cluster.arguments: {config.kind} does not take them: {error}") from None
    except Exception as error:
        raise TemporaryError(f"the cluster {config.kind} does not start: {error}") from error
    if config.workers is not None:
        cluster.scale(config.workers)
    return cluster


def _cluster_class(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        package = module_name.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"cluster.kind: cannot import {path} ({error}): install it with `pip install {package}`, "
            "or correct the path"
        ) from None
    except AttributeError:
        raise ConfigError(f"cluster.kind: the module {module_name} has no class {name}") from None
    if not (isinstance(cls, type) and hasattr(cls, "scale")):
        raise ConfigError(f"cluster.kind: expected a Dask cluster class, found {cls!r:.80}")
    return cls


def _client_of(cluster: Any, config: ClusterConfig) -> Any:
    from distributed import Client

    try:
        return Client(cluster, timeout=config.timeout)
    except OSError as error:
        raise TemporaryError(
            f"the scheduler of {config.kind} does not answer within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None


def _connect(config: ClusterConfig) -> Any:
    from distributed import Client

    address = config.address if config.kind == ADDRESS else _address_in(config.scheduler_file or "")
    try:
        return Client(address, timeout=config.timeout)
    except ValueError as error:
        raise ConfigError(
            f"cluster.{config.kind}: expected an address such as tcp://10.0.0.5:8786, found {address} ({error})"
        ) from None
    except OSError as error:
        raise TemporaryError(
            f"no Dask scheduler answers at {address} within {config.timeout:g} s (cluster.timeout): {error}"
        ) from None


def _address_in(path: str) -> str:
    # distributed would wait for the file for ever.
    try:
        address = json.loads(Path(path).read_text())["address"]
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
