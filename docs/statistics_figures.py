"""Figures of docs/statistics.md and of the peers in docs/benchmarks.md; `docs/figures.py` draws them."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

from calibrators import Isotonic, collapse
from calibrators.core.intervals import band, cell_passes, venn_abers_pass
from calibrators.core.passes import Points, run_in_memory
from calibrators.measures.drift import DriftState, evidence_pass

ALPHA = 0.01


def interval(figure: Any, colors: dict[str, str]) -> None:
    """Draw the true probabilities, the map, its band, and the Venn-Abers interval."""
    rng = np.random.default_rng(1)
    score = np.sort(rng.normal(0, 1, 20_000))

    def truth(s: Any) -> Any:
        return expit(-3.5 + 1.5 * s)

    points = collapse(score, rng.random(score.size) < truth(score))
    fitted = Isotonic().fit_points(points).calibration_map_
    request = venn_abers_pass(fitted)
    cells = run_in_memory(cell_passes(), points)
    venn = request.combine([request.chunk(points)])
    banded = band(fitted, cells)
    at = np.linspace(-3, 3.2, 800)
    row = np.searchsorted(fitted.score_hi[:-1], at, side="right")
    axes = figure.add_subplot()
    assert banded is not None
    axes.fill_between(
        at, banded.lower[row], banded.upper[row], color=colors["after"], alpha=0.2, lw=0, label="band, 95 %"
    )
    axes.fill_between(
        at, venn.lower[row], venn.upper[row], color=colors["before"], alpha=0.6, lw=0, label="Venn-Abers"
    )
    axes.plot(at, fitted.predict(at), color=colors["after"], lw=1.6, label="the table")
    axes.plot(at, truth(at), color=colors["ink"], lw=1.2, ls="--", label="the truth")
    axes.set(xlabel="Score", ylabel="Probability of label 1", yscale="log", ylim=(2e-5, 1))
    axes.legend(frameon=False, loc="upper left")


def drift(figure: Any, colors: dict[str, str]) -> None:
    """Draw daily e-values of a table that stays calibrated, and of tables whose odds change on day 60."""
    p = expit(np.linspace(-7, -2, 20))
    rows = np.full(20, 250)
    axes = figure.add_subplot()
    shown = (
        (0.0, colors["muted"], "right"),
        (math.log(1.25), colors["after"], "odds 1.25 times as high from day 60"),
        (math.log(1.5), colors["before"], "1.5 times"),
    )
    for change, color, label in shown:
        rng, state, evidence = np.random.default_rng(3), DriftState(), []
        for day in range(120):
            k = rng.binomial(rows, expit(logit(p) + (change if day >= 60 else 0.0)))
            request = evidence_pass(None)
            state = state.after(
                request.combine([request.chunk(Points(p, rows.astype(float), k.astype(float)))])
            )
            evidence.append(math.exp(min(state.log_e, 30.0)))
        axes.plot(np.arange(1, 121), evidence, color=color, lw=1.6, label=label)
    axes.axhline(1 / ALPHA, color=colors["ink"], lw=1, ls="--")
    axes.annotate("alarm", (1, 1.25 / ALPHA))
    axes.set(
        xlabel=f"Day, {rows.sum():,} rows each, {100 * p.mean():.0f} % positive",
        ylabel="Evidence (e-value)",
        yscale="log",
    )
    axes.set_ylim(1e-2, 1e6)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))


def peers(figure: Any, colors: dict[str, str]) -> None:
    """Draw the seconds of the tasks by rows, from docs/figures/peers.csv (`benchmarks/statistics_peers.py`)."""
    table: dict[str, list[tuple[str, list[float]]]] = {}
    with (Path(__file__).parent / "figures" / "peers.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            seconds = [float(row[str(rows)] or "nan") for rows in (10**4, 10**5, 10**6, 10**7)]
            table.setdefault(row["task"], []).append((row["who"], seconds))
    others = [colors["before"], colors["muted"]]
    grid = figure.subplots(2, -(-len(table) // 2), sharex=True, sharey=True).ravel()
    for axes, (task, packages) in zip(grid, table.items(), strict=False):
        for i, (package, seconds) in enumerate(packages):
            color = colors["after"] if package == "logcal" else others[i - 1]
            axes.plot([1e4, 1e5, 1e6, 1e7], seconds, color=color, lw=1.6, marker="o", ms=4, label=package)
        axes.set(xscale="log", yscale="log")
        axes.set_title(task, fontsize=10)
        axes.legend(frameon=False, fontsize=9)
    for axes in grid[len(table) :]:
        axes.set_visible(False)
        grid[list(grid).index(axes) - grid.size // 2].tick_params(labelbottom=True)
    figure.supxlabel("Rows", color=colors["ink"])
    figure.supylabel("Seconds", color=colors["ink"])
