"""Execution of a graph in this process, with Dask's own schedulers."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Any

from pipeline.execution import tasks as running
from pipeline.execution.graph import Graph, Key

Report = Callable[..., None]
"""Called with the stage, its finished tasks, all its tasks, and on a cluster the number of live workers: first with 0
finished tasks, then repeatedly. An exception that it raises ends the graph."""


def silent(stage: str, done: int, total: int, workers: int | None = None) -> None:
    """Report nothing."""


class Progress:
    """Reports the progress of a graph's stages, each from its first finished task or the end of the stages before."""

    def __init__(self, graph: Graph, report: Report) -> None:
        self.report = report
        self.layers = graph.layers
        self.unfinished = [name for name, layer in graph.layers.items() if layer.shown]
        self.begun: set[str] = set()
        self.done: dict[str, int] = {}

    def update(self, done: Mapping[str, int], workers: int | None = None) -> None:
        """Report the number of finished tasks by layer. It never decreases, also when results are lost."""
        extra = () if workers is None else (workers,)
        first = True
        for name in list(self.unfinished):
            stage, _, tasks = self.layers[name]
            count = self.done[name] = max(self.done.get(name, 0), done.get(name, 0))
            begins = name not in self.begun
            if begins:
                if not (first or count):
                    continue
                self.begun.add(name)
                self.report(stage, 0, len(tasks), *extra)
            if count or not begins:
                self.report(stage, count, len(tasks), *extra)
            if count == len(tasks):
                self.unfinished.remove(name)
            else:
                first = False

    def end(self) -> None:
        """Report all tasks as finished."""
        self.update({name: len(self.layers[name].tasks) for name in self.unfinished})


LOOK = 0.2
"""Seconds between reports."""

_STOP = 8.0
"""Seconds to wait for running tasks when the command ends: they call `tasks.check` once a batch."""


class Executor(ABC):
    """Computes graphs.

    Attributes
    ----------
    workers : number of tasks that run at a time; on a cluster, its number when the cluster started
    """

    def __init__(self, workers: int, report: Report = silent) -> None:
        self.workers = workers
        self.report = report

    @abstractmethod
    def compute(self, graph: Graph, reference: Any) -> Any:
        """Return the result of a graph's task.

        The first error that a task raises is raised here, once no task of the graph runs any more.
        """

    def unless_unseen(self, error: Exception) -> Exception:
        """Return the error for workers that do not see what this process sees, if that is the cause; else the error.

        error : error of a file or folder that was not found
        """
        return error

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Compute a graph of one stage, function(*task) for each task; return the results in the order of the tasks."""
        results: list[Any] = self.reduce(stage, function, tasks, list, "results")
        return results

    def reduce(
        self,
        stage: str,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        combine: Callable[[list[Any]], Any],
        last: str = "combine",
    ) -> Any:
        """Compute a graph of one stage and a last task that combines the stage's results, in order."""
        graph = Graph()
        results = graph.layer(stage, function, tasks)
        if not results:
            Progress(graph, self.report).end()
            return combine([])
        return self.compute(graph, graph.task(f"{last}-{stage}", combine, results))


class InlineExecutor(Executor):
    """Runs tasks sequentially in this process: for small logs, and for debugging."""

    def __init__(self, report: Report = silent) -> None:
        super().__init__(1, report)

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        progress = Progress(graph, self.report)
        done: Counter[str] = Counter()
        progress.update(done)
        result = _sequentially(graph, reference, done, lambda: progress.update(done))
        progress.end()
        return result


class ThreadExecutor(Executor):
    """Runs tasks on threads of this process.

    For tasks that spend their time in compiled loops, numpy and pyarrow, which release the GIL: threads are then as
    fast as processes, start at once, and share memory and caches.
    """

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        progress = Progress(graph, self.report)
        done: Counter[str] = Counter()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="logcal-worker")
        # Dask's scheduler blocks while it waits for tasks. On a thread of its own it is not interrupted by signals, and
        # this thread reports the progress.
        scheduler = ThreadPoolExecutor(1, thread_name_prefix="logcal-scheduler")
        future = scheduler.submit(_on_threads, graph, reference, pool, done)
        try:
            while not future.done():
                progress.update(dict(done))
                wait_for_futures([future], LOOK)
            result = future.result()
        except BaseException:
            running.stop(graph.token)
            raise
        finally:
            _close(pool)
            scheduler.shutdown(wait=False, cancel_futures=True)
        progress.end()
        return result


def _on_threads(graph: Graph, reference: Any, pool: ThreadPoolExecutor, done: Counter[str]) -> Any:
    if all(len(layer.tasks) == 1 for layer in graph.layers.values()):
        # No tasks can run concurrently, and importing Dask takes longer than fitting a small log.
        return _sequentially(graph, reference, done)
    import dask.threaded

    def count(key: Any, *_: Any) -> None:
        done[key[0]] += 1

    tasks = graph.dask(running.run_locally, graph.token)
    return dask.threaded.get(tasks, reference.key, pool=pool, callbacks=[_in_order(tasks, count)])


def _sequentially(
    graph: Graph, reference: Any, done: Counter[str], report: Callable[[], None] = lambda: None
) -> Any:
    """Compute a graph's tasks in the order in which they were added, which is after the tasks that they need."""
    results: dict[Key, Any] = {}
    waiting = Counter(key for task in graph.tasks.values() for key in task.dependencies)
    for key, task in graph.tasks.items():
        results[key] = running.run_locally(graph.token, task, *task.inputs(results))
        waiting.subtract(task.dependencies)
        for needed in task.dependencies:
            if not waiting[needed] and needed != reference.key:
                del results[needed]
        done[key[0]] += 1
        report()
    return results[reference.key]


def _in_order(tasks: Mapping[Any, Any], done: Callable[..., None]) -> tuple[Any, ...]:
    """Return callbacks of Dask's schedulers that start tasks in the order of their indices and call `done` after each.

    Without them Dask starts the tasks of a stage in the order of a set, so the first error would depend on chance. By
    index, as on a cluster, tasks that join results of a long stage do not wait for its end.
    """
    ranks = {key: -i for i, key in enumerate(sorted(tasks, key=operator.itemgetter(1)))}
    ready = 0

    def sort(state: Any) -> None:
        nonlocal ready
        if len(state["ready"]) > ready:
            state["ready"].sort(key=ranks.__getitem__)
        ready = len(state["ready"])

    def start(graph: Any, state: Any) -> None:
        sort(state)

    def before(key: Any, graph: Any, state: Any) -> None:
        nonlocal ready
        ready -= 1

    def after(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        sort(state)
        done(key)

    return None, start, before, after, None


def _close(pool: ThreadPoolExecutor) -> None:
    """Wait for running tasks, which Dask does not stop after an error, so that none writes during the cleanup."""
    closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    closing.start()
    closing.join(_STOP)
