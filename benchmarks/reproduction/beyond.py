"""What none of the papers has: all methods on the same footing, by size, and what choosing by data would reach."""

from __future__ import annotations

from typing import Any

import pandas as pd
from scipy.stats import binomtest

from benchmarks.reproduction.experiments import REAL, SIZES, SIZES_METHODS
from benchmarks.reproduction.methods import CLIP
from benchmarks.reproduction.methods import NAMES as METHODS
from benchmarks.reproduction.ranks import rank_methods
from benchmarks.reproduction.tables import Cell, RankTable, Table, mean_and_error
from benchmarks.reproduction.times import REPEATS
from calibrators.methods.auto import CANDIDATES

Place = ["set", "classifier"]
LEVEL = 0.05
"""A method wins where it has the lower loss for so many pairs that a fair coin would have done so more rarely."""


def loss_table(results: pd.DataFrame) -> RankTable | None:
    """Ranks by held-out log loss, and its mean, over all sets and classifiers."""
    real = results[results.experiment == "real"]
    if real.empty:
        return None
    losses = _pivot(real, "log_loss", REAL)
    if len(losses) < 2:
        return None
    ranking = rank_methods(REAL, losses, higher_is_better=False)
    brier = _pivot(real.assign(brier=real.rmse**2), "brier", REAL)
    errors = _pivot(real, "ece", REAL)
    infinite = _pivot(real.assign(share=real.infinite / real.n_test), "share", REAL).mean()
    marks = ranking.marks("auto")
    rows = [
        (
            METHODS[method],
            (
                Cell(None, ranking.mean[method], ranking.standard_error[method], "", marks[method]),
                Cell(None, *mean_and_error(losses[method])),
                Cell(None, *mean_and_error(brier[method])),
                Cell(None, *mean_and_error(errors[method])),
                f"{infinite[method]:.3%}",
            ),
        )
        for method in sorted(REAL, key=lambda name: ranking.mean[name])
    ]
    table = Table(
        name="Beyond: all methods",
        title="Held-out log loss on all data sets and classifiers, calibrated on the training rows",
        columns=(
            "",
            "average rank",
            "mean log loss",
            "mean Brier score",
            "mean ECE",
            "rows given probability 0",
        ),
        rows=tuple(rows),
        notes=(
            f"Over {len(losses)} pairs of a data set and a classifier; ± is the standard error over them.",
            f"Probabilities are kept {CLIP:g} from 0 and 1 before the log loss is taken.",
            "The last column is the share of test rows whose label was given probability 0, the mean over the pairs.",
            "*: auto is significantly better than this method, ⊛: worse (Friedman, then Holm, at 0.05).",
        ),
    )
    return RankTable(table, {"log_loss": ranking}, "auto")


def _pivot(found: pd.DataFrame, measure: str, methods: tuple[str, ...]) -> pd.DataFrame:
    return found.pivot_table(index=Place, columns="method", values=measure, aggfunc="mean", sort=True)[
        list(methods)
    ]


def auto_table(results: pd.DataFrame) -> Table | None:
    """What the choice by cross-validated log loss reached, beside always taking one method."""
    rows = []
    for experiment, label in (
        ("real", "calibrated on the training rows"),
        ("sizes", "calibrated on held-out rows"),
    ):
        found = results[results.experiment == experiment]
        if found.empty:
            continue
        rows.append((label, _choice_row(found)))
    if not rows:
        return None
    return Table(
        name="Beyond: auto",
        title="Mean held-out log loss of the choice by cross-validated log loss",
        columns=(
            "",
            "auto",
            "best single method",
            "auto less that",
            "best after the fact",
            "no calibration",
            "what auto chose",
        ),
        rows=tuple(rows),
        digits=4,
        notes=(
            "Means over the pairs of a data set and a classifier, and their standard errors.",
            "Best single method: of the candidates, the one with the least mean.",
            "Best after the fact: the candidate with the least loss on each fold's test rows, which nobody knows.",
        ),
    )


def _choice_row(found: pd.DataFrame) -> tuple[Cell | str, ...]:
    losses = found.pivot_table(index=[*Place, "run", "fold"], columns="method", values="log_loss", sort=True)
    singles = list(CANDIDATES)
    losses["after the fact"] = losses[singles].min(axis=1)
    # Pairs with more runs do not count more.
    by_pair = losses.groupby(level=Place).mean()
    best = min(singles, key=lambda name: float(by_pair[name].mean()))
    chosen = found[found.method == "auto"].chosen.value_counts(normalize=True)
    return (
        *(
            Cell(None, *mean_and_error(values), mark=mark)
            for values, mark in (
                (by_pair.auto, ""),
                (by_pair[best], f" ({METHODS[best]})"),
                (by_pair.auto - by_pair[best], ""),
                (by_pair["after the fact"], ""),
                (by_pair.base, ""),
            )
        ),
        ", ".join(f"{METHODS[name]} {share:.0%}" for name, share in sorted(chosen.items())),
    )


def size_tables(results: pd.DataFrame) -> list[Table]:
    """Held-out log loss against the number of rows to calibrate with, and where each method starts to win."""
    found = results[results.experiment == "sizes"]
    if found.empty:
        return []
    found = found.assign(size=[SIZES[fold] for fold in found.fold])
    sizes = sorted(found["size"].unique())
    rows, starts = [], []
    excess = {size: _excess(found[found["size"] == size], "base") for size in sizes}
    wins = {
        over: {size: _wins(found[found["size"] == size], over) for size in sizes}
        for over in ("base", "platt")
    }
    for method in SIZES_METHODS[1:]:
        cells = tuple(Cell(None, *excess[size][method]) for size in sizes)
        rows.append((METHODS[method], cells))
        starts.append(
            (
                METHODS[method],
                (
                    _start(wins["base"], method, sizes),
                    "–" if method == "platt" else _start(wins["platt"], method, sizes),
                ),
            )
        )
    pairs = {size: len(found[found["size"] == size].groupby(Place)) for size in sizes}
    heads = tuple(f"{size:,} rows ({pairs[size]} pairs)" for size in sizes)
    best = Table(
        name="Beyond: sizes",
        title="Mean excess of held-out log loss over no calibration, by rows to calibrate with",
        columns=("", *heads),
        rows=tuple(rows),
        notes=(
            "Calibrated on rows that the classifier was not trained on; negative is better.",
            "Pairs of a data set and a classifier: larger sizes have fewer.",
        ),
        digits=4,
    )
    start = Table(
        name="Beyond: where each method starts to win",
        title="The least number of rows from which on a method's log loss is lower for significantly many pairs",
        columns=("", "than without calibration", "than with Platt"),
        rows=tuple(starts),
        notes=(
            "One-sided sign test over the pairs, at 0.05; and for more than half of the pairs at all larger sizes.",
            "In brackets: pairs with the lower loss, of all pairs, at that size; where there is none, at the largest.",
        ),
    )
    return [best, start]


def _excess(found: pd.DataFrame, over: str) -> dict[str, tuple[float, float]]:
    losses = found.pivot_table(index=Place, columns="method", values="log_loss", aggfunc="mean", sort=True)
    return {name: mean_and_error(losses[name] - losses[over]) for name in losses.columns}


def _wins(found: pd.DataFrame, over: str) -> dict[str, tuple[int, int]]:
    """By method: for how many pairs its loss is lower, of how many."""
    losses = found.pivot_table(index=Place, columns="method", values="log_loss", aggfunc="mean", sort=True)
    return {name: (int((losses[name] < losses[over]).sum()), len(losses)) for name in losses.columns}


def _start(wins: dict[int, dict[str, tuple[int, int]]], method: str, sizes: list[int]) -> str:
    start = None
    for size in reversed(sizes):
        won, pairs = wins[size][method]
        if 2 * won <= pairs:
            break
        if binomtest(won, pairs, alternative="greater").pvalue < LEVEL:
            start = size
    won, pairs = wins[start or sizes[-1]][method]
    return f"{f'{start:,}' if start else 'at no size measured'} ({won} of {pairs})"


def time_table(times: list[dict[str, Any]]) -> Table | None:
    """Measured run times against the number of observations."""
    if not times:
        return None
    sizes = sorted({row["n"] for row in times})
    by = {(row["method"], row["n"]): row for row in times}
    methods = list(dict.fromkeys(row["method"] for row in times))
    rows = tuple(
        (
            METHODS[method],
            (
                *(_seconds(by[method, n]["fit"]) for n in sizes),
                _seconds(by[method, sizes[-1]]["elapsed"]),
                f"{by[method, sizes[-1]]['predict'] * 1e9:.0f} ns",
            ),
        )
        for method in methods
    )
    return Table(
        name="enir: Table VII (section IV-C), measured",
        title="Time to fit N observations with distinct scores, and to calibrate one score",
        columns=(
            "",
            *(f"N = {n:,}" for n in sizes),
            f"elapsed, N = {sizes[-1]:,}",
            f"a score, N = {sizes[-1]:,}",
        ),
        rows=rows,
        notes=(
            "The paper: training O(N T) for Platt, O(N log N) for Hist, IsoRegC, ACP, BBQ and ENIR, O(N^2) for ABB.",
            f"Processor time over all threads, in memory: the least of {REPEATS} times; elapsed: by the clock.",
            "SBB and ABB have at most 2,000 cuts, so they do not grow as N^2 beyond.",
        ),
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def data_table(results: pd.DataFrame) -> Table:
    """The data sets of the cross-validation: rows used, runs, and classifiers whose training did not converge."""
    rows = []
    for (name,), found in results[results.experiment == "real"].groupby(["set"]):
        first = found[(found.run == found.run.min()) & (found.method == "base")]
        used = first[first.classifier == first.classifier.iloc[0]].n_test.sum()
        unfinished = found[(found.method == "base") & ~found.converged].classifier.value_counts()
        said = ", ".join(f"{key}: {count} folds" for key, count in sorted(unfinished.items()))
        rows.append((str(name), (f"{used:,}", str(found.run.nunique()), str(found.fold.nunique()), said)))
    return Table(
        name="Data sets of the cross-validation",
        title="What was run",
        columns=("", "rows", "runs", "folds", "training not converged"),
        rows=tuple(rows),
    )
