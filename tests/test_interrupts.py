"""Runs that are interrupted, or lose a process: nothing half-done is left, and nothing keeps running."""

import fcntl
import io
import logging
import os
import pty
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jobs import interrupts, progress

pytestmark = pytest.mark.system

LOCAL = "cluster.kind=local"


def without_stderr(tree):
    """Everything but what the command said."""
    return {name: content for name, content in tree.items() if name != "stderr.txt"}


def frame(module, name):
    """Of a function of a module."""
    code = SimpleNamespace(co_filename=module.__file__, co_name=name)
    return SimpleNamespace(f_code=code, f_globals={"__name__": module.__name__}, f_back=None)


@pytest.mark.parametrize(
    ("module", "name", "seconds", "raised"),
    [
        (threading, "__enter__", 1.0, False),
        (threading, "release", 1.0, False),
        (queue, "put", 1.0, False),
        (logging, "handle", 1.0, False),
        # Whoever waits may be interrupted, and nobody is waited for for ever.
        (threading, "wait", 1.0, True),
        (threading, "_wait_for_tstate_lock", 1.0, True),
        (threading, "__enter__", 11.0, True),
        (queue, "put", 0.1, False),
        (interrupts, "check", 0.1, False),
        (interrupts, "check", 1.0, True),
    ],
)
def test_nothing_is_raised_where_a_lock_is_taken(monkeypatch, module, name, seconds, raised):
    """It would never be given back, and the threads that want it never end."""
    clock = [100.0]
    timer = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(interrupts.threading, "Timer", lambda *args: timer)
    with interrupts.catching():
        interrupts._receive(signal.SIGTERM, frame(interrupts, "run"))
        clock[0] += seconds
        with pytest.raises(KeyboardInterrupt) if raised else nullcontext():
            interrupts._receive(signal.SIGTERM, frame(module, name))


def await_runs(place, running):
    """Wait until the sort has written something."""
    running.await_that(lambda: list(place.scratch.glob("logcal-scratch-*/run-*")), "a sorted run")


def assert_ended(place, running, code, before):
    """It ended, with a code and a message, and left nothing."""
    result = running.result()
    assert result.code == code, result.stderr
    assert "interrupted; nothing was published" in result.stderr
    for noise in ("Traceback", "Error", "WARNING"):
        assert noise not in result.stderr, result.stderr
    running.await_no_processes()
    assert without_stderr(place.tree()) == before
    # Dask keeps its folder and locks.
    left = {path.name for path in place.temporary.rglob("*") if path.suffix not in (".lock", ".dirlock")}
    assert left <= {"dask-scratch-space"}


@pytest.mark.parametrize(
    ("kind", "whom", "number"),
    [
        (LOCAL, "command", signal.SIGTERM),
        (LOCAL, "group", signal.SIGINT),
        ("cluster.kind=threads", "command", signal.SIGINT),
    ],
)
def test_a_signal_during_the_sort(place, start, kind, whom, number):
    place.write_long_log(files=20)
    before = without_stderr(place.tree())
    running = start(place, "fit", kind, "cluster.workers=2")
    await_runs(place, running)
    if whom == "group":
        running.signal_group(number)
    else:
        running.process.send_signal(number)
    assert_ended(place, running, 128 + number, before)


def test_signals_while_the_cluster_starts_and_while_it_stops(place, start):
    place.write_long_log(files=20)
    before = without_stderr(place.tree())
    running = start(place, "fit", LOCAL, "cluster.workers=2")
    running.await_that(lambda: len(running.group()) >= 3, "a second process")
    running.signal_group(signal.SIGINT)
    for _ in range(3):
        if running.process.poll() is None:
            running.signal_group(signal.SIGINT)
    assert_ended(place, running, 130, before)


def test_a_run_after_one_that_was_killed_reads_its_receipts(place, start):
    place.write_long_log(files=20)
    running = start(place, "fit", "cluster.kind=threads", "cluster.workers=1")
    receipts = "logcal-scratch-*/receipt-sort-000001"
    running.await_that(lambda: list(place.scratch.glob(receipts)), "two receipts")
    running.signal_group(signal.SIGKILL)
    running.process.wait()
    (first,) = place.scratch.glob("logcal-scratch-*/receipt-sort-000000")
    sorted_at = {path.name: path.stat().st_mtime_ns for path in first.parent.glob("run-00000[01]-*")}
    again = start(place, "fit", "cluster.kind=threads", "cluster.workers=1")
    again.await_that((first.parent / "receipt-sort-000005").exists, "more receipts")
    found = {path.name: path.stat().st_mtime_ns for path in first.parent.glob("run-00000[01]-*")}
    assert again.result().code == 0
    assert found == sorted_at
    assert list(place.scratch.iterdir()) == []
    place.job("fit", "cluster.kind=threads", store__path=place.root / "other").expect(0)
    (lookup,) = (place.root / "other").rglob("lookup.parquet")
    assert lookup.read_bytes() == place.lookup()


@pytest.mark.parametrize("kind", ["cluster.kind=threads", LOCAL])
def test_a_signal_amid_one_long_task(place, start, kind):
    # One file is one task, and takes longer than there is time to end.
    place.write_long_log(files=1, rows=1 << 26)
    place.write_log(name="other")
    place.job("fit", log__path=place.root / "other").expect(0)
    before = without_stderr(place.tree())
    running = start(place, "score", kind, "cluster.workers=1")
    # Under this name it is being written.
    running.await_that(lambda: list(place.root.glob(".output.logcal-staging-*/.*.tmp")), "a file")
    running.process.send_signal(signal.SIGTERM)
    assert running.result().code == 143
    assert_ended(place, running, 143, before)


def test_a_signal_while_no_scheduler_answers(place, start):
    place.write_log()
    before = without_stderr(place.tree())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        running = start(place, "fit", "cluster.kind=address", f"cluster.address={address}")
        with silent.accept()[0]:
            running.process.send_signal(signal.SIGINT)
            assert_ended(place, running, 130, before)


def test_the_workers_of_a_killed_command_end_and_the_next_run_clears_up(place, start):
    place.write_long_log(files=20)
    before = without_stderr(place.tree())
    running = start(place, "fit", LOCAL, "cluster.workers=2")
    await_runs(place, running)
    assert len(running.workers()) >= 2
    running.process.kill()
    running.process.wait()
    running.await_no_processes()
    assert list(place.scratch.iterdir()) != []
    assert not place.store.exists()
    place.job("fit", log__path=place.log / "part-0.parquet").expect(0)
    assert list(place.scratch.iterdir()) == []
    assert place.versions == [place.current]
    assert before.items() <= without_stderr(place.tree()).items()


def test_a_job_survives_the_loss_of_a_worker(place, start):
    place.write_long_log(files=8)
    place.job("fit", store__path=place.root / "undisturbed").expect(0)
    running = start(place, "fit", LOCAL, "cluster.workers=2")
    await_runs(place, running)
    os.kill(running.workers()[0], signal.SIGKILL)
    result = running.result().expect(0)
    assert "WARNING" not in result.stderr
    running.await_no_processes()
    assert list(place.scratch.iterdir()) == []
    (undisturbed,) = (place.root / "undisturbed").rglob("lookup.parquet")
    assert place.lookup() == undisturbed.read_bytes()


# Progress on stderr


@pytest.fixture
def lines():
    """What the logger `logcal` says."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("logcal")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set, in seconds."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def of_a_stage(total, pauses, stage="sort"):
    """Reports of a stage: the pause before each, what, how many are done, of how many."""
    return [(pause, stage, done, total) for done, pause in enumerate([0, *pauses])]


SLOW_TWICE = [(0, "sort", 0, 2), (31, "sort", 0, 2)]
READ = ["read: 1 task", "read: done, 2.0 s"]
COMPILING_FIRST = [*of_a_stage(72, [200 / 18] * 18 + [1] * 53), (40, "sort", 71, 72)]
"""The first 18 of 72 tasks take 200 s, 53 take 1 s each, and the last one runs on."""
REPORTS = [
    (of_a_stage(1200, [0.01] * 1200), ["sort: 1,200 tasks", "sort: done, 12.0 s"]),
    (
        of_a_stage(100, [1] * 100),
        [
            "sort: 100 tasks",
            "sort: 30 of 100 tasks, 30 s",
            "sort: 60 of 100 tasks, 60 s, about 40 s left",
            "sort: 90 of 100 tasks, 90 s, about 10 s left",
            "sort: done, 100.0 s",
        ],
    ),
    (SLOW_TWICE, ["sort: 2 tasks", "sort: 0 of 2 tasks, 31 s"]),
    # A stage of no tasks is not said.
    ([*of_a_stage(1, [2], "read"), (0, "merge", 0, 0), *of_a_stage(1, [2], "read")], READ * 2),
    (COMPILING_FIRST, ["sort: 48 of 72 tasks, 230 s, about 24 s left", "sort: 71 of 72 tasks, 293 s"]),
]


@pytest.mark.parametrize(("reports", "expected"), REPORTS)
def test_lines_say_when_a_stage_begins_and_ends_and_every_30_seconds(lines, clock, reports, expected):
    report = progress._checking(progress.LogLines())
    for pause, stage, done, total in reports:
        clock.now += pause
        report(stage, done, total)
    found = lines()
    if reports is COMPILING_FIRST:
        found = [line for line in found if "left" in line] + found[-1:]
    assert found == expected


def test_a_report_ends_an_interrupted_run(lines):
    with interrupts.catching(), progress.reporting() as report:
        report("sort", 0, 2)
        os.kill(os.getpid(), interrupts.signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            report("sort", 1, 2)
        assert interrupts.exit_code() == 143


def on_a_terminal(script, columns=100):
    """What a Python script writes to a terminal that is its stderr, and to its stdout."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=slave, stdout=subprocess.PIPE, text=True, env=environment
    )
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 30)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # The other side is closed.
            break
        if not data:
            break
        shown += data
    stdout = process.communicate(timeout=240)[0]
    os.close(master)
    assert process.returncode == 0, shown
    return shown.decode(), stdout


SCRIPT = """
import logging
from jobs.progress import log_to_stderr, reporting
log_to_stderr()
with reporting() as report:
    for stage in ("sort", "merge"):
        for done in range(4):
            report(stage, done, 3)
            if (stage, done) == ("sort", 1):
                logging.getLogger("logcal").info("a line meanwhile")
print("the result")
"""


def test_bars_on_a_terminal_below_log_lines_and_none_of_them_on_stdout():
    shown, stdout = on_a_terminal(SCRIPT)
    assert stdout == "the result\n"
    for stage in ("sort", "merge"):
        assert any(stage in line and "3/3" in line for line in shown.splitlines()), shown
    (line,) = (line for line in shown.splitlines() if "a line meanwhile" in line)
    assert "sort" not in line.rpartition("\x1b[2K")[2]
    assert "Traceback" not in shown
