"""Progress on stderr: lines where it goes to a file, bars on a terminal."""

import fcntl
import io
import logging
import os
import pty
import select
import struct
import subprocess
import sys
import termios

import pytest

from jobs import interrupts, progress

pytestmark = pytest.mark.system


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


def test_a_line_at_the_start_and_the_end_of_a_stage(lines, clock):
    report = progress.LogLines()
    report("sort", 0, 1200)
    for done in range(1, 1200):
        clock.now += 0.01
        report("sort", done, 1200)
    report("sort", 1200, 1200)
    assert lines() == ["sort: 1,200 tasks", "sort: done, 12.0 s"]


def test_a_line_every_30_seconds(lines, clock):
    report = progress.LogLines()
    report("sort", 0, 100)
    for done in range(1, 101):
        clock.now += 1
        report("sort", done, 100)
    assert lines() == [
        "sort: 100 tasks",
        "sort: 30 of 100 tasks, 30 s",
        "sort: 60 of 100 tasks, 60 s, about 40 s left",
        "sort: 90 of 100 tasks, 90 s, about 10 s left",
        "sort: done, 100.0 s",
    ]


def test_tasks_that_compile_and_last_tasks_that_take_long_give_no_end(lines, clock):
    """The first 18 of 72 tasks take 200 s, 53 take 1 s each, and the last one runs on."""
    report = progress.LogLines()
    report("join-again", 0, 72)
    for done in range(1, 72):
        clock.now += 200 / 18 if done <= 18 else 1
        report("join-again", done, 72)
    clock.now += 40
    report("join-again", 71, 72)
    estimates = [line for line in lines() if "left" in line]
    assert estimates == ["join-again: 48 of 72 tasks, 230 s, about 24 s left"]
    assert lines()[-1] == "join-again: 71 of 72 tasks, 293 s"


def test_a_first_task_that_takes_long_has_lines_too(lines, clock):
    report = progress.LogLines()
    report("sort", 0, 2)
    clock.now += 31
    report("sort", 0, 2)
    assert lines() == ["sort: 2 tasks", "sort: 0 of 2 tasks, 31 s"]


def test_stages_one_after_the_other_and_one_of_no_tasks_which_is_not_said(lines, clock):
    report = progress._checking(progress.LogLines())
    for stage, total in (("read", 1), ("merge", 0), ("read", 1)):
        report(stage, 0, total)
        clock.now += 2
        if total:
            report(stage, total, total)
    assert lines() == ["read: 1 task", "read: done, 2.0 s", "read: 1 task", "read: done, 2.0 s"]


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
from jobs.progress import reporting
with reporting() as report:
    for stage in ("sort", "merge"):
        for done in range(4):
            report(stage, done, 3)
print("the result")
"""


def test_bars_on_a_terminal_and_none_of_them_on_stdout():
    shown, stdout = on_a_terminal(SCRIPT)
    assert stdout == "the result\n"
    for stage in ("sort", "merge"):
        assert any(stage in line and "3/3" in line for line in shown.splitlines()), shown
    assert "Traceback" not in shown


LINE_MEANWHILE = """
import logging
from jobs.progress import log_to_stderr
from jobs.progress import reporting
log_to_stderr()
with reporting() as report:
    report("sort", 0, 3)
    logging.getLogger("logcal").info("a line meanwhile")
    report("sort", 3, 3)
"""


def test_log_lines_stand_above_the_bars():
    shown, _ = on_a_terminal(LINE_MEANWHILE)
    (line,) = (line for line in shown.splitlines() if "a line meanwhile" in line)
    assert "sort" not in line.rpartition("\x1b[2K")[2]


COMPILING = """
import numba
from jobs.progress import reporting
with reporting() as report:
    report("sort", 0, 1)
    for f in (lambda x: x + 1, lambda x: x + 2):
        numba.njit(f)(1)
    report("sort", 1, 1)
print("the result")
"""


def test_compiling_has_a_bar_of_its_own():
    shown, stdout = on_a_terminal(COMPILING)
    assert stdout == "the result\n"
    assert "compile" in shown
    assert "2/2" in shown
    assert "once after an installation" in shown
