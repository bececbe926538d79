"""Start of an executor: in this process, on its threads, on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future as Answer
from concurrent.futures import wait as wait_for_futures
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from jobs.cluster import kinds, process_memory, worker_process
from jobs.cluster.watching import ClusterWatch, check_workers, no_worker
from jobs.config.cluster import ADDRESS, AUTO, INLINE, THREADS, ClusterConfig
from jobs.progress import reporting
from logcal.errors import ConfigError, TemporaryError
from pipeline.execution import DaskExecutor, Executor, InlineExecutor, ThreadExecutor
from pipeline.execution.cluster import in_background, look

__all__ = ["SharedCluster", "StartExecutor", "given_executor", "starting_executor"]

log = logging.getLogger("logcal")

T = TypeVar("T")

_SLICE = 0.5
"""Seconds between checks whether the start was cancelled."""

_LATE = 2.0
"""Seconds beyond the timeout to wait for a start, and at the end for a cluster manager's answer."""

_REFUSALS = 3
"""Number of refusals by a cluster manager that end the start; a single one may be temporary."""

_STOP = 30.0
"""Seconds to wait, when a run ends, for a cluster that is still starting, and for one that is closing."""

_WAITING = 30.0
"""Seconds between messages while no worker has come."""


class StartExecutor(Protocol):
    """Function that waits for a cluster and returns its executor."""

    def __call__(self, *, threads: bool = False) -> Executor:
        """`threads` : whether threads suit the job's tasks as well as processes; kind auto uses them then."""


@contextmanager
def starting_executor(
    config: ClusterConfig, workers_import: str = "", shared: SharedCluster | None = None
) -> Iterator[StartExecutor]:
    """Begin to start a cluster; yield a function that waits for it and returns its executor.

    The job is prepared while the cluster starts. With kind auto, worker processes start only for jobs whose tasks
    threads do not suit. The cluster is stopped at the end.

    workers_import : see `jobs.registry.Job`; worker processes of this machine begin to import it at once
    shared : cluster of several runs, which stays; None: the cluster is this run's

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
        cluster = shared or stack.enter_context(SharedCluster())
        if config.kind not in (AUTO, INLINE, THREADS):
            cluster.start(config)

        def executor(*, threads: bool = False) -> Executor:
            if config.kind == INLINE:
                return InlineExecutor(stack.enter_context(reporting()))
            if config.kind == THREADS or (config.kind == AUTO and threads):
                process_memory.keep()
                return ThreadExecutor(kinds.local_workers(config), stack.enter_context(reporting()))
            client, watch = cluster.start(config).result()
            log.info("dashboard: %s%s", client.dashboard_link, _without_bokeh(config))
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        try:
            yield executor
        except TemporaryError:
            cluster.give_up()
            raise


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
            waiting = _WorkerWait(config, "the client's cluster")
            answer = in_background(partial(_watched, client, waiting))
            stack.callback(waiting.cancelled.set)
            watch = waiting.result(answer)
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        yield executor


def _watched(client: Any, waiting: _WorkerWait) -> ClusterWatch:
    waiting.await_worker(client)
    return _watch(client, waiting.config.model_copy(update={"kind": ADDRESS}))


def _watch(client: Any, config: ClusterConfig, **options: Any) -> ClusterWatch:
    """Check a cluster's workers; return what watches them. options : see `ClusterWatch`."""
    workers = client.run_on_scheduler(look, sizes={}).workers
    check_workers(client, workers, config)
    return ClusterWatch(client, config, set(workers), **options)


def _without_bokeh(config: ClusterConfig) -> str:
    started = config.on_this_machine or config.by_class
    return " (its pages need bokeh)" if started and importlib.util.find_spec("bokeh") is None else ""


class _WorkerWait:
    """Wait for a cluster's first worker, and for the end of its start, up to `cluster.timeout`.

    Parameters
    ----------
    config : the cluster's configuration
    cluster : its name in messages
    message : returns the cluster manager's latest message, '' without one

    Attributes
    ----------
    cancelled : set when the run has ended
    """

    def __init__(self, config: ClusterConfig, cluster: str, message: Callable[[], str] = str) -> None:
        self.config = config
        self.cluster = cluster
        self.message = message
        self.cancelled = threading.Event()
        now = time.monotonic()
        self._deadline = now + config.timeout
        # Workers of this machine take a second to start.
        self._next_message = now + (_WAITING if config.on_this_machine else 0)

    @property
    def left(self) -> float:
        """Seconds until the timeout."""
        return self._deadline - time.monotonic()

    def result(self, answer: Answer[T]) -> T:
        """Wait for the start's result.

        Raises
        ------
        TemporaryError
            The cluster does not start or answer.
        """
        # A connection to a port that is open but silent does not time out by itself.
        if not wait_for_futures([answer], self.left + _LATE).done:
            raise TemporaryError(
                f"{self.cluster} did not start or answer within {self.config.timeout:g} s (cluster.timeout)"
            )
        return answer.result()

    def await_worker(self, client: Any) -> None:
        """Wait for a worker, and log that there is none yet.

        Raises
        ------
        TemporaryError
            No worker comes.
        """
        from distributed import TimeoutError as DaskTimeoutError

        while True:
            try:
                client.wait_for_workers(1, timeout=_SLICE)
                return
            except (DaskTimeoutError, TimeoutError):
                message = self.message()
                now = time.monotonic()
                if self.cancelled.is_set() or now > self._deadline:
                    raise no_worker(self.config, message) from None
                if now >= self._next_message:
                    self._next_message = now + _WAITING
                    reason = message and f": {message}"
                    log.info(
                        "no worker yet at %s, waiting up to %g s (cluster.timeout)%s",
                        self.cluster, self.config.timeout, reason,
                    )  # fmt: skip


class _Starting:
    """Cluster, or connection to one, that starts in a background thread.

    The thread is a daemon: an interrupted run does not wait for a scheduler that does not answer.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.client: Any = None
        self.cluster: Any = None
        self.jobs: kinds.ClusterJobs | None = None
        name = config.address or config.scheduler_file or config.kind
        self.waiting = _WorkerWait(config, f"the cluster {name}", self._message_at_start)
        self.refusals = kinds.Refusals()
        self._method = worker_process.begin() if config.on_this_machine else "spawn"
        self._settings = ExitStack()
        self._future = in_background(self._start)

    def result(self) -> tuple[Any, ClusterWatch]:
        """Wait for the start; return a client with at least one worker, and the watch of its workers."""
        return self.waiting.result(self._future)

    @property
    def has_started(self) -> bool:
        """True once a worker has come."""
        return self._future.done() and self._future.exception() is None

    def stop(self) -> None:
        """Stop the cluster, or close the connection."""
        self.waiting.cancelled.set()
        if self.config.on_this_machine or self.config.by_class:
            wait_for_futures([self._future], _STOP)
        self.refusals.close()
        if self.jobs is not None and self.jobs.answer is not None:
            # The query may run in a child process, whose end the event loop must see.
            wait_for_futures([self.jobs.answer], _LATE)
        for opened in (self.client, self.cluster):
            if opened is not None:
                # A scheduler that does not answer keeps nobody; processes of this machine end with this one.
                wait_for_futures([in_background(opened.close)], _STOP)
        self._settings.close()

    def _start(self) -> tuple[Any, ClusterWatch]:
        import distributed  # noqa: F401 - sets the levels of its loggers

        _quiet()
        self.refusals.listen()
        if self.waiting.cancelled.is_set():
            raise TemporaryError("the run ended before the cluster started")
        config = self.config
        if config.on_this_machine:
            # Nannies read them whenever they start a worker again; a program's own Dask must not have them.
            self._settings.enter_context(kinds.local_settings(self._method))
            self.cluster = kinds.local_cluster(config)
        elif config.by_class:
            self.cluster = kinds.cluster_of_class(config)
        if self.cluster is not None:
            self.jobs = kinds.ClusterJobs(self.cluster)
        if self.cluster is None:
            # Importing Dask may have taken most of the time; beyond it, Dask's own message would come too late.
            self.client = kinds.connect(config, max(self.waiting.left, _SLICE))
        else:
            self.client = kinds.client_of(self.cluster, config)
        self.waiting.await_worker(self.client)
        # Workers of this machine have nannies, which start them again.
        jobs = self.jobs if config.by_class else None
        return self.client, _watch(self.client, config, manager_message=self._manager_message, jobs=jobs)

    def _message_at_start(self) -> str:
        """Return the cluster manager's latest message.

        Raises
        ------
        ConfigError
            The manager refuses to start workers.
        """
        message = self._manager_message()
        if self.refusals.permanent and self.refusals.count >= _REFUSALS:
            raise ConfigError(f"cluster.arguments: {self.config.kind} was refused workers: {message}")
        return message

    def _manager_message(self) -> str:
        """Return the cluster manager's latest message, '' without one; resubmit jobs that have not started."""
        if self.jobs is not None:
            self.jobs()
        if self.refusals.last:
            return f"{self.config.kind} said: {self.refusals.last}"
        return "" if self.jobs is None else self.jobs.message


class SharedCluster:
    """Cluster that runs use one after the other, as long as they configure the same one."""

    def __init__(self) -> None:
        self._cluster: _Starting | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, config: ClusterConfig) -> _Starting:
        """Begin to start the cluster of a configuration, unless it has begun before."""
        if self._cluster is None or self._cluster.config != config:
            self.stop()
            self._cluster = _Starting(config)
        return self._cluster

    def give_up(self) -> None:
        """Stop a cluster that may be broken, so that the next run starts another; keep a start that failed."""
        if self._cluster is not None and self._cluster.has_started:
            self.stop()

    def stop(self) -> None:
        """Stop the cluster, if there is one."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()


def _quiet() -> None:
    """Silence Dask's logs: restarts of workers, and tracebacks of errors that are raised here."""
    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
