"""Where the work runs: every kind of cluster, started, reached, refused and stopped."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from common import python

from calibrators.arithmetic.processors import processors
from jobs.cluster.starting import starting_executor
from jobs.cluster.watching import other_versions
from jobs.config.cluster import ClusterConfig
from jobs.registry import JOBS
from logcal.errors import ConfigError, TemporaryError
from logcal.own_packages import source_digest
from pipeline.execution import DaskExecutor, ThreadExecutor

pytestmark = pytest.mark.system

QUICK = "cluster.timeout=1"


def test_a_running_cluster_by_file_and_by_address(fitted, place, dask):
    before = place.lookup()
    result = place.job("fit", *dask.settings, store__path=place.root / "by-file").expect(0)
    assert "dashboard: http://127.0.0.1" in result.stderr
    address = dask.file.read_text().split('"address": "')[1].split('"')[0]
    by_address = ("cluster.kind=address", f"cluster.address={address}", "cluster.memory=512MiB")
    place.job("fit", *by_address, store__path=place.root / "by-address").expect(0)
    others = [path.read_bytes() for path in place.root.glob("by-*/ads/versions/*/lookup.parquet")]
    assert others == [before, before]
    # Workers that have less memory than the tasks are cut for.
    place.write_log(place.predictions(seed=1), name="other")
    result = place.job("fit", *dask.settings[:2], log__path=place.root / "other")
    result.expect(2, "cluster.memory: expected workers with at least 2GiB", "1024 MiB and 1 threads")
    assert all(process.poll() is None for process in dask.processes)


def test_a_scheduler_that_dies_during_the_sort(place, dask, start):
    place.write_long_log(files=20)
    running = start(place, "fit", *dask.settings, "cluster.timeout=20")
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")
    dask.processes[0].kill()
    result = running.result().expect(75, "the cluster went away during stage 'sort'")
    assert result.stdout == ""
    assert list(place.scratch.iterdir()) == []
    assert not list(place.store.rglob("versions"))


def test_workers_of_another_version(tmp_path, dask_class):
    facts = tmp_path / "logcal-9.9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: logcal\nVersion: 9.9\n")
    dask = dask_class(tmp_path, PYTHONPATH=str(tmp_path))
    try:
        dask.await_file()
        settings = {"kind": "scheduler_file", "scheduler_file": str(dask.file), "memory": "1GiB"}
        message = failing(ConfigError, **settings, timeout=30.0)
    finally:
        dask.stop()
    assert "on all workers, found logcal 9.9 on 1 of 1" in message


class OtherSource:
    """A client of workers one of which has another source of the same version."""

    def run(self, function, *arguments, workers, on_error):
        own = function(*arguments)
        return {worker: "another" if "b" in worker and own == source_digest() else own for worker in workers}


def test_workers_with_another_source_of_the_same_version():
    assert other_versions(OtherSource(), ["tcp://a", "tcp://c"]) is None
    wrong = other_versions(OtherSource(), ["tcp://a", "tcp://b"])
    assert "expected logcal's source" in wrong
    assert "found logcal's source another on 1 of 2, such as tcp://b" in wrong


def test_no_scheduler_there(place):
    place.write_log()
    before = place.tree()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        result = place.job("fit", "cluster.kind=address", f"cluster.address={address}", QUICK)
    result.expect(75, f"the cluster {address} did not start or answer within 1 s (cluster.timeout)")
    result = place.job("fit", "cluster.kind=address", f"cluster.address={address}", QUICK)
    result.expect(75, f"no Dask scheduler answers at {address} within 1 s (cluster.timeout)")
    assert place.tree() == before


def failing(error, timeout=2.0, **settings):
    config = ClusterConfig(timeout=timeout, **settings)
    with pytest.raises(error) as caught, starting_executor(config) as executor:
        executor()
    return str(caught.value)


def test_an_address_or_file_that_cannot_be(tmp_path):
    message = failing(ConfigError, kind="address", address="nowhere")
    assert message.startswith("cluster.address: expected an address such as tcp://")
    missing = tmp_path / "scheduler.json"
    message = failing(ConfigError, kind="scheduler_file", scheduler_file=str(missing))
    assert message.startswith("cluster.scheduler_file: expected the file of a running scheduler, found none")
    missing.write_text("[]")
    assert "found another file" in failing(ConfigError, kind="scheduler_file", scheduler_file=str(missing))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kind": "dask_nowhere.SLURMCluster"}, ConfigError, "install it with `pip install dask-nowhere`"),
        ({"kind": "distributed.NoCluster"}, ConfigError, "the module distributed has no class NoCluster"),
        ({"kind": "os.path.join"}, ConfigError, "cluster.kind: expected a Dask cluster class, found"),
        (
            {"kind": "distributed.LocalCluster", "arguments": {"n_workers": 0, "dashboard_address": ":0"}},
            TemporaryError,
            "no worker came within 2 s (cluster.timeout)",
        ),
        ({"kind": "distributed.SpecCluster", "arguments": {"speck": 1}}, ConfigError, "does not take them"),
        (
            {"kind": "distributed.LocalCluster", "arguments": {"scheduler_port": "x", "n_workers": 0}},
            TemporaryError,
            "the cluster distributed.LocalCluster does not start",
        ),
    ],
)
def test_a_class_that_cannot_be(settings, error, message):
    assert message in failing(error, **settings)


def test_a_class_by_its_path_is_scaled():
    # The memory is that of this process, which may have much from other tests: beyond its limit a worker pauses.
    arguments = {"n_workers": 0, "processes": False, "dashboard_address": ":0", "memory_limit": "16GiB"}
    config = ClusterConfig(kind="distributed.LocalCluster", arguments=arguments, workers=2, memory="256MiB")
    with starting_executor(config) as executor:
        cluster = executor().client.cluster
        assert executor().run("stage", divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
        end = time.monotonic() + 60
        while len(cluster.workers) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(cluster.workers) == 2
    assert cluster.status.name == "closed"


def test_local_workers_have_the_memory_that_is_set_and_no_more():
    with starting_executor(ClusterConfig(workers=1, memory="400MiB")) as starting:
        executor = starting()
        (worker,) = executor.client.scheduler_info()["workers"].values()
        assert worker["memory_limit"] == 400 * 1024**2
        assert worker["nthreads"] == 1
        assert executor.run("stage", np.sum, [([1, 2],), ([3],)]) == [3, 3]
        with pytest.raises(TemporaryError, match=r"died again and again.*give each worker more"):
            executor.run("stage", np.ones, [(100_000_000,)])
        assert executor.run("stage", np.sum, [([1, 2],)]) == [3]
        before = threading.active_count()
    assert threading.active_count() < before


def test_a_temporary_folder_with_a_name_too_long_for_sockets(fitted, place):
    folder = place.root / ("long" * 30)
    folder.mkdir()
    place.environment["TMPDIR"] = str(folder)
    place.job("fit", "cluster.kind=local", "cluster.workers=1", store__path=place.root / "other").expect(0)
    (lookup,) = (place.root / "other").rglob("lookup.parquet")
    assert lookup.read_bytes() == place.lookup()


def on_threads(config):
    """An executor, and whether it is one of threads."""
    with starting_executor(config) as starting:
        executor = starting(threads=True)
        return executor, isinstance(executor, ThreadExecutor)


def test_threads_where_they_serve_as_well_as_processes():
    executor, threads = on_threads(ClusterConfig(memory="400MiB"))
    assert threads
    assert executor.workers == processors()
    assert on_threads(ClusterConfig(workers=3))[0].workers == 3
    # What their tasks free is kept for the next.
    assert pa.default_memory_pool().backend_name == "system"
    assert not on_threads(ClusterConfig(kind="inline"))[1]
    with starting_executor(ClusterConfig(workers=1, memory="400MiB")) as starting:
        assert isinstance(starting(), DaskExecutor)
    with starting_executor(ClusterConfig(kind="threads")) as starting:
        assert isinstance(starting(), ThreadExecutor)


def test_a_cluster_of_processes_keeps_nothing_of_graphs_that_have_ended():
    """A stream computes one a batch, for months."""

    def run(graphs):
        for i in range(graphs):
            assert executor.run("stage", abs, [(-i,)]) == [i]
        gc.collect()
        kinds = (type(found) for found in gc.get_objects())
        return Counter(f"{kind.__module__}.{kind.__name__}" for kind in kinds)

    with starting_executor(ClusterConfig(kind="local", workers=1, memory="400MiB")) as starting:
        executor = starting()
        # By then what is kept of the last few is full.
        before = run(150)
        after = run(200)
    # Of Dask's types alone: what else is under way in this process comes and goes. A graph had twelve of them.
    dask = ("distributed.", "dask.")
    grown = {name: count for name, count in (after - before).items() if name.startswith(dask)}
    assert sum(grown.values()) < 100, grown


def test_an_error_on_a_thread_waits_for_the_tasks_that_run_and_begins_no_more(tmp_path):
    BEGUN.clear()
    tasks = [(None,), *((str(tmp_path / f"{i}"),) for i in range(9))]
    with pytest.raises(FileNotFoundError, match="missing"):
        ThreadExecutor(2).run("stage", write_later, tasks)
    written = sorted(path.name for path in tmp_path.iterdir())
    # How soon the error is seen depends on the machine; that the rest is not begun does not.
    assert 1 <= len(written) < 9
    time.sleep(0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == written


BEGUN = threading.Event()


def write_later(path):
    """A task, which fails without a path, once another has begun."""
    if path is None:
        BEGUN.wait()
        raise FileNotFoundError("missing")
    BEGUN.set()
    time.sleep(0.3)
    Path(path).write_text("x")


def test_ctrl_c_is_not_the_workers():
    with starting_executor(ClusterConfig(kind="local", workers=1, memory="400MiB")) as executor:
        (pid,) = executor().run("stage", os.getpid, [()])
        os.kill(pid, signal.SIGINT)
        assert executor().run("stage", os.getpid, [()]) == [pid]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize(
    "job", [job for job in JOBS.values() if job.workers_import], ids=lambda job: job.name
)
def test_workers_that_train_are_forked_from_a_process_that_has_imported_it(job):
    code = (
        "import multiprocessing, sys; from jobs.cluster import worker_process\n"
        f"assert worker_process.begin({job.workers_import!r}) == 'forkserver'\n"
        "with multiprocessing.get_context('forkserver').Pool(1) as pool:\n"
        "    print(*pool.apply(eval, ('list(__import__(\"sys\").modules)',)))"
    )
    loaded = set(python(code).stdout.split())
    assert {job.workers_import, "sklearn.compose", "skops.io", "pandas"} <= loaded


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_the_process_that_workers_are_forked_from_ends_with_its_command_though_it_imports(tmp_path):
    # Who reads the command's output through a pipe waits until every process that has it open has ended.
    (tmp_path / "endless.py").write_text(
        "import os, time\n"
        "from jobs.interrupts import while_command_lives\n"
        "with while_command_lives():\n"
        "    print('importing', flush=True)\n"
        "    time.sleep(3600)\n"
    )
    code = "import sys; from jobs.cluster import worker_process; worker_process.begin('endless'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as command:
        assert command.stdout.readline() == "importing\n"
        output, _ = command.communicate("", timeout=240)  # which closes its input, and it ends
    assert (command.returncode, output) == (0, "")
