"""A job's tasks as a graph, and executors that compute it: in this process, on its threads, or on a Dask cluster."""

from pipeline.execution.cluster import DaskExecutor
from pipeline.execution.executors import Executor, InlineExecutor, Report, ThreadExecutor, silent
from pipeline.execution.graph import Graph

__all__ = [
    "DaskExecutor",
    "Executor",
    "Graph",
    "InlineExecutor",
    "Report",
    "ThreadExecutor",
    "silent",
]
