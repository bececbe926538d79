"""A job's graph: stages of tasks, each with the tasks that it needs; any Dask scheduler computes it."""

from __future__ import annotations

import io
import itertools
import operator
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.execution import tasks as running

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

Key = tuple[str, int]
"""Key of a task: its layer and its place there. A layer's name carries the graph's token, which Dask leaves out."""


class Reference(NamedTuple):
    """The result of a task, where it is an argument of another."""

    key: Key


class Task:
    """A call of a function, some of whose arguments are results of other tasks.

    Dask sees the results that it needs and nothing else: what the other arguments hold is never taken for a task.

    Parameters
    ----------
    receipt : see `tasks.attempt`

    Attributes
    ----------
    needs : the key of each result that is an argument, or a list of keys
    """

    __slots__ = ("arguments", "function", "needs", "places", "receipt")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        receipt: tuple[running.Receipts, str] | None = None,
    ) -> None:
        self.function = function
        self.receipt = receipt
        self.places = [i for i, value in enumerate(arguments) if _is_reference(value)]
        self.needs: list[Key | list[Key]] = [_keys(arguments[i]) for i in self.places]
        self.arguments = [None if _is_reference(value) else value for value in arguments]

    def __call__(self, *results: Any) -> Any:
        """Call the function."""
        arguments = list(self.arguments)
        for i, result in zip(self.places, results, strict=True):
            arguments[i] = result
        return running.attempt(self.function, self.receipt, *arguments)

    @property
    def dependencies(self) -> set[Key]:
        """Keys of all results that are needed."""
        return {key for needed in self.needs for key in (needed if isinstance(needed, list) else [needed])}

    def taken(self, results: Mapping[Key, Any]) -> list[Any]:
        """Return the needed results by key."""
        return [
            [results[key] for key in needed] if isinstance(needed, list) else results[needed]
            for needed in self.needs
        ]

    def dask(self, *around: Any) -> tuple[Any, ...]:
        """The task as Dask has one: a tuple of a function and its arguments; `around` comes before those."""
        return (*around, self, *self.needs)


class Layer(NamedTuple):
    """A stage's tasks.

    Attributes
    ----------
    stage : what it is called
    shown : whether its progress is worth a line
    tasks : by key
    """

    stage: str
    shown: bool
    tasks: dict[Key, Task]


def _priority(key: Key) -> int:
    """Priority of a task by Dask's rule: the highest first."""
    return -key[1]


class Graph:
    """Builds a graph, one layer a stage, from what is done first to what is done last.

    A task is a function and its arguments. Where the result of another task is wanted as an argument, its reference
    stands there, or a list of references; nowhere deeper. Functions and arguments are picklable, and tasks change none
    of them: on threads they are shared. A task may run again after its worker was lost, and must then do the same.

    Attributes
    ----------
    token : a part of every key, so that two graphs on one scheduler have no key in common
    """

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self.layers: dict[str, Layer] = {}
        self._suffix = ""

    @contextmanager
    def named(self, suffix: str) -> Iterator[None]:
        """Stages that are added meanwhile have a name that ends so: a graph may have the same ones twice."""
        self._suffix = suffix
        try:
            yield
        finally:
            self._suffix = ""

    def layer(
        self,
        stage: str,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        *,
        shown: bool = True,
        receipts: running.Receipts | None = None,
    ) -> list[Any]:
        """Add a stage of one task for each tuple of arguments; return references to their results, in order.

        receipts : where each task leaves its result, so that a repetition is one read
        """
        stage += self._suffix
        name = f"{stage}-{self.token}"
        if name in self.layers:
            raise ValueError(f"expected stages with different names, found two named {stage!r}")
        own: dict[Key, Task] = {}
        for i, arguments in enumerate(tasks):
            receipt = None if receipts is None else (receipts, f"receipt-{stage}-{i:06d}")
            own[name, i] = Task(function, arguments, receipt)
        self.layers[name] = Layer(stage, shown, own)
        return [Reference(key) for key in own]

    def task(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Add a stage of one small task; return the reference to its result."""
        return self.layer(stage, function, [arguments], shown=False)[0]

    def entries(self, stage: str, source: Any, count: int) -> list[Any]:
        """References to the entries of a task's result, which has at least `count`: who needs one gets that alone."""
        return self.layer(stage, operator.getitem, [(source, i) for i in range(count)], shown=False)

    @property
    def tasks(self) -> dict[Key, Task]:
        """All tasks by key, each after those that it needs."""
        return {key: task for layer in self.layers.values() for key, task in layer.tasks.items()}

    def dask(self, *around: Any) -> dict[Key, tuple[Any, ...]]:
        """All tasks by key, as Dask's schedulers take them; see `Task.dask`."""
        return {key: task.dask(*around) for key, task in self.tasks.items()}

    def dependencies(self) -> dict[str, set[str]]:
        """The layers that each layer needs, by name."""
        return {
            name: {key[0] for task in layer.tasks.values() for key in task.dependencies}
            for name, layer in self.layers.items()
        }

    def high_level(self, *around: Any) -> HighLevelGraph:
        """The graph as Dask's tools take it; its tasks begin in the order of their stage. around : see `Task.dask`."""
        from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

        layers = {
            name: MaterializedLayer(
                {key: task.dask(*around) for key, task in layer.tasks.items()}, {"priority": _priority}
            )
            for name, layer in self.layers.items()
        }
        return HighLevelGraph(layers, self.dependencies())

    def delayed(self, reference: Any, *around: Any) -> Delayed:
        """The result of a task, as other Dask programs take it. around : see `Task.dask`."""
        from dask.delayed import Delayed

        return Delayed(reference.key, self.high_level(*around), layer=reference.key[0])

    def stage_of(self, key: Any) -> str:
        """Return the name of a task's stage."""
        layer = self.layers.get(key[0]) if isinstance(key, tuple) else None
        return str(key) if layer is None else layer.stage


def _is_reference(value: Any) -> bool:
    """Tell whether an argument is a reference, or a list of some."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Reference) for item in value)
    return isinstance(value, Reference)


def _keys(value: Any) -> Any:
    return [item.key for item in value] if isinstance(value, list) else value.key


# Drawings of graphs: a row a stage, arrows to what needs it; long stages by some of their tasks.

KINDS = (".dot", ".svg", ".png")
_SHOWN = 6
"""Tasks of a stage that are drawn: the first ones, and the last."""

_REST = -1
"""The place of what stands for the tasks between them."""


def drawing(graph: Graph, path: str) -> bytes:
    """A graph as the kind of file that the path's ending says, one of `KINDS`; the same bytes for the same stages."""
    kind = PurePath(path).suffix
    if kind == ".dot":
        return _dot(graph).encode()
    return _figure(graph, kind.removeprefix("."))


def _places(layer: Layer) -> list[int]:
    count = len(layer.tasks)
    return [*range(count)] if count <= _SHOWN + 1 else [*range(_SHOWN - 1), _REST, count - 1]


def _edges(graph: Graph) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Pairs of layer and place, without repetition, in order."""
    places = {name: set(_places(layer)) for name, layer in graph.layers.items()}

    def drawn(key: Key) -> tuple[str, int]:
        return key[0], key[1] if key[1] in places[key[0]] else _REST

    found = {
        (drawn(needed), drawn(key)): None
        for layer in graph.layers.values()
        for key, task in layer.tasks.items()
        for needed in sorted(task.dependencies)
    }
    return list(found)


def _label(layer: Layer, place: int) -> str:
    if place == _REST:
        return "..."
    return layer.stage if len(layer.tasks) == 1 else f"{layer.stage}-{place}"


def _dot(graph: Graph) -> str:
    numbers = itertools.count()
    nodes = {
        (name, place): f"t{next(numbers)}" for name, layer in graph.layers.items() for place in _places(layer)
    }
    lines = ["digraph {", "  rankdir=TB; node [shape=box, fontname=sans];"]
    for name, layer in graph.layers.items():
        own = "; ".join(f'{nodes[name, place]} [label="{_label(layer, place)}"]' for place in _places(layer))
        lines.append(f"  {{ rank=same; {own} }}")
    lines += [f"  {nodes[one]} -> {nodes[other]};" for one, other in _edges(graph)]
    return "\n".join([*lines, "}", ""])


def _figure(graph: Graph, kind: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    where = {}
    for row, (name, layer) in enumerate(graph.layers.items()):
        places = _places(layer)
        for column, place in enumerate(places):
            where[name, place] = (column - (len(places) - 1) / 2, -row)
    with mpl.rc_context({"svg.hashsalt": "logcal", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 0.75 * len(graph.layers) + 0.3))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(-_SHOWN / 2 - 0.7, _SHOWN / 2 + 0.7)
        axes.set_ylim(-len(graph.layers) + 0.4, 0.6)
        for one, other in _edges(graph):
            (x, y), (to_x, to_y) = where[one], where[other]
            arrow = {"arrowstyle": "-|>", "color": "0.6", "linewidth": 0.7, "shrinkA": 10, "shrinkB": 10}
            axes.annotate("", xy=(to_x, to_y), xytext=(x, y), arrowprops=arrow)
        for (name, place), (x, y) in where.items():
            box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.3"}
            text = _label(graph.layers[name], place)
            axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box)
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
