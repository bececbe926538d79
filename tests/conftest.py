"""The command `logcal` as a user runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis
import inside
import numpy as np
import pyarrow as pa
import pytest
import sklearn  # noqa: F401 - as jobs.cli
from common import predictions, run_command, write_log

from jobs.config.loading import known_keys
from jobs.registry import JOBS
from pipeline.execution import tasks

# How long an example takes depends on the machine, and the first one compiles. `make system` asks for more examples.
EXAMPLES = int(os.environ.get("LOGCAL_TEST_EXAMPLES", "25"))
hypothesis.settings.register_profile("logcal", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("logcal")

# What is on the disk is all the same to a test that goes on, but costs each published table a hundredth of a second.
os.fsync = lambda descriptor: None

PATIENCE = float(os.environ.get("LOGCAL_TEST_PATIENCE", "240"))
"""Seconds that a command may take; more where all kernels are compiled anew."""
INLINE = "cluster.kind=inline"
ANY_TABLE = (
    "{min_rows: 0, min_positives: 0, max_rows_drop: 1, ranking: false, agreement: false, holdout: none}"
)
"""A gate that lets any table pass: logs of tests are small."""
LOGCAL = str(Path(sysconfig.get_path("scripts")) / "logcal")


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code and all that it said."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object that stdout holds."""
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found

    def expect(self, code: int, *phrases: str) -> Result:
        """Check the code, that all phrases are in the message, and that it is a message and no traceback."""
        assert self.code == code, f"expected {code}, found {self.code}:\n{self.stderr}\n{self.stdout}"
        for phrase in phrases:
            assert phrase in self.stderr, f"expected '{phrase}' in\n{self.stderr}"
        assert "Traceback" not in self.stderr
        return self


class Place:
    """A folder with a log, a store and outputs, and the command run in it."""

    table = "ads"
    method = "isotonic"
    """Of fits that name none: most tests are not about the method, and its levels are plain to check. None: the default
    of logcal, which the demo's commands, the matrix and tests of methods use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.store = root / "store"
        self.output = root / "output"
        self.scratch = root / "scratch"
        # A short name, since sockets are made there, whose names may not be longer than 107 characters.
        self.temporary = Path(tempfile.mkdtemp(prefix="logcal-"))
        self.environment = {**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "100"}
        self.environment.pop("PYTHONWARNINGS", None)
        self.scratch.mkdir()

    # The log

    predictions = staticmethod(predictions)

    def write_log(self, columns: Any = None, files: int = 3, name: str = "log", **options: Any) -> Path:
        """Write columns, or some ordinary predictions, as a log of several files."""
        return Path(
            write_log(self.root / name, predictions() if columns is None else columns, files, **options)
        )

    def write_long_log(self, files: int, rows: int = 1 << 22) -> Path:
        """Write a log that takes long to read and little to store: one file of runs of equal rows, several times."""
        score = np.repeat(np.arange(1, 9) / 10, rows // 8)
        label = np.tile(np.repeat(np.array([0, 1], np.int8), rows // 16), 8)
        folder = self.write_log({"score": score, "label": label}, files=1, row_group_size=1 << 20)
        for i in range(1, files):
            (folder / f"part-{i}.parquet").hardlink_to(folder / "part-0.parquet")
        return folder

    # The command

    def arguments(self, job: str, *settings: str, **paths: Any) -> list[str]:
        """A job's arguments on this place; settings that begin with '--' are passed on as they are."""
        own = {"log.path": self.log, "store.path": self.store, "store.table": self.table}
        own["scratch"] = self.scratch
        named_time = any("give_up" in text for text in settings)
        # Damaged files of tests are not being written.
        own["log.give_up"] = None if job in ("generate", "follow") or named_time else "0s"
        if job in ("fit", "follow"):
            own["gate"] = ANY_TABLE
            named = any(text.startswith(("calibrator.method=", "--config")) for text in settings)
            own["calibrator.method"] = None if named else self.method
        if job in ("score", "evaluate"):
            own["report.path" if job == "evaluate" else "output.path"] = self.output
        if job == "evaluate" and "output__path" in paths and "report__path" not in paths:
            paths["report__path"] = paths.pop("output__path")
        own.update({key.replace("__", "."): value for key, value in paths.items()})
        used = known_keys(JOBS[job].config_class())
        own = {
            key: value for key, value in own.items() if any(f"{name}.".startswith(f"{key}.") for name in used)
        }
        given = [f"{key}={value}" for key, value in own.items() if value is not None]
        flags = [text for text in settings if text.startswith("--")]
        pairs = [text for text in settings if not text.startswith("--")]
        if not any(text.startswith("cluster.kind=") for text in pairs):
            pairs.insert(0, INLINE)
        return [job, *(part for text in [*given, *pairs] for part in ("--set", text)), *flags]

    def run(self, *arguments: str, timeout: float = PATIENCE, within: Sequence[str] = ()) -> Result:
        """Run `logcal ARGUMENTS`, in this process where that is the same; `within`: a command that runs it."""
        if not within and inside.suits(arguments, self.environment):
            done = inside.run(arguments, self.root, self.environment)
        else:
            there = {"cwd": self.root, "env": self.environment, "stdin": subprocess.DEVNULL}
            done = run_command(*within, LOGCAL, *arguments, ends=None, timeout=timeout, **there)
        return Result(done.returncode, done.stdout, done.stderr)

    def job(self, job: str, *settings: str, within: Sequence[str] = (), **paths: Any) -> Result:
        """Run a job on this place, inline unless a setting says otherwise."""
        return self.run(*self.arguments(job, *settings, **paths), within=within)

    def start(self, job: str, *settings: str, **paths: Any) -> Running:
        """Start a job on this place, in a process group of its own, as a shell does."""
        return Running([LOGCAL, *self.arguments(job, *settings, **paths)], self.root, self.environment)

    # What is there

    def tree(self) -> dict[str, str]:
        """Every file and folder below this place but run records, with a digest of its content."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if "runs" in path.relative_to(self.root).parts or path.name.endswith(".logcal"):
                continue
            if path.parent.name.endswith(".logcal") and path.name != "manifest.json":
                continue
            if path.is_dir() and _holds_records_only(path):
                continue
            name = str(path.relative_to(self.root))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        return found

    @property
    def current(self) -> str:
        """What CURRENT holds."""
        return (self.store / self.table / "CURRENT").read_text().strip()

    def lookup(self, version: str | None = None) -> bytes:
        """The bytes of a published lookup table."""
        versions = self.store / self.table / "versions"
        return (versions / (version or self.current) / "lookup.parquet").read_bytes()

    def manifest(self, version: str | None = None) -> dict[str, Any]:
        """What a version says of itself; of the current one, if none is named."""
        path = self.store / self.table / "versions" / (version or self.current) / "manifest.json"
        return dict(json.loads(path.read_text()))

    @property
    def newest_manifest(self) -> dict[str, Any]:
        """What the newest version says of itself, current or not."""
        return self.manifest(self.versions[-1])

    @property
    def versions(self) -> list[str]:
        """The names in versions/, unfinished ones included."""
        return sorted(path.name for path in (self.store / self.table / "versions").iterdir())


def _holds_records_only(folder: Path) -> bool:
    """Whether a folder was made for run records: of a store and a table in which nothing was published."""
    below = [path for path in folder.rglob("*") if path.is_file()]
    return bool(below) and all("runs" in path.relative_to(folder).parts for path in below)


class Running:
    """A command that is running, whose lines on stderr can be waited for."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.errors = folder / "stderr.txt"
        with self.errors.open("w") as stderr:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
            there = {"cwd": folder, "env": environment, "start_new_session": True}
            self.process = subprocess.Popen(command, text=True, **pipes, **there)

    @property
    def stderr(self) -> str:
        """All that it has said so far."""
        return self.errors.read_text()

    def await_line(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait until stderr holds a text."""
        self.await_that(lambda: text in self.stderr, f"'{text}'", timeout)

    def await_that(self, condition: Any, what: str, timeout: float = PATIENCE) -> None:
        """Wait until a condition holds while the command runs."""
        end = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.stderr}"
            assert time.monotonic() < end, f"no {what} within {timeout} s:\n{self.stderr}"
            time.sleep(0.01)

    def group(self) -> list[int]:
        """The living processes of its session, itself included."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if self._mine(pid)]

    def workers(self) -> list[int]:
        """The processes that tasks run in: forked from a child of the command."""
        return [pid for pid in self.group() if _stat(pid)[1] not in (0, os.getpid(), self.process.pid)]

    def _mine(self, pid: int) -> bool:
        state, _, session = _stat(pid)
        return session == self.process.pid and state != "Z"

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole process group, as a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, number)

    def result(self, timeout: float = PATIENCE) -> Result:
        """Wait for its end."""
        stdout, _ = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, stdout, self.stderr)

    def await_no_processes(self, timeout: float = PATIENCE) -> None:
        """Wait until none of its processes is left."""
        end = time.monotonic() + timeout
        while left := self.group():
            assert time.monotonic() < end, f"still there: {[_command_line(pid) for pid in left]}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End all of its processes, whatever they do."""
        for pid in self.group():
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and session of a process; ('', 0, 0) if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0, 0
    return fields[0], int(fields[1]), int(fields[3])


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def start() -> Iterator[Any]:
    """Start a job on a place; whatever it leaves running is ended with the test."""
    running: list[Running] = []

    def begin(place: Place, job: str, *settings: str, **paths: Any) -> Running:
        running.append(place.start(job, *settings, **paths))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


@pytest.fixture(scope="session")
def make_place() -> Iterator[Callable[[Path], Place]]:
    """Make a place of a folder."""
    made: list[Place] = []

    def make(root: Path) -> Place:
        made.append(Place(root))
        return made[-1]

    yield make
    for place in made:
        shutil.rmtree(place.temporary, ignore_errors=True)


@pytest.fixture(autouse=True)
def _options_of_one_test_alone() -> Iterator[None]:
    """What a job in this process tells file systems (storage.options) holds for its process: put it back."""
    from fsspec.config import conf

    before = {name: dict(own) for name, own in conf.items()}
    named = {name: value for name, value in os.environ.items() if name.startswith("FSSPEC_")}
    yield
    conf.clear()
    conf.update(before)
    for name in [name for name in os.environ if name.startswith("FSSPEC_")]:
        del os.environ[name]
    os.environ.update(named)


@pytest.fixture
def guarded_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks on threads share their arguments: one that changes them is an error."""
    plain = tasks.run_locally

    def run_locally(run: str, function: Callable[..., Any], *arguments: Any) -> Any:
        before = _content((function, arguments))
        result = plain(run, function, *arguments)
        if _content((function, arguments)) != before:
            raise AssertionError(f"expected a task that only reads its arguments, found {function} changed")
        return result

    monkeypatch.setattr(tasks, "run_locally", run_locally)


def _content(value: object) -> bytes:
    """A pickle that is the same whether or not Arrow has counted an array's nulls, which it keeps."""

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, part: object) -> Any:
            if isinstance(part, pa.Array):
                _ = part.null_count
            return super().reducer_override(part)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


@pytest.fixture
def place(make_place: Callable[[Path], Place], tmp_path: Path) -> Place:
    """A folder of the test's own, with room for a log, a store and outputs."""
    return make_place(tmp_path)


@pytest.fixture
def call(place: Place) -> Callable[..., Result]:
    """Run a job on the place."""
    return place.job


@pytest.fixture
def fitted(place: Place, call: Callable[..., Result]) -> Place:
    """A place with an ordinary log and its published table."""
    place.write_log()
    call("fit").expect(0)
    return place


class Dask:
    """A scheduler with one worker, each a process of its own, as on a cluster."""

    def __init__(self, folder: Path, *options: str, within: Sequence[str] = (), **environment: str) -> None:
        self.file = folder / "scheduler.json"
        self.within = within
        self.options = options
        self.environment = {**os.environ, **environment}
        self.environment.pop("PYTHONWARNINGS", None)
        self.processes: list[Any] = []
        self.begin("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.worker = self.begin_worker()

    def begin_worker(self, memory: str = "1GiB") -> Any:
        """Start another worker."""
        options = ("--nthreads", "1", "--memory-limit", memory, "--no-dashboard", "--no-nanny")
        return self.begin("dask_worker", *options)

    def begin(self, program: str, *arguments: str) -> Any:
        """Start a process of the cluster."""
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--scheduler-file", str(self.file)]
        command = [*self.within, *command]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        there = {"cwd": self.file.parent, "env": self.environment}
        process = subprocess.Popen([*command, *arguments, *self.options], **there, **silent)
        self.processes.append(process)
        return process

    @property
    def settings(self) -> tuple[str, ...]:
        """Of a job that runs there."""
        return "cluster.kind=scheduler_file", f"cluster.scheduler_file={self.file}", "cluster.memory=1GiB"

    def await_file(self) -> None:
        """Wait for the scheduler."""
        end = time.monotonic() + 60
        while not self.file.exists():
            assert time.monotonic() < end
            time.sleep(0.05)

    def stop(self) -> None:
        """End all of its processes."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path_factory: Any) -> Iterator[Dask]:
    """A cluster of its own for a test."""
    cluster = Dask(tmp_path_factory.mktemp("dask"))
    cluster.await_file()
    yield cluster
    cluster.stop()


@pytest.fixture
def dask_class() -> type[Dask]:
    """For clusters with options."""
    return Dask
