"""Tables that compare the papers' results with ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.reproduction.classifiers import NAMES as CLASSIFIERS
from benchmarks.reproduction.experiments import ANEW
from benchmarks.reproduction.methods import NAMES as METHODS
from benchmarks.reproduction.paper_tables import SETS, paper_tables
from benchmarks.reproduction.ranks import Ranking, rank_methods, relative_gain, welch_t_test

MEASURES = {
    "auc": "AUC",
    "accuracy": "ACC",
    "rmse": "RMSE",
    "ece": "ECE",
    "mce": "MCE",
    "ece_width": "ECE, equal width",
    "mce_width": "MCE, equal width",
    "ece_label": "ECE, ties by label",
    "mce_label": "MCE, ties by label",
    "ece_root": "√(ECE / 10), ties by label",
    "log_loss": "log loss",
}
HIGHER = frozenset({"auc", "accuracy"})
RESAMPLED = frozenset({"simulated_bbq", "spect"})
"""Sets with a given test part: run 0 uses the test part, the other runs resamples of it."""

AUTHORS = {"bbq": "bbq_authors", "enir": "enir_authors"}


@dataclass(frozen=True)
class Cell:
    """Cell with a paper's number and ours.

    Attributes
    ----------
    published, ours, error : float or None; error is the standard error of ours
    published_mark, mark : marks of significance
    """

    published: float | None = None
    ours: float | None = None
    error: float | None = None
    published_mark: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes
    ----------
    name : name of the paper's table, or of ours
    title : title
    columns : headings; the first one is that of the rows' names
    rows : name and cells (Cell, or text) of each row
    notes : notes below the table
    digits : decimals of the numbers
    figures : file names of the table's figures
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | str, ...]], ...]
    notes: tuple[str, ...] = ()
    digits: int = 3
    figures: tuple[str, ...] = field(default=())


def mean_and_error(values: Any) -> tuple[float, float]:
    """Return the mean and its standard error (NaN for fewer than two values)."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else math.nan
    return float(array.mean()), error


def value_tables(results: pd.DataFrame) -> list[Table]:
    """Make the tables of measures on one data set."""
    wanted = []
    for published in paper_tables()["values"]:
        wanted.append(published)
        if published["set"] == "simulated_bbq":
            title = published["title"].replace("Simulated points", "Points simulated anew in each run")
            wanted.append({**published, "set": ANEW, "title": title})
    return [table for published in wanted if (table := _values(published, results)) is not None]


def _values(published: dict[str, Any], results: pd.DataFrame) -> Table | None:
    chosen = results[
        (results.experiment == published["experiment"])
        & (results.set == published["set"])
        & (results.classifier == published["classifier"])
    ]
    if chosen.empty:
        return None
    extra = [AUTHORS[name] for name in published["methods"] if name in AUTHORS]
    methods = [*published["methods"], *extra]
    chosen = chosen.assign(ece_root=np.sqrt(chosen.ece_label / 10))
    rows = []
    for measure, numbers in _with_variants(published["rows"]):
        cells = [
            Cell(number, *_over_runs(chosen, published["set"], method, measure))
            for method, number in zip(methods, [*numbers, *[None] * len(extra)], strict=True)
        ]
        rows.append((_label(measure, published["rows"]), tuple(cells)))
    return Table(
        name=_name(published),
        title=published["title"],
        columns=("", *(METHODS[method] for method in methods)),
        rows=tuple(rows),
        notes=(_run_note(published["set"], chosen),),
    )


def _with_variants(rows: dict[str, list[float]]) -> list[tuple[str, Sequence[float | None]]]:
    """Return the paper's measures, and other definitions of its calibration errors.

    Papers whose text describes equal-width bins print numbers of equal-frequency groups that cut ties by label; their
    ECE is the square root of a tenth of it.
    """
    unpublished: list[float | None] = [None] * len(next(iter(rows.values())))
    variants: list[tuple[str, Sequence[float | None]]] = [*rows.items()]
    for measure in ("ece", "mce"):
        if measure in rows:
            variants += [(f"{measure}_label", rows[measure]), (f"{measure}_width", unpublished)]
        elif f"{measure}_width" in rows:
            fitting = "ece_root" if measure == "ece" else "mce_label"
            variants += [(fitting, rows[f"{measure}_width"]), (measure, unpublished)]
    return variants


def _label(measure: str, rows: Any) -> str:
    # Equal width is the default in papers that use it, so the label names the other kind.
    if "ece_width" in rows and measure in ("ece", "mce"):
        return f"{MEASURES[measure]}, equal frequency"
    return MEASURES[measure]


def _name(published: dict[str, Any]) -> str:
    return f"{published['paper']}: {published['table']} ({published['place']})"


def _run_note(name: str, results: pd.DataFrame) -> str:
    runs = results.run.nunique()
    if name in RESAMPLED:
        return (
            "Ours: the test part once; the standard error is the standard deviation over "
            f"{runs - 1} resamples of its rows with replacement, label by label."
        )
    return f"Ours: mean over {runs} runs and its standard error."


def _over_runs(
    results: pd.DataFrame, name: str, method: str, measure: str
) -> tuple[float | None, float | None]:
    rows = results[results.method == method].sort_values("run")
    if rows.empty:
        return None, None
    values = rows[measure].to_numpy()
    if name in RESAMPLED:
        return float(values[0]), float(values[1:].std(ddof=1)) if values.size > 2 else None
    return mean_and_error(values)


def generated_tables(results: pd.DataFrame) -> list[Table]:
    """Make the tables that compare DG and DGG with Raw and IR."""
    chosen = results[results.experiment == "generated"]
    return [
        _generated(published, chosen[chosen.set == published["set"]])
        for published in paper_tables()["generated"]
        if (chosen.set == published["set"]).any()
    ]


_SCHEMES = ("raw", "ir", "dg", "dgg_generated")


def _generated(published: dict[str, Any], results: pd.DataFrame) -> Table:
    samples = {
        method: {
            "rate": rows.rate.to_numpy(),
            "log_loss": 2 * rows.log_loss.to_numpy(),
            "mse": 2 * rows.rmse.to_numpy() ** 2,
        }
        for method, rows in results.sort_values("run").groupby("method")
    }
    table_rows = []
    for i, method in enumerate(_SCHEMES):
        cells = []
        for column in ("rate", "log_loss", "mse"):
            marks = published.get(f"{column}_marks", [""] * len(_SCHEMES))
            mark = "" if column == "rate" else _lower_marks(samples, method, column)
            cells.append(Cell(published[column][i], *mean_and_error(samples[method][column]), marks[i], mark))
        table_rows.append((METHODS[method], tuple(cells)))
    return Table(
        name=_name(published),
        title=f"{published['title']}: naive Bayes",
        columns=("", "classification rate", "log loss", "MSE"),
        rows=tuple(table_rows),
        notes=(
            f"Ours: mean over {results.run.nunique()} runs and its standard error.",
            "Log loss and MSE count both classes' columns, as the paper's do: twice those of one probability.",
            "Significantly lower than Raw: * p < 0.05, ** p < 0.01; than IR: † p < 0.05, ‡ p < 0.01 (Welch).",
        ),
    )


def _lower_marks(samples: dict[str, Any], method: str, column: str) -> str:
    mark = ""
    for other, weak, strong in (("raw", "*", "**"), ("ir", "†", "‡")):
        if method == other or samples[method][column].size < 2:
            continue
        test = welch_t_test(samples[method][column], samples[other][column])
        if test.t < 0 and test.p_value < 0.05:
            mark += strong if test.p_value < 0.01 else weak
    return mark


@dataclass(frozen=True)
class RankTable:
    """Table of ranks, with the rankings for its figure."""

    table: Table
    rankings: dict[str, Ranking]
    target: str


def rank_tables(results: pd.DataFrame) -> list[RankTable]:
    """Make the tables of average ranks over the papers' data sets, also with the authors' variants of the methods."""
    real = results[results.experiment == "real"]
    tables = []
    for published in paper_tables()["ranks"]:
        for variant in (False, True):
            table = _ranks(published, real, variant=variant)
            if table is not None:
                tables.append(table)
    return tables


def by_set(real: pd.DataFrame, classifier: str, sets: Sequence[str], measure: str) -> pd.DataFrame:
    """Return a measure's mean over runs and folds: a row per set, a column per method."""
    chosen = real[(real.classifier == classifier) & real.set.isin(sets)]
    return chosen.pivot_table(index="set", columns="method", values=measure, aggfunc="mean", sort=True)


_RANKED = ("auc", "accuracy", "rmse", "ece", "mce", "ece_label", "mce_label", "ece_width", "mce_width")


def _ranks(published: dict[str, Any], real: pd.DataFrame, *, variant: bool) -> RankTable | None:
    classifier, target = published["classifier"], published["target"]
    methods = list(published["methods"])
    if variant:
        methods = [AUTHORS.get(method, method) for method in methods]
        target = AUTHORS[target]
    rankings, rows = {}, []
    for measure in _RANKED:
        values = by_set(real, classifier, SETS[published["sets"]], measure)
        if len(values) < 2:
            return None
        ranked = [m for m in methods if not (measure == "auc" and m == "platt")]
        ranking = rank_methods(ranked, values[ranked], higher_is_better=measure in HIGHER)
        rankings[measure] = ranking
        rows.append(_rank_row(published, measure, methods, ranking, target))
    label = "as their authors' code has them" if variant else "as their papers have them"
    table = Table(
        name=_name(published),
        title=f"Average ranks, {CLASSIFIERS[classifier]}; methods {label}",
        columns=("", *(METHODS[method] for method in methods), "Friedman's p"),
        rows=tuple(rows),
        notes=(
            f"Over {len(values)} data sets; ± is the standard error over them.",
            f"*: {METHODS[target]} is significantly better than this method, ⊛: worse (Friedman, then Holm, at 0.05).",
        ),
    )
    return RankTable(table, rankings, target)


def _rank_row(
    published: dict[str, Any],
    measure: str,
    methods: list[str],
    ranking: Ranking,
    target: str,
) -> tuple[str, tuple[Cell | str, ...]]:
    paper_measure = measure.removesuffix("_label")
    numbers = published["rows"].get(paper_measure, [None] * len(methods))
    printed = published["marks"].get(paper_measure, [""] * len(methods))
    mean, error, marks = ranking.mean, ranking.standard_error, ranking.marks(target)
    cells: list[Cell | str] = []
    for method, number, mark in zip(methods, numbers, printed, strict=True):
        if method not in mean:
            cells.append("not compared")
            continue
        cells.append(Cell(number, mean[method], error[method], mark or "", marks[method]))
    p_value = ranking.friedman().p_value
    return MEASURES[measure], (*cells, "<0.001" if p_value < 0.001 else f"{p_value:.3f}")


def gain_tables(results: pd.DataFrame) -> list[Table]:
    """Make tables of 95 % intervals of the mean relative gain over the classifier, also for the authors' variant."""
    tables = [_gains(results, variant=variant) for variant in (False, True)]
    return [table for table in tables if table is not None]


def _gains(results: pd.DataFrame, *, variant: bool) -> Table | None:
    published = paper_tables()["gains"]
    method = AUTHORS[published["method"]] if variant else published["method"]
    real = results[results.experiment == "real"]
    rows = []
    intervals_of = published["rows"]
    for measure in (*intervals_of, "ece_label", "mce_label"):
        intervals = intervals_of[measure.removesuffix("_label")]
        cells = []
        for classifier, (low, high) in intervals.items():
            values = by_set(real, classifier, SETS[published["sets"]], measure)
            if len(values) < 2:
                return None
            gain, left_out = relative_gain(values[method], values["base"])
            without = f" (without {left_out})" if left_out else ""
            cells.append(f"[{low:.3f}, {high:.3f}] / [{gain.low:.3f}, {gain.high:.3f}]{without}")
        rows.append((MEASURES[measure], tuple(cells)))
    return Table(
        name=_name(published),
        title=f"Relative gain of {METHODS[method]} over the classifier: 95 % intervals of the mean, paper / ours",
        columns=("", *(CLASSIFIERS[c] for c in published["rows"]["auc"])),
        rows=tuple(rows),
        notes=(
            "Negative is better for RMSE, ECE and MCE; without data sets where the classifier's measure is 0.",
        ),
    )
