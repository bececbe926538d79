"""Start of an executor: in this process, on its threads, on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait as wait_for_futures
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from jobs.cluster import kinds, process_memory, worker_process
from jobs.cluster.watching import ClusterWatch, check_workers, no_worker
from jobs.config.cluster import ADDRESS, AUTO, INLINE, THREADS, ClusterConfig
from jobs.progress import reporting
from logcal.errors import ConfigError, TemporaryError
from pipeline.execution import DaskExecutor, Executor, InlineExecutor, ThreadExecutor
from pipeline.execution.cluster import in_background, look

__all__ = ["StartExecutor", "given_executor", "starting_executor"]

log = logging.getLogger("logcal")

_SLICE = 0.5
"""Seconds between checks whether the start was cancelled."""

_LATE = 2.0
"""Seconds beyond the timeout to wait for a start, and at the end for a cluster manager's answer."""

_REFUSALS = 3
"""Number of refusals by a cluster manager that end the start; a single one may be temporary."""

_STOP = 30.0
"""Seconds to wait, when a run ends early, for a cluster that is still starting, which cannot be stopped before."""


class StartExecutor(Protocol):
    """Function that waits for a cluster and returns its executor."""

    def __call__(self, *, threads: bool = False) -> Executor:
        """`threads` : whether threads suit the job's tasks as well as processes; kind auto uses them then."""


@contextmanager
def starting_executor(config: ClusterConfig, workers_import: str = "") -> Iterator[StartExecutor]:
    """Begin to start a cluster; yield a function that waits for it and returns its executor.

    The job is prepared while the cluster starts. With kind auto, worker processes start only for jobs whose tasks
    threads do not suit. The cluster is stopped at the end.

    workers_import : see `jobs.registry.Job`; worker processes of this machine begin to import it at once

    Raises
    ------
    ConfigError
        The cluster class cannot be imported or made.
    TemporaryError
        The cluster cannot be reached, or no worker comes.
    """
    if workers_import and config.on_this_machine:
        worker_process.begin(workers_import)
    with ExitStack() as stack:

        def start() -> _Starting:
            cluster = _Starting(config)
            stack.callback(cluster.stop)
            return cluster

        starting = None if config.kind in (AUTO, INLINE, THREADS) else start()

        def executor(*, threads: bool = False) -> Executor:
            if config.kind == INLINE:
                return InlineExecutor(stack.enter_context(reporting()))
            if config.kind == THREADS or (config.kind == AUTO and threads):
                process_memory.keep()
                return ThreadExecutor(kinds.local_workers(config), stack.enter_context(reporting()))
            client, watch = (starting or start()).result()
            log.info("dashboard: %s%s", client.dashboard_link, _without_bokeh(config))
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        yield executor


@contextmanager
def given_executor(client: Any, config: ClusterConfig) -> Iterator[StartExecutor]:
    """Yield a function that returns an executor of a program's client, whose cluster is neither started nor stopped.

    Raises
    ------
    ConfigError
        The workers are unsuitable.
    TemporaryError
        There are no workers.
    """
    with ExitStack() as stack:

        def executor(*, threads: bool = False) -> Executor:
            from distributed import TimeoutError as DaskTimeoutError

            try:
                client.wait_for_workers(1, timeout=config.timeout)
            except (DaskTimeoutError, TimeoutError):
                raise no_worker(config, "") from None
            watch = _watch(client, config.model_copy(update={"kind": ADDRESS}))
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        yield executor


def _watch(client: Any, config: ClusterConfig, **options: Any) -> ClusterWatch:
    """Check a cluster's workers; return what watches them. options : see `ClusterWatch`."""
    workers = client.run_on_scheduler(look, sizes={}).workers
    check_workers(client, workers, config)
    return ClusterWatch(client, config, set(workers), **options)


def _without_bokeh(config: ClusterConfig) -> str:
    started = config.on_this_machine or config.by_class
    return " (its pages need bokeh)" if started and importlib.util.find_spec("bokeh") is None else ""


class _Starting:
    """Cluster, or connection to one, that starts in a background thread.

    The thread is a daemon: an interrupted run does not wait for a scheduler that does not answer.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.client: Any = None
        self.cluster: Any = None
        self.jobs: kinds.ClusterJobs | None = None
        self.cancelled = threading.Event()
        self.deadline = time.monotonic() + config.timeout
        self.refusals = kinds.Refusals()
        self._method = worker_process.begin() if config.on_this_machine else "spawn"
        self._future = in_background(self._start)

    def result(self) -> tuple[Any, ClusterWatch]:
        """Wait for the start; return a client with at least one worker, and the watch of its workers."""
        # A connection to a port that is open but silent does not time out by itself.
        timeout = self.deadline - time.monotonic() + _LATE
        if not wait_for_futures([self._future], timeout).done:
            cluster = self.config.address or self.config.scheduler_file or self.config.kind
            raise TemporaryError(
                f"the cluster {cluster} did not start or answer within {self.config.timeout:g} s (cluster.timeout)"
            )
        return self._future.result()

    def stop(self) -> None:
        """Stop the cluster, or close the connection."""
        self.cancelled.set()
        if self.config.on_this_machine or self.config.by_class:
            wait_for_futures([self._future], _STOP)
        self.refusals.close()
        if self.jobs is not None and self.jobs.answer is not None:
            # The query may run in a child process, whose end the event loop must see.
            wait_for_futures([self.jobs.answer], _LATE)
        if self.client is not None:
            self.client.close()
        if self.cluster is not None:
            self.cluster.close()

    def _start(self) -> tuple[Any, ClusterWatch]:
        import distributed  # noqa: F401 - sets the levels of its loggers

        _quiet()
        self.refusals.listen()
        if self.cancelled.is_set():
            raise TemporaryError("the run ended before the cluster started")
        config = self.config
        if config.on_this_machine:
            self.cluster = kinds.local_cluster(config, self._method)
        elif config.by_class:
            self.cluster = kinds.cluster_of_class(config)
        if self.cluster is not None:
            self.jobs = kinds.ClusterJobs(self.cluster)
        self.client = kinds.connect(config) if self.cluster is None else kinds.client_of(self.cluster, config)
        self._await_worker()
        # Workers of this machine have nannies, which start them again.
        jobs = self.jobs if config.by_class else None
        return self.client, _watch(self.client, config, manager_message=self._manager_message, jobs=jobs)

    def _await_worker(self) -> None:
        from distributed import TimeoutError as DaskTimeoutError

        while True:
            try:
                self.client.wait_for_workers(1, timeout=_SLICE)
                return
            except (DaskTimeoutError, TimeoutError):
                message = self._manager_message()
                if self.refusals.permanent and self.refusals.count >= _REFUSALS:
                    raise ConfigError(
                        f"cluster.arguments: {self.config.kind} was refused workers: {message}"
                    ) from None
                if self.cancelled.is_set() or time.monotonic() > self.deadline:
                    raise no_worker(self.config, message) from None

    def _manager_message(self) -> str:
        """Return the cluster manager's latest message, '' without one; resubmit jobs that have not started."""
        if self.jobs is not None:
            self.jobs()
        if self.refusals.last:
            return f"{self.config.kind} said: {self.refusals.last}"
        return "" if self.jobs is None else self.jobs.message


def _quiet() -> None:
    """Silence Dask's logs: restarts of workers, and tracebacks of errors that are raised here."""
    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
