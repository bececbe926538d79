"""Processes beside the command that run some of its tasks: results, errors, and their end whatever becomes of them."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from logcal.errors import InputRejectedError
from pipeline.execution import Companions, ThreadExecutor
from pipeline.score import many

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="companions are forked, on Linux alone"),
]

FILES = 2 * many._COMPANION_FILES

BESIDE = ("cluster.kind=auto", "cluster.workers=2")

PATIENCE = 240
"""Seconds until what must happen is said not to have happened."""


@pytest.fixture
def forked(monkeypatch):
    """Processes are forked beside threads that other tests have left, too."""
    monkeypatch.setattr("pipeline.execution.companions._forking_is_safe", lambda: True)


@pytest.fixture
def companions(forked):
    """One process beside this one."""
    made = Companions(1)
    yield made
    made.close()
    assert not any(process.is_alive() for process, _ in made._all)


def gathered(results):
    """What a stage's last task makes of its results."""
    return results


def await_that(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def meet(folder, task):
    """A task that ends once tasks have begun in two processes."""
    (Path(folder) / str(os.getpid())).touch()
    await_that(lambda: len(list(Path(folder).iterdir())) == 2)
    return task, os.getpid()


def elsewhere(parent, folder, act):
    """A task that acts where it runs in another process than `parent`, which others wait for."""
    if os.getpid() == parent:
        await_that(lambda: list(Path(folder).iterdir()))
        return "here"
    (Path(folder) / "met").touch()
    return act()


def reject():
    """As a file that cannot be read is."""
    raise InputRejectedError("expected a file, found none")


def fail():
    """As a bug of ours."""
    raise ZeroDivisionError("a bug")


def die():
    """As one of the processes that is killed where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def reduced(companions, function, tasks):
    """The results of tasks on two threads, in their order."""
    return ThreadExecutor(2).reduce("stage", function, tasks, gathered, companions=companions)


def test_tasks_run_in_both_processes_and_results_are_in_their_order(companions, tmp_path):
    found = reduced(companions, meet, [(str(tmp_path), i) for i in range(24)])
    assert [task for task, _ in found] == list(range(24))
    processes = {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() in processes


@pytest.mark.parametrize(("act", "kind"), [(reject, InputRejectedError), (fail, ZeroDivisionError)])
def test_an_error_is_raised_here_and_ends_the_other_process(companions, tmp_path, act, kind):
    with pytest.raises(kind, match=r"expected a file, found none|a bug") as caught:
        reduced(companions, elsewhere, [(os.getpid(), str(tmp_path), act)] * 24)
    # Where a bug of ours was is said, as the other process's traceback is lost.
    assert any("in fail" in note for note in getattr(caught.value, "__notes__", ())) == (act is fail)
    ((process, _),) = companions._all
    assert not process.is_alive()


def test_the_task_of_one_that_is_killed_runs_here(companions, tmp_path):
    found = reduced(companions, elsewhere, [(os.getpid(), str(tmp_path), die)] * 24)
    assert found == ["here"] * 24


def test_beside_other_threads_none_is_forked_and_all_tasks_run_here():
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    companions = Companions(1)
    end.set()
    other.join()
    assert reduced(companions, abs, [(-i,) for i in range(24)]) == list(range(24))
    assert companions._all == []


def test_each_ends_when_nobody_can_send_it_tasks_any_more(forked):
    # Each was forked with what tasks are sent through to those before it.
    companions = Companions(3)
    for _, connection in companions._all:
        connection.close()
    for process, _ in companions._all:
        process.join(PATIENCE)
        assert process.exitcode == 0


def test_companions_are_for_many_small_files_that_are_not_waited_for(forked):
    class File(NamedTuple):
        size: int = 1000

    local, memory = LocalFileSystem(), MemoryFileSystem()

    def count(files, source=local, target=local, workers=2):
        found = many.companions_for(source, files, target, workers)
        if found is not None:
            found.close()
        return 0 if found is None else len(found._all)

    files = [File()] * many._COMPANION_FILES
    assert [count(files), count(files * 3, workers=9), count(files * 3, workers=3)] == [1, 3, 2]
    for none in (
        count(files[1:]),
        count(files, workers=1),
        count([*files, File(1 << 40)]),
        count(files, source=memory),
        count(files, target=memory),
    ):
        assert none == 0


def many_files(place, files=FILES):
    """A fitted table, and a log of as many small files; returns what the command is given."""
    place.write_log()
    place.job("fit").expect(0)
    folder = place.write_log({"score": np.random.default_rng(1).random(8 * FILES)}, files=FILES, name="many")
    for i in range(FILES, files):
        (folder / f"part-{i}.parquet").hardlink_to(folder / f"part-{i % FILES}.parquet")
    return {"log__path": folder}


def contents(folder):
    """What lies in a scored log."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_many_small_files_are_the_same_bytes_as_in_one_process(place):
    given = many_files(place)
    place.job("score", *BESIDE, **given).expect(0)
    other = place.root / "inline"
    place.job("score", "cluster.kind=inline", output__path=other, **given).expect(0)
    assert len(contents(other)) == FILES
    assert contents(place.output) == contents(other)


@pytest.mark.parametrize(
    ("whom", "number"), [("command", signal.SIGTERM), ("command", signal.SIGKILL), ("group", signal.SIGINT)]
)
def test_nothing_keeps_running_when_the_command_is_ended(place, start, whom, number):
    files = 4 * FILES
    given = many_files(place, files)
    running = start(place, "score", *BESIDE, **given)
    running.await_that(lambda: len(running.group()) >= 2, "a process beside the command")
    if whom == "group":
        running.signal_group(number)
    else:
        running.process.send_signal(number)
    ended = running.result()
    running.await_no_processes()
    # A scored file may have been the last.
    assert ended.code in (-signal.SIGKILL, 128 + number, 0), ended.stderr
    assert "Traceback" not in ended.stderr
    assert place.job("score", *BESIDE, **given).code in (0, 99)
    assert len(contents(place.output)) == files
