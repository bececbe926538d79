"""Where the work runs: every kind of cluster, started, reached, refused and stopped."""

import ctypes
import gc
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import ne
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from common import python, two_workers
from dask.config import get as configured
from distributed import Client, Future, SpecCluster, Worker, secede
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface
from distributed.security import Security

from jobs.cluster import watching
from jobs.cluster.starting import starting_executor
from jobs.cluster.watching import ClusterWatch, version_problem
from jobs.config.cluster import ClusterConfig
from jobs.registry import JOBS
from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.own_packages import source_digest
from pipeline.execution import DaskExecutor, Graph, ThreadExecutor, tasks
from pipeline.execution.cluster import ClusterState, WorkerState, failures, in_background, look, resubmit
from pipeline.execution.processors import processors
from pipeline.files.blobs import receipts_in

pytestmark = pytest.mark.system

QUICK = "cluster.timeout=5"


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


def test_a_scheduler_that_stops_answering(place, dask, start):
    place.write_long_log(files=20)
    running = start(place, "fit", *dask.settings, "cluster.timeout=60")
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")
    dask.processes[0].send_signal(signal.SIGSTOP)
    running.result().expect(75, "the scheduler has not answered for 60 s (cluster.timeout)")
    assert list(place.scratch.iterdir()) == []
    assert not list(place.store.rglob("versions"))


def test_a_scheduler_without_workers_is_named_at_once(place, dask_class, start, tmp_path_factory):
    place.write_log()
    dask = dask_class(tmp_path_factory.mktemp("dask"))
    try:
        dask.worker.kill()
        dask.worker.wait()
        dask.await_file()
        running = start(place, "fit", *dask.settings)
        running.await_line(f"no worker yet at the cluster {dask.file}, waiting up to 300 s (cluster.timeout)")
        dask.begin_worker()
        running.result().expect(0)
    finally:
        dask.stop()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_rejected_log_on_cold_workers_of_a_busy_machine(place, dask_class, tmp_path_factory, workers):
    """Their first tasks take long, and the tasks that depend on the failed one end at once."""
    columns = place.predictions(200_000)
    columns["label"] = np.where(np.arange(200_000) == 199_990, 2, columns["label"])
    place.write_log(columns, files=workers)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processors())]
    dask = dask_class(tmp_path_factory.mktemp("dask"))
    try:
        for _ in range(workers - 1):
            dask.begin_worker()
        dask.await_file()
        place.job("fit", *dask.settings).expect(3, "1 of 200,000 rows cannot be used", "label=2")
    finally:
        dask.stop()
        for process in busy:
            process.kill()
            process.wait()
    assert list(place.scratch.iterdir()) == []
    assert not list(place.store.rglob("versions"))


def test_a_log_that_a_worker_does_not_see_is_named_with_the_worker(place, dask):
    place.write_log()
    (place.root / "logs").mkdir()
    place.log.rename(place.root / "logs" / "log")
    # A path that each process sees in a place of its own, as mounts are of machines.
    log = "/proc/self/cwd/logs/log"
    said = place.job("fit", *dask.settings, log__path=log).expect(2, "does not see it: mount it there").stderr
    assert "/proc/self/cwd/logs: expected a folder that all workers see" in said
    assert "the worker tcp://127.0.0.1:" in said
    assert not list(place.store.rglob("versions"))
    # The worker's folder is there and empty, as a mount point without its file system.
    (dask.file.parent / "logs" / "log").mkdir(parents=True)
    place.job("fit", *dask.settings, log__path=log).expect(
        2, "/proc/self/cwd/logs/log: expected a folder that all"
    )


HIDING = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh")
"""What runs a command for which a folder is empty and its own, as on a machine without the mount."""


@pytest.mark.parametrize("what", ["log", "store", "output"])
def test_a_folder_that_a_worker_cannot_see_is_named_in_score_and_follow(place, dask_class, tmp_path, what):
    """All files were `gone`, or bad for want of the table; scored files lay on the worker's machine, with exit 0."""
    hidden = place.root / "mounts"
    hidden.mkdir()
    if subprocess.run([*HIDING, str(hidden), "true"], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    place.write_log(files=2)
    place.job("fit").expect(0)
    paths = {"log__path": place.log, "store__path": place.store, "output__path": place.output}
    paths[f"{what}__path"] = hidden / what
    if what != "output":
        getattr(place, what).rename(hidden / what)
    dask = dask_class(tmp_path, within=(*HIDING, str(hidden)))
    try:
        dask.await_file()
        for job, flags in (("score", ()), ("follow", ("--once",))):
            said = place.job(job, *flags, *dask.settings, **paths).expect(2, "that all workers see").stderr
            assert f"{hidden}: expected a folder" in said
            assert "the worker tcp://127.0.0.1:" in said
        assert not list(place.root.rglob("output/*.parquet"))
        # Nothing is remembered as bad, or as done.
        paths["log__path"].mkdir(parents=True, exist_ok=True)
        status = place.job("follow", "--status", "--json", **paths).expect(0).json
        assert (status["files"], status["refused"]) == (0, {})
        place.job("follow", "--once", "--json", **paths).expect(0)
        assert len(list(paths["output__path"].glob("*.parquet"))) == 2
    finally:
        dask.stop()


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
    assert version_problem(OtherSource(), ["tcp://a", "tcp://c"]) is None
    wrong = version_problem(OtherSource(), ["tcp://a", "tcp://b"])
    assert "expected logcal's source" in wrong
    assert "found logcal's source another on 1 of 2, such as tcp://b" in wrong


def test_no_scheduler_there(place):
    place.write_log()
    before = place.tree()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        result = place.job("fit", "cluster.kind=address", f"cluster.address={address}", QUICK)
    result.expect(75, f"the cluster {address} did not start or answer within 5 s (cluster.timeout)")
    result = place.job("fit", "cluster.kind=address", f"cluster.address={address}", QUICK)
    result.expect(75, f"no Dask scheduler answers at {address} within 5 s (cluster.timeout)")
    assert place.tree() == before


def failing(error, timeout=2.0, **settings):
    config = ClusterConfig(timeout=timeout, **settings)
    with pytest.raises(error) as caught, starting_executor(config) as executor:
        executor()
    return str(caught.value)


def by_file(path):
    return {"kind": "scheduler_file", "scheduler_file": path}


def local(**arguments):
    return {"kind": "distributed.LocalCluster", "arguments": {"n_workers": 0, **arguments}}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kind": "address", "address": "nowhere"}, ConfigError, "expected an address such as tcp://"),
        (by_file("nowhere.json"), ConfigError, "expected the file of a running scheduler, found none"),
        (by_file(__file__), ConfigError, "found another file"),
        ({"kind": "dask_nowhere.SLURMCluster"}, ConfigError, "install it with `pip install dask-nowhere`"),
        ({"kind": "distributed.NoCluster"}, ConfigError, "the module distributed has no class NoCluster"),
        ({"kind": "os.path.join"}, ConfigError, "cluster.kind: expected a Dask cluster class, found"),
        (local(dashboard_address=":0"), TemporaryError, "no worker came within 2 s (cluster.timeout)"),
        ({"kind": "distributed.SpecCluster", "arguments": {"speck": 1}}, ConfigError, "does not take them"),
        (local(scheduler_port="x"), TemporaryError, "the cluster distributed.LocalCluster does not start"),
    ],
)
def test_a_cluster_that_cannot_be(settings, error, message):
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
    end = time.monotonic() + 60
    while threading.active_count() >= before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() < before


def test_local_workers_without_certificates_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    started = []
    monkeypatch.setattr("distributed.LocalCluster", started.append)
    with (
        starting_executor(ClusterConfig(workers=1)) as starting,
        pytest.raises(ConfigError, match="expected the package cryptography"),
    ):
        starting()
    assert not started


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
    calls = [(None,), *((str(tmp_path / f"{i}"),) for i in range(9))]
    with pytest.raises(FileNotFoundError, match="missing"):
        ThreadExecutor(2).run("stage", write_later, calls)
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


def test_a_programs_dask_is_configured_as_before_once_its_job_has_ended():
    keys = (
        "distributed.worker.multiprocessing-method",
        "distributed.nanny.pre-spawn-environ",
        "distributed.scheduler.work-stealing",
        "distributed.admin.low-level-log-length",
    )
    before = [configured(key) for key in keys]
    with starting_executor(ClusterConfig(kind="local", workers=1, memory="400MiB")) as executor:
        executor()
        assert all(map(ne, map(configured, keys), before))
    assert [configured(key) for key in keys] == before


def test_ctrl_c_is_not_the_workers():
    with starting_executor(ClusterConfig(kind="local", workers=1, memory="400MiB")) as executor:
        (pid,) = executor().run("stage", os.getpid, [()])
        os.kill(pid, signal.SIGINT)
        assert executor().run("stage", os.getpid, [()]) == [pid]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize("job", [job for job in JOBS.values() if job.workers_import], ids=lambda j: j.name)
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


# Clusters that live


def test_no_worker_is_left(place, start, dask):
    place.write_long_log(files=20)
    running = start(place, "fit", *dask.settings, "cluster.timeout=20")
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")
    dask.worker.kill()
    running.result().expect(75, "no worker came within 20 s (cluster.timeout)")
    assert list(place.scratch.iterdir()) == []
    assert not list(place.store.rglob("versions"))


def test_a_misfit_is_sent_away_and_a_late_worker_ends_what_a_dead_one_began(place, start, dask):
    """Day tables are kept for later fits: what the dead worker left half done is in none of them."""
    place.write_long_log(files=20)
    for i, path in enumerate(sorted(place.log.iterdir())):
        folder = place.log / f"date=2026-01-{i // 5 + 1:02d}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    window = ("window.column=date", "window.last=4d")
    running = start(place, "fit", *dask.settings, *window, "cluster.timeout=60")
    running.await_that(lambda: list(place.store.glob("ads/days/*/run-*")), "a sorted run of a day")
    # The fit must not end before the misfit has come.
    dask.worker.send_signal(signal.SIGSTOP)
    small = dask.begin_worker(memory="512MiB")
    running.await_line("a worker is not used: cluster.memory: expected workers with at least 1GiB")
    # What the misfit has computed until then moves to the late worker: a stopped one would not take it.
    dask.worker.kill()
    dask.begin_worker()
    small.wait(timeout=240)
    running.result().expect(0)
    place.job("fit", "cluster.kind=threads", store__path=place.root / "other").expect(0)
    (lookup,) = (place.root / "other").rglob("lookup.parquet")
    assert lookup.read_bytes() == place.lookup()
    again = place.job("fit", *window, "calibrator.method=histogram", "--dry-run").expect(0)
    assert "keep 0 of 4 days sorted in the store" in again.stdout


def test_two_jobs_at_once_on_one_scheduler(place, start, dask):
    place.write_log()
    running = [start(place, "fit", *dask.settings, store__path=place.root / f"store-{i}") for i in range(2)]
    for one in running:
        one.result().expect(0)
    found = [path.read_bytes() for path in place.root.rglob("lookup.parquet")]
    assert len(found) == 2
    assert found[0] == found[1]


def certificates(folder):
    """A certificate that is its own authority, and its key."""
    made = Security.temporary()
    folder.mkdir()
    (folder / "cert.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    return folder / "cert.pem", folder / "key.pem"


def test_tls(place, dask_class, tmp_path_factory):
    place.write_log()
    cert, key = certificates(place.root / "ours")
    other_cert, other_key = certificates(place.root / "others")
    options = f"--protocol tls --tls-ca-file {cert} --tls-cert {cert} --tls-key {key}".split()
    dask = dask_class(tmp_path_factory.mktemp("tls"), *options)
    try:
        dask.await_file()
        keys = ("ca_file", "cert_file", "key_file")
        given = [f"cluster.security.{k}={path}" for k, path in zip(keys, (cert, cert, key), strict=True)]
        before = place.tree()
        place.job("fit", *dask.settings).expect(2, "cluster.security: expected certificates for tls://")
        wrong = [
            f"cluster.security.{k}={path}"
            for k, path in zip(keys, (cert, other_cert, other_key), strict=True)
        ]
        place.job("fit", *dask.settings, *wrong, "cluster.timeout=5").expect(
            2, "cluster.security: expected certif"
        )
        missing = [*given[:2], f"cluster.security.key_file={place.root}/nowhere"]
        place.job("fit", *dask.settings, *missing).expect(2, "cluster.security.key_file: expected a file")
        place.job("fit", *dask.settings, *given[:2]).expect(2, "cluster.security.key_file: REQUIRED")
        place.job("fit", *given).expect(2, "cluster.security: only goes with")
        assert place.tree() == before
        place.job("fit", *dask.settings, *given).expect(0)
    finally:
        dask.stop()


def test_worker_processes_of_this_machine_are_closed_to_other_users():
    with starting_executor(ClusterConfig(kind="local", workers=1, memory="400MiB")) as executor:
        address = executor().client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises((OSError, ssl.SSLError)):
            Client(address.replace("tls://", "tcp://"), timeout=1)


class Refused(ProcessInterface):
    """A worker whose job a cluster manager does not take."""

    async def start(self):
        raise RuntimeError(
            "Command exited with non-zero exit code.\nExit code: 1\nCommand:\nsbatch /tmp/x.sh\nstdout:\n\nstderr:\n"
            "sbatch: error: invalid partition specified: nowhere\n"
        )


class Hesitant(Worker):
    """A worker that dies the first time it is started."""

    attempts = 0

    async def start_unsafe(self):
        Hesitant.attempts += 1
        if Hesitant.attempts == 1:
            raise RuntimeError("killed")
        return await super().start_unsafe()


class Managed(SpecCluster):
    """A cluster of workers of a class."""

    def __init__(self, kind):
        from distributed import Scheduler

        scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0}}
        options = {"nthreads": 1, "memory_limit": "16GiB", "dashboard": False} if kind is not Refused else {}
        super().__init__(scheduler=scheduler, worker={"cls": kind, "options": options})


def managed(monkeypatch, kind, timeout=60):
    """A configuration of a cluster whose workers are of a class of this module."""
    monkeypatch.setattr("jobs.cluster.kinds.check_class", lambda config: partial(Managed, kind))
    return ClusterConfig(kind="tests.Managed", workers=1, memory="256MiB", timeout=timeout)


def test_what_a_cluster_manager_says_reaches_the_user(monkeypatch):
    config = managed(monkeypatch, Refused)
    with pytest.raises(ConfigError) as caught, starting_executor(config) as executor:
        executor()
    assert str(caught.value) == (
        "cluster.arguments: tests.Managed was refused workers: tests.Managed said: sbatch: error: invalid partition "
        "specified: nowhere"
    )


def test_a_worker_that_fails_to_start_is_started_again(monkeypatch):
    with starting_executor(managed(monkeypatch, Hesitant)) as executor:
        assert executor().run("stage", divmod, [(7, 2)]) == [(3, 1)]
    assert Hesitant.attempts == 2


class Submitted(ProcessInterface):
    """A job of Slurm: the first one's worker never comes."""

    submit_command = "sbatch"
    submitted = 0

    def __init__(self, scheduler=None, name=None, **options):
        super().__init__(scheduler=scheduler, name=name)
        self.arguments = {"args": (scheduler,), "name": name, **options}
        self.worker = None

    async def start(self):
        Submitted.submitted += 1
        self.job_id = str(Submitted.submitted)
        if self.job_id == "2":
            arguments = dict(self.arguments)
            self.worker = await Worker(*arguments.pop("args"), **arguments)
        await super().start()

    async def close(self):
        if self.worker is not None:
            await self.worker.close()
        await super().close()


@pytest.fixture
def squeue(monkeypatch, tmp_path):
    """Say what Slurm has."""
    monkeypatch.setattr("jobs.cluster.kinds.PAUSE", 0.05)
    monkeypatch.setattr(Submitted, "submitted", 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def say(*lines):
        program = tmp_path / "squeue"
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        program.chmod(0o755)

    return say


def test_a_job_that_ends_before_its_worker_comes_is_submitted_again(monkeypatch, squeue):
    squeue("1 CANCELLED None", "2 RUNNING None")
    with starting_executor(managed(monkeypatch, Submitted)) as executor:
        assert executor().run("stage", divmod, [(7, 2)]) == [(3, 1)]
    assert Submitted.submitted == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 PENDING PartitionDown", "Slurm has job 1 as PENDING PartitionDown"),
        ("7 FAILED None", "see the cluster's own logs"),
    ],
)
def test_why_a_job_waits_reaches_the_user_and_it_keeps_its_place(monkeypatch, squeue, line, reason):
    squeue(line)
    config = managed(monkeypatch, Submitted, timeout=3)
    with pytest.raises(TemporaryError) as caught, starting_executor(config) as executor:
        executor()
    assert str(caught.value).endswith(f"(cluster.timeout): {reason}")
    assert Submitted.submitted == 1


@pytest.fixture
def pair():
    with two_workers() as client:
        yield client


def test_what_waits_on_a_paused_worker_is_given_to_others(pair):
    cluster = pair.cluster
    paused, other = cluster.workers.values()
    paused.status = Status.paused
    while pair.run_on_scheduler(look, sizes={}).workers[paused.address].status != "paused":
        time.sleep(0.01)
    future = pair.submit(os.getpid, workers=[paused.address], allow_other_workers=True)
    assert future.status == "pending" or future.result()
    pair.run_on_scheduler(resubmit, addresses=[paused.address])
    assert future.result(timeout=240) == os.getpid()
    assert other.status == Status.running


def rejected(i):
    """A task."""
    if i == 3:
        raise InputRejectedError("the file is no file")
    return i


def test_an_error_for_the_user_is_not_repeated_and_ends_what_depends_on_it(pair, tmp_path):
    graph = Graph()
    parts = graph.layer("read", counted, [(i, str(tmp_path)) for i in range(6)])
    whole = graph.task("combine", sum, parts)
    with pytest.raises(InputRejectedError, match="the file is no file"):
        DaskExecutor(pair, 2).compute(graph, whole)
    assert (tmp_path / "3").read_text() == "x"


LISTED = threading.Event()


def test_an_error_whose_result_is_released_before_it_is_fetched(pair, monkeypatch):
    """It comes through the tasks that depend on it: the key that was listed is never seen again."""
    LISTED.clear()
    ask = pair.run_on_scheduler

    def hold(function, **arguments):
        found = ask(function, **arguments)
        if function is failures and found:
            LISTED.set()
            await_that(lambda: not ask(failures, **arguments))
        return found

    monkeypatch.setattr(pair, "run_on_scheduler", hold)
    graph = Graph()
    parts = graph.layer("read", rejected, [(i,) for i in range(6)])
    whole = graph.task("combine", sum, [*parts, graph.task("late", await_list)])
    answer = in_background(partial(DaskExecutor(pair, 2).compute, graph, whole))
    assert isinstance(answer.exception(timeout=240), InputRejectedError)
    assert LISTED.is_set()


def await_list():
    """A task that ends once the error has been listed.

    It keeps no worker busy meanwhile: what is to fail may wait behind it, and nobody need take it from there.
    """
    secede()
    return LISTED.wait()


def test_an_error_is_raised_while_other_tasks_run(pair, tmp_path):
    """A job one of whose files is rejected does not read the others."""
    graph = Graph()
    parts = graph.layer("read", rejected_or_endless, [(i, str(tmp_path / "first")) for i in range(6)])
    with pytest.raises(InputRejectedError, match="the file is no file"):
        DaskExecutor(pair, 2).compute(graph, graph.task("combine", sum, parts))


def rejected_or_endless(i, first):
    """A task that fails if it is the first one that runs; otherwise it ends only when its command has ended."""
    while not taken(first, i):
        tasks.check()
        time.sleep(0.01)
    return rejected(3)


def test_a_result_that_is_lost_while_it_is_fetched(pair, monkeypatch):
    """The wait for it is watched like that for the tasks."""
    asked = threading.Event()
    watched = threading.Event()

    def endless(self, *arguments, **options):
        asked.set()
        watched.wait()

    def watch(state, silence):
        if asked.is_set():
            watched.set()
            raise TemporaryError("no worker is left")

    monkeypatch.setattr(Future, "result", endless)
    graph = Graph()
    with pytest.raises(TemporaryError, match="no worker is left"):
        DaskExecutor(pair, 2, watch=watch).compute(graph, graph.task("only", abs, 1))


def counted(i, folder):
    """A task that leaves a mark each time it runs."""
    with open(f"{folder}/{i}", "a") as file:  # noqa: PTH123
        file.write("x")
    return rejected(i)


FINISHED = 6


def test_a_lost_worker_costs_its_running_tasks_only(dask_class, tmp_path):
    """Finished tasks whose results lived on the worker are not done again; those that it ran are."""
    # The tasks are functions of this module, which an installed project does not have, nor what it imports.
    tests = Path(__file__).parent
    dask = dask_class(tmp_path, PYTHONPATH=f"{tests.parent}{os.pathsep}{tests}")
    dask.begin_worker()
    marks = tmp_path / "marks"
    marks.mkdir()
    try:
        dask.await_file()
        with Client(scheduler_file=str(dask.file)) as client:
            client.wait_for_workers(2, timeout=240)
            graph = Graph()
            receipts = receipts_in(str(tmp_path))
            first = graph.layer("sort", marked, [(i, str(marks)) for i in range(2)], receipts=receipts)
            split = graph.task("split", sum, first)
            entries = [(i, str(marks), split) for i in range(2, FINISHED + 6)]
            merged = graph.layer("merge", marked, entries, receipts=receipts)
            whole = graph.task("combine", sum, merged)
            with ThreadPoolExecutor(1) as thread:
                found = thread.submit(DaskExecutor(client, 2).compute, graph, whole)
                await_that(lambda: found.done() or len(list(marks.glob("turn-*"))) == FINISHED + 2)
                assert not found.done(), found.exception()
                dask.worker.kill()
                await_that(lambda: len(client.scheduler_info()["workers"]) == 1)
                dask.begin_worker()
                (marks / "go").touch()
                assert found.result(timeout=240) == sum(range(2, FINISHED + 6))
    finally:
        dask.stop()
    counts = {int(path.name): len(path.read_text()) for path in marks.iterdir() if path.name.isdigit()}
    finished = [int((marks / f"turn-{turn}").read_text()) for turn in range(FINISHED)]
    assert {i: counts[i] for i in finished} == dict.fromkeys(finished, 1)
    assert len(counts) == FINISHED + 6
    # One of the two that ran, again.
    assert sum(counts.values()) == len(counts) + 1


def await_that(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def marked(i, folder, before=None):
    """A task that leaves a mark each time it runs; those whose turn comes last wait for a word.

    Which these are is the scheduler's choice, so turns are taken and not given: a task that waited by its number could
    keep a worker from those that it is to finish first.
    """
    with open(f"{folder}/{i}", "a") as file:  # noqa: PTH123
        file.write("x")
    turn = next(turn for turn in itertools.count() if taken(f"{folder}/turn-{turn}", i))
    while turn >= FINISHED and not os.path.exists(f"{folder}/go"):  # noqa: PTH110
        time.sleep(0.01)
    return i


def taken(place, i):
    """Whether a task has taken a turn that was free."""
    try:
        with open(place, "x") as file:  # noqa: PTH123
            file.write(str(i))
    except FileExistsError:
        return False
    return True


# Memory of a process that runs tasks, as the kernel tells it

ALLOCATED = """
import ctypes, threading
from pathlib import Path
from jobs.cluster import process_memory

process_memory.begin()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
places = []
threads = [threading.Thread(target=lambda: places.append(libc.malloc(40_000_000))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
(heap,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
start, end = (int(text, 16) for text in heap.split()[0].split("-"))
print(all(start <= place < end for place in places))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc on Linux"
)
def test_buffers_of_threads_lie_in_one_heap():
    done = python(ALLOCATED)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(("executing", "sent"), [(1, []), (0, [["tcp://paused"]])])
def test_tasks_that_wait_on_a_paused_worker_are_given_to_others(monkeypatch, executing, sent):
    """Its only task runs, or waits; tasks that run are left alone."""
    monkeypatch.setattr(watching, "in_background", lambda call: call())
    found = []
    client = SimpleNamespace(run_on_scheduler=lambda function, addresses: found.append(addresses))
    watch = ClusterWatch(client, ClusterConfig(), {"tcp://paused", "tcp://other"})
    watch.paused = {"tcp://paused": -1e9}
    workers = {
        "tcp://paused": WorkerState("paused", 0, 1, 1, executing),
        "tcp://other": WorkerState("running", 0, 1, 0, 0),
    }
    watch(ClusterState({}, False, workers), 0.0)
    assert found == sent


def test_the_time_between_two_graphs_is_not_time_without_workers(pair):
    """The first look at a graph comes before the scheduler's answer; a stream's last graph may be hours ago."""
    watch = ClusterWatch(pair, ClusterConfig(timeout=5), set(pair.scheduler_info()["workers"]))
    watch.last_look -= 1e6
    assert DaskExecutor(pair, 2, watch=watch).run("stage", slept, [(1,)]) == [1]
    # While there is a graph, it is.
    empty = ClusterState({}, False, {})
    for _ in range(5):
        watch.last_look -= 1e6
        watch(empty, 0.0)
    watch.last_look -= 1e6
    with pytest.raises(TemporaryError, match="no worker came within 5 s"):
        watch(empty, 0.0)


def slept(seconds):
    """A task."""
    time.sleep(seconds)
    return seconds
