"""Clusters that live: workers that die, come late, do not suit or wait; other users; what a cluster manager says."""

import datetime as dt
import itertools
import os
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, SpecCluster, Worker
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from jobs.cluster.starting import starting_executor
from jobs.config.cluster import ClusterConfig
from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from pipeline.execution import DaskExecutor, Graph
from pipeline.execution.cluster import look, resubmit
from pipeline.files.blobs import receipts_in

pytestmark = pytest.mark.system


def test_no_worker_is_left(place, start, dask):
    place.write_long_log(files=20)
    running = start(place, "fit", *dask.settings, "cluster.timeout=2")
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")
    dask.worker.kill()
    running.result().expect(75, "no worker came within 2 s (cluster.timeout)")
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
    small = dask.begin_worker(memory="512MiB")
    running.await_line("a worker came that is not used: cluster.memory: expected workers with at least 1GiB")
    small.wait(timeout=240)
    dask.worker.kill()
    dask.begin_worker()
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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "logcal-test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
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


class Refusing(Managed):
    def __init__(self):
        super().__init__(Refused)


class Hesitating(Managed):
    def __init__(self):
        super().__init__(Hesitant)


def by_class(monkeypatch, cls, **settings):
    """A configuration of a cluster class of this module."""
    monkeypatch.setattr("jobs.cluster.kinds._cluster_class", lambda path: cls)
    return ClusterConfig(kind=f"tests.{cls.__name__}", workers=1, memory="256MiB", **settings)


def test_what_a_cluster_manager_says_reaches_the_user(monkeypatch):
    config = by_class(monkeypatch, Refusing, timeout=60)
    with pytest.raises(ConfigError) as caught, starting_executor(config) as executor:
        executor()
    assert str(caught.value) == (
        "cluster.arguments: tests.Refusing was refused workers: tests.Refusing said: sbatch: error: invalid partition "
        "specified: nowhere"
    )


def test_a_worker_that_fails_to_start_is_started_again(monkeypatch):
    with starting_executor(by_class(monkeypatch, Hesitating, timeout=60)) as executor:
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


class Slurm(Managed):
    def __init__(self):
        super().__init__(Submitted)


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
    with starting_executor(by_class(monkeypatch, Slurm, timeout=60)) as executor:
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
    config = by_class(monkeypatch, Slurm, timeout=3)
    with pytest.raises(TemporaryError) as caught, starting_executor(config) as executor:
        executor()
    assert str(caught.value).endswith(f"(cluster.timeout): {reason}")
    assert Submitted.submitted == 1


@pytest.fixture
def pair():
    """A client of a cluster of two workers in this process."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
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


def counted(i, folder):
    """A task that leaves a mark each time it runs."""
    with open(f"{folder}/{i}", "a") as file:  # noqa: PTH123
        file.write("x")
    return rejected(i)


FINISHED = 6


def test_a_lost_worker_costs_its_running_tasks_only(dask_class, tmp_path):
    """Finished tasks whose results lived on the worker are not done again; those that it ran are."""
    # The tasks are functions of this module, which an installed project does not have.
    dask = dask_class(tmp_path, PYTHONPATH=str(Path(__file__).parents[1]))
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
