"""Jobs as Dask graphs: for other programs, and as drawings."""

from __future__ import annotations

import atexit
import copy
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from calibrators.base import Calibrator
from calibrators.passes import Pass
from jobs.config import FitConfig
from jobs.config_files import Values, read_values
from jobs.config_loading import load_values
from logcal.fingerprints import fingerprint
from logcal.lookup_table import LookupFacts, LookupTable
from pipeline.errors import ConfigError, InputRejectedError
from pipeline.execution import Graph, InlineExecutor
from pipeline.execution.drawing import KINDS, drawing
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.fit.calibration import check_table, keep_monotone, make_calibrator, needs_table
from pipeline.log.logs import Columns, open_log
from pipeline.log.quarantine import RowRules
from pipeline.sort.score_table import ScoreTable, SortPlan, add_merge, add_sort, scratch_bytes

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
        Of a `logcal.lookup_table.LookupTable`: the map, and the facts of its making. Nothing is published. All workers
        must see `scratch`, where the sorted rows go; the folder there is this process's and goes with it. Passes after
        the first, which some methods need, run one after the other in the last task.

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
        raise ConfigError("--graph: this job is other jobs one after the other: draw those")
    content = drawing(prepared.graph(), path)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--graph: cannot write {path} ({error.strerror}): choose another place") from None


def _fit(config: FitConfig) -> Delayed:
    for key, given in (("log.segment", config.log.segment), ("window.column", config.window.column)):
        if given:
            raise ConfigError(
                f"{key}: expected none, found {given!r}: how many tasks such a fit has is known only once its rows are "
                "sorted; run `logcal fit`"
            )
    calibrator = make_calibrator(config.calibrator.method, config.calibrator.params)
    log = open_log(config.log.path, Columns(config.log.score, config.log.label, config.log.weight))
    write = needs_table(calibrator, log.columns.weight is not None)
    check_space(config.scratch, scratch_bytes(log, write=write))
    rules = RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction)
    held = ExitStack()
    scratch = held.enter_context(scratch_folder(config.scratch))
    # Others compute the graph, in this process or elsewhere, when they like, and as often as they like.
    atexit.register(held.close)
    plan = SortPlan(
        scratch,
        config.log.score_transform,
        grid=config.score_table.grid,
        rules=rules,
        write=scratch / "score_table" if write else None,
    ).within(config.cluster.memory_bytes, log.rows)
    built = Graph()
    merged = add_merge(built, log, plan, calibrator.first_pass(), add_sort(built, log, plan))
    content = {
        "method": config.calibrator.method,
        "parameters": config.calibrator.params,
        "score_transform": config.log.score_transform,
    }
    sampled = {} if config.log.sampling_rate == 1 else {"sampling_rate": config.log.sampling_rate}
    table = built.task(
        "table", _table, merged, calibrator, config.calibrator.monotone, content, sampled, str(scratch)
    )
    return built.delayed(table)


def _table(
    merged: tuple[ScoreTable, Any],
    calibrator: Calibrator,
    monotone: str,
    content: dict[str, Any],
    sampled: dict[str, Any],
    scratch: str,
) -> LookupTable:
    """The fitted table, of the score table and of what the first pass gave; scratch space is given back."""
    table, first = merged
    check_table(table)
    results = [first]

    def run(request: Pass) -> Any:
        return results.pop() if results else table.run(request, InlineExecutor())

    # Other computations of the graph have it, too.
    fitted = copy.copy(calibrator)
    try:
        fitted.fit_passes(run)
    except ValueError as error:
        raise InputRejectedError(f"the log does not suit {type(calibrator).__name__}: {error}") from None
    calibration_map, repair = keep_monotone(fitted.calibration_map_, monotone)
    data = {**table.facts(), "largest_monotone_repair": repair, **fitted.facts(), **sampled}
    facts = {**content, "data": data}
    for path in Path(scratch).iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return LookupTable(
        calibration_map,
        LookupFacts(
            version=_UNPUBLISHED,
            monotone=calibration_map.monotone,
            fingerprint=fingerprint(calibration_map, **facts),
            rows=len(calibration_map),
            **facts,
        ),
    )
