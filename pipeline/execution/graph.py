"""Graph of a job: stages of tasks and their dependencies; any Dask scheduler can compute it."""

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
"""Key of a task: its layer, and its index there. A layer's name ends with the graph's token, which Dask hides."""


class Reference(NamedTuple):
    """Reference to the result of a task, as an argument of another task."""

    key: Key


class Task:
    """Function call; some of its arguments may be results of other tasks.

    Dask only sees the results that the call needs, so it never mistakes another argument for a task.

    Parameters
    ----------
    receipt : see `tasks.attempt`

    Attributes
    ----------
    needs : for each argument that is a result, its key; for a list of results, the list of keys
    """

    __slots__ = ("arguments", "function", "needs", "positions", "receipt")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        receipt: tuple[running.ReceiptFolder, str] | None = None,
    ) -> None:
        self.function = function
        self.receipt = receipt
        self.positions = [i for i, value in enumerate(arguments) if _is_reference(value)]
        self.needs: list[Key | list[Key]] = [_keys(arguments[i]) for i in self.positions]
        self.arguments = [None if _is_reference(value) else value for value in arguments]

    def __call__(self, *results: Any) -> Any:
        """Call the function."""
        arguments = list(self.arguments)
        for i, result in zip(self.positions, results, strict=True):
            arguments[i] = result
        return running.attempt(self.function, self.receipt, *arguments)

    @property
    def dependencies(self) -> set[Key]:
        """Keys of all results that the task needs."""
        return {key for needed in self.needs for key in (needed if isinstance(needed, list) else [needed])}

    def inputs(self, results: Mapping[Key, Any]) -> list[Any]:
        """Return the results that the task needs, in the order of `needs`. results : by key."""
        return [
            [results[key] for key in needed] if isinstance(needed, list) else results[needed]
            for needed in self.needs
        ]

    def dask(self, *wrapper: Any) -> tuple[Any, ...]:
        """Return the task as Dask's tuple of a function and its arguments.

        wrapper : function that is called with the task, and its first arguments; without one the task is called
        """
        return (*wrapper, self, *self.needs)


class Layer(NamedTuple):
    """Tasks of a stage.

    Attributes
    ----------
    stage : name
    shown : whether its progress is shown
    tasks : by key
    """

    stage: str
    shown: bool
    tasks: dict[Key, Task]


def _priority(key: Key) -> int:
    """Return the priority of a task; Dask starts those with the highest first."""
    return -key[1]


class Graph:
    """Builds a graph, one layer for each stage, in the order of execution.

    A task is a function and its arguments. An argument may be a reference to the result of another task, or a list of
    references; references deeper inside an argument are not replaced. Functions and arguments are picklable, and tasks
    do not change them, since threads share them. A task may run again after its worker was lost, and must then give the
    same result.

    Attributes
    ----------
    token : part of every key, so that two graphs on one scheduler have no key in common
    """

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self.layers: dict[str, Layer] = {}
        self._suffix = ""

    @contextmanager
    def named(self, suffix: str) -> Iterator[None]:
        """Append a suffix to the names of stages that the block adds, so that a graph can have a stage twice."""
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
        receipts: running.ReceiptFolder | None = None,
    ) -> list[Any]:
        """Add a stage of one task for each tuple of arguments; return references to their results, in order.

        receipts : folder to which each task writes its result, so that a repeated task only reads it
        """
        stage += self._suffix
        name = f"{stage}-{self.token}"
        if name in self.layers:
            raise ValueError(f"expected stages with different names, found two named {stage!r}")
        by_key: dict[Key, Task] = {}
        for i, arguments in enumerate(tasks):
            receipt = None if receipts is None else (receipts, f"receipt-{stage}-{i:06d}")
            by_key[name, i] = Task(function, arguments, receipt)
        self.layers[name] = Layer(stage, shown, by_key)
        return [Reference(key) for key in by_key]

    def task(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Add a stage of one small task; return the reference to its result."""
        return self.layer(stage, function, [arguments], shown=False)[0]

    def entries(self, stage: str, source: Any, count: int) -> list[Any]:
        """Add a stage that splits a task's result into its first `count` entries; return references to them."""
        return self.layer(stage, operator.getitem, [(source, i) for i in range(count)], shown=False)

    @property
    def tasks(self) -> dict[Key, Task]:
        """All tasks by key; each comes after the tasks that it needs."""
        return {key: task for layer in self.layers.values() for key, task in layer.tasks.items()}

    def dask(self, *wrapper: Any) -> dict[Key, tuple[Any, ...]]:
        """Return all tasks by key in the form of Dask's schedulers; see `Task.dask`."""
        return {key: task.dask(*wrapper) for key, task in self.tasks.items()}

    def dependencies(self) -> dict[str, set[str]]:
        """Return the names of the layers that each layer needs."""
        return {
            name: {key[0] for task in layer.tasks.values() for key in task.dependencies}
            for name, layer in self.layers.items()
        }

    def high_level(self, *wrapper: Any) -> HighLevelGraph:
        """Return a Dask graph with one layer for each stage, whose tasks start in order. wrapper : see `Task.dask`."""
        from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

        layers = {
            name: MaterializedLayer(
                {key: task.dask(*wrapper) for key, task in layer.tasks.items()}, {"priority": _priority}
            )
            for name, layer in self.layers.items()
        }
        return HighLevelGraph(layers, self.dependencies())

    def delayed(self, reference: Any, *wrapper: Any) -> Delayed:
        """Return the result of a task as Dask's `Delayed`. wrapper : see `Task.dask`."""
        from dask.delayed import Delayed

        return Delayed(reference.key, self.high_level(*wrapper), layer=reference.key[0])

    def stage_of(self, key: Any) -> str:
        """Return the name of a task's stage."""
        layer = self.layers.get(key[0]) if isinstance(key, tuple) else None
        return str(key) if layer is None else layer.stage


def _is_reference(value: Any) -> bool:
    """Tell whether an argument is a reference, or a list of references."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Reference) for item in value)
    return isinstance(value, Reference)


def _keys(value: Any) -> Any:
    return [item.key for item in value] if isinstance(value, list) else value.key


# Drawings of graphs: a row for each stage, and arrows to the tasks that need a result. Of a long stage only some tasks
# are drawn.

KINDS = (".dot", ".svg", ".png")
_SHOWN = 6
"""Number of tasks drawn of a long stage: the first ones, and the last."""

_OMITTED = -1
"""Index of the box that stands for the tasks that are not drawn."""


def drawing(graph: Graph, path: str) -> bytes:
    """Draw a graph in the file format of the path's suffix, one of `KINDS`; equal stages give equal bytes."""
    kind = PurePath(path).suffix
    if kind == ".dot":
        return _dot(graph).encode()
    return _figure(graph, kind.removeprefix("."))


def _drawn(layer: Layer) -> list[int]:
    """Return the indices of the tasks that are drawn."""
    count = len(layer.tasks)
    return [*range(count)] if count <= _SHOWN + 1 else [*range(_SHOWN - 1), _OMITTED, count - 1]


def _edges(graph: Graph) -> list[tuple[Key, Key]]:
    """Return the distinct edges between drawn tasks, in order."""
    drawn = {name: set(_drawn(layer)) for name, layer in graph.layers.items()}

    def node(key: Key) -> Key:
        return key[0], key[1] if key[1] in drawn[key[0]] else _OMITTED

    edges = {
        (node(needed), node(key)): None
        for layer in graph.layers.values()
        for key, task in layer.tasks.items()
        for needed in sorted(task.dependencies)
    }
    return list(edges)


def _label(layer: Layer, i: int) -> str:
    if i == _OMITTED:
        return "..."
    return layer.stage if len(layer.tasks) == 1 else f"{layer.stage}-{i}"


def _dot(graph: Graph) -> str:
    numbers = itertools.count()
    ids = {(name, i): f"t{next(numbers)}" for name, layer in graph.layers.items() for i in _drawn(layer)}
    lines = ["digraph {", "  rankdir=TB; node [shape=box, fontname=sans];"]
    for name, layer in graph.layers.items():
        row = "; ".join(f'{ids[name, i]} [label="{_label(layer, i)}"]' for i in _drawn(layer))
        lines.append(f"  {{ rank=same; {row} }}")
    lines += [f"  {ids[source]} -> {ids[target]};" for source, target in _edges(graph)]
    return "\n".join([*lines, "}", ""])


def _figure(graph: Graph, kind: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    centers = {}
    for row, (name, layer) in enumerate(graph.layers.items()):
        drawn = _drawn(layer)
        for column, i in enumerate(drawn):
            centers[name, i] = (column - (len(drawn) - 1) / 2, -row)
    with mpl.rc_context({"svg.hashsalt": "logcal", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 0.75 * len(graph.layers) + 0.3))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(-_SHOWN / 2 - 0.7, _SHOWN / 2 + 0.7)
        axes.set_ylim(-len(graph.layers) + 0.4, 0.6)
        for source, target in _edges(graph):
            arrow = {"arrowstyle": "-|>", "color": "0.6", "linewidth": 0.7, "shrinkA": 10, "shrinkB": 10}
            axes.annotate("", xy=centers[target], xytext=centers[source], arrowprops=arrow)
        for (name, i), (x, y) in centers.items():
            box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.3"}
            text = _label(graph.layers[name], i)
            axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box)
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
