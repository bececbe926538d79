"""Execution of a graph in this process."""

from __future__ import annotations

import heapq
import threading
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from functools import partial
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
        progress, schedule = Progress(graph, self.report), _Schedule(graph, reference)
        while schedule.ready:
            progress.update(schedule.done)
            key, call = schedule.next_call()
            schedule.finish(key, call())
        progress.end()
        return schedule.results[reference.key]


class ThreadExecutor(Executor):
    """Runs tasks on threads of this process.

    For tasks that spend their time in compiled loops, numpy and pyarrow, which release the GIL: threads are then as
    fast as processes, start at once, and share memory and caches. Dask's own scheduler takes 0.12 s to import.
    """

    def compute(self, graph: Graph, reference: Any) -> Any:
        """See `Executor.compute`."""
        progress, schedule = Progress(graph, self.report), _Schedule(graph, reference)
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="logcal-worker")
        started: dict[Future[Any], Key] = {}
        try:
            while schedule.ready or started:
                while schedule.ready and len(started) < self.workers:
                    key, call = schedule.next_call()
                    started[pool.submit(call)] = key
                progress.update(schedule.done)
                finished, _ = wait_for_futures(started, LOOK, FIRST_COMPLETED)
                for future in [future for future in started if future in finished]:
                    schedule.finish(started.pop(future), future.result())
        except BaseException:
            running.stop(graph.token)
            raise
        finally:
            _close(pool)
        progress.end()
        return schedule.results[reference.key]


class _Schedule:
    """Schedule of a graph's tasks in this process: of those that can start, the first one added to the graph is next.

    Attributes
    ----------
    ready : heap of the numbers of tasks that can start
    results : results that are still needed, by key
    done : number of finished tasks by layer
    """

    def __init__(self, graph: Graph, reference: Any) -> None:
        self.token, self.tasks, self.kept = graph.token, graph.tasks, reference.key
        self.results: dict[Key, Any] = {}
        self.done: Counter[str] = Counter()
        self._keys = list(self.tasks)
        needs = [task.dependencies for task in self.tasks.values()]
        self._missing = [len(keys) for keys in needs]
        self._users: defaultdict[Key, list[int]] = defaultdict(list)
        for number, keys in enumerate(needs):
            for key in keys:
                self._users[key].append(number)
        self._waiting = {key: len(users) for key, users in self._users.items()}
        self.ready = [number for number, missing in enumerate(self._missing) if not missing]

    def next_call(self) -> tuple[Key, Callable[[], Any]]:
        """Return the key and the call of the next task."""
        key = self._keys[heapq.heappop(self.ready)]
        task = self.tasks[key]
        return key, partial(running.run_locally, self.token, task, *task.inputs(self.results))

    def finish(self, key: Key, result: Any) -> None:
        """Store a task's result, and drop results that no other task needs."""
        self.results[key] = result
        self.done[key[0]] += 1
        for number in self._users[key]:
            self._missing[number] -= 1
            if not self._missing[number]:
                heapq.heappush(self.ready, number)
        for needed in self.tasks[key].dependencies:
            self._waiting[needed] -= 1
            if not self._waiting[needed] and needed != self.kept:
                del self.results[needed]


def _close(pool: ThreadPoolExecutor) -> None:
    """Wait for running tasks after an error, so that none writes during the cleanup."""
    closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    closing.start()
    closing.join(_STOP)
