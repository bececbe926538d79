"""A job's tasks as a graph, and what computes it: in this process, on its threads, or on a Dask cluster."""

from pipeline.execution.cluster import DaskExecutor
from pipeline.execution.executors import Executor, InlineExecutor, ThreadExecutor
from pipeline.execution.graph import Graph
from pipeline.execution.progress import Report, silent

__all__ = [
    "DaskExecutor",
    "Executor",
    "Graph",
    "InlineExecutor",
    "Report",
    "ThreadExecutor",
    "silent",
]
