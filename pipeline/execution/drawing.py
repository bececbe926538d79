"""Drawings of graphs: a row a stage, arrows to what needs it; long stages by some of their tasks."""

from __future__ import annotations

import io
import itertools
from pathlib import PurePath

from pipeline.execution.graph import Graph, Key, Layer

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
