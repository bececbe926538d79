"""Execution of a graph on a Dask cluster, and supervision of the cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future as Answer
from concurrent.futures import wait as wait_for_answers
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logcal.errors import ConfigError, LogcalError, TemporaryError, examples
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
"""Seconds to wait for running tasks when the command ends: they call `tasks.check` once a batch."""

_ANSWER = 2.0
"""Seconds to wait for the workers' counts of running tasks, before they are asked again."""

_SIGHT = 10.0
"""Seconds to wait for the workers' answers whether they see a file."""

LONGEST_LOOK = 1.0
"""Most seconds that count as the scheduler's silence, or as without workers, from one look to the next."""

_LARGE_GRAPH_KEY = "distributed.admin.large-graph-warning-threshold"
_LARGE_GRAPH = 1 << 30
"""Bytes of a graph from which Dask warns; the graphs here only hold paths and numbers."""


class WorkerState(NamedTuple):
    """State of a worker, according to the scheduler.

    Attributes
    ----------
    status : 'running', 'paused', ...
    memory : limit in bytes; 0: none
    threads : number of threads that run tasks
    assigned, executing : number of its tasks, and of those that run
    """

    status: str
    memory: int
    threads: int
    assigned: int
    executing: int


class ClusterState(NamedTuple):
    """State of the cluster, according to the scheduler.

    Attributes
    ----------
    done : number of finished tasks by layer
    failed : whether a task has an error for the user
    workers : by address
    """

    done: dict[str, int]
    failed: bool
    workers: dict[str, WorkerState]

    @property
    def running(self) -> int:
        """Number of workers that take tasks."""
        return sum(worker.status == "running" for worker in self.workers.values())


Watch = Callable[[ClusterState, float], None]
"""Supervises a cluster; called several times a second with its known state, and the seconds for which its scheduler
has not answered. An exception that it raises ends the graph."""


def unwatched(state: ClusterState, silence: float) -> None:
    """Do nothing."""


class DaskExecutor(Executor):
    """Runs tasks on the workers of a `distributed.Client`.

    A graph is one computation of Dask. Tasks get paths, not arrays, and their results are small. An error for the user
    is returned as a result, which is recognised by its type, so that Dask does not repeat the task.
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
        progress.update({})
        with dask.config.set({_LARGE_GRAPH_KEY: _LARGE_GRAPH}):
            future = self.client.compute(
                graph.delayed(reference, running.run_on_worker, graph.token),
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

    def unless_unseen(self, error: Exception) -> Exception:
        """See `Executor.unless_unseen`."""
        return unless_unseen(self.client, error)

    def _result(self, graph: Graph, future: Future, progress: Progress) -> Any:
        from distributed import KilledWorker

        # Asked in the background: if a worker is lost while it sends the result, Dask computes it again.
        answer = in_background(future.result)
        self._await(graph, answer, progress)
        try:
            result = answer.result()
        except KilledWorker as error:
            raise _killed(graph, error) from None
        except Exception as error:
            if future.status == "error":
                raise self.unless_unseen(error) from error
            raise self._cluster_lost(graph, progress) from error
        if isinstance(result, Failure):
            raise self.unless_unseen(result.error)
        return result

    def _await(self, graph: Graph, answer: Answer[Any], progress: Progress) -> None:
        """Wait for the graph's result, and poll the cluster meanwhile; raise a task's error as soon as it is known.

        The error of a task reaches the result in any case, through the tasks that depend on it.
        """
        poll = _Poll(self.client, graph)
        while not wait_for_answers([answer], LOOK).done:
            poll()
            if poll.answered:
                progress.update(poll.state.done, poll.state.running)
            else:
                progress.update({})
            self.watch(poll.state, poll.silence)
            if poll.error is not None:
                raise self.unless_unseen(poll.error)

    def _cluster_lost(self, graph: Graph, progress: Progress) -> TemporaryError:
        stage = next((graph.layers[name].stage for name in progress.unfinished), "the last")
        return TemporaryError(
            f"the cluster went away during stage '{stage}': see the scheduler's own logs, and run again"
        )

    def _stop(self, graph: Graph, futures: list[Future]) -> None:
        """Cancel a graph's tasks, and wait for those that run."""
        if self.client.status != "running" or any(future.cancelled() for future in futures):
            return
        self.client.cancel(futures, force=True)
        end = time.monotonic() + _STOP
        count = 1
        while count and self.client.status == "running" and (remaining := end - time.monotonic()) > 0:
            answer = in_background(lambda: self.client.run(running.stop, graph.token, on_error="ignore"))
            # A worker that has died does not answer.
            wait_for_answers([answer], min(remaining, _ANSWER))
            if not answer.done():
                continue
            count = 0 if answer.exception() is not None else sum(answer.result().values())
            time.sleep(LOOK / 4 if count else 0)


def in_background(question: Callable[[], Result]) -> Answer[Result]:
    """Call a function that asks a scheduler or workers, on a thread: if they are lost, it never returns.

    The thread ends with this process at the latest.
    """
    answer: Answer[Result] = Answer()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised when the answer is read
            answer.set_exception(error)

    threading.Thread(target=ask, name="logcal-asking", daemon=True).start()
    return answer


class _Poll:
    """Polls a cluster without waiting for its answers.

    Attributes
    ----------
    state : last known state
    answered : whether the scheduler has answered
    silence : seconds for which it has not answered
    error : first error for the user that a worker still has; None if none is known
    """

    def __init__(self, client: Client, graph: Graph) -> None:
        self.client = client
        self.layers = list(graph.layers)
        self.sizes = {name: len(layer.tasks) for name, layer in graph.layers.items()}
        self.state = ClusterState({}, False, {})
        self.answered = False
        self.silence = 0.0
        self.error: LogcalError | None = None
        self._called = time.monotonic()
        self._state: Answer[ClusterState] | None = None
        self._error: Answer[LogcalError | None] | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        # While this process is stopped, no time passes.
        self.silence += min(now - self._called, LONGEST_LOOK)
        self._called = now
        if self._state is not None and self._state.done():
            # Errors are ignored: if the scheduler is lost, Dask cancels the futures.
            if self._state.exception() is None:
                self.state, self.answered, self.silence = self._state.result(), True, 0.0
            self._state = None
        if self._error is not None and self._error.done():
            self.error = self._error.result() if self._error.exception() is None else None
            self._error = None
        if self.client.status != "running":
            return
        if self._state is None:
            self._state = in_background(lambda: self.client.run_on_scheduler(look, sizes=self.sizes))
        if self.state.failed and self._error is None:
            self._error = in_background(lambda: first_error(self.client, self.layers))


def first_error(client: Client, layers: list[str]) -> LogcalError | None:
    """Return the first error for the user among the results that workers have; None if they have released them.

    layers : names of a graph's layers
    """
    for key, worker in client.run_on_scheduler(failures, layers=layers):
        # Asked for by a `Future`, a key that has been released meanwhile would never come.
        result = client.run(kept_result, key=key, workers=[worker], on_error="ignore").get(worker)
        if isinstance(result, Failure):
            assert isinstance(result.error, LogcalError)
            return result.error
    return None


def unless_unseen(client: Client, error: Exception) -> Exception:
    """Return the error for workers that do not see a file or folder that this process sees; otherwise the error itself.

    error : error of a task; looked into if a file that it read, or the folder that it wrote to, was not found
    """
    of_system = error.filename if isinstance(error, FileNotFoundError) else ""
    path = str(getattr(error, "missing", "") or of_system or "")
    writing = not os.path.exists(path)  # noqa: PTH110 - '' is none
    if writing and not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120
        return error
    answer = in_background(lambda: client.run(missing_path, path, writing=writing, on_error="ignore"))
    # A worker that has died does not answer.
    wait_for_answers([answer], _SIGHT)
    if not answer.done() or answer.exception() is not None:
        return error
    missing = {worker: path for worker, path in answer.result().items() if path}
    if not missing:
        return error
    worker, path = min(missing.items())
    others = f"; nor do {examples(sorted(missing)[1:], 3)}" if len(missing) > 1 else ""
    return ConfigError(
        f"{path}: expected a folder that all workers see at the same path, found that the worker {worker} does not "
        f"see it{others}: mount it there, or give a path or URL that all workers see"
    )


def missing_path(path: str, *, writing: bool = False) -> str:
    """Return the outermost folder above a path that does not exist here, or is empty; else ''. Runs on a worker.

    A file that alone is missing in its folder may just have been removed.

    writing : whether the folder may be empty, since the file was to be written there
    """
    folder = Path(path).parent
    if folder.is_dir():
        # An empty folder is a mount point without its file system.
        return "" if writing or any(folder.iterdir()) else str(folder)
    while not folder.parent.exists():
        folder = folder.parent
    return str(folder if any(folder.parent.iterdir()) else folder.parent)


def _killed(graph: Graph, error: Any) -> TemporaryError:
    return TemporaryError(
        f"the workers that ran stage '{graph.stage_of(error.task)}' died again and again, probably for want of memory: "
        f"give each worker more ($[memory]). {error}"
    )


def look(dask_scheduler: Any, sizes: dict[str, int]) -> ClusterState:
    """Return the cluster's state; runs on the scheduler. sizes : number of tasks of each layer of a graph."""
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
        ws.address: WorkerState(
            ws.status.name, ws.memory_limit, ws.nthreads, len(ws.processing), len(ws.executing)
        )
        for ws in dask_scheduler.workers.values()
    }
    return ClusterState(done, failed, workers)


def resubmit(dask_scheduler: Any, addresses: list[str]) -> None:
    """Assign tasks that some workers have but do not run to other workers; runs on the scheduler."""
    workers = [dask_scheduler.workers[address] for address in addresses if address in dask_scheduler.workers]
    released = {ts.key: "released" for ws in workers for ts in ws.processing if ts not in ws.executing}
    dask_scheduler.transitions(released, stimulus_id=f"logcal-paused-{time.time()}")


def failures(dask_scheduler: Any, layers: list[str]) -> list[tuple[Any, str]]:
    """List the keys of results that are errors for the user, and a worker that has each; runs on the scheduler.

    They are in the order of their layers.
    """
    found = [
        (key, next(iter(ts.who_has)).address)
        for key, ts in dask_scheduler.tasks.items()
        if isinstance(key, tuple)
        and key[0] in layers
        and ts.state == "memory"
        and ts.type.endswith(Failure.__name__)
    ]
    return sorted(found, key=lambda item: (layers.index(item[0][0]), item[0][1]))


def kept_result(dask_worker: Any, key: Any) -> Any:
    """Return a task's result if the worker has it, otherwise None; runs on the worker."""
    return dask_worker.data.get(key)
