"""Execution of a graph on a Dask cluster, and its supervision."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future as Answer
from concurrent.futures import wait as wait_for_answers
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logcal.errors import LogcalError, TemporaryError
from pipeline.execution import tasks as running
from pipeline.execution.executors import LOOK, Executor, Progress, Report, silent
from pipeline.execution.graph import Graph
from pipeline.execution.tasks import Failure

if TYPE_CHECKING:
    from distributed import Client, Future

Result = TypeVar("Result")

RETRIES = 2
"""Retries of a task that raises an unexpected error; a lost worker's tasks run again by themselves."""

_STOP = 8.0
"""Seconds to wait for tasks that still run when the command is to end: they look once a batch."""

_ANSWER = 2.0
"""Seconds to wait for workers to say how many tasks they still run, before they are asked again."""

_LARGE_GRAPH_KEY = "distributed.admin.large-graph-warning-threshold"
_LARGE_GRAPH = 1 << 30
"""Bytes of a graph from which Dask warns: ours hold paths and numbers."""


class WorkerSeen(NamedTuple):
    """A worker, as the scheduler knows it.

    Attributes
    ----------
    status : 'running', 'paused', ...
    memory : bytes that it may take; 0: no limit
    threads : of its tasks
    assigned, executing : tasks that it was given, and those of them that run
    """

    status: str
    memory: int
    threads: int
    assigned: int
    executing: int


class Seen(NamedTuple):
    """State of the cluster by the scheduler's account.

    Attributes
    ----------
    done : tasks that have ended, by layer
    failed : a layer with an error for the user
    workers : by address
    """

    done: dict[str, int]
    failed: bool
    workers: dict[str, WorkerSeen]

    @property
    def running(self) -> int:
        """Workers that take tasks."""
        return sum(worker.status == "running" for worker in self.workers.values())


Watch = Callable[[Seen], None]
"""Looks after a cluster's workers, some times a second; what it raises ends the graph."""


def unwatched(seen: Seen) -> None:
    """Look after nothing."""


class DaskExecutor(Executor):
    """Runs tasks on the workers of a `distributed.Client`.

    A graph is one computation of Dask. Tasks carry paths, not arrays; results are small. An error for the user travels
    as a result, so that Dask does not repeat its task, and is seen by its type.
    """

    def __init__(
        self, client: Client, workers: int, report: Report = silent, watch: Watch = unwatched
    ) -> None:
        super().__init__(workers, report)
        self.client = client
        self.watch = watch

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        import dask

        progress = Progress(graph, self.report)
        progress.at({})
        with dask.config.set({_LARGE_GRAPH_KEY: _LARGE_GRAPH}):
            future = self.client.compute(
                graph.delayed(reference, running.elsewhere, graph.token),
                optimize_graph=False,
                retries=RETRIES,
            )
        try:
            result = self._result(graph, future, progress)
        except BaseException:
            self._stop(graph, [future])
            raise
        future.release()
        progress.end()
        return result

    def _result(self, graph: Graph, future: Future, progress: Progress) -> Any:
        from distributed import KilledWorker

        self._await(graph, future, progress)
        if future.cancelled():
            raise self._gone(graph, progress)
        try:
            result = future.result()
        except KilledWorker as error:
            raise _killed(graph, error) from None
        if isinstance(result, Failure):
            raise result.error
        return result

    def _await(self, graph: Graph, future: Future, progress: Progress) -> None:
        """Wait until the future is done, looking at the scheduler meanwhile."""
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        looking = _Looking(self, graph)
        while not ended.wait(LOOK):
            seen = looking()
            if seen is None:
                progress.at({})
                continue
            progress.at(seen.done, seen.running)
            self.watch(seen)
            if seen.failed:
                raise self._failure(graph)

    def _failure(self, graph: Graph) -> LogcalError:
        """The first error for the user that is there."""
        from distributed import Future

        for key in self.client.run_on_scheduler(failures, layers=list(graph.layers)):
            result = Future(key, self.client).result()
            if isinstance(result, Failure):
                assert isinstance(result.error, LogcalError)
                return result.error
        raise AssertionError("expected the error that the scheduler knows of, found none")

    def _gone(self, graph: Graph, progress: Progress) -> TemporaryError:
        stage = next((graph.layers[name].stage for name in progress.left), "the last")
        return TemporaryError(
            f"the cluster went away during stage '{stage}': see the scheduler's own logs, and run again"
        )

    def _stop(self, graph: Graph, futures: list[Future]) -> None:
        """Let no task of a graph begin, and wait for those that run."""
        if self.client.status != "running" or any(future.cancelled() for future in futures):
            return
        self.client.cancel(futures, force=True)
        end = time.monotonic() + _STOP
        left = 1
        while left and self.client.status == "running" and (time_left := end - time.monotonic()) > 0:
            answer = soon(lambda: self.client.run(running.stop, graph.token, on_error="ignore"))
            # A worker that has died does not answer.
            wait_for_answers([answer], min(time_left, _ANSWER))
            if not answer.done():
                continue
            left = 0 if answer.exception() is not None else sum(answer.result().values())
            time.sleep(LOOK / 4 if left else 0)


def soon(question: Callable[[], Result]) -> Answer[Result]:
    """Ask a scheduler or workers something, and do not wait: who is no more never answers.

    The thread that waits ends with this process.
    """
    answer: Answer[Result] = Answer()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is asked for
            answer.set_exception(error)

    threading.Thread(target=ask, name="logcal-asking", daemon=True).start()
    return answer


class _Looking:
    """Asks the scheduler what it knows, and never waits for it: called, it gives the last answer, None before any."""

    def __init__(self, executor: DaskExecutor, graph: Graph) -> None:
        self.executor = executor
        self.sizes = {name: len(layer.tasks) for name, layer in graph.layers.items()}
        self.answer: Answer[Seen] | None = None
        self.seen: Seen | None = None

    def __call__(self) -> Seen | None:
        client = self.executor.client
        if self.answer is not None and self.answer.done():
            # A scheduler that has gone is seen by the futures.
            self.seen = self.answer.result() if self.answer.exception() is None else self.seen
            self.answer = None
        if self.answer is None and client.status == "running":
            self.answer = soon(lambda: client.run_on_scheduler(look, sizes=self.sizes))
        return self.seen


def _killed(graph: Graph, error: Any) -> TemporaryError:
    return TemporaryError(
        f"the workers that ran stage '{graph.stage_of(error.task)}' died again and again, probably for want of memory: "
        f"give each worker more (cluster.memory). {error}"
    )


def look(dask_scheduler: Any, sizes: dict[str, int]) -> Seen:
    """Runs on the scheduler: how far the layers of a graph are, with `sizes` tasks each."""
    done, failed = {}, False
    for name, size in sizes.items():
        group = dask_scheduler.task_groups.get(name)
        if group is None:
            continue
        waiting = sum(
            group.states[state] for state in ("released", "waiting", "no-worker", "queued", "processing")
        )
        done[name] = max(0, size - waiting)
        failed |= any(kind.endswith(f".{Failure.__name__}") for kind in group.types)
    workers = {
        ws.address: WorkerSeen(
            ws.status.name, ws.memory_limit, ws.nthreads, len(ws.processing), len(ws.executing)
        )
        for ws in dask_scheduler.workers.values()
    }
    return Seen(done, failed, workers)


def resubmit(dask_scheduler: Any, addresses: list[str]) -> None:
    """Runs on the scheduler: tasks that some workers were given and do not run are given to others."""
    workers = [dask_scheduler.workers[address] for address in addresses if address in dask_scheduler.workers]
    released = {ts.key: "released" for ws in workers for ts in ws.processing if ts not in ws.executing}
    dask_scheduler.transitions(released, stimulus_id=f"logcal-paused-{time.time()}")


def failures(dask_scheduler: Any, layers: list[str]) -> list[Any]:
    """Runs on the scheduler: keys of the results that are errors for the user, the first layers' first."""
    return sorted(
        (
            key
            for key, ts in dask_scheduler.tasks.items()
            if isinstance(key, tuple)
            and key[0] in layers
            and ts.state == "memory"
            and ts.type.endswith(Failure.__name__)
        ),
        key=lambda key: (layers.index(key[0]), key[1]),
    )
