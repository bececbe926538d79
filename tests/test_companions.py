"""Processes beside the command's that run some of its tasks: results, errors, and their end whatever becomes of them."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jobs import worker_process
from logcal.errors import InputRejectedError
from pipeline.execution import Companions, ThreadExecutor
from pipeline.score import many

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="companions are forked, on Linux alone")

PATIENCE = 240
"""Seconds until what must happen is said not to have happened."""


@pytest.fixture
def companions():
    """One process beside this one."""
    made = Companions(worker_process.begin_companions, 1)
    yield made
    made.close()
    assert [process for process, _ in made._processes if process.is_alive()] == []


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
    """The results of tasks that hold Python's lock, in their order, once the other process has started."""
    companions.begin(len(tasks))
    await_that(lambda: not companions._begun or companions._settled.is_set())
    return ThreadExecutor(2, companions=companions).reduce("stage", function, tasks, gathered, locked=True)


def test_tasks_run_in_both_processes_and_results_are_in_their_order(companions, tmp_path):
    found = reduced(companions, meet, [(str(tmp_path), i) for i in range(24)])
    assert [task for task, _ in found] == list(range(24))
    processes = {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() in processes


def test_a_stage_of_few_tasks_or_of_compiled_loops_starts_none(companions):
    assert reduced(companions, abs, [(-1,), (2,)]) == [1, 2]
    executor = ThreadExecutor(2, companions=companions)
    assert executor.run("stage", abs, [(-i,) for i in range(24)]) == list(range(24))
    assert companions._processes == []


@pytest.mark.parametrize(("act", "kind"), [(reject, InputRejectedError), (fail, ZeroDivisionError)])
def test_an_error_is_raised_here_and_ends_the_process(companions, tmp_path, act, kind):
    with pytest.raises(kind, match=r"expected a file, found none|a bug") as caught:
        reduced(companions, elsewhere, [(os.getpid(), str(tmp_path), act)] * 24)
    # Where a bug of ours was is said, as the other process's traceback is lost.
    assert any("in fail" in note for note in getattr(caught.value, "__notes__", ())) == (act is fail)
    ((process, _),) = companions._processes
    process.join(PATIENCE)
    assert not process.is_alive()


def test_the_task_of_one_that_is_killed_runs_here(companions, tmp_path):
    found = reduced(companions, elsewhere, [(os.getpid(), str(tmp_path), die)] * 24)
    assert found == ["here"] * 24


def test_where_none_can_be_started_all_tasks_run_here():
    companions = Companions(lambda: None, 1)
    assert reduced(companions, abs, [(-i,) for i in range(24)]) == list(range(24))
    companions.close()

    def broken():
        raise OSError("no more processes")

    companions = Companions(broken, 1)
    assert reduced(companions, abs, [(-i,) for i in range(24)]) == list(range(24))
    companions.close()


def many_files(place):
    """A fitted table, and a log of as many files as processes are wanted for; returns what the command is given."""
    place.write_log()
    place.job("fit").expect(0)
    score = np.random.default_rng(1).random(8 * many._MANY_FILES)
    place.write_log({"score": score}, files=many._MANY_FILES, name="many")
    return {"log__path": place.root / "many"}


def contents(folder):
    """What lies in a scored log."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_many_small_files_are_the_same_bytes_as_in_one_process(place):
    given = many_files(place)
    place.job("score", "cluster.workers=2", **given).expect(0)
    other = place.root / "inline"
    place.job("score", "cluster.kind=inline", output__path=other, **given).expect(0)
    assert len(contents(other)) == many._MANY_FILES
    assert contents(place.output) == contents(other)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_keeps_running_when_the_command_is_ended(place, start, number):
    given = many_files(place)
    running = start(place, "score", "cluster.workers=2", **given)
    running.await_that(lambda: list(place.root.rglob("part-7*.parquet")), "a scored file")
    running.process.send_signal(number)
    running.result()
    running.await_no_processes()
    place.job("score", "cluster.workers=2", **given).expect(0)
    assert len(contents(place.output)) == many._MANY_FILES
