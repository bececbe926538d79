"""Execution of a graph in this process, with Dask's own schedulers."""

from __future__ import annotations

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
"""Called with (stage, tasks done, tasks in all), and on a cluster the number of workers that live: first with 0 done,
and often after; what it raises ends the graph."""


def silent(stage: str, done: int, total: int, workers: int | None = None) -> None:
    """Report nothing."""


class Progress:
    """Reports a graph's stages, each from its first task or the end of those before it."""

    def __init__(self, graph: Graph, report: Report) -> None:
        self.report = report
        self.layers = graph.layers
        self.left = [name for name, layer in graph.layers.items() if layer.shown]
        self.begun: set[str] = set()
        self.done: dict[str, int] = {}

    def at(self, done: Mapping[str, int], workers: int | None = None) -> None:
        """Tell of the tasks that are done in each layer; lost ones count as done until they are again."""
        more = () if workers is None else (workers,)
        first = True
        for name in list(self.left):
            stage, _, tasks = self.layers[name]
            now = self.done[name] = max(self.done.get(name, 0), done.get(name, 0))
            begins = name not in self.begun
            if begins:
                if not (first or now):
                    continue
                self.begun.add(name)
                self.report(stage, 0, len(tasks), *more)
            if now or not begins:
                self.report(stage, now, len(tasks), *more)
            if now == len(tasks):
                self.left.remove(name)
            else:
                first = False

    def end(self) -> None:
        """All is done."""
        self.at({name: len(self.layers[name].tasks) for name in self.left})


LOOK = 0.2
"""Seconds between reports."""

_STOP = 8.0
"""Seconds to wait for tasks that run when the command is to end: they look once a batch."""


class Executor(ABC):
    """Computes graphs.

    Attributes
    ----------
    workers : how many tasks run at a time; of a cluster, when it started
    """

    def __init__(self, workers: int, report: Report = silent) -> None:
        self.workers = workers
        self.report = report

    @abstractmethod
    def compute(self, graph: Graph, reference: Any) -> Any:
        """The result of a task of a graph.

        The first error that a task raises is raised here, once no task of the graph runs any more.
        """

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Compute a graph of one stage: function(*task) for each task; the results are in the order of the tasks."""
        found: list[Any] = self.reduce(stage, function, tasks, list, "results")
        return found

    def reduce(
        self,
        stage: str,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        combine: Callable[[list[Any]], Any],
        last: str = "combine",
    ) -> Any:
        """Compute a graph of one stage, and of a last task that makes one result of all results, in their order."""
        graph = Graph()
        results = graph.layer(stage, function, tasks)
        if not results:
            Progress(graph, self.report).end()
            return combine([])
        return self.compute(graph, graph.task(f"{last}-{stage}", combine, results))


class InlineExecutor(Executor):
    """Runs tasks one after the other in this process: for small logs, and for debugging."""

    def __init__(self, report: Report = silent) -> None:
        super().__init__(1, report)

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        progress = Progress(graph, self.report)
        done: Counter[str] = Counter()
        progress.at(done)
        result = _in_turn(graph, reference, done, lambda: progress.at(done))
        progress.end()
        return result


class ThreadExecutor(Executor):
    """Runs tasks on threads of this process.

    For tasks that spend their time in compiled loops, numpy and pyarrow, which let other threads run meanwhile: then
    threads are as quick as processes, start at once, and share their memory and what they have read.
    """

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        progress = Progress(graph, self.report)
        done: Counter[str] = Counter()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="logcal-worker")
        # Dask waits for tasks where signals would end up amid its own work, and has no use for the time.
        waiting = ThreadPoolExecutor(1, thread_name_prefix="logcal-scheduler")
        result = waiting.submit(_on_threads, graph, reference, pool, done)
        try:
            while not result.done():
                progress.at(dict(done))
                wait_for_futures([result], LOOK)
            found = result.result()
        except BaseException:
            running.stop(graph.token)
            raise
        finally:
            _close(pool)
            waiting.shutdown(wait=False, cancel_futures=True)
        progress.end()
        return found


def _on_threads(graph: Graph, reference: Any, pool: ThreadPoolExecutor, done: Counter[str]) -> Any:
    if all(len(layer.tasks) == 1 for layer in graph.layers.values()):
        # Nothing to do side by side, and Dask takes longer to import than a small log to be fitted.
        return _in_turn(graph, reference, done)
    import dask.threaded

    def count(key: Any, *_: Any) -> None:
        done[key[0]] += 1

    tasks = graph.dask(running.here, graph.token)
    return dask.threaded.get(tasks, reference.key, pool=pool, callbacks=[_in_order(tasks, count)])


def _in_turn(
    graph: Graph, reference: Any, done: Counter[str], tell: Callable[[], None] = lambda: None
) -> Any:
    """Compute a graph's tasks one after the other: each is added after those that it needs."""
    results: dict[Key, Any] = {}
    waiting = Counter(key for task in graph.tasks.values() for key in task.dependencies)
    for own, task in graph.tasks.items():
        results[own] = running.here(graph.token, task, *task.taken(results))
        waiting.subtract(task.dependencies)
        for key in task.dependencies:
            if not waiting[key] and key != reference.key:
                del results[key]
        done[own[0]] += 1
        tell()
    return results[reference.key]


def _in_order(tasks: Mapping[Any, Any], done: Callable[..., None]) -> tuple[Any, ...]:
    """Callbacks of Dask's schedulers that let tasks begin in the order of `tasks`, and call `done` after each.

    Dask would begin those of a stage in the order of a set, so that which error comes first were up to chance.
    """
    places = {key: -place for place, key in enumerate(tasks)}
    ready = 0

    def sort(state: Any) -> None:
        nonlocal ready
        if len(state["ready"]) > ready:
            state["ready"].sort(key=places.__getitem__)
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
    """Wait for tasks that run, which Dask lets outlive an error, so that nothing writes what is being cleared up."""
    closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    closing.start()
    closing.join(_STOP)
