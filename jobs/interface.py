"""Implementation of `logcal.run` and `logcal.graph`: jobs for Python programs, run or as Dask graphs."""

from __future__ import annotations

import atexit
import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import FitConfig
from jobs.config.loading import Values, load_values, read_values, resolve_paths
from jobs.config.naming import call_in_keys
from jobs.fit import open_fitting
from jobs.outcome import Outcome
from jobs.records import Attempt
from jobs.registry import JOBS
from jobs.rows import check_scratch
from jobs.run import carry_out, exit_code_and_message, in_settings_of
from logcal.errors import ConfigError
from logcal.lookup_table import LookupTable
from logcal.reading import read_table
from pipeline.execution import Graph, InlineExecutor
from pipeline.files.folders import Folder
from pipeline.files.locks import LOCKS
from pipeline.files.scratch import scratch_folder
from pipeline.fit.fitting import Fitting, GraphResult

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client


__all__ = ["graph", "run"]

_UNPUBLISHED = "unpublished"
"""Placeholder for the store's keys, which a graph does not use."""


def graph(job: str, config: Mapping[str, Any] | str | Path) -> Delayed:
    """Return a job as a `dask.delayed.Delayed`: see `logcal.graph`."""
    if job != "fit":
        raise ConfigError(f"expected the job fit, found {job!r}: the result of other jobs is what they write")
    values = _values(config)
    # Nothing is published.
    values.put(("store",), {"path": _UNPUBLISHED, "table": _UNPUBLISHED}, {})
    loaded = load_values(FitConfig, values)
    return in_settings_of(loaded, _fit, loaded)


def _values(config: Mapping[str, Any] | str | Path) -> Values:
    if isinstance(config, (str, Path)):
        return read_values([config], [])
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"expected a mapping of sections or the path of a YAML file, found {type(config).__name__}"
        )
    values = Values(copy.deepcopy(dict(config)))
    resolve_paths(values)
    return values


def _fit(config: FitConfig) -> Delayed:
    fitting = open_fitting(config)
    check_scratch(config, fitting.source.log, fitting.scratch_bytes())
    cleanup = ExitStack()
    scratch = cleanup.enter_context(scratch_folder(config.scratch))
    # The program may compute the graph later and repeatedly, so scratch space stays until this process ends.
    atexit.register(cleanup.close)
    fitting = replace(fitting, plan=replace(fitting.plan, scratch=scratch))
    tasks = Graph()
    return tasks.delayed(tasks.task("table", _table, fitting.add(tasks), fitting), call_in_keys)


def _table(fitted: GraphResult, fitting: Fitting) -> LookupTable:
    """Finish the fit from the results of the other tasks; return the table and empty scratch space."""
    content = fitting.finish(fitted, InlineExecutor())
    table = read_table(content.write(f"{fitting.plan.scratch}/table", _UNPUBLISHED))
    scratch = Folder.at(fitting.plan.scratch)
    for name in scratch.names():
        if name.startswith("day-"):  # the tasks of another computation write to it
            for file in (scratch / name).names():
                (scratch / name).remove(file)
        elif name != LOCKS:
            scratch.remove(name)
    return table


def run(job: str, config: Mapping[str, Any] | str | Path, client: Client | None = None) -> Outcome:
    """Run a job as its command does, and write its run record: see `logcal.run`."""
    if job not in JOBS:
        raise ConfigError(f"job: expected one of {', '.join(JOBS)}, found {job!r}")
    loaded = load_values(JOBS[job].config_class(), _values(config))
    attempt, code = Attempt(job), 0
    try:
        return carry_out(JOBS[job], loaded, attempt, client)
    except (Exception, KeyboardInterrupt) as error:
        code, attempt.message = exit_code_and_message(error)
        raise
    finally:
        attempt.end(code)
