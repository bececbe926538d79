"""Small works in lockstep: the same part of each in turn.

A part that runs several times in a row finds its code and its tables in the processor's caches: files of some kilobytes
take a fifth less processor time than one after the other.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Work = Generator[None, None, Result]
"""What is to be done, with a `yield` between its parts."""


def finish(work: Work[Result]) -> Result:
    """Do one work to its end."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def lockstep(works: Sequence[Work[Result]]) -> list[Result]:
    """Do works to their ends, a part of each in turn; return their results, in order.

    An error ends the work that it is of, and no other. Once all have ended, the error of the first that failed is
    raised. What is no `Exception`, such as an interrupt, ends all of them at once.
    """
    results: dict[int, Result] = {}
    errors: dict[int, Exception] = {}
    going = dict(enumerate(works))
    try:
        while going:
            for place, work in list(going.items()):
                try:
                    next(work)
                    continue
                except StopIteration as end:
                    results[place] = end.value
                except Exception as error:  # noqa: BLE001 - raised below
                    errors[place] = error
                del going[place]
    finally:
        for work in going.values():
            work.close()
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(works))]
