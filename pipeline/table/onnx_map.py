"""A lookup table as an ONNX model of standard operators, for programs that run models."""

from __future__ import annotations

from typing import Any

import numpy as np

from logcal.errors import ConfigError
from logcal.lookup_table import LookupTable

_OPSET, _IR_VERSION = 17, 8
"""Versions that all runtimes of the last years read."""


def onnx_map(table: LookupTable, name: str) -> bytes:
    """Return a table as an ONNX model from `score` to `probability`, both float64 tensors of shape (rows,).

    Parameters
    ----------
    table : the lookup table
    name : the table's name

    Raises
    ------
    ConfigError
        The package onnx is not installed.

    Notes
    -----
    The row of a score is found by bisection, with as many steps as the number of rows has bits. Arithmetic is that of
    the table, in float64, in the same order: results are the same to the last bit; with the transform `sigmoid`, exp
    is the runtime's. NaN stays NaN.
    """
    try:
        import onnx
    except ImportError:
        raise ConfigError(
            "--format onnx: it needs the package onnx: run pip install 'logcal[onnx]'"
        ) from None
    graph = _Graph()
    score = "score"
    x = score if table.facts.score_transform == "none" else _sigmoid(graph, score)
    row = _row(graph, table.map.score_lo[1:], x)
    prob_lo, slope, anchor = (
        graph.add("Gather", graph.constant(getattr(table.map, column)), row)
        for column in ("prob_lo", "slope", "anchor")
    )
    line = graph.add("Add", prob_lo, graph.add("Mul", slope, graph.add("Sub", x, anchor)))
    value = graph.add("Where", graph.add("Equal", slope, graph.constant(0.0)), prob_lo, line)
    graph.add("Where", graph.add("IsNaN", score), score, value, output="probability")
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, ["rows"])
        for name in (score, "probability")
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "calibration", tensors[:1], tensors[1:], graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="logcal",
    )
    facts = {"table": name, "version": table.facts.version, "method": table.facts.method}
    onnx.helper.set_model_props(model, facts | {"score_transform": table.facts.score_transform})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


class _Graph:
    """Nodes and constants of a graph, with names by their numbers."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, output: str = "") -> str:
        """Add a node; return the name of its output."""
        from onnx import helper

        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output]))
        return output

    def constant(self, value: Any) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _sigmoid(graph: _Graph, x: str) -> str:
    """Add 1 / (1 + exp(-x)), without overflow."""
    e = graph.add("Exp", graph.add("Neg", graph.add("Abs", x)))
    one = graph.constant(1.0)
    above = graph.add("Greater", x, graph.constant(0.0))
    return graph.add("Div", graph.add("Where", above, one, e), graph.add("Add", one, e))


def _row(graph: _Graph, edges: Any, x: str) -> str:
    """Add the number of edges that are at most x; 0 for NaN. edges : ascending."""
    bits = int(edges.size).bit_length()
    # Nothing is at least NaN: rows after the last are never taken.
    padded = np.full(1 << bits, np.nan)
    padded[1 : 1 + edges.size] = edges
    known = graph.constant(padded)
    row = graph.constant(np.int64(0))
    for bit in reversed(range(bits)):
        above = graph.add("Add", row, graph.constant(np.int64(1 << bit)))
        reached = graph.add("GreaterOrEqual", x, graph.add("Gather", known, above))
        row = graph.add("Where", reached, above, row)
    return row
