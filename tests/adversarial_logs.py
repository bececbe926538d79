"""Ordinary logs that break assumptions of calibrators, with their truth; also for benchmarks/adversarial.py."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.isotonic import IsotonicRegression

import logcal
from calibrators.core.arrays import Array
from logcal.errors import LogcalError

ODD = (
    "all negative",
    "all positive",
    "inverted",
    "separated",
    "one score",
    "noise",
    "shifted by -5",
    "three positives",
)
SHAPES = (
    "two models",
    "wave",
    "step",
    "dip",
    "plateau",
    "fallback",
    "several fallbacks",
    "truncated",
    "rounded",
)
"""Departures from the score as the probability, in the order in which they are applied."""
FORMS = ("line", "saturates", "kink", "step by segment", "step", "dip in some", "fallback in some")
"""Forms of the truth in harsh logs."""
SPREAD = 1.2
LARGE = 2500
"""Number of rows of each label from which on a segment's total is compared."""


class Log(NamedTuple):
    """Rows of a log whose truth is known.

    Attributes
    ----------
    facts : what was drawn
    score : float64 array, shape (rows,): probabilities
    label : bool array, shape (rows,)
    truth : float64 array, shape (rows,): probability of a positive label; NaN in rows of odd segments
    weight : float64 array, shape (rows,), or None
    segment : int32 array, shape (rows,), or None
    second : int32 array, shape (rows,): values of a second segment column; or None
    settings : further settings of `log`
    """

    facts: dict[str, Any]
    score: Array
    label: npt.NDArray[np.bool_]
    truth: Array
    weight: Array | None = None
    segment: npt.NDArray[np.int32] | None = None
    second: npt.NDArray[np.int32] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


def segmented_log(number: int, most_rows: float = 10**5.2) -> Log:
    """Draw 2 to 2,000 ordinary segments, and up to a fifth as many that are odd in one way, or none."""
    random = np.random.default_rng([7, number])
    segments = round(10 ** random.uniform(0.301, 3.3))
    rows = max(int(10 ** random.uniform(3.5, np.log10(most_rows))), 5 * segments)
    facts = {
        "segments": segments,
        "rows": rows,
        "sizes": str(random.choice(["equal", "power law"])),
        "log odds": int(random.choice([0, -2, -4])),
        "spread": float(random.choice([0, 0.3, 0.7, 1.5, 3.0], p=[0.2, 0.25, 0.25, 0.2, 0.1])),
        "slopes": float(random.choice([0, 0.2, 0.4], p=[0.5, 0.25, 0.25])),
        "larger convert better": bool(random.random() < 0.25),
        "weights": bool(random.random() < 0.15),
        "odd": str(random.choice([*ODD, "none"])),
    }
    share = np.ones(segments) if facts["sizes"] == "equal" else 1 / (np.arange(segments) + 3.0) ** 1.1
    segment = np.sort(random.choice(segments, rows, p=share / share.sum()))
    shift = random.normal(0, facts["spread"], segments)
    if facts["larger convert better"]:
        shift = np.sort(shift)[::-1]
    slope = np.maximum(1 + random.normal(0, facts["slopes"], segments), 0.1)
    centre = facts["log odds"]
    x = random.normal(centre, SPREAD, rows)
    truth = expit(centre + slope[segment] * (x - centre) + shift[segment])
    columns = [(expit(x), random.random(rows) < truth, truth, segment)]
    facts["odd segments"] = (
        0 if facts["odd"] == "none" else int(random.choice([1, 1, 1, 2, 5, max(1, segments // 5)]))
    )
    for odd in range(facts["odd segments"]):
        size = int(10 ** random.uniform(0.7, 4))
        score, label = _odd_rows(facts["odd"], size, centre, random)
        columns.append((score, label, np.full(size, np.nan), np.full(size, segments + odd)))
    score, label, truth, segment = (np.concatenate(column) for column in zip(*columns, strict=True))
    weight = random.choice([1.0, 2.0, 5.0], score.size) if facts["weights"] else None
    return Log(facts, score, label, truth, weight, segment.astype(np.int32))


def _odd_rows(
    kind: str, size: int, centre: float, random: np.random.Generator
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Draw scores and labels of an odd segment."""
    x, uniform = random.normal(centre, SPREAD, size), random.random(size)
    if kind == "one score":
        return np.full(size, expit(centre + random.normal())), uniform < expit(random.normal(0, 2))
    if kind == "separated":
        return expit(x), x > centre + random.normal(0, 0.5)
    if kind == "three positives":
        return expit(x), np.arange(size) < min(3, size // 10)
    odds = {
        "all negative": np.full(size, -np.inf),
        "all positive": np.full(size, np.inf),
        "inverted": 2 * centre - x,
        "noise": np.full(size, float(centre)),
        "shifted by -5": x - 5,
    }
    return expit(x), uniform < expit(odds[kind])


def scored_log(number: int, most_rows: float = 10**5.6) -> Log:
    """Draw a log without segments whose truth departs from the score in one to three ways."""
    random = np.random.default_rng([13, number])
    rows = int(10 ** random.uniform(3, np.log10(most_rows)))
    centre = float(random.choice([0, -2, -4]))
    shapes = [str(shape) for shape in random.choice(SHAPES, random.integers(1, 4), replace=False)]
    x = random.normal(centre, 1.3, rows)
    odds = x.copy()
    for shape in sorted(shapes, key=SHAPES.index):
        x, odds = _reshape(shape, x, odds, centre, random)
    truth = expit(odds)
    weights = bool(random.random() < 0.15)
    score, label = expit(x), random.random(rows) < truth
    weight = random.choice([1.0, 2.0, 5.0], rows) if weights else None
    facts = {"rows": rows, "log odds": centre, "shapes": shapes, "weights": weights}
    return Log(facts, score, label, _mean_by_score(score, truth), weight)


def harsh_log(number: int, most_rows: float = 10**5.3) -> Log:
    """Draw a log with one or two columns of at most 50 values each, in which several departures meet.

    Sizes, scores, shifts and slopes differ, up to three values of the first column are odd, scores have any of `FORMS`
    and may be rounded; weights are log-normal, or a tenth of the negatives is kept.
    """
    random = np.random.default_rng([99, number])
    first = int(10 ** random.uniform(0.3, 1.7))
    second = int(10 ** random.uniform(0, 1.7)) if random.random() < 0.5 else 1
    rows = int(10 ** random.uniform(3.3, np.log10(most_rows)))
    centre = float(random.choice([0, -2, -4, -5.5]))
    a, b = _harsh_segments(rows, first, second, random)
    located, scaled = np.zeros(first), np.ones(first)
    scores = str(random.choice(["same", "located", "scaled"]))
    if scores == "located":
        located = random.normal(0, 1.5, first)
    if scores == "scaled":
        scaled = np.exp(random.normal(0, 0.7, first))
    x = centre + located[a] + SPREAD * scaled[a] * random.normal(size=rows)
    spread, shift = _harsh_shifts(first, second, random)
    slope = np.maximum(1 + random.normal(0, float(random.choice([0, 0.3, 0.6])), first), 0.05)
    shift = shift[a, b]
    form = str(random.choice(FORMS))
    x, odds = _harsh_form(form, x, centre + slope[a] * (x - centre) + shift, centre, a, first, shift, random)
    score, truth = expit(x), expit(odds)
    digits = int(random.choice([0, 0, 2, 3]))
    if digits:
        score = np.round(score, digits)
    odd = int(random.choice([0, 0, 1, 3]))
    ordinary = np.ones(rows, bool)
    for _ in range(odd):
        inside = a == random.integers(0, first)
        ordinary &= ~inside
        kinds = np.zeros(rows), np.ones(rows), expit(2 * centre - x), np.full(rows, expit(centre))
        truth = np.where(inside, kinds[random.integers(0, 4)], truth)
    label = random.random(rows) < truth
    weights, weight, kept = (
        str(random.choice(["none", "none", "sampling", "negatives"])),
        None,
        np.full(rows, True),
    )
    settings: dict[str, Any] = {}
    if weights == "sampling":
        weight, settings = np.exp(random.normal(0, 0.8, rows)), {"weights": "sampling"}
    if weights == "negatives":
        kept = label | (random.random(rows) < 0.1)
        weight, settings = np.where(label, 1.0, 10.0), {"negative_sampling_rate": 0.1}
    truth = np.where(ordinary, _mean_by_score(score, truth, a * second + b), np.nan)
    facts = {
        "segments": first * second, "values": [first, second], "rows": rows, "log odds": centre, "scores": scores,
        "spread": spread, "form": form, "digits": digits, "odd": odd, "weights": weights,
    }  # fmt: skip
    return Log(
        facts, score[kept], label[kept], truth[kept], None if weight is None else weight[kept],
        a[kept].astype(np.int32), b[kept].astype(np.int32) if second > 1 else None, settings,
    )  # fmt: skip


def _harsh_segments(
    rows: int, first: int, second: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw the values of two columns, of equal or of very different sizes."""
    if random.random() < 0.6:
        tail = random.pareto(random.choice([0.5, 1.5]), rows)
        a = np.minimum((tail * first / 10).astype(np.int64), first - 1)
    else:
        a = random.integers(0, first, rows)
    if random.random() < 0.5:
        return a, random.integers(0, second, rows)
    return a, np.minimum(random.geometric(min(1, 3 / second), rows) - 1, second - 1)


def _harsh_shifts(first: int, second: int, random: np.random.Generator) -> tuple[str, Array]:
    """Draw the distribution of shifts, and the shift of each pair of values."""
    kind = str(random.choice(["none", "normal", "t", "two groups", "nested"]))
    scale, pairs = float(random.choice([0.3, 1, 2])), np.zeros((first, second))
    of_first = random.normal(0, scale, first)
    if kind == "none":
        return kind, pairs
    if kind == "t":
        of_first = scale * random.standard_t(2, first)
    if kind == "two groups":
        of_first = np.where(random.random(first) < 0.3, -2.5, 0.3)
    if kind == "nested":
        pairs = random.normal(0, 0.7, first * second).reshape(first, second)
    return kind, of_first[:, np.newaxis] + pairs


def _harsh_form(
    form: str, x: Array, odds: Array, centre: float, segment: npt.NDArray[np.int64], segments: int, shift: Array,
    random: np.random.Generator,
) -> tuple[Array, Array]:  # fmt: skip
    """Change log-odds of scores, and of the truth, to a form."""
    if form == "saturates":
        odds = np.minimum(odds, centre + 1)
    if form == "kink":
        odds = odds + np.where(x > centre + 1, 2 * (x - centre - 1), 0)
    if form == "step":
        odds = odds + 1.5 * (x > centre + 0.7)
    if form == "step by segment":
        odds = odds + 2 * (x > (centre + random.normal(0, 1, segments))[segment])
    if form == "dip in some":
        some = (random.random(segments) < 0.3)[segment]
        odds = np.where(some & (x > centre) & (x < centre + 0.7), odds - 3, odds)
    if form == "fallback in some":
        some = (random.random(segments) < 0.4)[segment] & (random.random(x.size) < 0.3)
        x, odds = np.where(some, centre + 0.5, x), np.where(some, centre - 1 + shift, odds)
    return x, odds


def _mean_by_score(score: Array, truth: Array, segment: npt.NDArray[np.int64] | None = None) -> Array:
    """Return the mean truth of the rows with each row's score, and segment: what a map can know."""
    known = score if segment is None else np.stack([score, segment])
    _, group = np.unique(known, axis=-1, return_inverse=True)
    return (np.bincount(group, truth) / np.bincount(group))[group]


def _two_models(x: Array, centre: float, shift: float, random: np.random.Generator) -> tuple[Array, Array]:
    """Let some scores come from a second model; the truth given a score is a mixture."""
    share, stretch = random.uniform(0.1, 0.6), random.uniform(0.3, 2)
    second = random.random(x.size) < share
    x = np.where(second, centre + shift + stretch * (x - centre), x)
    back = centre + (x - centre - shift) / stretch
    first, other = (1 - share) * norm.pdf(x, centre, 1.3), share / stretch * norm.pdf(back, centre, 1.3)
    return x, logit((first * expit(x) + other * expit(back)) / (first + other))


def _reshape(
    shape: str, x: Array, odds: Array, centre: float, random: np.random.Generator
) -> tuple[Array, Array]:
    """Change log-odds of scores, and of the truth, in one way."""
    at, move = centre + random.normal(0, 1.3), random.normal(0, 3)
    if shape == "wave":
        return x, odds + random.uniform(0.3, 1.5) * np.sin(random.uniform(1, 4) * x + random.uniform(0, 6))
    if shape == "step":
        return x, odds + random.uniform(0.5, 3) * (x > at)
    if shape == "dip":
        inside = (x > at) & (x < at + random.uniform(0.1, 1))
        return x, np.where(inside, odds - random.uniform(1, 5), odds)
    if shape == "plateau":
        return x, np.where((x > at) & (x < at + 1.5), at, odds)
    if shape == "two models":
        return _two_models(x, centre, move / 3, random)
    if shape == "truncated":
        return np.clip(x, centre - 1, centre + random.uniform(0.5, 1.5)), odds
    if shape == "rounded":
        return logit(np.clip(np.round(expit(x), 2), 0.001, 0.999)), odds
    for _ in range(4 if shape == "several fallbacks" else 1):
        share = 0.04 if shape == "several fallbacks" else random.choice([0.01, 0.03, 0.1, 0.3])
        some = random.random(x.size) < share
        x, odds = np.where(some, at, x), np.where(some, at + move, odds)
        at, move = centre + random.normal(0, 1.3), random.normal(0, 1.5)
    return x, odds


def divergence(log: Log, p: np.ndarray) -> float:
    """Return the mean divergence from the truth over rows of ordinary segments, nats.

    Without segments the excess over the best map that rises.
    """
    ordinary = np.isfinite(log.truth)
    truth, weight = log.truth[ordinary], np.ones(int(ordinary.sum()))
    if log.weight is not None:
        weight = log.weight[ordinary]
    loss = _divergence(truth, p[ordinary], weight)
    if log.segment is None:
        rising = IsotonicRegression(y_min=1e-12, y_max=1 - 1e-12).fit(log.score, truth, sample_weight=weight)
        loss -= _divergence(truth, rising.predict(log.score), weight)
    return loss


def _divergence(truth: np.ndarray, p: np.ndarray, weight: np.ndarray) -> float:
    p, truth = np.clip(p, 1e-12, 1 - 1e-12), np.clip(truth, 1e-12, 1 - 1e-12)
    losses = truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))
    return float(np.average(losses, weights=weight))


def reference(log: Log) -> float:
    """Return the divergence of the best of one isotonic map, and one per segment, by one column or by two."""
    one = _isotonic(log, np.full(log.score.size, True), np.full(log.score.size, np.nan))
    if log.segment is None:
        return divergence(log, one)
    leaves = [log.segment]
    if log.second is not None:
        leaves.append(log.segment * (log.second.max() + 1) + log.second)
    return min(divergence(log, one), *(divergence(log, _own_maps(log, leaf, one)) for leaf in leaves))


def _own_maps(log: Log, leaf: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Return predictions of an isotonic map per segment; those of one map where a segment has one label."""
    own = one.copy()
    for segment in np.unique(leaf[np.isfinite(log.truth)]):
        _isotonic(log, leaf == segment, own)
    return own


def _isotonic(log: Log, rows: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Fill in isotonic predictions of some rows, if these have both labels."""
    if 0 < log.label[rows].sum() < rows.sum():
        weight = None if log.weight is None else log.weight[rows]
        p[rows] = logcal.Isotonic().fit(log.score[rows], log.label[rows], weight).predict(log.score[rows])
    return p


def fitted(log: Log, method: str, folder: Path) -> np.ndarray | str:
    """Fit a log with the job; return each row's probability, or the reason why nothing was published."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "log").mkdir(parents=True)
    columns = {"score": log.score, "label": log.label.astype(np.int8)}
    settings: dict[str, Any] = {"path": str(folder / "log"), **log.settings}
    if log.weight is not None and "negative_sampling_rate" not in settings:
        columns["weight"], settings["weight"] = log.weight, "weight"
    named = {"segment": log.segment, "second": log.second}
    segments = {name: column for name, column in named.items() if column is not None}
    if segments:
        columns, settings["segment"] = columns | segments, list(segments)
    pq.write_table(pa.table(columns), folder / "log" / "part-0.parquet")
    config = {
        "log": settings,
        "store": {"path": str(folder / "store"), "table": "t"},
        "calibrator": {"method": method},
        "gate": {"min_rows": 0, "min_positives": 0, "ranking": False},
        "cluster": {"kind": "threads", "workers": 1},
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logcal.run("fit", config)
    except LogcalError as error:
        return str(error).splitlines()[0]
    table = logcal.load(str(folder / "store"), "t")
    return table.predict(log.score, segments or None)


def totals(log: Log, p: np.ndarray) -> tuple[float, float]:
    """Return expected over observed positives, minus 1: of all rows, and of the first column's worst large segment."""
    weight = np.ones(p.size) if log.weight is None else log.weight
    of_all = float((weight * p).sum() / (weight * log.label).sum() - 1)
    if log.segment is None:
        return of_all, 0.0
    rows, positives = np.bincount(log.segment), np.bincount(log.segment, log.label)
    large = np.minimum(positives, rows - positives) >= LARGE
    if not large.any():
        return of_all, 0.0
    ratio = (
        np.bincount(log.segment, weight * p)[large] / np.bincount(log.segment, weight * log.label)[large] - 1
    )
    return of_all, float(ratio[np.argmax(np.abs(ratio))])
