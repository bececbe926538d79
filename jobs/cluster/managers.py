"""The jobs of a cluster manager that workers are to come in: started anew where they did not start, or ended before."""

from __future__ import annotations

import time
from concurrent.futures import Future as Answer
from typing import Any

PAUSE = 5.0
"""Seconds between questions to the cluster manager, which has others to answer."""

_LONGEST_PAUSE = 300.0
"""Jobs that end again and again before their workers come are not submitted for ever at the same pace."""

_SLURM = ("squeue", "--noheader", "--me", "--states=all", "--format=%i %T %r")

_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)


class ClusterJobs:
    """Resubmits jobs whose workers have not come; Dask assumes that every submitted job becomes a worker.

    A job that was not taken is submitted again, with every cluster class. Whether one that was taken has ended only
    its manager knows: Slurm is asked for it; other managers are not.

    Parameters
    ----------
    cluster : of a class, adaptive, so that what it forgets it starts anew

    Attributes
    ----------
    said : what the manager last said of a job whose worker has not come; empty where nothing
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.said = ""
        self.came: set[str] = set()
        self.known: set[str] = set()
        self.pause = PAUSE
        self.next = time.monotonic() + PAUSE
        self.answer: Answer[None] | None = None

    def __call__(self) -> None:
        """Look, without waiting for what the manager says."""
        if self.answer is None or self.answer.done():
            import asyncio  # of a cluster of jobs alone

            self.answer = asyncio.run_coroutine_threadsafe(self._look(), self.cluster.loop.asyncio_loop)

    async def _look(self) -> None:
        jobs = dict(getattr(self.cluster, "workers", {}))
        for name, job in jobs.items():
            if getattr(getattr(job, "status", None), "name", "running") in ("created", "failed", "closed"):
                self._forget(name)
        waiting = self._waiting(jobs)
        if not waiting:
            self.said, self.pause = "", PAUSE
        if not waiting or time.monotonic() < self.next:
            return
        states = await _slurm_states()
        self.next = time.monotonic() + self.pause
        if states is None:
            return
        # One that it never had may be another Slurm's, where several share a submission host.
        self.known |= states.keys()
        ended = [
            name
            for name, job in waiting.items()
            if job.job_id in self.known and states.get(job.job_id, "COMPLETED").split()[0] in _ENDED
        ]
        first = next((job.job_id for job in waiting.values() if job.job_id in states), None)
        self.said = f"Slurm has job {first} as {states[first]}" if first else ""
        if ended:
            self.said = self.said or f"Slurm no longer has job {waiting[ended[0]].job_id}"
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        for name in ended:
            self._forget(name)

    def _waiting(self, jobs: dict[Any, Any]) -> dict[Any, Any]:
        """Slurm's jobs whose workers have never come, by the names of the workers."""
        here = [str(worker["name"]) for worker in self.cluster.scheduler_info["workers"].values()]
        found = {}
        for name, job in jobs.items():
            if not getattr(job, "job_id", None) or not str(getattr(job, "submit_command", "")).startswith(
                "sbatch"
            ):
                continue
            # Where a job has several workers, they are called after it.
            if any(worker == str(name) or worker.startswith(f"{name}-") for worker in here):
                self.came.add(job.job_id)
            elif job.job_id not in self.came:
                found[name] = job
        return found

    def _forget(self, name: Any) -> None:
        from distributed.core import Status

        job = self.cluster.workers.pop(name, None)
        if job is not None:
            job.status = Status.failed


async def _slurm_states() -> dict[str, str] | None:
    """State and reason of each of the user's jobs that Slurm knows, by number; None if it does not answer."""
    import asyncio

    try:
        process = await asyncio.create_subprocess_exec(
            *_SLURM,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
    except OSError:
        return None
    if process.returncode != 0:
        return None
    lines = [line.split(maxsplit=2) for line in output.decode(errors="replace").splitlines()]
    return {line[0]: " ".join(line[1:]) for line in lines if len(line) > 1}
