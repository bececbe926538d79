"""Cost of a fit's graph to a Dask scheduler, with workers that do nothing: python benchmarks/scheduler.py --rows 1e10.

The graph is that of a fit, from a simulated list of files. The scheduler runs in this process; its workers are
coroutines that answer every task at once with a small result. This measures the graph, the scheduler and the messages:
processor seconds and bytes per task, and the memory of the process. Requests to an object store are computed from the
graph: a sort task writes its run, and a merge reads a slice of each run in its range.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import pickle
import resource
import time
from typing import Any

import dask
import distributed
from _measure import print_machine
from distributed import Client, Scheduler
from distributed.comm import connect
from distributed.core import Status

from pipeline.execution import Graph
from pipeline.log.log_files import LogFile
from pipeline.log.logs import Columns, Log
from pipeline.sort.run_merging import regrouping
from pipeline.sort.score_table import SortedRows, SortPlan, add_merge, add_sort

ROW_GROUP = 1 << 21
REQUEST_DOLLARS = {"read": 0.4e-6, "write": 5e-6}
"""List prices of S3 for a GET and a PUT."""


def log_of(rows: int) -> Log:
    """Make a log of files with one row group each, which do not exist."""
    files = tuple(
        LogFile(f"log/{i:06d}.parquet", f"{i:06d}.parquet", 16 * ROW_GROUP, "0", (ROW_GROUP,))
        for i in range(-(-rows // ROW_GROUP))
    )
    return Log("log", None, files, Columns("score", "label"))


class Worker:
    """Worker that reports every task as finished when it receives it."""

    def __init__(self, number: int) -> None:
        self.address = f"tcp://127.0.0.1:{10_000 + number}"  # a placeholder: nothing connects to it
        self.tasks = self.sent = self.received = 0

    async def run(self, scheduler: Scheduler) -> None:
        """Register, and answer until the scheduler closes."""
        comm = await connect(scheduler.address)
        hello = {
            "op": "register-worker", "reply": False, "address": self.address, "status": Status.running.name,
            "nthreads": 1, "name": self.address, "now": time.time(), "resources": {}, "memory_limit": 4 << 30,
            "local_directory": "", "services": {}, "nanny": None, "pid": 0, "versions": {}, "extra": {},
            "metrics": METRICS, "stimulus_id": "register", "server_id": self.address,
        }  # fmt: skip
        await comm.write(hello)
        await comm.read()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while True:
                answers = [answer for message in await comm.read() for answer in self._answer(message)]
                if answers:
                    await comm.write(answers)

    def _answer(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if message.get("op") != "compute-task":
            return []
        self.tasks += 1
        # Without a duration, Dask's work stealing would reconsider all waiting tasks at each answer.
        now = time.time()
        answer = {
            "op": "task-finished", "status": "OK", "key": message["key"], "run_id": message["run_id"],
            "nbytes": 1000, "type": b"", "typename": "int", "metadata": {}, "thread": 0,
            "startstops": ({"action": "compute", "start": now, "stop": now + 1.0},), "stimulus_id": "done",
        }  # fmt: skip
        if self.tasks % 50 == 1:  # a sample, as pickling all messages would dominate
            self.received += len(pickle.dumps({k: v for k, v in message.items() if k != "run_spec"}))
            self.received += len(pickle.dumps(message["run_spec"]))
            self.sent += len(pickle.dumps(answer))
        return [answer]


METRICS = {
    "memory": 0, "managed_bytes": 0, "spilled_bytes": {"memory": 0, "disk": 0}, "cpu": 0.0, "time": 0.0,
    "event_loop_interval": 0.0, "executing": 0, "in_memory": 0, "ready": 0, "in_flight": 0, "num_fds": 0,
    "transfer": {"incoming_bytes": 0, "incoming_count": 0, "incoming_count_total": 0, "outgoing_bytes": 0,
                 "outgoing_count": 0, "outgoing_count_total": 0},
    "bandwidth": {"total": 1e8, "workers": {}, "types": {}}, "digests_total_since_heartbeat": {},
    "task_counts": {}, "host": {},
}  # fmt: skip


async def simulate(rows: int, workers: int, memory: int) -> None:
    """Build the graph, run it on the scheduler, and print a line."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    plan = SortPlan("scratch").within(memory, rows)
    log, graph = log_of(rows), Graph()
    rows_sorted = SortedRows(log, plan, add_sort(graph, log, plan))
    last = add_merge(graph, rows_sorted)
    tasks = sum(len(layer.tasks) for layer in graph.layers.values())
    built = resource.getrusage(resource.RUSAGE_SELF)
    async with Scheduler(port=0, protocol="inproc://", dashboard=False) as scheduler:
        stubs = [Worker(i) for i in range(workers)]
        running = [asyncio.ensure_future(stub.run(scheduler)) for stub in stubs]
        while len(scheduler.workers) < workers:
            await asyncio.sleep(0.01)
        async with Client(scheduler.address, asynchronous=True) as client:
            future = client.compute(graph.delayed(last), optimize_graph=False)
            await future._state.wait()
            assert future.status == "finished", future.status
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    after = resource.getrusage(resource.RUSAGE_SELF)
    done = sum(stub.tasks for stub in stubs)
    sampled = max(1, sum(-(-stub.tasks // 50) for stub in stubs))
    cpu = [x.ru_utime + x.ru_stime for x in (before, built, after)]
    runs, buckets = -(-rows // plan.run_rows), rows_sorted.most_parts
    shape = regrouping(runs, buckets)
    reads = runs * buckets if shape is None else runs * shape.ranges + buckets * shape.groups
    writes = runs + (0 if shape is None else shape.groups * shape.ranges)
    dollars = reads * REQUEST_DOLLARS["read"] + writes * REQUEST_DOLLARS["write"]
    print(
        f"{rows:.0e}  {workers:7,}  {runs:7,}  {buckets:7,}  {tasks:8,}  {done:8,}  {cpu[1] - cpu[0]:8.1f}  "
        f"{1e3 * (cpu[2] - cpu[1]) / max(done, 1):10.2f}  {sum(s.received + s.sent for s in stubs) / sampled:10,.0f}  "
        f"{after.ru_maxrss / 1024:8,.0f}  {reads:13,}  {runs * buckets:13,}  {writes:9,}  {dollars:8.2f}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print a line per size and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e9, 1e10, 1e11])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64, 1000])
    parser.add_argument("--memory", type=float, default=4, help="GiB per worker")
    options = parser.parse_args(arguments)
    print_machine()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    # By default, workers without heartbeats are removed after five minutes; the graph would then never finish.
    settings = {
        "distributed.admin.large-graph-warning-threshold": "1TB",
        "distributed.scheduler.worker-ttl": None,
    }
    dask.config.set(settings)
    print(f"distributed {distributed.__version__}; {options.memory:g} GiB per worker\n")
    print(
        "rows   workers     runs  buckets     tasks      done   build s  ms a task  bytes a task   peak MB"
        "          reads     one level     writes         $"
    )
    for rows in options.rows:
        for workers in options.workers:
            asyncio.run(simulate(math.ceil(rows), workers, int(options.memory * (1 << 30))))


if __name__ == "__main__":
    main()
