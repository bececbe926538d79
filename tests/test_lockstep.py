"""Works in lockstep: a part of each in turn, each with its own end."""

import pytest

from pipeline.execution.lockstep import finish, lockstep


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
