"""Fit of a calibrator to a log: the sort, then the calibrator's passes."""

from __future__ import annotations

import inspect
import itertools
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import calibrators
from calibrators import METHODS
from calibrators.base import Calibrator, Sampling
from calibrators.core.fine_cells import FineCells
from calibrators.core.intervals import (
    AUTO,
    BAND,
    NONE,
    POSTERIOR,
    VENN_ABERS,
    BandCells,
    band,
    cell_passes,
    divided,
    lightened,
    venn_abers_pass,
)
from calibrators.core.map import CalibrationMap, Interval
from calibrators.core.passes import Pass, run_passes
from calibrators.isotonic.calibrator import Isotonic, largest_fall, project_isotonic
from logcal.errors import CheckFailedError, ConfigError, InputRejectedError, nearest
from pipeline.execution import Executor
from pipeline.fit.self_check import CellCollector, Checked, layout_of_table
from pipeline.sort.score_table import ScoreTable, SortedRows, build_score_table, merge_rows
from pipeline.table.segment_maps import SegmentRules

_logger = logging.getLogger("logcal")

_ROWS_PER_WEIGHT = 10
"""Number of rows per unit of weight from which on weights are probably not counts."""


@dataclass(frozen=True)
class Recipe:
    """Instructions for making a table from rows.

    Attributes
    ----------
    method, parameters : see `make_calibrator`
    sampling_rate : see `calibrators.base.Sampling`
    transform : transform of the scores
    monotone : see `keep_monotone`
    columns : segment columns; empty without segments
    rules : which segments have their own maps
    settings : settings of segments, for the manifest
    interval : kind of the interval of each row of a map, one of `calibrators.core.intervals.KINDS`, or 'auto', see
        `settled`; with segments only without partial pooling
    """

    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    transform: str = "none"
    sampling_rate: float = 1.0
    monotone: str = "allow"
    columns: tuple[str, ...] = ()
    rules: SegmentRules = field(default_factory=SegmentRules)
    settings: dict[str, Any] = field(default_factory=dict)
    interval: str = NONE

    def calibrator(self) -> Calibrator:
        """Make a calibrator. Raises the errors of `make_calibrator`."""
        return make_calibrator(self.method, self.parameters)

    def settled(self) -> Recipe:
        """Return the recipe with 'auto' replaced by the posterior interval, if there is one, or else the band."""
        if self.interval != AUTO:
            return self
        return replace(self, interval=POSTERIOR if self.has_posterior else BAND)

    @property
    def has_posterior(self) -> bool:
        """True if all maps have a posterior."""
        calibrator = self.calibrator()
        return calibrator.needs.posterior and (not self.columns or calibrator.for_segments().needs.posterior)

    @property
    def supports_partial_pooling(self) -> bool:
        """True if the method can pool segments' maps with their parents'."""
        return self.calibrator().needs.partial_pooling

    @property
    def partial_pooling(self) -> bool:
        """True if maps of segments are pooled with their parents'."""
        return self.rules.partial_pooling and self.supports_partial_pooling

    @property
    def isotonic(self) -> bool:
        """True if the method is isotonic regression, whose maps are constant on blocks."""
        return _is_isotonic(self.calibrator())

    @property
    def pooled(self) -> bool:
        """True if the merge pools each segment's rows into blocks; intervals need the points."""
        if self.sampling_rate != 1.0 or self.interval != NONE:
            return False
        calibrator = self.calibrator()
        return not calibrator.needs.fit_before_segments and _is_isotonic(calibrator.for_segments())

    @property
    def needs_table(self) -> bool:
        """True if a fit to a log has passes after the first."""
        return needs_table(self.calibrator(), self.interval)


def _is_isotonic(calibrator: Calibrator) -> bool:
    return isinstance(calibrator, Isotonic) and calibrator.needs.partial_pooling


def make_calibrator(
    method: str,
    parameters: dict[str, Any],
    *,
    keys: tuple[str, str] = ("$[method]", "$[params]"),
) -> Calibrator:
    """Make the calibrator of a method, after a check of the parameters' names and ranges.

    keys : configuration keys of the method and of the parameters, for messages

    Raises
    ------
    ConfigError
        An unknown method or parameter, with the nearest known one; a parameter out of range.
    """
    method_key, parameters_key = keys
    if method == "acp":
        raise ConfigError(
            f"{method_key}: acp needs an interval for each prediction, so it cannot become a lookup table: "
            "use calibrators.ACP from Python, or choose another method"
        )
    if method not in METHODS:
        raise ConfigError(
            f"{method_key}: expected one of {', '.join(METHODS)}, found {method!r}{nearest(method, METHODS)}"
        )
    cls = _class_of(method)
    names = list(inspect.signature(cls).parameters)
    unknown = [p for p in parameters if p not in names]
    if unknown:
        raise ConfigError(
            f"{parameters_key}.{unknown[0]}: {method} has no such parameter{nearest(unknown[0], names)}; "
            f"it has {', '.join(names) or 'none'}{_others_with(unknown[0], method_key)}"
        )
    calibrator: Calibrator = cls(**parameters)
    try:
        calibrator.check_parameters()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{parameters_key}: {error}") from None
    return calibrator


def _others_with(parameter: str, method_key: str) -> str:
    """Return a hint that names the methods with a parameter; empty if there are none."""
    methods = [name for name in METHODS if parameter in inspect.signature(_class_of(name)).parameters]
    return f"; set {method_key} to one that has it: {', '.join(methods)}" if methods else ""


def _class_of(method: str) -> type[Calibrator]:
    cls: type[Calibrator] = getattr(calibrators, METHODS[method])
    return cls


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator, and the score table that it was fitted to.

    cells : cells of the observations, for a band; None for other intervals
    venn_abers : multiprobabilities; None for other intervals
    posterior : whether rows of maps have posterior intervals
    checked : cells of the observations for the check of the map; None: the map's own rows
    agreement : result of the check of the map of all rows; None: not checked yet, or there is none
    """

    calibrator: Calibrator
    table: ScoreTable
    cells: BandCells | None = None
    venn_abers: Interval | None = None
    posterior: bool = False
    checked: FineCells | None = None
    agreement: Checked | None = None


def needs_table(calibrator: Calibrator, interval: str = NONE) -> bool:
    """Return whether a fit to a log has passes after the first.

    interval : see `fit_log`; a band and Venn-Abers predictions need further passes
    """
    return interval in (BAND, VENN_ABERS) or not calibrator.needs.one_pass


def with_table_path(rows: SortedRows, calibrator: Calibrator, interval: str = NONE) -> SortedRows:
    """Plan to write the score table to scratch space if later passes need it and the plan does not write it."""
    if rows.plan.write is None and needs_table(calibrator, interval):
        return rows._replace(plan=replace(rows.plan, write=f"{rows.plan.scratch}/score_table"))
    return rows


def fit_log(
    calibrator: Calibrator,
    rows: SortedRows,
    executor: Executor,
    interval: str = NONE,
    merged: tuple[ScoreTable, Any] | None = None,
    sampling_rate: float = 1.0,
) -> Fit:
    """Fit a calibrator to a log, out of core.

    The first pass runs inside the sort. The score table is written to `rows.plan.write`, or to scratch space if there
    are more passes. If neither holds and the calibrator needs another pass all the same, the runs are merged again.

    rows : sorted first if their total is None
    interval : one of `calibrators.core.intervals.KINDS`; Venn-Abers only for isotonic regression
    merged : the score table and the result of the first pass, if a graph has computed them
    sampling_rate : see `calibrators.base.Sampling`

    Raises
    ------
    InputRejectedError
        More bad rows than the rules allow; only one class; only one score.
    ConfigError
        The calibrator refuses the scores.
    """
    rows = with_table_path(rows, calibrator, interval)
    table: ScoreTable | None = None
    passes = itertools.count(1)
    collector = CellCollector(calibrator)

    def run(request: Pass) -> Any:
        nonlocal table
        number = next(passes)
        if table is not None and rows.plan.write is not None:
            stored, collector.layout = table, layout_of_table(table)
            return collector.run(request, lambda p: stored.run(p, executor, f"pass-{number}"))
        earlier = table or (merged and merged[0])
        if table is None and merged is not None:
            table, result = merged
        elif rows.total is None:
            table, result = build_score_table(rows.log, rows.plan, executor, request)
        else:
            table, result = merge_rows(rows, executor, request)
        if earlier:
            table = replace(table, shuffled=earlier.shuffled)
        check_table(table)
        return result

    try:
        first = [run(calibrator.first_pass())]
        assert table is not None
        sampling = Sampling(sampling_rate, table.heaviest)
        calibrator.fit_passes(lambda request: first.pop() if first else run(request), sampling)
    except ValueError as error:
        key = " ($[score_transform]=sigmoid)" if "sigmoid" in str(error) else ""
        raise InputRejectedError(f"the log does not suit {type(calibrator).__name__}: {error}{key}") from None
    venn_abers = run(venn_abers_pass(calibrator.calibration_map_)) if interval == VENN_ABERS else None
    cells = run_passes(cell_passes(), run) if interval == BAND else None
    assert table is not None
    if rows.plan.write is not None:
        written = table
        collector.finish(lambda request: written.run(request, executor, "check"))
    return Fit(calibrator, table, cells, venn_abers, interval == POSTERIOR, collector.cells)


def interval_of(fit: Fit, fitted_map: CalibrationMap) -> Interval | None:
    """Compute the interval of each row of a fit's map after the monotone repair; None if there is none: see `band`."""
    if fit.posterior:
        return fit.calibrator.posterior_.interval(fitted_map)
    cells = None if fit.cells is None else lightened(fit.cells, fit.table.heaviest)
    interval = fit.venn_abers if cells is None else band(fitted_map, cells)
    return None if interval is None else divided(interval, fit.calibrator.sampling_.rate)


def keep_monotone(calibration_map: CalibrationMap, policy: str) -> tuple[CalibrationMap, float]:
    """Apply the policy for maps that decrease somewhere.

    Parameters
    ----------
    calibration_map : CalibrationMap
    policy : 'allow' (keep the map), 'repair' (project it on non-decreasing maps) or 'require' (refuse it)

    Returns
    -------
    map, largest change of a level by the repair

    Raises
    ------
    CheckFailedError
        The map decreases and the policy is 'require'.
    """
    if calibration_map.monotone or policy == "allow":
        return calibration_map, 0.0
    if policy == "require":
        falls = largest_fall(calibration_map)
        raise CheckFailedError(
            f"$[monotone]=require, but the fitted map decreases (by {falls:.3g} at most): nothing was "
            "published; set $[monotone] to repair or allow, or choose a method that never decreases (isotonic, "
            "platt)"
        )
    return project_isotonic(calibration_map)


def check_classes_and_scores(table: ScoreTable) -> None:
    """Check that a score table has both classes and different scores.

    Raises
    ------
    InputRejectedError
        Only one class, or only one score.
    """
    if table.used_positive in (0, table.used):
        label = 0 if table.used_positive == 0 else 1
        raise InputRejectedError(
            f"expected labels of both classes, found {table.used:,} rows that all have label {label}: "
            "a calibrator fitted to one class says nothing; check $[label] and the log's window"
        )
    if table.points == 1:
        raise InputRejectedError(
            f"expected different scores, found {table.used:,} rows that all have score {table.lowest:g}: "
            "check $[score] and the model that wrote it"
        )


def check_table(table: ScoreTable) -> None:
    """Do `check_classes_and_scores`, and warn about weights that are probably not counts."""
    check_classes_and_scores(table)
    if table.scale == 1.0 and table.weight * _ROWS_PER_WEIGHT < table.used:
        _logger.warning(
            "the weights of %s rows add up to %.6g: every method counts a weight of 2 as the row twice, so these are "
            "taken for so few observations; set $[weights] to sampling if rows were drawn with different "
            "probabilities, or multiply $[weight] by a constant that makes a weight of 1 mean one row",
            f"{table.used:,}",
            table.weight,
        )
