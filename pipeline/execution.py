"""Running a stage's tasks, in this process, on its threads or on a Dask cluster; results in the tasks' order."""

from __future__ import annotations

import copy
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future as Result
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import TemporaryError

if TYPE_CHECKING:
    from distributed import Client, Future

Report = Callable[[str, int, int], None]
"""Called with (stage, tasks done, tasks in all): first with 0 done, after each task, and often in between; what it
raises ends the stage."""

RETRIES = 2
"""Of a task that raises an unexpected error; a lost worker's tasks run again by themselves."""


_POLL = 0.005
"""Seconds between looks at whether a task has finished."""

_LOOK = 0.2
"""Seconds between reports, and looks at whether the scheduler is still there."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


class Executor(Protocol):
    """Where tasks run."""

    workers: int

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call function(*task) for each task; return the results in the order of the tasks.

        Tasks must be idempotent: one may run again after its worker was lost. The first LogcalError that a
        task raises is raised here.
        """


class InlineExecutor:
    """Runs tasks one after the other in this process: for small logs, and for debugging."""

    workers = 1

    def __init__(self, report: Report = silent) -> None:
        self.report = report

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Executor.run`."""
        results = []
        self.report(stage, 0, len(tasks))
        for i, task in enumerate(tasks):
            results.append(function(*task))
            self.report(stage, i + 1, len(tasks))
        return results


class ThreadExecutor:
    """Runs tasks on threads of this process, each on a copy of its arguments, as a worker process would have it.

    For tasks that spend their time in compiled loops, numpy and pyarrow, which let other threads run meanwhile: then
    threads are as quick as processes, start at once, and share their memory and what they have read.
    """

    def __init__(self, workers: int, report: Report = silent) -> None:
        self.workers = workers
        self.report = report

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Executor.run`."""
        self.report(stage, 0, len(tasks))
        done: queue.SimpleQueue[Result[Any]] = queue.SimpleQueue()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="logcal-worker") as pool:
            results = [pool.submit(_call_on_copies, function, task) for task in tasks]
            for result in results:
                result.add_done_callback(done.put)
            try:
                left = len(tasks)
                while left:
                    try:
                        done.get(timeout=_LOOK).result()
                        left -= 1
                    except queue.Empty:
                        pass
                    self.report(stage, len(tasks) - left, len(tasks))
            finally:
                # After an error those that run come to their end, so that nothing writes what is being cleared up.
                pool.shutdown(cancel_futures=True)
        return [result.result() for result in results]


class DaskExecutor:
    """Runs tasks on the workers of a `distributed.Client`, as futures with keys of their own.

    Tasks are coarse (some 50 to 5,000 a stage) and carry paths, not arrays; results are small. Futures are
    released as their results arrive, so that losing a worker later does not repeat them.
    """

    def __init__(self, client: Client, workers: int, report: Report = silent) -> None:
        self.client = client
        self.workers = workers
        self.report = report

    def run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Executor.run`."""
        from distributed import KilledWorker

        run = uuid.uuid4().hex[:8]
        results: list[Any] = [None] * len(tasks)
        self.report(stage, 0, len(tasks))
        futures = {
            self.client.submit(
                _call, function, task, key=f"{stage}-{i}-{run}", pure=False, retries=RETRIES, priority=-i
            ): i
            for i, task in enumerate(tasks)
        }
        try:
            for future, result in self._completed(stage, futures, len(tasks)):
                results[futures.pop(future)] = result
                self.report(stage, len(tasks) - len(futures), len(tasks))
        except KilledWorker as error:
            raise TemporaryError(
                f"the workers that ran stage '{stage}' died again and again, probably for want of memory: "
                f"give each worker more (cluster.memory). {error}"
            ) from None
        finally:
            if self.client.status == "running":
                self.client.cancel(list(futures), force=True)
        return results

    def _completed(
        self, stage: str, futures: Mapping[Future, int], total: int
    ) -> Iterator[tuple[Future, Any]]:
        """Futures with their results, as they come, until there are no more in `futures`."""
        from distributed import as_completed

        arriving = as_completed(list(futures), with_results=True)
        looked = time.monotonic()
        while futures:
            arrived = arriving.next_batch(block=False)
            for future, result in arrived:
                if isinstance(result, _Failure):
                    raise result.error
                if future.status == "error":
                    raise result[1].with_traceback(result[2])
                if future.status == "finished":
                    yield future, result
            if arrived:
                continue
            time.sleep(_POLL)
            # Results that were under way when the scheduler went never arrive, and never fail.
            if time.monotonic() - looked >= _LOOK:
                looked = time.monotonic()
                self.report(stage, total - len(futures), total)
                if any(future.cancelled() for future in futures):
                    raise TemporaryError(
                        f"the cluster went away during stage '{stage}': see the scheduler's own logs, and run again"
                    )


def _call_on_copies(function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    # What tasks share, such as a calibrator, is changed by those that use it.
    function, task = copy.deepcopy((function, task))
    return function(*task)


class _Failure:
    """An error for the user, carried as a result so that no retry repeats it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _call(function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    from pipeline.errors import LogcalError

    try:
        return function(*task)
    except LogcalError as error:
        return _Failure(error)
