"""Fits on a Slurm of this machine, which `make slurm` starts: the same bytes, jobs that are cancelled, refusals."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("LOGCAL_TEST_SLURM" not in os.environ, reason="needs a Slurm: run `make slurm`"),
    pytest.mark.timeout(600),
]

CONFIGURATION = Path(__file__).parents[2] / "conf" / "cluster" / "slurm.yaml"
SLURM = (
    f"--config={CONFIGURATION}",
    "calibrator.method=isotonic",  # as of the fit beside it
    "cluster.kind=dask_jobqueue.SLURMCluster",
    "cluster.workers=2",
    "cluster.memory=1GiB",
    "cluster.timeout=240",
    "cluster.arguments.memory=1GiB",
    "cluster.arguments.interface=lo",
)
RUNNING = "--states=running"


def jobs(*options: str) -> list[str]:
    """Slurm's numbers of the jobs that wait, run or end, or of some of them."""
    return said("squeue", "--noheader", "--format=%i", *options).split()


def said(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def await_empty_queue() -> None:
    """Wait until a job that was told to end has ended."""
    end = time.monotonic() + 60
    while jobs():
        assert time.monotonic() < end, said("squeue")
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def empty_queue():
    """Nothing of a run stays in Slurm."""
    await_empty_queue()
    yield
    await_empty_queue()


def inline(place):
    """The lookup table of a fit in one process."""
    place.job("fit", store__path=place.root / "inline").expect(0)
    (lookup,) = (place.root / "inline").rglob("lookup.parquet")
    return lookup.read_bytes()


def test_a_fit_on_two_jobs_has_the_bytes_of_one_in_this_process(place, start):
    place.write_log()
    start(place, "fit", *SLURM).result(300).expect(0)
    assert place.lookup() == inline(place)
    assert len(list((place.root / "slurm-logs").glob("*.err"))) == 2


def test_a_fit_whose_jobs_are_all_cancelled_ends_with_the_same_bytes(place, start):
    place.write_long_log(files=20)
    running = start(place, "fit", *SLURM)
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run", 240)
    running.await_that(lambda: len(jobs(RUNNING)) == 2, "two jobs that run", 240)
    lost = jobs(RUNNING)
    said("scancel", *lost)
    running.await_that(lambda: set(jobs(RUNNING)) - set(lost), "another job", 240)
    running.result(300).expect(0)
    assert place.lookup() == inline(place)


def test_jobs_that_are_cancelled_while_they_wait_are_submitted_again(place, start):
    place.write_log()
    try:
        running = start(place, "fit", *SLURM, "cluster.arguments.queue=closed")
        running.await_that(lambda: len(jobs("--states=pending")) == 2, "two jobs that wait", 240)
        lost = jobs()
        said("scancel", *lost)
        said("scontrol", "update", "PartitionName=closed", "State=UP")
        running.result(300).expect(0)
    finally:
        said("scontrol", "update", "PartitionName=closed", "State=DOWN")
    assert place.lookup() == inline(place)


def test_an_invalid_partition(place, start):
    place.write_log()
    refused = start(place, "fit", *SLURM, "cluster.arguments.queue=nowhere").result(300)
    refused.expect(2, "cluster.arguments: dask_jobqueue.SLURMCluster was refused", "invalid partition")
    assert not place.store.exists()


def test_a_partition_that_is_down(place, start):
    place.write_log()
    late = start(place, "fit", *SLURM, "cluster.arguments.queue=closed", "cluster.timeout=20").result(300)
    late.expect(75, "no worker came within 20 s (cluster.timeout)", "as PENDING PartitionDown")
    assert not list(place.store.rglob("versions"))
