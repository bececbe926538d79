"""Supervision of a cluster while tasks run: late, unsuitable, paused and lost workers."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Answer
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any

from jobs.config.cluster import ClusterConfig
from logcal.errors import ConfigError, TemporaryError
from logcal.own_packages import source_digest
from pipeline.execution.cluster import LONGEST_LOOK, ClusterState, WorkerState, in_background, resubmit

log = logging.getLogger("logcal")

PAUSED = 5.0
"""Seconds after which tasks that wait on a paused worker are given to others."""

_MOST_WARNINGS = 5


def memory_problem(workers: Mapping[str, WorkerState], config: ClusterConfig) -> str | None:
    """Describe a worker that has too little memory; None if all have enough."""
    for worker in workers.values():
        if worker.memory and worker.memory / worker.threads < config.memory_bytes:
            return (
                f"cluster.memory: expected workers with at least {config.memory} for each thread, found one with "
                f"{worker.memory / 2**20:.0f} MiB and {worker.threads} threads: start workers with more, or lower "
                "cluster.memory"
            )
    return None


def version_problem(client: Any, workers: list[str]) -> str | None:
    """Describe how workers' software differs; None if it does not.

    Such workers would silently drop tasks that they cannot read.
    """
    checks: dict[str, tuple[Callable[[], str], int]] = {
        name: (partial(metadata.version, name), 9) for name in ("logcal", "dask", "distributed")
    }
    # A version of a checkout may have several sources.
    checks["logcal's source"] = source_digest, 1
    # Compiled code and pickles differ between minor versions.
    checks["Python"] = platform.python_version, 2
    for name, (function, parts) in checks.items():
        expected, versions = function(), client.run(function, workers=workers, on_error="return")
        different = {
            worker: version
            for worker, version in versions.items()
            if not isinstance(version, str) or version.split(".")[:parts] != expected.split(".")[:parts]
        }
        if different:
            worker, version = next(iter(different.items()))
            found = f"{name} {version}" if isinstance(version, str) else f"no {name} ({version!r})"
            return (
                f"cluster.kind: expected {name} {expected} on all workers, found {found} on {len(different)} "
                f"of {len(versions)}, such as {worker}: install the same version there"
            )
    return None


@dataclass
class ClusterWatch:
    """Looks after a cluster's workers; called several times a second with the scheduler's state.

    Parameters
    ----------
    client : the cluster's client
    config : the cluster's configuration
    checked : addresses of suitable workers
    manager_message : returns the cluster manager's latest message, '' without one
    jobs : resubmits jobs whose workers have not started; None if the cluster has no jobs
    """

    client: Any
    config: ClusterConfig
    checked: set[str]
    manager_message: Callable[[], str] = str
    jobs: Callable[[], None] | None = None
    warned: int = field(default=0, init=False)
    last_problem: str = field(default="", init=False)
    last_look: float = field(default_factory=time.monotonic, init=False)
    without_worker: float = field(default=0.0, init=False)
    paused: dict[str, float] = field(default_factory=dict, init=False)
    pending: dict[str, Answer[str | None]] = field(default_factory=dict, init=False)

    def __call__(self, state: ClusterState, silence: float) -> None:
        """Look after the workers. silence : seconds for which the scheduler has not answered.

        Raises
        ------
        TemporaryError
            No worker has run for `cluster.timeout`, or the scheduler has not answered for so long.
        """
        if silence > self.config.timeout:
            raise TemporaryError(
                f"the scheduler has not answered for {self.config.timeout:g} s (cluster.timeout): see its own logs, "
                "and run again"
            )
        self._check_new_workers(state.workers)
        self._resubmit_from_paused(state.workers)
        if self.jobs is not None:
            self.jobs()
        now = time.monotonic()
        suitable = {a: w for a, w in state.workers.items() if a in self.checked or a in self.pending}
        if any(worker.status == "running" or worker.executing for worker in suitable.values()):
            self.without_worker = 0.0
        else:
            # Between two graphs, such as a stream's batches, nobody looks: that time tells nothing of the workers.
            self.without_worker += min(now - self.last_look, LONGEST_LOOK)
        self.last_look = now
        if self.without_worker > self.config.timeout:
            raise no_worker(self.config, self._reason(state.workers))

    def _reason(self, workers: Mapping[str, WorkerState]) -> str:
        paused = sum(worker.status == "paused" for worker in workers.values())
        if paused:
            return f"all {paused} workers are paused, since they lack memory: give each more (cluster.memory)"
        return self.manager_message() or self.last_problem

    def _check_new_workers(self, workers: Mapping[str, WorkerState]) -> None:
        """Check late workers like the first ones; dismiss unsuitable ones."""
        for address, worker in workers.items():
            if (
                address in self.checked
                or address in self.pending
                or worker.status not in ("running", "paused")
            ):
                continue
            problem = memory_problem({address: worker}, self.config)
            if problem is None:
                self.pending[address] = in_background(partial(version_problem, self.client, [address]))
            else:
                self._retire(address, problem)
        for address, answer in list(self.pending.items()):
            if not answer.done():
                continue
            del self.pending[address]
            # A worker that does not answer has already left.
            problem = None if answer.exception() is not None else answer.result()
            if problem is None:
                self.checked.add(address)
            else:
                self._retire(address, problem)

    def _retire(self, address: str, problem: str) -> None:
        self.last_problem = problem
        if self.warned < _MOST_WARNINGS:
            self.warned += 1
            log.warning("a worker is not used: %s", problem)
        in_background(lambda: self.client.retire_workers([address], close_workers=True, remove=True))

    def _resubmit_from_paused(self, workers: Mapping[str, WorkerState]) -> None:
        """Give tasks that wait on paused workers to others; tasks that run there continue."""
        now = time.monotonic()
        paused = {address: worker for address, worker in workers.items() if worker.status == "paused"}
        self.paused = {address: self.paused.get(address, now) for address in paused}
        others = any(worker.status == "running" for worker in workers.values())
        stuck = [a for a, w in paused.items() if w.assigned > w.executing and now - self.paused[a] > PAUSED]
        if others and stuck:
            in_background(lambda: self.client.run_on_scheduler(resubmit, addresses=stuck))
            self.paused |= dict.fromkeys(stuck, now)


def no_worker(config: ClusterConfig, reason: str) -> TemporaryError:
    """Return the error of a cluster that has no workers."""
    hint = reason or "see the cluster's own logs"
    return TemporaryError(f"no worker came within {config.timeout:g} s (cluster.timeout): {hint}")


def check_workers(client: Any, workers: Mapping[str, WorkerState], config: ClusterConfig) -> None:
    """Check the workers that a cluster has at the start.

    Raises
    ------
    ConfigError
        A worker has too little memory, or another version of logcal, Dask or Python.
    """
    problem = None if config.on_this_machine else version_problem(client, list(workers))
    if problem := problem or memory_problem(workers, config):
        raise ConfigError(problem)
