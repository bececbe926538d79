"""The processes that compile beside `logcal warm`: what they are given, how they end, what is left if they fail."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from jobs import warm_helpers
from jobs.warm_helpers import Todo, helping

ROOT = Path(__file__).parents[1]
PATIENCE = 240.0


def code(run: str) -> str:
    """What a helper runs: `run(case)` is given."""
    return f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from jobs.warm_helpers import serve
ran = []
{run}
def kernels():
    return {{"used": {{"kernel": {{str(case) for case in ran}}}}, "compiled": {{}}}}
serve(run, kernels, [["no.such.kernel", ""]])
"""


GOOD = "run = ran.append"
TALKATIVE = "run = lambda case: print('noise', flush=True) or ran.append(case)"
ENDS = "run = lambda case: os._exit(3) if case == 1 else ran.append(case)"
FAILS = "run = lambda case: 1 / 0"


def hanging(marker: Path) -> str:
    return f"""
def run(case):
    os.mkdir({str(marker)!r})
    while True:
        time.sleep(1)
"""


def wait_for(marker: Path) -> None:
    while not marker.exists():  # a test for which it never is is ended by its limit
        time.sleep(0.01)


def test_cases_are_taken_from_both_ends():
    todo = Todo(3)
    assert (todo.first(), todo.last(), todo.first()) == (0, 2, 1)
    assert todo.first() is todo.last() is None
    todo.give_back(2)
    assert todo.first() == 2
    for _ in range(3):
        todo.finish()
    todo.wait(PATIENCE)
    assert todo.done == todo.total


@pytest.mark.parametrize("run", [GOOD, TALKATIVE])
def test_helpers_do_what_is_left_and_say_what_they_used(run):
    todo = Todo(5)
    assert todo.first() == 0
    todo.finish()
    with helping([code(run), code(run)], todo) as helpers:
        while todo.done < todo.total:
            todo.wait(PATIENCE)
    assert sorted(case for helper in helpers for case in helper.used.get("kernel", ())) == list("1234")
    assert all(helper.process.returncode is not None for helper in helpers)


@pytest.mark.parametrize(("run", "left", "said"), [(ENDS, 1, "with 3"), (FAILS, 2, "with 1")])
def test_the_case_of_one_that_ended_waits_again(run, left, said, caplog):
    todo = Todo(3)
    todo.first()
    todo.finish()
    with helping([code(run)], todo) as (helper,):
        helper._thread.join()
        assert todo.first() == left
    assert [text for text in caplog.messages if said in text and "run again here" in text]


def test_they_end_with_the_block_and_nothing_is_said(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    started = []

    def interrupted() -> None:
        with helping([code(hanging(tmp_path / "runs"))], Todo(1)) as helpers:
            started.extend(helpers)
            wait_for(tmp_path / "runs")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (helper,) = started
    assert helper.process.returncode is not None
    assert not helper._thread.is_alive()
    assert caplog.messages == []


def test_they_end_with_whoever_started_them(tmp_path):
    with helping([code(hanging(tmp_path / "runs"))], Todo(1)) as (helper,):
        wait_for(tmp_path / "runs")
        helper.process.stdin.close()  # as the system does for a process that is killed
        assert helper.process.wait(PATIENCE) == 0


def test_without_a_process_there_is_none(monkeypatch):
    def refuse(*command, **more):
        raise OSError("no more processes")

    monkeypatch.setattr(warm_helpers.subprocess, "Popen", refuse)
    with helping([code(GOOD)], Todo(1)) as helpers:
        assert helpers == []
