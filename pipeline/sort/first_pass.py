"""The first pass over a written score table, as layers of the graph that writes it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from calibrators.arithmetic.passes import Pass
from pipeline.execution import Graph
from pipeline.sort.parts import run_part
from pipeline.sort.score_table import ScoreTable

Begin = Callable[[ScoreTable], Generator[Pass, Any, Any]]
"""A score table to the passes over it: the same ones each time it is called; picklable."""


class _Asked(NamedTuple):
    """The pass, and the parts that it needs."""

    request: Pass
    parts: tuple[Any, ...]


def add_first_pass(graph: Graph, merged: Any, begin: Begin, count: int) -> Any:
    """Add the first pass to a graph: `ask -> measure-i -> answer`; return a reference to what the pass yields.

    merged : a score table and anything, or a reference to the pair. count : parts that the table has at most
    """
    asked = graph.task("ask", _ask, merged, begin)
    states = graph.layer("measure", _carry_out, [(asked, i) for i in range(count)])
    return graph.task("answer", _answer, asked, states)


def answering(answer: Any, run: Callable[[Pass], Any]) -> Callable[[Pass], Any]:
    """Carries passes out as `run` does; the first has its answer by now."""
    answers = [answer]
    return lambda request: answers.pop() if answers else run(request)


def _ask(merged: tuple[ScoreTable, Any], begin: Begin) -> _Asked:
    table, _ = merged
    request = next(begin(table))
    return _Asked(request, tuple(p for p in table.parts if request.only is None or p.first in request.only))


def _carry_out(asked: _Asked, place: int) -> tuple[Any] | None:
    if place >= len(asked.parts):
        return None
    part = asked.parts[place]
    return (run_part(part.path, part.group, asked.request.chunk),)


def _answer(asked: _Asked, states: list[tuple[Any] | None]) -> Any:
    return asked.request.combine([state for (state,) in filter(None, states)])
