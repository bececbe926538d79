"""How far a graph's stages are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.execution.graph import Graph

Report = Callable[..., None]
"""Called with (stage, tasks done, tasks in all), and on a cluster the number of workers that live: first with 0 done,
and often after; what it raises ends the graph."""


def silent(stage: str, done: int, total: int, workers: int | None = None) -> None:
    """Report nothing."""


class Progress:
    """Reports a graph's stages, each from its first task or the end of those before it."""

    def __init__(self, graph: Graph, report: Report) -> None:
        self.report = report
        self.layers = graph.layers
        self.left = [name for name, layer in graph.layers.items() if layer.shown]
        self.begun: set[str] = set()
        self.done: dict[str, int] = {}

    def at(self, done: Mapping[str, int], workers: int | None = None) -> None:
        """Tell of the tasks that are done in each layer; lost ones count as done until they are again."""
        more = () if workers is None else (workers,)
        first = True
        for name in list(self.left):
            stage, _, tasks = self.layers[name]
            now = self.done[name] = max(self.done.get(name, 0), done.get(name, 0))
            begins = name not in self.begun
            if begins:
                if not (first or now):
                    continue
                self.begun.add(name)
                self.report(stage, 0, len(tasks), *more)
            if now or not begins:
                self.report(stage, now, len(tasks), *more)
            if now == len(tasks):
                self.left.remove(name)
            else:
                first = False

    def end(self) -> None:
        """All is done."""
        self.at({name: len(self.layers[name].tasks) for name in self.left})
