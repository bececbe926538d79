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

from calibrators.arithmetic.passes import Array
from logcal.errors import InputRejectedError
from pipeline.log.windows import day_of
from pipeline.sort.day_files import file_digests
from pipeline.sort.day_profiles import Profile
from pipeline.sort.day_tables import DayTable
from pipeline.table.journal import INCLUDE, Decision
from pipeline.table.lookup_table import Predictor

SET_ASIDE, REFUSE, USE = "set_aside", "refuse", "use"
"""Treatments of a suspect day."""

LIMIT = 4.0
"""Standard deviations, of days and of chance, from which on a day is strange."""

_PRIOR = 4.0
"""Days that the floor of the variance between days counts as."""

_FEWEST = 200
"""Rows with a label, and 20 of the rarer one, from which on a day says something of its labels."""
_RARER = 20

_COPIES = 30
"""Filled counts that are all even only by copying: by chance once in 2^30 days."""

_SCALE = 4.0
"""Factor of the largest score beside the other days' largest."""

_OTHER_MODEL = 0.35
"""Kolmogorov-Smirnov distance of the scores from which on they are another model's, however often they come."""


@dataclass(frozen=True)
class DayFacts:
    """A day as it is compared.

    Attributes
    ----------
    day : days since 1970-01-01
    rows : that were read. waiting : without a label. unusable : bad rows
    profile : of the usable rows
    weighted : whether rows count for something else than one
    usual_share : of the rows with a label on a day of this age: labels that come later are no fault
    """

    day: int
    rows: int
    waiting: int
    profile: Profile
    weighted: bool = False
    usual_share: float = 1.0


@dataclass(frozen=True)
class Number:
    """Number by which days are compared, in a unit in which days differ by some constant amount.

    floor : standard deviation between days, at least. drifts : whether two such days in a row are drift
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
    """Reason why a day is suspect.

    Attributes
    ----------
    reasons : in words, worst first. never : whether no later day can make it usual
    drift : whether the day is used all the same, since another is like it
    """

    day: int
    reasons: list[str] = field(default_factory=list)
    never: bool = False
    drift: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {"day": day_of(self.day).isoformat(), "reasons": self.reasons, "final": self.never}


Predict = Callable[[Array], Array]


def suspect_days(
    days: Sequence[DayFacts],
    predict: Predict | None = None,
    *,
    included: frozenset[int] = frozenset(),
    remembered: Sequence[Finding] = (),
) -> list[Finding]:
    """Days that differ from the others more than days do, or more than chance explains.

    Parameters
    ----------
    days : of a window, in any order
    predict : the live table's probabilities of scores; None: the rows' own rates stand in
    included : days that a person has let in: they are never findings
    remembered : findings of an earlier fit that stay, unless there is no other day: then they are what days are like

    Returns
    -------
    Findings, by day.

    Notes
    -----
    Days are removed one at a time, the strangest first, and the others compared anew, so that a bad day does not hide
    another. O(days^2 x cells).
    """
    known = sorted((facts for facts in days if facts.rows), key=lambda facts: facts.day)
    findings = {finding.day: finding for finding in remembered}
    if all(facts.day in findings for facts in known):
        findings = {}
    new = [facts for facts in known if facts.day not in findings]
    for facts in new:
        wrong = _alone(facts, [other for other in new if other is not facts])
        if wrong and facts.day not in included:
            findings[facts.day] = Finding(facts.day, wrong, never=True)
    numbers = _numbers(known, predict, [facts for facts in known if facts.day not in findings])
    while True:
        left = [facts.day for facts in known if facts.day not in findings]
        worst: int | None = None
        reasons: dict[str, float] = {}
        for day in left:
            if day in included:
                continue
            strange = _strange(day, [other for other in left if other != day], numbers)
            if strange and (worst is None or max(strange.values()) > max(reasons.values())):
                worst, reasons = day, strange
        if worst is None:
            break
        findings[worst] = _described(worst, reasons, [day for day in left if day != worst], numbers)
    _readmit(findings, known, numbers, included)
    return [findings[day] for day in sorted(findings)]


def _alone(own: DayFacts, others: Sequence[DayFacts]) -> list[str]:
    """Find faults of a day that chance never explains."""
    profile, reasons = own.profile, []
    filled = _filled(own)
    if not own.weighted and filled.size >= _COPIES and _even(filled):
        alike = [other for other in others if other.profile.cell.size and _even(_filled(other))]
        if len(alike) < max(1, len(others)):
            reasons.append("each count of rows is even: is the day there twice?")
    auc, error = _auc(profile)
    if auc is not None and auc + 4 * error < 0.5:
        reasons.append(f"an AUC of {auc:.3f}, labels or scores inverted?")
    if (said := _one_label(profile, [other.profile for other in others])) is not None:
        reasons.append(said)
    if profile.cell.size == 1 and any(other.profile.cell.size > 1 for other in others):
        reasons.append("all rows have one score")
    ends = [np.abs(other.profile.score).max() for other in others if other.profile.cell.size]
    if ends and profile.cell.size:
        usual, largest = float(np.median(ends)), float(np.abs(profile.score).max())
        inside = [
            float(other.profile.score.min()) >= 0 and end <= 1.01
            for other, end in zip(others, ends, strict=False)
        ]
        if largest > _SCALE * usual and largest > 1.01 and np.mean(inside) > 0.5:
            reasons.append(
                f"scores up to {largest:.4g}, on other days up to {usual:.4g}: is it another scale, such as percent?"
            )
    return reasons


def _one_label(profile: Profile, others: Sequence[Profile]) -> str | None:
    """Describe a day that has rows of one label alone, if chance does not explain it."""
    n, k = float(profile.negatives.sum()), float(profile.positives.sum())
    total, ones = (
        sum(float(getattr(other, name).sum()) for other in others) for name in ("weight", "positives")
    )
    if n + k < _FEWEST or min(n, k) > 0 or not total:
        return None
    missing = ones / total if k == 0 else 1 - ones / total
    # Of so many that are expected none comes once in 500 million days.
    return f"no row has label {int(k == 0)}" if missing * (n + k) >= _RARER else None


def _filled(own: DayFacts) -> Array:
    counts = np.concatenate([own.profile.negatives, own.profile.positives])
    filled: Array = counts[counts > 0]
    return filled


def _even(counts: Array) -> bool:
    return bool(np.all(np.mod(counts, 2) == 0))


def _auc(profile: Profile) -> tuple[float | None, float]:
    """AUC of a profile and its standard error (Hanley & McNeil 1982); None where a label is missing."""
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


Seen = dict[str, tuple[float, float, float]]
"""Numbers by name: the value, its standard error by chance, and the value as a person reads it."""


def _numbers(
    known: Sequence[DayFacts], predict: Predict | None, sound: Sequence[DayFacts]
) -> dict[int, Seen]:
    """The numbers of each day."""
    total = Profile.total([own.profile for own in sound])
    expected = _expectation(total, predict)
    return {own.day: _seen(own, sound, expected) for own in known}


def _expectation(total: Profile, predict: Predict | None) -> Predict:
    """Probability of a score: the live table's, or the share of positives near it on all days."""
    if predict is not None:
        return predict
    if not total.cell.size:
        return lambda score: np.full(score.shape, 0.5)
    order = np.argsort(total.score, kind="stable")
    weight, ones = total.weight[order], total.positives[order]
    rate = ones.sum() / weight.sum()
    level = (ones + 20 * rate) / (weight + 20)
    return lambda score: np.asarray(np.interp(score, total.score[order], level))


def _seen(facts: DayFacts, sound: Sequence[DayFacts], expected: Predict) -> Seen:
    profile = facts.profile
    seen: Seen = {"rows": (math.log(facts.rows), 1 / math.sqrt(facts.rows), float(facts.rows))}
    share = 1 - facts.waiting / facts.rows
    relative_share = min(1.0, share + 1 - facts.usual_share)
    seen["labelled"] = (relative_share, math.sqrt(share * (1 - share) / facts.rows), share)
    n, k = float(profile.negatives.sum()), float(profile.positives.sum())
    if n + k < _FEWEST:
        return seen
    p = k / (n + k)
    # Half a row more of each label, so that a day without positives is far from the others and not infinitely so.
    seen["rate"] = (_logit((k + 0.5) / (n + k + 1)), math.sqrt(1 / (k + 0.5) + 1 / (n + 0.5)), p)
    q = np.clip(expected(profile.score), 1e-12, 1 - 1e-12)
    mean = float((profile.weight * q).sum())
    if mean > 0:
        seen["calibration"] = (math.log((k + 0.5) / (mean + 0.5)), math.sqrt(1 / (k + 0.5)), k / mean)
    auc, error = _auc(profile)
    if auc is not None:
        seen["ranking"] = (_logit(auc), error / max(auc * (1 - auc), 1e-6), auc)
    others = Profile.total([other.profile for other in sound if other is not facts])
    if others.cell.size and others.weight.sum() >= _FEWEST:
        distance = _distance(profile, others)
        seen["scores"] = (distance, 0.6 / math.sqrt(n + k), distance)
    return seen


def _distance(one: Profile, other: Profile) -> float:
    """Kolmogorov-Smirnov distance of the scores."""
    cells = np.union1d(one.cell, other.cell)
    shares = []
    for own in (one, other):
        weight = np.zeros(cells.size)
        weight[np.searchsorted(cells, own.cell)] = own.weight
        shares.append(np.cumsum(weight) / weight.sum())
    return float(np.abs(shares[0] - shares[1]).max())


def _spread(number: Number, values: Array, errors: Array) -> tuple[float, float]:
    """Median of other days, and the standard deviation between them, without what chance adds."""
    usual = float(np.median(values))
    squares = np.minimum(
        (values - usual) ** 2, (3 * max(number.floor, float(np.median(np.abs(values - usual))) * 1.5)) ** 2
    )
    between = np.maximum(squares - errors**2, 0.0)
    variance = (_PRIOR * number.floor**2 + float(between.sum())) / (_PRIOR + max(values.size - 1, 0))
    # The median of few days is itself uncertain.
    return usual, math.sqrt(max(variance, number.floor**2) * (1 + 1.5 / max(values.size, 1)))


def _apart(number: Number, day: int, others: Sequence[int], numbers: Mapping[int, Seen]) -> float | None:
    """Standard deviations between a day and others; None where it cannot be said."""
    own = numbers[day].get(number.name)
    theirs = [numbers[other][number.name] for other in others if number.name in numbers[other]]
    if own is None or len(theirs) < 2:
        return None
    usual, between = _spread(number, np.array([t[0] for t in theirs]), np.array([t[1] for t in theirs]))
    away = own[0] - usual
    if number.name == "scores":
        away = max(away, 0.0)
    return abs(away) / math.hypot(between, own[1])


def _strange(day: int, others: Sequence[int], numbers: Mapping[int, Seen]) -> dict[str, float]:
    found = {number.name: _apart(number, day, others, numbers) for number in NUMBERS}
    return {name: value for name, value in found.items() if value is not None and value > LIMIT}


def _described(
    day: int, strange: Mapping[str, float], others: Sequence[int], numbers: Mapping[int, Seen]
) -> Finding:
    finding = Finding(day)
    for number in sorted(NUMBERS, key=lambda number: -strange.get(number.name, 0.0)):
        if number.name not in strange:
            continue
        usual = float(np.median([numbers[o][number.name][2] for o in others if number.name in numbers[o]]))
        finding.reasons.append(number.words.format(found=numbers[day][number.name][2], usual=usual))
        far = number.name == "scores" and numbers[day]["scores"][2] > _OTHER_MODEL
        finding.never |= not number.drifts or far
    return finding


def _readmit(
    findings: dict[int, Finding],
    known: Sequence[DayFacts],
    numbers: Mapping[int, Seen],
    included: frozenset[int],
) -> None:
    """Two strange days in a row that are alike are drift: both come in. So do days like one that a person let in."""
    let_in = [facts for facts in known if facts.day in included]
    alike = {
        facts.day
        for facts in known
        if facts.day in findings and any(_alike(facts, one, numbers) for one in let_in)
    }
    for one, two in pairwise(known):
        both = [findings.get(one.day), findings.get(two.day)]
        if any(finding is None or finding.never for finding in both):
            continue
        if _alike(one, two, numbers):
            alike |= {one.day, two.day}
    for day in alike:
        findings[day].drift = True


def _alike(one: DayFacts, two: DayFacts, numbers: Mapping[int, Seen]) -> bool:
    """Tell whether two days differ by no more than days do."""
    for number in NUMBERS:
        a, b = (numbers[own.day].get(number.name) for own in (one, two))
        if a is None or b is None:
            if a is not b:
                return False
            continue
        apart = abs(a[0] - b[0])
        if number.name == "scores":  # which are distances, and not places
            apart = _distance(one.profile, two.profile)
        if apart > LIMIT * math.hypot(number.floor * math.sqrt(2), a[1], b[1]):
            return False
    return True


@dataclass(frozen=True)
class DayRule:
    """Rule for the days of a window that are used.

    Attributes
    ----------
    min_labelled : of a day's rows, the share that must not be waiting for their label, in [0, 1]
    suspect : what becomes of a strange day: 'set_aside', 'refuse' or 'use'
    live : the live table's probabilities of scores; None: there is none that fits the log
    decisions : of persons, by day such as 2026-01-31; they hold for a day as it was then
    remembered : days that the live table's fit set aside for what no drift explains: their tables and the reasons
    shares : usual share of the rows with a label, by age: days before the last day; where an earlier fit tells it
    weighted : whether rows have weights
    by_age : whether rows wait for labels to come as long as they are young, whatever has come: that is no fault
    """

    min_labelled: float = 0.0
    suspect: str = USE
    live: Predictor | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    remembered: Mapping[str, tuple[frozenset[str], list[str]]] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)
    weighted: bool = False
    by_age: bool = False

    def decided(self, tables: Sequence[DayTable], decision: str) -> dict[int, Decision]:
        """Days of a store's day tables on which a person decided so."""
        if not self.decisions:
            return {}
        decided = {}
        for day in {table.day for table in tables}:
            one, there = self.decisions.get(day_of(day).isoformat()), [t for t in tables if t.day == day]
            if one is not None and one.decision == decision:
                files = set().union(*(file_digests(table.stored.files) for table in there))
                if one.holds(files) or one.holds({table.content for table in there}):
                    decided[day] = one
        return decided


EVERY_DAY = DayRule()
"""No day is left out."""


def suspects(
    tables: Sequence[DayTable], profiles: Sequence[Profile], rule: DayRule
) -> tuple[list[Finding], float | None]:
    """Findings on the days of day tables, and how much days vary.

    Parameters
    ----------
    tables : of a window, without excluded days
    profiles : of each; none with the rule 'use'

    Returns
    -------
    findings, also on days that are used as drift; standard deviation between days of the logarithm of observed over
    expected positives, None: not known

    Raises
    ------
    InputRejectedError
        A day is strange, and the rule refuses that.
    """
    if rule.suspect == USE:
        return [], None
    by_day: dict[int, list[tuple[DayTable, Profile]]] = {}
    for table, profile in zip(tables, profiles, strict=True):
        by_day.setdefault(table.day, []).append((table, profile))
    days = []
    for day, parts in by_day.items():
        rows = sum(table.receipt.rows for table, _ in parts)
        waiting = sum(table.receipt.waiting for table, _ in parts)
        if rule.by_age:
            waiting -= sum(table.receipt.labels.waiting for table, _ in parts if table.receipt.labels)
        total = Profile.total([profile for _, profile in parts])
        if (
            rule.weighted
        ):  # weights say little of how much rows vary by chance: all together count as the rows there are
            total = total.scaled(sum(table.receipt.used for table, _ in parts))
        usual = rule.shares.get(max(by_day) - day, 1.0)
        days.append(DayFacts(day, rows, waiting, total, rule.weighted, usual))
    included = frozenset(rule.decided(tables, INCLUDE))
    known = [
        Finding(day, rule.remembered[name][1], never=True)
        for day, parts in by_day.items()
        if day not in included
        and (name := day_of(day).isoformat()) in rule.remembered
        and rule.remembered[name][0] == {table.content for table, _ in parts}
    ]
    findings = suspect_days(days, rule.live, included=included, remembered=known)
    suspect = [finding for finding in findings if not finding.drift]
    if suspect and rule.suspect == REFUSE:
        raise InputRejectedError(
            f"window.suspect_days is refuse: {in_words(suspect)}; correct the day's files, or decide with "
            "`logcal days`"
        )
    strange = {finding.day for finding in suspect}
    return findings, between_days([facts for facts in days if facts.day not in strange], rule.live)


def between_days(days: Sequence[DayFacts], predict: Predict | None = None) -> float | None:
    """Standard deviation between days of the logarithm of observed over expected positives; None for few days."""
    number = next(number for number in NUMBERS if number.name == "calibration")
    filled = [own for own in days if own.rows]
    seen = [own.get(number.name) for own in _numbers(filled, predict, filled).values()]
    known = [one for one in seen if one is not None]
    if len(known) < 3:
        return None
    return _spread(number, np.array([one[0] for one in known]), np.array([one[1] for one in known]))[1]


def in_words(found: Sequence[Finding]) -> str:
    """Findings, for a person."""
    return "; ".join(f"{day_of(finding.day)} ({', '.join(finding.reasons)})" for finding in found)
