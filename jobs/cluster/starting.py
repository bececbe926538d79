"""Start of the executor: in this process, on its threads, on processes of this machine, or on a Dask cluster."""

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
from pipeline.execution.cluster import look, soon

__all__ = ["StartExecutor", "given_executor", "starting_executor"]

log = logging.getLogger("logcal")

_SLICE = 0.5
"""Seconds between looks at whether a cluster is still wanted."""

_LATE = 2.0
"""Seconds beyond the timeout after which a start that says nothing is given up, and a manager's answer at the end."""

_REFUSALS = 3
"""After so many a cluster manager is not asked again: the first may have been a mishap."""

_STOP = 30.0
"""Seconds to wait, when a run ends early, for a cluster that is still being made: until then it cannot be stopped."""


class StartExecutor(Protocol):
    """Waits for a cluster and returns its executor."""

    def __call__(self, *, threads: bool = False) -> Executor:
        """`threads` : whether threads serve the work as well as processes; with kind auto they are used then."""


@contextmanager
def starting_executor(config: ClusterConfig, workers_import: str = "") -> Iterator[StartExecutor]:
    """Begin to start a cluster; yield what waits for it and returns its executor.

    So that a job can be prepared meanwhile. With kind auto processes are started only for work that threads would not
    serve. Whatever was started is stopped at the end.

    workers_import : see `jobs.registry.Job`; processes of this machine begin to import it now

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
            starting = _Starting(config)
            stack.callback(starting.stop)
            return starting

        begun = None if config.kind in (AUTO, INLINE, THREADS) else start()

        def executor(*, threads: bool = False) -> Executor:
            if config.kind == INLINE:
                return InlineExecutor(stack.enter_context(reporting()))
            if config.kind == THREADS or (config.kind == AUTO and threads):
                process_memory.keep()
                return ThreadExecutor(kinds.local_workers(config), stack.enter_context(reporting()))
            up = begun or start()
            client, watch = up.result()
            log.info("dashboard: %s%s", client.dashboard_link, _without_bokeh(config))
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        yield executor


@contextmanager
def given_executor(client: Any, config: ClusterConfig) -> Iterator[StartExecutor]:
    """The same of a client that a program has: its cluster is neither started nor stopped here.

    Raises
    ------
    ConfigError
        Its workers do not suit.
    TemporaryError
        It has none.
    """
    with ExitStack() as stack:

        def executor(*, threads: bool = False) -> Executor:
            from distributed import TimeoutError as DaskTimeoutError

            try:
                client.wait_for_workers(1, timeout=config.timeout)
            except (DaskTimeoutError, TimeoutError):
                raise no_worker(config, "") from None
            watch = _watched(client, config.model_copy(update={"kind": ADDRESS}))
            return DaskExecutor(client, len(watch.checked), stack.enter_context(reporting()), watch)

        yield executor


def _watched(client: Any, config: ClusterConfig, **more: Any) -> ClusterWatch:
    """Watch a cluster, whose workers suit so far. more : see `ClusterWatch`."""
    workers = client.run_on_scheduler(look, sizes={}).workers
    check_workers(client, workers, config)
    return ClusterWatch(client, config, set(workers), **more)


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
        self.jobs: kinds.ClusterJobs | None = None
        self.unwanted = threading.Event()
        self.deadline = time.monotonic() + config.timeout
        self.refusals = kinds.Refusals()
        self._method = worker_process.begin() if config.on_this_machine else "spawn"
        self._future = soon(self._start)

    def result(self) -> tuple[Any, ClusterWatch]:
        """A client with at least one worker, and what looks after its workers."""
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
        self.refusals.close()
        if self.jobs is not None and self.jobs.answer is not None:
            # It may have asked the manager by a process of its own, which the loop must see end.
            wait_for_futures([self.jobs.answer], _LATE)
        if self.client is not None:
            self.client.close()
        if self.cluster is not None:
            self.cluster.close()

    def _start(self) -> tuple[Any, ClusterWatch]:
        import distributed  # noqa: F401 - sets the levels of its loggers

        _quiet()
        self.refusals.listen()
        if self.unwanted.is_set():
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
        # Those of this machine have nannies.
        jobs = self.jobs if config.by_class else None
        return self.client, _watched(self.client, config, words=self._words, jobs=jobs)

    def _await_worker(self) -> None:
        from distributed import TimeoutError as DaskTimeoutError

        while True:
            try:
                self.client.wait_for_workers(1, timeout=_SLICE)
                return
            except (DaskTimeoutError, TimeoutError):
                words = self._words()
                if self.refusals.permanent and self.refusals.count >= _REFUSALS:
                    raise ConfigError(
                        f"cluster.arguments: {self.config.kind} was refused workers: {words}"
                    ) from None
                if self.unwanted.is_set() or time.monotonic() > self.deadline:
                    raise no_worker(self.config, words) from None

    def _words(self) -> str:
        """Return the cluster manager's last words, if any; what it did not start is started again."""
        if self.jobs is not None:
            self.jobs()
        if self.refusals.last:
            return f"{self.config.kind} said: {self.refusals.last}"
        return "" if self.jobs is None else self.jobs.said


def _quiet() -> None:
    """Leave out what Dask logs: restarts of workers, and with tracebacks what is raised here as one error."""
    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
