"""Watching a cluster while tasks run: workers come and go, and some are unsuitable."""

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
from pipeline.execution.cluster import Seen, WorkerSeen, resubmit, soon

log = logging.getLogger("logcal")

PAUSED = 5.0
"""Seconds after which what waits on a paused worker is given to others."""

_MOST_WARNINGS = 5


def too_small(workers: Mapping[str, WorkerSeen], config: ClusterConfig) -> str | None:
    """Describe the memory of workers that have too little."""
    for worker in workers.values():
        if worker.memory and worker.memory / worker.threads < config.memory_bytes:
            return (
                f"cluster.memory: expected workers with at least {config.memory} for each thread, found one with "
                f"{worker.memory / 2**20:.0f} MiB and {worker.threads} threads: start workers with more, or lower "
                "cluster.memory"
            )
    return None


def other_versions(client: Any, workers: list[str]) -> str | None:
    """Describe workers' software that differs; such workers would silently drop tasks that they cannot read."""
    checks: dict[str, tuple[Callable[[], str], int]] = {
        name: (partial(metadata.version, name), 9) for name in ("logcal", "dask", "distributed")
    }
    # One version may have two sources, as a checkout has that moves on.
    checks["logcal's source"] = source_digest, 1
    # Compiled code and pickles of one minor version are not another's.
    checks["Python"] = platform.python_version, 2
    for name, (function, parts) in checks.items():
        ours, found = function(), client.run(function, workers=workers, on_error="return")
        others = {
            worker: version
            for worker, version in found.items()
            if not isinstance(version, str) or version.split(".")[:parts] != ours.split(".")[:parts]
        }
        if others:
            worker, version = next(iter(others.items()))
            what = f"{name} {version}" if isinstance(version, str) else f"no {name} ({version!r})"
            return (
                f"cluster.kind: expected {name} {ours} on all workers, found {what} on {len(others)} of {len(found)}, "
                f"such as {worker}: install the same version there"
            )
    return None


@dataclass
class ClusterWatch:
    """Looks at what the scheduler knows, some times a second.

    Parameters
    ----------
    client, config : of the cluster
    checked : addresses of workers that suit
    words : what the cluster manager said last; empty where nothing
    jobs : looks after jobs whose workers have not come; None where there are none
    """

    client: Any
    config: ClusterConfig
    checked: set[str]
    words: Callable[[], str] = str
    jobs: Callable[[], None] | None = None
    warned: int = field(default=0, init=False)
    misfit: str = field(default="", init=False)
    lived: float = field(default_factory=time.monotonic, init=False)
    paused: dict[str, float] = field(default_factory=dict, init=False)
    asked: dict[str, Answer[str | None]] = field(default_factory=dict, init=False)

    def __call__(self, seen: Seen) -> None:
        """Look after the workers.

        Raises
        ------
        TemporaryError
            None has lived for `cluster.timeout`.
        """
        self._judge(seen.workers)
        self._relieve(seen.workers)
        if self.jobs is not None:
            self.jobs()
        now = time.monotonic()
        suits = {a: w for a, w in seen.workers.items() if a in self.checked or a in self.asked}
        if any(worker.status == "running" or worker.executing for worker in suits.values()):
            self.lived = now
        elif now - self.lived > self.config.timeout:
            raise no_worker(self.config, self._reason(seen.workers))

    def _reason(self, workers: Mapping[str, WorkerSeen]) -> str:
        paused = sum(worker.status == "paused" for worker in workers.values())
        if paused:
            return f"all {paused} workers are paused, for want of memory: give each more (cluster.memory)"
        return self.words() or self.misfit

    def _judge(self, workers: Mapping[str, WorkerSeen]) -> None:
        """Check late workers like the first ones; dismiss unsuitable ones."""
        for address, worker in workers.items():
            if address in self.checked or address in self.asked or worker.status not in ("running", "paused"):
                continue
            wrong = too_small({address: worker}, self.config)
            if wrong is None:
                self.asked[address] = soon(partial(other_versions, self.client, [address]))
            else:
                self._retire(address, wrong)
        for address, answer in list(self.asked.items()):
            if not answer.done():
                continue
            del self.asked[address]
            # One that does not answer has gone again.
            wrong = None if answer.exception() is not None else answer.result()
            if wrong is None:
                self.checked.add(address)
            else:
                self._retire(address, wrong)

    def _retire(self, address: str, wrong: str) -> None:
        self.misfit = wrong
        if self.warned < _MOST_WARNINGS:
            self.warned += 1
            log.warning("a worker came that is not used: %s", wrong)
        soon(lambda: self.client.retire_workers([address], close_workers=True, remove=True))

    def _relieve(self, workers: Mapping[str, WorkerSeen]) -> None:
        """Give what waits on paused workers to others; what runs there goes on."""
        now = time.monotonic()
        paused = {address: worker for address, worker in workers.items() if worker.status == "paused"}
        self.paused = {address: self.paused.get(address, now) for address in paused}
        others = any(worker.status == "running" for worker in workers.values())
        stuck = [a for a, w in paused.items() if w.assigned > w.executing and now - self.paused[a] > PAUSED]
        if others and stuck:
            soon(lambda: self.client.run_on_scheduler(resubmit, addresses=stuck))
            self.paused |= dict.fromkeys(stuck, now)


def no_worker(config: ClusterConfig, reason: str) -> TemporaryError:
    """For want of workers."""
    more = reason or "see the cluster's own logs"
    return TemporaryError(f"no worker came within {config.timeout:g} s (cluster.timeout): {more}")


def check_workers(client: Any, workers: Mapping[str, WorkerSeen], config: ClusterConfig) -> None:
    """Check those that are there at the start.

    Raises
    ------
    ConfigError
        Too little memory; other versions of logcal, Dask or Python.
    """
    wrong = None if config.on_this_machine else other_versions(client, list(workers))
    if wrong := wrong or too_small(workers, config):
        raise ConfigError(wrong)
