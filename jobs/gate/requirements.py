"""The gate: what a new table must pass before it becomes the current one."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.measures.comparison import Comparison
from jobs.config.jobs import FitConfig
from jobs.config.sections import GateConfig, whole_days
from logcal.errors import ConfigError, InputRejectedError, counted
from pipeline.fit.fitting import Content
from pipeline.fit.holdout import HeldOut
from pipeline.log.logs import Columns, open_log
from pipeline.sort.segment_predictions import in_words
from pipeline.table.map_change import ABOVE_CHANCE, MapChange, change_of_tables, one_level, ranking
from pipeline.table.published import Version, segments_of

log = logging.getLogger("logcal")

LARGE_CHANGE = 0.5
"""From which on a change of the probabilities, relative to their mean, is warned of."""


def check_holdout(config: FitConfig) -> None:
    """Check that rows can be held out.

    Raises
    ------
    ConfigError
        They cannot.
    """
    gate = config.gate
    if gate.days and config.window.column is None:
        raise ConfigError(
            f"gate.holdout: expected window.column with a number of days, found {gate.holdout} without it: which rows "
            "are the last is what it says; or hold out a share such as 0.2"
        )
    if gate.days and gate.days >= whole_days(config.window.last):
        raise ConfigError(
            f"gate.holdout: expected fewer days than window.last ({config.window.last}), found {gate.holdout}: no day "
            "would be left to fit to"
        )


def can_compare(config: FitConfig, current: Version | None, without: Collection[str] = ()) -> bool:
    """Tell whether held-out rows can be compared with the live version; warn if not."""
    others = () if current is None else segments_of(current)
    more = tuple(name for name in others if name not in config.log.segment)
    if not more:
        return True
    own = Columns(config.log.score, segments=config.log.segment + more)
    try:
        open_log(config.log.path, own, without)
    except InputRejectedError as error:
        which = f"the current version, which has segments of {', '.join(others)}"
        log.warning("gate: the table cannot be compared with %s: %s", which, error)
        return False
    return True


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gate about a table.

    Attributes
    ----------
    facts : what was measured, for the manifest.
    refusals : what speaks against it, `rule` and `message` each. warnings : what a person should look at.
    """

    facts: dict[str, Any]
    refusals: list[dict[str, Any]]
    warnings: list[str]

    def manifest(self) -> dict[str, Any]:
        """Facts for the manifest."""
        gate = {**self.facts, "failed": [refusal["rule"] for refusal in self.refusals]}
        return {"gate": {**gate, "warnings": self.warnings}, "refused": self.refusals}


RARE = 100
"""Held-out rows of the rarer label, below which they prove nothing."""
WORSE = 0.002
"""Share of the log loss of the share of positives by which a table may be worse than the live one."""
PERCENT = 4.0
"""From which on scores are not probabilities that rounding put above 1."""
DAYS_VARY = 0.12
"""Standard deviation between days of the logarithm of observed over expected positives, where it is not known."""
WHAT_TO_DO = {
    "min_rows": "Use more rows, or lower gate.min_rows",
    "min_positives": "Use more rows, or lower gate.min_positives",
    "max_rows_drop": "Are files missing? Otherwise raise gate.max_rows_drop",
    "scale": "Correct the log, or give scores of another kind a table of their own",
    "ranking": "Correct the log",
    "max_change": "Look at `logcal tables diff`, or raise gate.max_change",
    "holdout": "Are their labels complete and right? If so, the next fit, which includes them, is compared anew",
}
"""Remedies by the rule that refuses; a refusal for passing data ends with them."""
COPIED, COPIES = 1000, 10
"""Fewest distinct scores, and most copies of each, for rows that are a multiple of their scores to be copies: scores of
three or four digits, of which there are round numbers, repeat more often."""
OFF = 3.3
"""Standard errors by which observed and expected positives may lie apart: one chance in a thousand."""


def judge_held_out(
    config: GateConfig,
    held: HeldOut,
    fitted_positives: float,
    spread: float | None = 0.0,
    *,
    asked: bool = True,
) -> Verdict:
    """Judge a map by rows that it was not fitted to.

    A map that is better than the current one goes live, whatever the number of positives: it is the cure of a drift.

    Parameters
    ----------
    fitted_positives : rows with label 1 that it was fitted to, as weights count them
    spread : standard deviation between days of the logarithm of observed over expected positives, where the rows are of
        other days than those that the map was fitted to; None: it is not known
    asked : whether a person asked for it; otherwise nothing is said of rows that are too few
    """
    if held.rows.rarer < RARE:
        few = (
            f"the table was not judged: expected at least {RARE} held-out rows of each label, found "
            f"{held.rows.rarer:,.10g} of the rarer one"
        )
        return Verdict({**held.as_dict(), "judged": False, "compared": False}, [], [few] if asked else [])
    failed: list[tuple[str, str]] = []
    warnings = []
    spread = DAYS_VARY if spread is None else spread
    bars, against = held.bars, held.against if held.fresh.rarer >= RARE else None
    if (said := _unexpected(held, fitted_positives, spread)) is not None:
        if against is not None and (against.log_loss.difference or 0.0) < 0:
            warnings.append(f"{said}; the current version is further off")
        else:
            failed.append(("holdout", f"{said}: more than chance explains"))
    if config.ranking and bars is not None and bars.auc is not None and bars.auc_error is not None:
        said = f"found an AUC of {bars.auc:.3f} +- {bars.auc_error:.3f} on held-out rows"
        failed += [("ranking", said)] if bars.auc + ABOVE_CHANCE * bars.auc_error < 0.5 else []
    if held.loss is not None and math.isinf(held.loss):
        said = "found an infinite log loss on held-out rows, of a label that the table gives probability 0"
        failed.append(("holdout", said))
    if against is not None:
        failed += _worse(against, spread)
        if held.worse:
            warnings.append(
                f"in {counted(len(held.worse), 'segment')} the log loss on held-out rows is worse than the current "
                f"version's beyond chance: {in_words(held.worse)}"
            )
    elif held.current and asked:
        warnings.append(
            f"the table was not compared with the current version: expected at least {RARE} held-out rows of each "
            f"label that neither was fitted to, found {held.fresh.rarer:,.10g} of the rarer one"
        )
    refusals = [{"rule": rule, "message": said} for rule, said in failed]
    return Verdict({**held.as_dict(), "judged": True, "compared": against is not None}, refusals, warnings)


def _worse(against: Comparison, spread: float) -> list[tuple[str, str]]:
    """Describe a log loss that is higher than the live version's beyond chance."""
    loss = against.log_loss
    if loss.difference is None or loss.error is None:
        return []
    error = math.hypot(loss.error, _by_days(against, spread))
    if loss.difference - ABOVE_CHANCE * error <= WORSE * against.uncertainty:
        return []
    said = f"the log loss on held-out rows goes from {loss.old:.5f} to {loss.new:.5f}"
    return [("holdout", f"{said} (+{loss.difference:.2g} +- {error:.2g}): worse than the current version")]


def _with_remedy(said: str, rule: str, *, dated: bool) -> str:
    days = ", or leave out its days with `logcal days exclude`" if dated and rule == "ranking" else ""
    return f"gate.{rule}: {said}{'' if said[-1] == '?' else '.'} {WHAT_TO_DO[rule]}{days}"


def _by_days(against: Comparison, spread: float) -> float:
    """Standard error of the difference of the mean log losses that comes from how much days vary.

    A day whose log-odds of positives are u above the usual moves the loss of a row with the log-odds a and b in the two
    tables by u p (1 - p) (a - b): in all, by u times the difference of the expected positives, to first order.
    """
    rate = against.positives / against.weight
    return spread / max(1 - rate, 0.1) * abs(against.expected_new - against.expected_old) / against.weight


def _unexpected(held: HeldOut, fitted_positives: float, spread: float) -> str | None:
    """Describe a number of positives that chance and the variation of days do not explain; None otherwise."""
    observed = held.rows.positives
    if not held.expected:
        return None
    error = math.sqrt(1 / observed + 1 / max(fitted_positives, 1) + spread**2)
    if abs(math.log(observed / held.expected)) <= OFF * error:
        return None
    return f"expected about {held.expected:,.0f} positives on held-out rows, found {observed:,.0f}"


def held_out_line(gate: dict[str, Any]) -> str | None:
    """Line of a manifest's gate about held-out rows; None if nothing was measured."""
    held = gate.get("holdout") or {}
    if not isinstance(loss := held.get("log_loss"), float):
        return None
    line = f"log loss on {held['rows']:,.10g} held-out rows: {loss:.4f}"
    against = held["against_current"]["log_loss"] if held["against_current"] else {}
    if held["compared"] and against.get("difference") is not None:
        difference = against["difference"]
        some = "" if held["rows_compared"] == held["rows"] else f"on {held['rows_compared']:,.10g} of them "
        if not difference and not against["error"]:
            return f"{line}; fitted without them, the table equals the previous version: nothing to compare"
        away = f"{abs(difference):.2g} {'below' if difference < 0 else 'above'}" if difference else "equal to"
        line += f", {some}{away} the previous version's (standard error {against['error']:.2g})"
    return line


def judge(
    config: FitConfig,
    data: dict[str, Any],
    whole: CalibrationMap | None,
    change: MapChange | None,
    current: Version | None,
    held_out: Verdict | None = None,
) -> Verdict:
    """Judge a table that has been fitted.

    Parameters
    ----------
    data : facts of its score table
    whole : its map of all rows; None: there is none, since they are too few
    change : of the probability against the current version's
    current : that version
    held_out : what rows say that it was not fitted to
    """
    facts: dict[str, Any] = {"rows": data["rows_used"], "rows_positive": data["rows_positive"]}
    gate, dated = config.gate, config.window.column is not None
    failed, warnings = _sizes(gate, data, current), []
    failed += _scale(data, current)
    if whole is not None:
        auc, error = ranking(whole)
        facts |= {"auc": auc, "auc_error": error}
        failed += _ranking(gate, whole, auc, error)
        warnings += _too_good(data, auc)
    if change is not None:
        facts["change"] = change.as_dict()
        text = (
            f"the probability changes by {change.mean:.3g} on average (means: {change.mean_old:.3g} before, "
            f"{change.mean_new:.3g} now; relative to the larger: {change.relative:.2f})"
        )
        if gate.max_change is not None and change.relative > gate.max_change:
            failed.append(("max_change", f"expected {gate.max_change:g} at most, found that {text}"))
        elif change.relative >= LARGE_CHANGE:
            warnings.append(f"{text}, compared with the live version")
    if held_out is not None:
        facts["holdout"] = held_out.facts
        failed += [(own["rule"], own["message"]) for own in held_out.refusals]
        warnings += held_out.warnings
    refusals = [{"rule": rule, "message": _with_remedy(said, rule, dated=dated)} for rule, said in failed]
    if gate.on_fail == "warn":
        warnings += [refusal["message"] for refusal in refusals]
        refusals = []
    for warning in warnings:
        log.warning("gate: %s", warning)
    return Verdict(facts, refusals, warnings)


def _sizes(config: GateConfig, data: dict[str, Any], current: Version | None) -> list[tuple[str, str]]:
    """Check the number of rows. Rows count as much as in the fit: see `log.weights`."""
    failed = []
    rows, weight, positives = data["rows_used"], data["weight"], data["positives"]
    counted = "" if weight == rows else f" ({rows:,} rows whose weights count for so many)"
    if weight < config.min_rows:
        said = f"expected at least {config.min_rows:,} rows, found {weight:,.10g}{counted}"
        failed.append(("min_rows", said))
    for label, count in ((1, positives), (0, weight - positives)):
        if count < config.min_positives:
            found = f"expected at least {config.min_positives:,} rows with label {label}, found {count:,.10g}"
            failed.append(("min_positives", f"{found}{counted}"))
    before = {"rows_used": 0, "weight": 0.0} if current is None else current.manifest["data"]
    kept = 1 - config.max_rows_drop
    # Where rows were added up, there are fewer of them; where weights mean something else, these are smaller. Where
    # rows are missing, both are.
    if current is not None and rows < kept * before["rows_used"] and weight < kept * before["weight"]:
        said = (
            f"expected at least {kept * before['rows_used']:,.0f} rows, since the current version {current.name} has "
            f"{before['rows_used']:,}"
        )
        failed.append(("max_rows_drop", f"{said}, found {rows:,}"))
    return failed


def _scale(data: dict[str, Any], current: Version | None) -> list[tuple[str, str]]:
    """Check that scores are on the scale of the live version's, unlike percent."""
    before = {} if current is None else current.manifest["data"]
    low, high = (before.get(f"{end}_score") for end in ("lowest", "highest"))
    found = data.get("highest_score")
    if low is None or high is None or found is None or low < 0 or not high <= 1 < PERCENT < found:
        return []
    said = f"expected scores from {low:.4g} to {high:.4g}, as the current version's, found some up to {found:.4g}"
    return [("scale", f"{said}. Is it another scale, such as percent?")]


def _ranking(
    config: GateConfig, whole: CalibrationMap, auc: float | None, error: float | None
) -> list[tuple[str, str]]:
    inverted = auc is not None and error is not None and auc + ABOVE_CHANCE * error < 0.5
    if not config.ranking or not (inverted or one_level(whole)):
        return []
    found = f"an AUC of {auc:.3f} +- {error:.3f}" if inverted else "one probability for all scores"
    said = f"expected more positives at higher scores, found {found}. Are the labels or the scores inverted?"
    return [("ranking", said)]


def _too_good(data: dict[str, Any], auc: float | None) -> list[str]:
    """Describe what no ordinary log shows: labels that the scores know, and rows that are there several times."""
    rows, positives, scores = data["rows_used"], data["rows_positive"], data["distinct_scores"]
    found = []
    if auc == 1.0 and min(positives, rows - positives) >= RARE:
        said = "every row with label 1 has a higher score than every row with label 0"
        found.append(f"{said}: were the scores made from the labels?")
    times = rows // max(1, scores)
    if 1 < times <= COPIES and scores >= COPIED and times * scores == rows:
        found.append(
            f"{rows:,} rows are exactly {times} times the {scores:,} distinct scores: is each row there {times} times?"
        )
    return found


def change_of(content: Content, current: Version | None, folder: str) -> MapChange | None:
    """Measure the distance of a table from the live version, each row going through its segment's map in both.

    folder : in scratch space. None where there is no version of the same transform, or nothing can be said; then it is
    warned.
    """
    facts = content.facts
    if current is None or current.manifest["score_transform"] != facts["score_transform"]:
        return None
    own = tuple(facts.get("segments", {}).get("columns", ()))
    places = ((current.lookup_path, segments_of(current)), (content.write(folder), own))
    data = facts["data"]
    try:
        found = change_of_tables(*places, data["lowest_score"], data["highest_score"])
    except InputRejectedError as error:
        log.warning("gate: the current version cannot be compared with: %s", error)
        return None
    if found is None:
        has = f"the current version has segments of {', '.join(places[0][1])}, this table of {', '.join(own)}"
        log.warning("gate: how far the probability changes is not known: %s", has)
        return None
    return found.whole
