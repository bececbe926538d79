"""Works in lockstep: a part of each in turn, each with its own end."""

import threading
import time
from functools import partial

import pytest

from pipeline.execution.lockstep import finish, lockstep
from pipeline.execution.turns import Turns


def work(log, name, parts, error=None):
    """Notes its parts, and that it was cleared up after."""
    try:
        for part in range(parts):
            log.append((name, part))
            yield
        if error is not None:
            raise error
        return name
    finally:
        log.append((name, "end"))


def test_parts_take_turns_and_results_keep_their_order():
    log = []
    assert lockstep([work(log, "a", 2), work(log, "b", 0), work(log, "c", 1)]) == ["a", "b", "c"]
    assert log == [("a", 0), ("b", "end"), ("c", 0), ("a", 1), ("c", "end"), ("a", "end")]
    assert lockstep([]) == []
    assert finish(work([], "a", 3)) == "a"


def test_an_error_ends_its_own_work_and_the_first_in_order_is_raised():
    log = []
    late, soon = ValueError("late"), ValueError("soon")
    with pytest.raises(ValueError, match="late"):
        lockstep([work(log, "a", 3), work(log, "b", 2, late), work(log, "c", 0, soon)])
    assert [name for name, part in log if part == "end"] == ["c", "b", "a"]
    assert ("a", 2) in log


def test_an_interrupt_ends_all():
    log = []
    with pytest.raises(KeyboardInterrupt):
        lockstep([work(log, "a", 9), work(log, "b", 1, KeyboardInterrupt()), work(log, "c", 9)])
    assert sorted(name for name, part in log if part == "end") == ["a", "b", "c"]
    assert ("a", 2) not in log


def together(barrier):
    """Waits for another such work, which cannot come where they take turns."""
    barrier.wait(60)
    yield


def test_steps_take_turns_until_they_have_waited_long():
    log = []
    turns = Turns(1e9)

    def steps(thread):
        for step in range(20):
            turns.run(partial(lockstep, [work(log, (thread, step), 2)]))

    threads = [threading.Thread(target=steps, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Nothing of another step is amid one's parts.
    names = [name for name, _ in log]
    assert [names[i] for i in range(0, len(names), 3)] == [names[i] for i in range(2, len(names), 3)]
    assert len(names) == 3 * 60
    assert turns.alone

    turns = Turns(0.01)
    with pytest.raises(ValueError, match="gone"):
        turns.run(partial(lockstep, [waiting()]))
    assert not turns.alone
    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=turns.run, args=(partial(lockstep, [together(barrier)]),)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not barrier.broken


def waiting():
    """Waits as for storage, and fails."""
    yield
    time.sleep(0.5)
    raise ValueError("gone")
