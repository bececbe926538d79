"""Tables that the papers do not have: a comparison of all methods, by size, and with the choice of `auto`."""

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
from calibrators.auto.calibrator import CANDIDATES

PAIR = ["set", "classifier"]
"""Columns that identify a pair of a data set and a classifier."""
LEVEL = 0.05
"""Level of the sign test for a lower loss on most pairs."""


def loss_table(results: pd.DataFrame) -> RankTable | None:
    """Make the table of ranks by held-out log loss, and its mean, over all sets and classifiers."""
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


def _pivot(results: pd.DataFrame, measure: str, methods: tuple[str, ...]) -> pd.DataFrame:
    return results.pivot_table(index=PAIR, columns="method", values=measure, aggfunc="mean", sort=True)[
        list(methods)
    ]


def auto_table(results: pd.DataFrame) -> Table | None:
    """Make the table of `auto`, the choice by cross-validated log loss, against always using one method."""
    rows = []
    for experiment, label in (
        ("real", "calibrated on the training rows"),
        ("sizes", "calibrated on held-out rows"),
    ):
        chosen = results[results.experiment == experiment]
        if chosen.empty:
            continue
        rows.append((label, _choice_row(chosen)))
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


def _choice_row(results: pd.DataFrame) -> tuple[Cell | str, ...]:
    losses = results.pivot_table(index=[*PAIR, "run", "fold"], columns="method", values="log_loss", sort=True)
    singles = list(CANDIDATES)
    losses["after the fact"] = losses[singles].min(axis=1)
    # Average within pairs first: pairs with more runs must not have more weight.
    by_pair = losses.groupby(level=PAIR).mean()
    best = min(singles, key=lambda name: float(by_pair[name].mean()))
    chosen = results[results.method == "auto"].chosen.value_counts(normalize=True)
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
    """Make tables of held-out log loss by number of calibration rows, and of the size from which each method wins."""
    chosen = results[results.experiment == "sizes"]
    if chosen.empty:
        return []
    chosen = chosen.assign(size=[SIZES[fold] for fold in chosen.fold])
    sizes = sorted(chosen["size"].unique())
    rows, starts = [], []
    excess = {size: _excess(chosen[chosen["size"] == size], "base") for size in sizes}
    wins = {
        over: {size: _wins(chosen[chosen["size"] == size], over) for size in sizes}
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
    pairs = {size: len(chosen[chosen["size"] == size].groupby(PAIR)) for size in sizes}
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


def _excess(results: pd.DataFrame, over: str) -> dict[str, tuple[float, float]]:
    losses = results.pivot_table(index=PAIR, columns="method", values="log_loss", aggfunc="mean", sort=True)
    return {name: mean_and_error(losses[name] - losses[over]) for name in losses.columns}


def _wins(results: pd.DataFrame, over: str) -> dict[str, tuple[int, int]]:
    """Return for each method the number of pairs on which its loss is lower, and the number of pairs."""
    losses = results.pivot_table(index=PAIR, columns="method", values="log_loss", aggfunc="mean", sort=True)
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
    """Make the table of run times by number of observations."""
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
    """Make the table of data sets: rows used, runs, and classifiers whose training did not converge."""
    rows = []
    for (name,), runs in results[results.experiment == "real"].groupby(["set"]):
        first = runs[(runs.run == runs.run.min()) & (runs.method == "base")]
        used = first[first.classifier == first.classifier.iloc[0]].n_test.sum()
        unfinished = runs[(runs.method == "base") & ~runs.converged].classifier.value_counts()
        folds = ", ".join(f"{key}: {count} folds" for key, count in sorted(unfinished.items()))
        cells = (f"{used:,}", str(runs.run.nunique()), str(runs.fold.nunique()), folds)
        rows.append((str(name), cells))
    return Table(
        name="Data sets of the cross-validation",
        title="What was run",
        columns=("", "rows", "runs", "folds", "training not converged"),
        rows=tuple(rows),
    )
