"""Comparison of a window's days before a fit: suspect days are set aside.

Each day is described by a few numbers (rows, share of labels, share of positives, distribution of the scores, ranking,
calibration against a reference). Each number is compared with its variation: a variance between days, estimated without
the day in question and shrunken to a floor, plus the binomial variance of the day itself. So neither ordinary day
effects, with millions of rows per day, nor chance, with few rows, make a day suspect.

One suspect day is a fault; two similar ones in a row are drift, and both are used. Faults that no drift explains are
never used: inverted labels, labels that leak into the scores, another scale, another model's scores, missing labels,
copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from calibrators.core.arrays import Array
from logcal.errors import InputRejectedError
from pipeline.days.day_files import file_digests
from pipeline.days.day_profiles import Profile
from pipeline.days.day_tables import DayTable, tables_by_day
from pipeline.log.quarantine import RowRules
from pipeline.log.windows import day_of
from pipeline.sort.runs import RunReceipt
from pipeline.table.journal import INCLUDE, Decision
from pipeline.table.lookup_table import Predictor

SET_ASIDE, REFUSE, USE = "set_aside", "refuse", "use"
"""Treatments of a suspect day."""

LIMIT = 4.0
"""Deviation, in standard deviations of days and chance together, above which a day is suspect."""

_PRIOR = 4.0
"""Weight of the floor in the variance between days, in days."""

_FEWEST = 200
_RARER = 20
"""Fewest labelled rows, and fewest rows of the rarer label, for numbers that depend on labels."""

_FEWEST_COUNTS = 30
"""Fewest positive counts to test for duplicated rows: 30 are all even by chance once in 2^30 days."""

_SCALE = 4.0
"""Ratio of a day's largest score to the other days' above which the day has another scale."""

_OTHER_MODEL = 0.35
"""Kolmogorov-Smirnov distance above which scores come from another model, even on several days in a row."""


@dataclass(frozen=True)
class DayFacts:
    """Facts about a day, for the comparison with other days.

    Attributes
    ----------
    day : days since 1970-01-01
    rows : number of rows read. waiting : rows without a label
    profile : profile of the usable rows
    weighted : whether rows have weights
    usual_share : usual share of rows with a label on a day of this age, since later labels are no fault
    """

    day: int
    rows: int
    waiting: int
    profile: Profile
    weighted: bool = False
    usual_share: float = 1.0


@dataclass(frozen=True)
class Number:
    """Number by which days are compared, in a unit in which the variation between days is about constant.

    floor : least standard deviation between days. drifts : whether two similar suspect days in a row are drift
    words : format of the reason
    """

    name: str
    floor: float
    drifts: bool
    words: str


NUMBERS = (
    Number("rows", 0.12, True, "{found:,.0f} rows, other days have about {usual:,.0f}"),
    Number("labelled", 0.03, False, "{found:.0%} of the rows have a label, on other days about {usual:.0%}"),
    Number("rate", 0.12, True, "{found:.3g} of the rows are positive, on other days about {usual:.3g}"),
    Number(
        "calibration", 0.12, True, "{found:.2f} times the expected positives, on other days about {usual:.2f}"
    ),
    Number("ranking", 0.10, False, "an AUC of {found:.3f}, on other days about {usual:.3f}"),
    Number(
        "scores",
        0.02,
        True,
        "scores at a distance (Kolmogorov-Smirnov) of {found:.2f} from other days', usual are {usual:.2f}",
    ),
)


@dataclass
class Finding:
    """Suspect day, with the reasons.

    Attributes
    ----------
    reasons : reasons as text, worst first. final : whether no drift explains the day, whatever later days are like
    drift : whether the day is used, since another day is similar
    """

    day: int
    reasons: list[str] = field(default_factory=list)
    final: bool = False
    drift: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for the manifest."""
        return {"day": day_of(self.day).isoformat(), "reasons": self.reasons, "final": self.final}


Predict = Callable[[Array], Array]


def suspect_days(
    days: Sequence[DayFacts],
    predict: Predict | None = None,
    *,
    included: frozenset[int] = frozenset(),
    remembered: Sequence[Finding] = (),
) -> list[Finding]:
    """Find days that differ from the others by more than chance and the variation between days.

    Parameters
    ----------
    days : days of a window, in any order
    predict : the live table's probabilities of scores; None: the rows' rates by score
    included : days that a person has included; they are never findings
    remembered : findings of an earlier fit, which stay; ignored if they cover all days

    Returns
    -------
    findings by day

    Notes
    -----
    Days are removed one at a time, the most deviant first, and the others compared again, so that a bad day does not
    hide another. O(days^2 x cells).
    """
    filled = sorted((facts for facts in days if facts.rows), key=lambda facts: facts.day)
    findings = {finding.day: finding for finding in remembered}
    if all(facts.day in findings for facts in filled):
        findings = {}
    remaining = [facts for facts in filled if facts.day not in findings]
    for facts in remaining:
        faults = _faults_of_day(facts, [other for other in remaining if other is not facts])
        if faults and facts.day not in included:
            findings[facts.day] = Finding(facts.day, faults, final=True)
    numbers = _numbers(filled, predict, [facts for facts in filled if facts.day not in findings])
    while True:
        usual_days = [facts.day for facts in filled if facts.day not in findings]
        worst: int | None = None
        reasons: dict[str, float] = {}
        for day in usual_days:
            if day in included:
                continue
            deviations = _deviations(day, [other for other in usual_days if other != day], numbers)
            if deviations and (worst is None or max(deviations.values()) > max(reasons.values())):
                worst, reasons = day, deviations
        if worst is None:
            break
        findings[worst] = _finding(worst, reasons, [day for day in usual_days if day != worst], numbers)
    _mark_drift(findings, filled, numbers, included)
    return [findings[day] for day in sorted(findings)]


def _faults_of_day(facts: DayFacts, others: Sequence[DayFacts]) -> list[str]:
    """Find faults of a day that neither chance nor drift explains."""
    profile, reasons = facts.profile, []
    counts = _positive_counts(facts)
    if not facts.weighted and counts.size >= _FEWEST_COUNTS and _all_even(counts):
        even_days = [
            other for other in others if other.profile.cell.size and _all_even(_positive_counts(other))
        ]
        if len(even_days) < max(1, len(others)):
            reasons.append("each count of rows is even: is the day there twice?")
    auc, error = _auc(profile)
    if auc is not None and auc + 4 * error < 0.5:
        reasons.append(f"an AUC of {auc:.3f}, labels or scores inverted?")
    if (fault := _one_label(profile, [other.profile for other in others])) is not None:
        reasons.append(fault)
    if profile.cell.size == 1 and any(other.profile.cell.size > 1 for other in others):
        reasons.append("all rows have one score")
    scores = [other.profile.score for other in others if other.profile.cell.size]
    if scores and profile.cell.size:
        usual_top = float(np.median([np.abs(score).max() for score in scores]))
        top = float(np.abs(profile.score).max())
        unit_scale = [score.min() >= 0 and score.max() <= 1.01 for score in scores]
        if top > _SCALE * usual_top and top > 1.01 and np.mean(unit_scale) > 0.5:
            reasons.append(
                f"scores up to {top:.4g}, on other days up to {usual_top:.4g}: is it another scale, such as percent?"
            )
    return reasons


def _one_label(profile: Profile, others: Sequence[Profile]) -> str | None:
    """Describe the fault of a day with rows of one label only, if chance does not explain it."""
    n, k = float(profile.negatives.sum()), float(profile.positives.sum())
    total, ones = (
        sum(float(getattr(other, name).sum()) for other in others) for name in ("weight", "positives")
    )
    if n + k < _FEWEST or min(n, k) > 0 or not total:
        return None
    missing = ones / total if k == 0 else 1 - ones / total
    # If 20 are expected, none occurs once in 500 million days.
    return f"no row has label {int(k == 0)}" if missing * (n + k) >= _RARER else None


def _positive_counts(facts: DayFacts) -> Array:
    counts = np.concatenate([facts.profile.negatives, facts.profile.positives])
    positive: Array = counts[counts > 0]
    return positive


def _all_even(counts: Array) -> bool:
    return bool(np.all(np.mod(counts, 2) == 0))


def _auc(profile: Profile) -> tuple[float | None, float]:
    """Return a profile's AUC and its standard error (Hanley & McNeil 1982); None if a label is too rare."""
    negatives, positives = profile.negatives, profile.positives
    n, k = float(negatives.sum()), float(positives.sum())
    if min(n, k) < _RARER:
        return None, math.inf
    below = np.cumsum(negatives) - negatives / 2
    auc = float((positives * below).sum() / (n * k))
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = (auc * (1 - auc) + (k - 1) * (q1 - auc * auc) + (n - 1) * (q2 - auc * auc)) / (n * k)
    return auc, math.sqrt(max(variance, 1e-12))


def _logit(p: float) -> float:
    p = min(max(p, 1e-12), 1 - 1e-12)
    return math.log(p / (1 - p))


Values = dict[str, tuple[float, float, float]]
"""Numbers of a day, by name: value, standard error by chance, and value to show."""


def _numbers(
    days: Sequence[DayFacts], predict: Predict | None, usual_days: Sequence[DayFacts]
) -> dict[int, Values]:
    """Compute the numbers of each day."""
    total = Profile.total([facts.profile for facts in usual_days])
    expected = _expectation(total, predict)
    return {facts.day: _numbers_of_day(facts, usual_days, expected) for facts in days}


def _expectation(total: Profile, predict: Predict | None) -> Predict:
    """Return the function for expected probabilities: `predict`, or the smoothed rates of a profile by score."""
    if predict is not None:
        return predict
    if not total.cell.size:
        return lambda score: np.full(score.shape, 0.5)
    order = np.argsort(total.score, kind="stable")
    weight, ones = total.weight[order], total.positives[order]
    rate = ones.sum() / weight.sum()
    smoothed_rate = (ones + 20 * rate) / (weight + 20)
    return lambda score: np.asarray(np.interp(score, total.score[order], smoothed_rate))


def _numbers_of_day(facts: DayFacts, usual_days: Sequence[DayFacts], expected: Predict) -> Values:
    profile = facts.profile
    numbers: Values = {"rows": (math.log(facts.rows), 1 / math.sqrt(facts.rows), float(facts.rows))}
    share = 1 - facts.waiting / facts.rows
    relative_share = min(1.0, share + 1 - facts.usual_share)
    numbers["labelled"] = (relative_share, math.sqrt(share * (1 - share) / facts.rows), share)
    n, k = float(profile.negatives.sum()), float(profile.positives.sum())
    if n + k < _FEWEST:
        return numbers
    p = k / (n + k)
    # Half a row more of each label keeps the logit of a day without positives finite.
    numbers["rate"] = (_logit((k + 0.5) / (n + k + 1)), math.sqrt(1 / (k + 0.5) + 1 / (n + 0.5)), p)
    q = np.clip(expected(profile.score), 1e-12, 1 - 1e-12)
    e = float((profile.weight * q).sum())  # expected positives
    if e > 0:
        numbers["calibration"] = (math.log((k + 0.5) / (e + 0.5)), math.sqrt(1 / (k + 0.5)), k / e)
    auc, error = _auc(profile)
    if auc is not None:
        numbers["ranking"] = (_logit(auc), error / max(auc * (1 - auc), 1e-6), auc)
    others = Profile.total([other.profile for other in usual_days if other is not facts])
    if others.cell.size and others.weight.sum() >= _FEWEST:
        distance = _distance(profile, others)
        numbers["scores"] = (distance, 0.6 / math.sqrt(n + k), distance)
    return numbers


def _distance(first: Profile, second: Profile) -> float:
    """Return the Kolmogorov-Smirnov distance of two profiles' scores."""
    cells = np.union1d(first.cell, second.cell)
    shares = []
    for profile in (first, second):
        weight = np.zeros(cells.size)
        weight[np.searchsorted(cells, profile.cell)] = profile.weight
        shares.append(np.cumsum(weight) / weight.sum())
    return float(np.abs(shares[0] - shares[1]).max())


def _spread(number: Number, values: Array, errors: Array) -> tuple[float, float]:
    """Return the median of values, and the standard deviation between days, without the part due to chance."""
    usual = float(np.median(values))
    squares = np.minimum(
        (values - usual) ** 2, (3 * max(number.floor, float(np.median(np.abs(values - usual))) * 1.5)) ** 2
    )
    between = np.maximum(squares - errors**2, 0.0)
    variance = (_PRIOR * number.floor**2 + float(between.sum())) / (_PRIOR + max(values.size - 1, 0))
    # The median of few days is itself uncertain.
    return usual, math.sqrt(max(variance, number.floor**2) * (1 + 1.5 / max(values.size, 1)))


def _deviation(
    number: Number, day: int, others: Sequence[int], numbers: Mapping[int, Values]
) -> float | None:
    """Return the distance of a day from others in standard deviations; None if a value is missing."""
    values = [numbers[other][number.name] for other in others if number.name in numbers[other]]
    if number.name not in numbers[day] or len(values) < 2:
        return None
    value, error, _ = numbers[day][number.name]
    usual, between = _spread(number, np.array([t[0] for t in values]), np.array([t[1] for t in values]))
    difference = value - usual
    if number.name == "scores":
        difference = max(difference, 0.0)
    return abs(difference) / math.hypot(between, error)


def _deviations(day: int, others: Sequence[int], numbers: Mapping[int, Values]) -> dict[str, float]:
    deviations = {number.name: _deviation(number, day, others, numbers) for number in NUMBERS}
    return {name: value for name, value in deviations.items() if value is not None and value > LIMIT}


def _finding(
    day: int, deviations: Mapping[str, float], others: Sequence[int], numbers: Mapping[int, Values]
) -> Finding:
    finding = Finding(day)
    for number in sorted(NUMBERS, key=lambda number: -deviations.get(number.name, 0.0)):
        if number.name not in deviations:
            continue
        usual = float(np.median([numbers[o][number.name][2] for o in others if number.name in numbers[o]]))
        found = numbers[day][number.name][2]
        later = number.name == "labelled" and found < usual
        reason = number.words.format(found=found, usual=usual)
        finding.reasons.append(f"{reason}: if labels come later, set $[wait]" if later else reason)
        other_model = number.name == "scores" and found > _OTHER_MODEL
        finding.final |= not number.drifts or other_model
    return finding


def _mark_drift(
    findings: dict[int, Finding],
    days: Sequence[DayFacts],
    numbers: Mapping[int, Values],
    included: frozenset[int],
) -> None:
    """Mark similar suspect days in a row as drift, and suspect days similar to a day that a person included."""
    included_days = [facts for facts in days if facts.day in included]
    similar = {
        facts.day
        for facts in days
        if facts.day in findings and any(_similar(facts, other, numbers) for other in included_days)
    }
    for first, second in pairwise(days):
        pair = [findings.get(first.day), findings.get(second.day)]
        if any(finding is None or finding.final for finding in pair):
            continue
        if _similar(first, second, numbers):
            similar |= {first.day, second.day}
    for day in similar:
        findings[day].drift = True


def _similar(first: DayFacts, second: DayFacts, numbers: Mapping[int, Values]) -> bool:
    """Tell whether two days differ by no more than chance and the variation between days."""
    for number in NUMBERS:
        a, b = (numbers[facts.day].get(number.name) for facts in (first, second))
        if a is None or b is None:
            if a is not b:
                return False
            continue
        distance = abs(a[0] - b[0])
        if number.name == "scores":  # the numbers are distances from other days
            distance = _distance(first.profile, second.profile)
        if distance > LIMIT * math.hypot(number.floor * math.sqrt(2), a[1], b[1]):
            return False
    return True


@dataclass(frozen=True)
class DayRule:
    """Rule for the days of a window to use.

    Attributes
    ----------
    min_labelled : least share of a day's rows that have a label, in [0, 1]
    suspect : treatment of suspect days: 'set_aside', 'refuse' or 'use'
    live : predictor of the live table; None: no live table fits the log
    decisions : persons' decisions, by ISO date; they hold only for the day's files at that time
    remembered : final findings of the live table's fit, by ISO date: contents of the day's tables, and reasons
    shares : usual share of rows with a label, by age in days before the last day, from an earlier fit
    weighted : whether rows have weights
    by_age : whether young rows always wait for labels that may still come; their waiting is then no fault
    rows : rules by which a day with too many unusable rows is left out; None: they apply to all days together
    """

    min_labelled: float = 0.0
    suspect: str = USE
    live: Predictor | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    remembered: Mapping[str, tuple[frozenset[str], list[str]]] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)
    weighted: bool = False
    by_age: bool = False
    rows: RowRules | None = None

    def decided(self, tables: Sequence[DayTable], decision: str) -> dict[int, str]:
        """Return the days whose decision, EXCLUDE or INCLUDE, holds for their day tables, with the reasons."""
        decided = {}
        for day, parts in tables_by_day(tables).items() if self.decisions else ():
            latest = self.decisions.get(day_of(day).isoformat())
            if latest is None or latest.decision != decision:
                continue
            if latest.holds(file_digests(file for table in parts for file in table.stored.files)):
                decided[day] = latest.reason
        return decided


EVERY_DAY = DayRule()
"""Rule that uses every day."""


def find_suspect_days(
    totals: Mapping[int, RunReceipt],
    tables: Sequence[DayTable],
    profiles: Mapping[str, Profile],
    rule: DayRule,
) -> tuple[list[Finding], float | None]:
    """Find suspect days among day tables, and measure the variation between days.

    Parameters
    ----------
    totals : sums of the receipts of each day of a window, without excluded days
    tables : day tables of these days
    profiles : profile of each table, by its name; empty with the rule 'use'

    Returns
    -------
    findings : findings, drift included
    spread : standard deviation between days of the logarithm of observed over expected positives; None if not known

    Raises
    ------
    InputRejectedError
        A day is suspect, and the rule is to refuse.
    """
    if rule.suspect == USE:
        return [], None
    by_day, days = tables_by_day(tables), []
    for day, total in totals.items():
        waiting = total.waiting - (total.labels.waiting if rule.by_age and total.labels else 0)
        profile = Profile.total([profiles[table.name] for table in by_day[day]])
        if rule.weighted:
            # Scale the total weight to the number of rows, since chance variation depends on the number of rows.
            profile = profile.scaled(total.used)
        usual_share = rule.shares.get(max(totals) - day, 1.0)
        days.append(DayFacts(day, total.rows, waiting, profile, rule.weighted, usual_share))
    included = frozenset(rule.decided(tables, INCLUDE))
    stored_findings = [
        Finding(day, rule.remembered[name][1], final=True)
        for day, parts in by_day.items()
        if day not in included
        and (name := day_of(day).isoformat()) in rule.remembered
        and rule.remembered[name][0] == {table.content for table in parts}
    ]
    findings = suspect_days(days, rule.live, included=included, remembered=stored_findings)
    suspect = [finding for finding in findings if not finding.drift]
    if suspect and rule.suspect == REFUSE:
        raise InputRejectedError(
            f"$[suspect_days] is refuse: {findings_text(suspect)}; correct the day's files, or decide with "
            "`logcal days`"
        )
    left_out = {finding.day for finding in suspect}
    return findings, between_days([facts for facts in days if facts.day not in left_out], rule.live)


def between_days(days: Sequence[DayFacts], predict: Predict | None = None) -> float | None:
    """Return the spread of calibration between days, see `find_suspect_days`; None for fewer than three days."""
    number = next(number for number in NUMBERS if number.name == "calibration")
    with_rows = [facts for facts in days if facts.rows]
    numbers = _numbers(with_rows, predict, with_rows).values()
    values = [of_day[number.name] for of_day in numbers if number.name in of_day]
    if len(values) < 3:
        return None
    return _spread(number, np.array([t[0] for t in values]), np.array([t[1] for t in values]))[1]


def findings_text(findings: Sequence[Finding]) -> str:
    """Describe findings in a message."""
    return "; ".join(f"{day_of(finding.day)} ({', '.join(finding.reasons)})" for finding in findings)
