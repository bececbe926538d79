"""The gate: requirements that a new table must meet before it becomes the current one."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from calibrators.core.map import CalibrationMap
from calibrators.measures.comparison import Comparison
from jobs.config.jobs import FitConfig
from jobs.config.sections import GateConfig
from jobs.gate.agreement import disagreement, fallback_text, remedy
from jobs.rows import ChosenRows, open_log_and_window
from logcal.errors import InputRejectedError, counted
from logcal.version import __version__
from pipeline.fit.fitting import Content
from pipeline.fit.holdout import HeldOut
from pipeline.log.logs import Columns
from pipeline.sort.segment_predictions import segments_text
from pipeline.table.map_change import ABOVE_CHANCE, MapChange, change_of_tables, one_level, ranking
from pipeline.table.published import Version, segments_of

log = logging.getLogger("logcal")

LARGE_CHANGE = 0.5
"""Mean change of the probabilities, relative to their mean, from which there is a warning."""


def can_compare(config: FitConfig, current: Version | None, choice: ChosenRows) -> bool:
    """True if held-out rows can be compared with the live version; warn if not."""
    live_columns = () if current is None else segments_of(current)
    extra = tuple(name for name in live_columns if name not in config.log.segment)
    if not extra:
        return True
    columns = Columns(config.log.score, segments=config.log.segment + extra)
    try:
        open_log_and_window(config, columns, choice)
    except InputRejectedError as error:
        live = f"the current version, which has segments of {', '.join(live_columns)}"
        log.warning("gate: the table cannot be compared with %s: %s", live, error)
        return False
    return True


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gate about a table.

    Attributes
    ----------
    facts : measurements, for the manifest
    refusals : violated rules, as mappings with `rule` and `message`
    warnings : messages that do not refuse the table
    """

    facts: dict[str, Any]
    refusals: list[dict[str, Any]]
    warnings: list[str]

    def manifest(self) -> dict[str, Any]:
        """Return the manifest's keys `gate` and `refused`."""
        gate = {**self.facts, "failed": [refusal["rule"] for refusal in self.refusals]}
        return {"gate": {**gate, "warnings": self.warnings}, "refused": self.refusals}


RARE = 100
"""Fewest held-out rows of the rarer label for a verdict."""
WORSE = 0.002
"""Tolerated increase of the log loss over the live version's, relative to the log loss of the share of positives."""
PERCENT = 4.0
"""Score above which scores are not probabilities that rounding made larger than 1."""
DAYS_VARY = 0.12
"""Default standard deviation between days of the logarithm of observed over expected positives."""
WHAT_TO_DO = {
    "min_rows": "Use more rows, or lower gate.min_rows",
    "min_positives": "Use more rows, or lower gate.min_positives",
    "max_rows_drop": "Are files missing? Otherwise raise gate.max_rows_drop",
    "scale": "Correct the log, or give scores of another kind a table of their own",
    "ranking": "Correct the log; if lower scores mean more positives, write the negative scores",
    "max_change": "Look at `logcal tables diff`, or raise gate.max_change",
    "holdout": "Are their labels complete and right? If so, fit again when there are newer rows to test on",
}
"""Remedy by rule; it ends the rule's message. That of gate.agreement: `jobs.gate.agreement.remedy`."""
USELESS = 0.55
"""AUC up to which scores are useless."""
COPIED, COPIES = 1000, 10
"""Fewest distinct scores, and most rows per score, for a warning that rows are copies. Rounded scores of three or four
digits repeat more often."""
OFF = 3.3
"""Standard errors by which observed and expected positives may differ: a false alarm has probability 0.001."""


def judge_held_out(
    config: GateConfig,
    holdout: HeldOut,
    fitted_positives: float,
    spread: float | None = 0.0,
    *,
    by_user: bool = True,
) -> Verdict:
    """Check a map on held-out rows.

    A map that is better than the current one passes even with an unexpected number of positives: it follows a drift.

    Parameters
    ----------
    fitted_positives : weight of the rows with label 1 that the map was fitted to
    spread : standard deviation between days of the logarithm of observed over expected positives, if the held-out rows
        are of other days than the fitted ones; None: unknown
    by_user : whether gate.holdout was set by the user; otherwise too few rows give no warning
    """
    if holdout.rows.rarer < RARE:
        few = (
            f"the table was not judged: expected at least {RARE} held-out rows of each label, found "
            f"{holdout.rows.rarer:,.10g} of the rarer one"
        )
        return Verdict(holdout.as_dict() | {"tested": False, "compared": False}, [], [few] if by_user else [])
    failed: list[tuple[str, str]] = []
    warnings = []
    spread = DAYS_VARY if spread is None else spread
    bars, against = holdout.bars, holdout.against if holdout.fresh.rarer >= RARE else None
    if (message := _unexpected(holdout, fitted_positives, spread)) is not None:
        if against is not None and (against.log_loss.difference or 0.0) < 0:
            warnings.append(f"{message}; the current version is further off")
        else:
            failed.append(("holdout", f"{message}: more than chance explains"))
    if config.ranking and bars is not None and bars.auc is not None and bars.auc_error is not None:
        message = f"found an AUC of {bars.auc:.3f} +- {bars.auc_error:.3f} on held-out rows"
        failed += [("ranking", message)] if bars.auc + ABOVE_CHANCE * bars.auc_error < 0.5 else []
    if holdout.loss is not None and math.isinf(holdout.loss):
        message = "found an infinite log loss on held-out rows, of a label that the table gives probability 0"
        failed.append(("holdout", message))
    if against is not None:
        failed += _worse(against, spread)
        if holdout.worse:
            warnings.append(
                f"in {counted(len(holdout.worse), 'segment')} the log loss on held-out rows is worse than the current "
                f"version's beyond chance: {segments_text(holdout.worse)}"
            )
    elif holdout.current and by_user:
        warnings.append(
            f"the table was not compared with the current version: expected at least {RARE} held-out rows of each "
            f"label that neither was fitted to, found {holdout.fresh.rarer:,.10g} of the rarer one"
        )
    refusals = [{"rule": rule, "message": message} for rule, message in failed]
    return Verdict({**holdout.as_dict(), "tested": True, "compared": against is not None}, refusals, warnings)


def _worse(against: Comparison, spread: float) -> list[tuple[str, str]]:
    """Describe a log loss that is higher than the live version's beyond chance."""
    loss = against.log_loss
    if loss.difference is None or loss.error is None:
        return []
    error = math.hypot(loss.error, _by_days(against, spread))
    if loss.difference - ABOVE_CHANCE * error <= WORSE * against.uncertainty:
        return []
    text = f"the log loss on held-out rows goes from {loss.old:.5f} to {loss.new:.5f}"
    return [("holdout", f"{text} (+{loss.difference:.2g} +- {error:.2g}): worse than the current version")]


def _with_remedy(message: str, rule: str, config: FitConfig) -> str:
    advice = remedy(config) if rule == "agreement" else WHAT_TO_DO[rule]
    if rule == "ranking" and config.window.column is not None:
        advice += ", or leave out its days with `logcal days exclude`"
    return f"gate.{rule}: {message}{'' if message[-1] == '?' else '.'} {advice}"


def _by_days(against: Comparison, spread: float) -> float:
    """Return the standard error of the difference of mean log losses due to the variation between days.

    A day whose log-odds of positives are u above the usual changes the loss of a row with the log-odds a and b in the
    two tables by u p (1 - p) (a - b): summed, to first order, by u times the difference of the expected positives.
    """
    rate = against.positives / against.weight
    return spread / max(1 - rate, 0.1) * abs(against.expected_new - against.expected_old) / against.weight


def _unexpected(holdout: HeldOut, fitted_positives: float, spread: float) -> str | None:
    """Describe a number of positives that chance and the variation of days do not explain; None otherwise."""
    observed = holdout.rows.positives
    if not holdout.expected:
        return None
    error = math.sqrt(1 / observed + 1 / max(fitted_positives, 1) + spread**2)
    if abs(math.log(observed / holdout.expected)) <= OFF * error:
        return None
    return f"expected about {holdout.expected:,.0f} positives on held-out rows, found {observed:,.0f}"


def held_out_line(gate: dict[str, Any]) -> str | None:
    """Describe the held-out rows of a manifest's gate; None if nothing was measured."""
    facts = gate.get("holdout") or {}
    if not isinstance(loss := facts.get("log_loss"), float):
        return None
    line = f"log loss on {facts['rows']:,.10g} held-out rows: {loss:.4f}"
    against = facts["against_current"]["log_loss"] if facts["against_current"] else {}
    if facts["compared"] and against.get("difference") is not None:
        difference = against["difference"]
        on = "" if facts["rows_compared"] == facts["rows"] else f"on {facts['rows_compared']:,.10g} of them "
        if not difference and not against["error"]:
            return f"{line} (no comparison: a fit without these rows equals the live version)"
        gap = f"{abs(difference):.2g} {'below' if difference < 0 else 'above'}" if difference else "equal to"
        line += f", {on}{gap} the previous version's (standard error {against['error']:.2g})"
    return line


def judge(
    config: FitConfig,
    content: Content,
    change: MapChange | None,
    current: Version | None,
    held_out: Verdict | None = None,
) -> Verdict:
    """Check a fitted table against all rules.

    Parameters
    ----------
    content : the table; its map of all rows is None if they are too few for one
    change : change of the probability against the current version's
    current : the current version
    held_out : verdict on held-out rows
    """
    data, overall_map, agreement = content.facts["data"], content.whole, content.facts.get("agreement")
    facts: dict[str, Any] = {"rows": data["rows_used"], "rows_positive": data["rows_positive"]}
    gate = config.gate
    failed, warnings = _sizes(gate, data, current), []
    failed += _scale(data, current)
    warnings += _weights_by_label(data)
    if overall_map is not None:
        auc, error = ranking(overall_map)
        facts |= {"auc": auc, "auc_error": error}
        failed += _ranking(gate, overall_map, auc, error)
        warnings += _implausible(data, auc, error)
    if change is not None:
        facts["change"] = change.as_dict()
        change_text = (
            f"the probability changes by {change.mean:.3g} on average, {100 * change.relative:.3g} % of the larger "
            f"mean ({change.mean_old:.3g} before, {change.mean_new:.3g} now){_causes(config, current)}"
        )
        if gate.max_change is not None and change.relative > gate.max_change:
            failed.append(("max_change", f"expected {gate.max_change:g} at most, found that {change_text}"))
        elif change.relative >= LARGE_CHANGE:
            warnings.append(f"{change_text}, compared with the live version")
    if (text := disagreement(agreement)) is not None:
        failed += [("agreement", text)] if gate.agreement else []
        warnings += [] if gate.agreement else [text]
    if (text := fallback_text(agreement)) is not None:
        warnings.append(text)
    if held_out is not None:
        facts["holdout"] = held_out.facts
        failed += [(refusal["rule"], refusal["message"]) for refusal in held_out.refusals]
        warnings += held_out.warnings
    refusals = [{"rule": rule, "message": _with_remedy(text, rule, config)} for rule, text in failed]
    if gate.on_fail == "warn":
        warnings += [refusal["message"] for refusal in refusals]
        refusals = []
    for warning in warnings:
        log.warning("gate: %s", warning)
    return Verdict(facts, refusals, warnings)


def _causes(config: FitConfig, current: Version | None) -> str:
    """Say which of the things that move maps differ from the live version's, besides the rows."""
    if current is None:
        return ""
    live, method = current.manifest, config.calibrator.method
    made_by = live["software"].get("logcal")
    causes = []
    if made_by != __version__:
        causes.append(f"the live version was made by logcal {made_by}, this one by {__version__}")
    if live["method"] != method:
        causes.append(f"the live version has calibrator.method={live['method']}, this one {method}")
    elif live["parameters"] != config.calibrator.params:
        causes.append("the live version has other calibrator.params")
    if not live.get("agreement"):
        causes.append("the live version was never checked against its own rows")
    return "".join(f"; {cause}" for cause in causes)


def _sizes(config: GateConfig, data: dict[str, Any], current: Version | None) -> list[tuple[str, str]]:
    """Check the number of rows, weighted as in the fit: see `log.weights`."""
    failed = []
    rows, weight, positives = data["rows_used"], data["weight"], data["positives"]
    weighted = "" if weight == rows else f" ({rows:,} rows whose weights count for so many)"
    if weight < config.min_rows:
        text = f"expected at least {config.min_rows:,} rows, found {weight:,.10g}{weighted}"
        failed.append(("min_rows", text))
    for label, count in ((1, positives), (0, weight - positives)):
        if count < config.min_positives:
            text = f"expected at least {config.min_positives:,} rows with label {label}, found {count:,.10g}"
            failed.append(("min_positives", f"{text}{weighted}"))
    before = {"rows_used": 0, "weight": 0.0} if current is None else current.manifest["data"]
    share = 1 - config.max_rows_drop
    # Aggregated rows are fewer, and weights of another kind may be smaller; if rows are missing, both numbers are.
    if current is not None and rows < share * before["rows_used"] and weight < share * before["weight"]:
        text = (
            f"expected at least {share * before['rows_used']:,.0f} rows, since the current version {current.name} has "
            f"{before['rows_used']:,}"
        )
        failed.append(("max_rows_drop", f"{text}, found {rows:,}"))
    return failed


def _scale(data: dict[str, Any], current: Version | None) -> list[tuple[str, str]]:
    """Check that scores have the scale of the live version's, rather than percent."""
    before = {} if current is None else current.manifest["data"]
    low, high = (before.get(f"{end}_score") for end in ("lowest", "highest"))
    highest = data.get("highest_score")
    if low is None or high is None or highest is None or low < 0 or not high <= 1 < PERCENT < highest:
        return []
    text = f"expected scores from {low:.4g} to {high:.4g}, as the current version's, found some up to {highest:.4g}"
    return [("scale", f"{text}. Is it another scale, such as percent?")]


def _ranking(
    config: GateConfig, overall_map: CalibrationMap, auc: float | None, error: float | None
) -> list[tuple[str, str]]:
    inverted = auc is not None and error is not None and auc + ABOVE_CHANCE * error < 0.5
    if not config.ranking or not (inverted or one_level(overall_map)):
        return []
    found = f"an AUC of {auc:.3f} +- {error:.3f}" if inverted else "one probability for all scores"
    text = f"expected more positives at higher scores, found {found}. Are the labels or the scores inverted?"
    return [("ranking", text)]


def _implausible(data: dict[str, Any], auc: float | None, error: float | None) -> list[str]:
    """Warn of implausible logs: scores that separate the labels perfectly or not at all, and copied rows."""
    rows, positives, scores = data["rows_used"], data["rows_positive"], data["distinct_scores"]
    warnings = []
    if auc is not None and error is not None and abs(auc - 0.5) < ABOVE_CHANCE * error < USELESS - auc:
        warnings.append(
            f"scores do not rank (an AUC of {auc:.3f} +- {error:.3f}): are the labels those of other rows?"
        )
    if auc == 1.0 and min(positives, rows - positives) >= RARE:
        message = "every row with label 1 has a higher score than every row with label 0"
        warnings.append(f"{message}: were the scores made from the labels?")
    times = rows // max(1, scores)
    if 1 < times <= COPIES and scores >= COPIED and times * scores == rows:
        warnings.append(
            f"{rows:,} rows are exactly {times} times the {scores:,} distinct scores: is each row there {times} times?"
        )
    return warnings


def _weights_by_label(data: dict[str, Any]) -> list[str]:
    """Warn of weights that are 1 for one label and the same number for the other: that label's rows were sampled.

    Sums show it: one mean weight is 1, and the other is whole, or the inverse of a rate of at most four digits.
    """
    rows = (data["rows_used"] - data["rows_positive"], data["rows_positive"])
    if min(rows) == 0:
        return []
    sums = (data["weight"] - data["positives"], data["positives"])
    means = [weight / count / data.get("weight_scale", 1.0) for weight, count in zip(sums, rows, strict=True)]
    label = int(means[1] > means[0])
    if means[label] < 2 or not math.isclose(means[1 - label], 1.0):
        return []
    kept = 1 / means[label]
    if not any(math.isclose(kept, rate) for rate in (float(f"{kept:.4g}"), 1 / round(means[label]))):
        return []
    name = ("negative", "positive")[label]
    text = (
        f"rows with label {label} weigh {means[label]:.4g}, those with label {1 - label} weigh 1. If {100 * kept:.4g} "
        f"% of the rows with label {label} were kept, set log.{name}_sampling_rate={kept:.4g} and no log.weight: with "
        f"weights each counts as {means[label]:.4g} observations. If all were kept, set neither"
    )
    return [text]


def change_of(content: Content, current: Version | None, folder: str) -> MapChange | None:
    """Measure the change of the probabilities from the live version to a new table, with each row's map in both.

    Returns None without a live version of the same transform, and, with a warning, if the tables cannot be compared.

    folder : folder in scratch space to write the new table to
    """
    facts = content.facts
    if current is None or current.manifest["score_transform"] != facts["score_transform"]:
        return None
    segments = tuple(facts.get("segments", {}).get("columns", ()))
    tables = ((current.lookup_path, segments_of(current)), (content.write(folder), segments))
    data = facts["data"]
    try:
        change = change_of_tables(*tables, data["lowest_score"], data["highest_score"])
    except InputRejectedError as error:
        log.warning("gate: the current version cannot be compared with: %s", error)
        return None
    if change is None:
        text = f"the current version has segments of {', '.join(tables[0][1])}, this table of {', '.join(segments)}"
        log.warning("gate: how far the probability changes is not known: %s", text)
        return None
    return change.whole
