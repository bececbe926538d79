"""Jobs as Dask graphs: for other programs, and as drawings."""

from __future__ import annotations

import atexit
import copy
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import FitConfig
from jobs.config.loading import Values, load_values, read_values
from jobs.fit import check_interval, recipe_of
from jobs.log_columns import columns_of
from jobs.windows import open_dated
from logcal.errors import ConfigError
from logcal.lookup_table import LookupTable, SegmentedLookup
from logcal.reading import read_table
from pipeline.execution import Graph, InlineExecutor
from pipeline.execution.drawing import KINDS, drawing
from pipeline.files.folders import Folder
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.files.turns import LOCKS
from pipeline.fit.calibration import needs_table
from pipeline.fit.recipe import Recipe
from pipeline.log.logs import Log
from pipeline.log.quarantine import RowRules
from pipeline.sort.decay import with_weights
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_sort, scratch_bytes
from pipeline.sort.window_sort import add_window, make_days

if TYPE_CHECKING:
    from dask.delayed import Delayed

_UNPUBLISHED = "unpublished"
"""What stands for the store's keys, which are not used."""


def graph(job: str, config: Mapping[str, Any] | str | Path) -> Delayed:
    """A job as a `dask.delayed.Delayed`, to be computed inside another Dask program with any scheduler.

    Parameters
    ----------
    job : 'fit'; the other jobs' results are files
    config : the job's configuration: a mapping of sections, or the path of a YAML file. `store` is not needed, and
        `cluster.memory` alone is used of `cluster`.

    Returns
    -------
    Delayed
        Of a `logcal.lookup_table.LookupTable`, or with log.segment of a `SegmentedLookup`: the maps, and the facts of
        their making. Nothing is published, and of a window no day is kept. All workers must see `scratch`, where the
        sorted rows go; the folder there is this process's and goes with it. What depends on the rows runs in the last
        task, one after the other: passes after the first, which some methods need, and segments larger than a task or
        that borrow strength.

    Raises
    ------
    ConfigError, InputRejectedError
        As the job: now for what footers tell, otherwise when it is computed.
    """
    if job != "fit":
        raise ConfigError(f"expected the job fit, found {job!r}: the result of other jobs is what they write")
    values = read_values([config], []) if isinstance(config, (str, Path)) else Values(_copied(config))
    # Nothing is published.
    values.put(("store",), {"path": _UNPUBLISHED, "table": _UNPUBLISHED}, {})
    return _fit(load_values(FitConfig, values))


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(dict(config))


def draw(prepared: Any, path: str) -> None:
    """Draw the graph of a job that has been prepared.

    Raises
    ------
    ConfigError
        Another kind of file; a job that has none; a place that cannot be written to.
    """
    if PurePath(path).suffix not in KINDS:
        raise ConfigError(f"--graph: expected a file that ends in {', '.join(KINDS)}, found {path}")
    if not hasattr(prepared, "graph"):
        raise ConfigError(
            "--graph: this job runs others, or what it finds when it looks: draw fit, score, evaluate, generate, "
            "compare or monitor"
        )
    content = drawing(prepared.graph(), path)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--graph: cannot write {path} ({error.strerror}): choose another place") from None


def _fit(config: FitConfig) -> Delayed:
    recipe = recipe_of(config)
    calibrator = recipe.calibrator()
    check_interval(config)
    columns = columns_of(config.log, config.log.segment)
    log, window = open_dated(config.window, config.log.path, columns)
    weighted = columns.weight is not None or config.window.half_life is not None
    write = needs_table(calibrator, weighted, config.calibrator.interval)
    check_space(config.scratch, scratch_bytes(log, write=write))
    held = ExitStack()
    scratch = held.enter_context(scratch_folder(config.scratch))
    # Others compute the graph, in this process or elsewhere, when they like, and as often as they like.
    atexit.register(held.close)
    plan = SortPlan(
        scratch,
        config.log.score_transform,
        grid=config.score_table.grid,
        rules=RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction),
    ).within(config.cluster.memory_bytes, log.rows)
    built = Graph()
    if window is None:
        total = add_sort(built, log, plan)
    else:
        half_life = config.window.half_life_days
        make_days(window, plan)
        total = add_window(built, window, plan, min_labelled=config.window.min_labelled, half_life=half_life)
        log = log if half_life is None else with_weights(log)
    merged = recipe.add_fit(built, log, plan, total)
    return built.delayed(built.task("table", _table, merged, total, recipe, log, plan))


def _table(
    merged: Any, total: RunReceipt, recipe: Recipe, log: Log, plan: SortPlan
) -> LookupTable | SegmentedLookup:
    """The fitted table, of what the other tasks gave; scratch space is given back."""
    content = recipe.finish(merged, log, plan, InlineExecutor(), total)
    found = read_table(content.write(f"{plan.scratch}/table", _UNPUBLISHED))
    place = Folder.at(plan.scratch)
    for name in place.names():
        if name.startswith("day-"):
            for file in (place / name).names():
                (place / name).remove(file)
        elif name != LOCKS:
            place.remove(name)
    return found
