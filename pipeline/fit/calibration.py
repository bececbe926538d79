"""Fitting a calibrator to a log: the sort and the calibrator's passes, in one flow."""

from __future__ import annotations

import inspect
import itertools
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import calibrators
from calibrators import METHODS
from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.passes import Pass, run_passes
from calibrators.methods.base import Calibrator
from calibrators.methods.intervals import (
    AUTO,
    BAND,
    NONE,
    POSTERIOR,
    VENN_ABERS,
    Cells,
    band,
    cell_passes,
    divided,
    lightened,
    venn_abers_pass,
)
from calibrators.methods.isotonic import Isotonic, largest_fall, project_isotonic
from logcal.errors import CheckFailedError, ConfigError, InputRejectedError, nearest
from pipeline.execution import Executor
from pipeline.sort.score_table import ScoreTable, SortedRows, build_score_table, merge_rows
from pipeline.table.segment_maps import SegmentRules

_logger = logging.getLogger("logcal")

_FAR_BELOW = 10
"""Weights that add up to less than this fraction of the rows are weights that nobody meant as counts."""


@dataclass(frozen=True)
class Recipe:
    """Instructions for making a table from rows.

    Attributes
    ----------
    method, parameters, sampling_rate : see `make_calibrator`
    transform : of the scores
    monotone : see `keep_monotone`
    columns, rules : the segment columns, if there are any, and which segments have maps of their own
    settings : of segments, for the manifest
    interval : of each row of a table, one of `calibrators.methods.intervals.KINDS`; of segments only without partial
        pooling; or 'auto', see `settled`
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
        """A new one. Errors: as `make_calibrator`."""
        return make_calibrator(self.method, self.parameters, self.sampling_rate)

    def settled(self) -> Recipe:
        """With the interval that 'auto' stands for: the posterior where there is one, otherwise the band."""
        if self.interval != AUTO:
            return self
        return replace(self, interval=POSTERIOR if self.has_posterior else BAND)

    @property
    def has_posterior(self) -> bool:
        """True if all maps are a posterior's."""
        calibrator = self.calibrator()
        return calibrator.has_posterior and (not self.columns or calibrator.for_segments().has_posterior)

    @property
    def supports_partial_pooling(self) -> bool:
        """True if segments' maps can be pooled with that of all rows."""
        return make_calibrator(self.method, self.parameters).supports_partial_pooling

    @property
    def partial_pooling(self) -> bool:
        """True if maps of segments are pooled with their parents'."""
        return self.rules.partial_pooling and self.supports_partial_pooling

    @property
    def isotonic(self) -> bool:
        """True if the method is isotonic regression, constant on blocks."""
        return _in_blocks(make_calibrator(self.method, self.parameters))

    @property
    def pooled(self) -> bool:
        """True if the merge pools each segment's rows. Intervals are of points."""
        if self.sampling_rate != 1.0 or self.interval != NONE:
            return False
        made = make_calibrator(self.method, self.parameters)
        return not made.fitted_for_segments and _in_blocks(made.for_segments())

    @property
    def needs_table(self) -> bool:
        """Tell whether a fit to a log has passes after the first."""
        return needs_table(self.calibrator(), self.interval)


def _in_blocks(calibrator: Calibrator) -> bool:
    return isinstance(calibrator, Isotonic) and calibrator.supports_partial_pooling


def make_calibrator(
    method: str,
    parameters: dict[str, Any],
    sampling_rate: float = 1.0,
    *,
    keys: tuple[str, str] = ("calibrator.method", "calibrator.params"),
) -> Calibrator:
    """The calibrator of a method, its parameters checked by name and range.

    sampling_rate : see `Calibrator.sampling_rate`. keys : of the configuration, for messages

    Raises
    ------
    ConfigError
        An unknown method or parameter, with the nearest known one; a parameter out of range.
    """
    of_method, of_parameters = keys
    if method == "acp":
        raise ConfigError(
            f"{of_method}: acp needs an interval for each prediction, so it cannot become a lookup table: "
            "use calibrators.ACP from Python, or choose another method"
        )
    if method not in METHODS:
        raise ConfigError(
            f"{of_method}: expected one of {', '.join(METHODS)}, found {method!r}{nearest(method, METHODS)}"
        )
    cls = _class_of(method)
    known = list(inspect.signature(cls).parameters)
    unknown = [p for p in parameters if p not in known]
    if unknown:
        raise ConfigError(
            f"{of_parameters}.{unknown[0]}: {method} has no such parameter{nearest(unknown[0], known)}; "
            f"it has {', '.join(known) or 'none'}{_others_with(unknown[0], of_method)}"
        )
    calibrator: Calibrator = cls(**parameters)
    try:
        calibrator.check_parameters()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{of_parameters}: {error}") from None
    calibrator.sampling_rate = sampling_rate
    return calibrator


def _others_with(parameter: str, of_method: str) -> str:
    """A hint for users who set a parameter without a method."""
    having = [name for name in METHODS if parameter in inspect.signature(_class_of(name)).parameters]
    return f"; set {of_method} to one that has it: {', '.join(having)}" if having else ""


def _class_of(method: str) -> type[Calibrator]:
    found: type[Calibrator] = getattr(calibrators, METHODS[method])
    return found


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator, and the score table that it was fitted to.

    cells, venn_abers, posterior : of the observations, for an interval of each row of a map, where it was asked for
    """

    calibrator: Calibrator
    table: ScoreTable
    cells: Cells | None = None
    venn_abers: Interval | None = None
    posterior: bool = False


def needs_table(calibrator: Calibrator, interval: str = NONE) -> bool:
    """True if a fit to a log has passes after the first.

    interval : see `fit_log`. A band and Venn-Abers predictions take passes of their own.
    """
    return interval in (BAND, VENN_ABERS) or not calibrator.single_pass


def placed(rows: SortedRows, calibrator: Calibrator, interval: str = NONE) -> SortedRows:
    """Rows whose score table goes where their plan says, or to scratch where there are passes after the first."""
    if rows.plan.write is None and needs_table(calibrator, interval):
        return rows._replace(plan=replace(rows.plan, write=f"{rows.plan.scratch}/score_table"))
    return rows


def fit_log(
    calibrator: Calibrator,
    rows: SortedRows,
    executor: Executor,
    interval: str = NONE,
    merged: tuple[ScoreTable, Any] | None = None,
) -> Fit:
    """Fit a calibrator to a log, out of core.

    The first pass runs inside the sort.
    The score table is written only where it is wanted: to `rows.plan.write`, or to scratch where there are more passes.
    Where it is not there, and the calibrator asks for another pass all the same, the runs are merged again.
    rows : their total may be None: then they are sorted first.
    interval : one of `calibrators.methods.intervals.KINDS`; Venn-Abers of isotonic regression alone
    merged : what a graph has given by now, the table and the result of the first pass.

    Raises
    ------
    InputRejectedError
        Unusable rows beyond the rules; one class only; one score only.
    ConfigError
        The scores do not suit the calibrator.
    """
    rows = placed(rows, calibrator, interval)
    table: ScoreTable | None = None
    passes = itertools.count(1)

    def run(request: Pass) -> Any:
        nonlocal table
        number = next(passes)
        if table is not None and rows.plan.write is not None:
            return table.run(request, executor, f"pass-{number}")
        known = table or (merged and merged[0])
        if table is None and merged is not None:
            table, result = merged
        elif rows.total is None:
            table, result = build_score_table(rows.log, rows.plan, executor, request)
        else:
            table, result = merge_rows(rows, executor, request)
        if known:
            table = replace(table, shuffled=known.shuffled)
        check_table(table)
        calibrator.heaviest = table.heaviest
        return result

    try:
        calibrator.fit_passes(run)
    except ValueError as error:
        raise InputRejectedError(f"the log does not suit {type(calibrator).__name__}: {error}") from None
    venn_abers = run(venn_abers_pass(calibrator.calibration_map_)) if interval == VENN_ABERS else None
    cells = run_passes(cell_passes(), run) if interval == BAND else None
    assert table is not None
    return Fit(calibrator, table, cells, venn_abers, interval == POSTERIOR)


def interval_of(fit: Fit, one: CalibrationMap) -> Interval | None:
    """Compute the interval of the rows of a map made from the fit's; None if there is none: see `band`."""
    if fit.posterior:
        return fit.calibrator.posterior_.interval(one)
    found = fit.venn_abers if fit.cells is None else band(one, lightened(fit.cells, fit.table.heaviest))
    return None if found is None else divided(found, fit.calibrator.sampling_rate)


def keep_monotone(calibration_map: CalibrationMap, policy: str) -> tuple[CalibrationMap, float]:
    """Treat a map that decreases somewhere.

    Parameters
    ----------
    calibration_map : CalibrationMap
    policy : 'allow' (it stays), 'repair' (its isotonic projection) or 'require' (it is refused)

    Returns
    -------
    map, largest change of a level that the repair made

    Raises
    ------
    CheckFailedError
        With 'require'.
    """
    if calibration_map.monotone or policy == "allow":
        return calibration_map, 0.0
    if policy == "require":
        falls = largest_fall(calibration_map)
        raise CheckFailedError(
            f"calibrator.monotone=require, but the fitted map decreases (by {falls:.3g} at most): nothing was "
            "published; set calibrator.monotone to repair or allow, or choose a method that never decreases (isotonic, "
            "platt)"
        )
    return project_isotonic(calibration_map)


def refuse_table(table: ScoreTable) -> None:
    """Check that a score table can be calibrated.

    Raises
    ------
    InputRejectedError
        One class only, or one score only.
    """
    if table.used_positive in (0, table.used):
        label = 0 if table.used_positive == 0 else 1
        raise InputRejectedError(
            f"expected labels of both classes, found {table.used:,} rows that all have label {label}: "
            "a calibrator fitted to one class says nothing; check log.label and the log's window"
        )
    if table.points == 1:
        raise InputRejectedError(
            f"expected different scores, found {table.used:,} rows that all have score {table.lowest:g}: "
            "check log.score and the model that wrote it"
        )


def check_table(table: ScoreTable) -> None:
    """The same, with a warning of weights that nobody meant."""
    refuse_table(table)
    if table.scale == 1.0 and table.weight * _FAR_BELOW < table.used:
        _logger.warning(
            "the weights of %s rows add up to %.6g: every method counts a weight of 2 as the row twice, so these are "
            "taken for so few observations; set log.weights to sampling if rows were drawn with different "
            "probabilities, or multiply log.weight by a constant that makes a weight of 1 mean one row",
            f"{table.used:,}",
            table.weight,
        )
