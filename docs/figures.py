"""Draw the documents' figures, in light and dark: python docs/figures.py writes docs/figures/."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq
import statistics_figures

import logcal
from calibrators import BBQ, Auto, Beta, Isotonic, Platt, Smooth
from calibrators.auto.cross_validation import CrossValidation, cross_validate
from calibrators.core.passes import collapse
from jobs.demo import write_logs

FOLDER = Path(__file__).parent / "figures"

LIGHT = {"ink": "#2b3138", "before": "#b8501f", "after": "#1f5f99", "muted": "#8a929b"}
DARK = {"ink": "#e4e8ec", "before": "#f0975f", "after": "#79b5ef", "muted": "#7c8792"}

Log = tuple[Any, Any]


def draw(name: str, size: tuple[float, float], picture: Callable[[Any, dict[str, str]], None]) -> None:
    """Write a figure in both palettes."""
    for palette, colors in (("light", LIGHT), ("dark", DARK)):
        style = {
            "svg.hashsalt": "logcal", "font.size": 10, "figure.facecolor": "none", "axes.facecolor": "none",
            "savefig.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False,
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colors["ink"]),
            "axes.edgecolor": colors["muted"],
        }  # fmt: skip
        with mpl.rc_context(style):
            figure = plt.figure(figsize=size, layout="constrained")
            picture(figure, colors)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
            plt.close(figure)
        FOLDER.mkdir(exist_ok=True)
        text = re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.MULTILINE)
        (FOLDER / f"{name}-{palette}.svg").write_text(text, encoding="utf-8")


def reliability(figure: Any, colors: dict[str, str], fitted: Log, held_out: Log) -> None:
    """Draw the reliability diagrams before and after calibration, on one pair of axes."""
    axes = figure.add_subplot()
    _reliability(axes, colors, fitted, held_out)


def _reliability(axes: Any, colors: dict[str, str], fitted: Log, held_out: Log) -> None:
    scores, labels = held_out
    display = logcal.ReliabilityDisplay
    display.from_predictions(labels, scores, name="before calibration", ax=axes, color=colors["before"])
    calibrated = Auto().fit(*fitted).predict(scores)
    display.from_predictions(labels, calibrated, name="after calibration", ax=axes, color=colors["after"])


def displays(figure: Any, colors: dict[str, str], fitted: Log, held_out: Log) -> None:
    """Draw the reliability diagram and the map."""
    left, right = figure.subplots(1, 2)
    _reliability(left, colors, fitted, held_out)
    map_ = Auto().fit(*fitted)
    logcal.MapDisplay.from_calibrator(map_, ax=right, color=colors["after"], name="calibration map")


def compare(figure: Any, colors: dict[str, str], comparison: CrossValidation) -> None:
    """Draw log losses above the best method's."""
    axes = figure.add_subplot()
    best = comparison.best("log_loss")
    shown = [m for m in comparison.methods if m.name != "before"]
    for y, method in enumerate(shown):
        estimate = method.estimates["log_loss"]
        color = colors["after"] if method.name == best else colors["muted"]
        if estimate.excess is None or estimate.excess_error is None:
            continue
        error = estimate.excess_error
        axes.hlines(y, max(0, estimate.excess - error), estimate.excess + error, color=color, lw=1.8)
        axes.scatter([estimate.excess], [y], color=color, s=45, zorder=3)
    axes.set_yticks(range(len(shown)), [m.name for m in shown])
    axes.invert_yaxis()
    axes.set_xlabel("Log loss above the best method's, on held-out rows")


def main() -> None:
    """Draw all figures from the demo's log."""
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder))
        logs = [pq.read_table(Path(folder) / "log" / name) for name in ("calibration", "held-out")]
    fitted, held_out = ((log["score"].to_numpy(), np.asarray(log["label"])) for log in logs)
    draw("reliability", (5.6, 5.2), lambda f, c: reliability(f, c, fitted, held_out))
    draw("displays", (10.5, 5), lambda f, c: displays(f, c, fitted, held_out))
    methods = {
        "auto": Auto(), "smooth": Smooth(), "beta": Beta(), "isotonic": Isotonic(), "platt": Platt(), "bbq": BBQ(),
    }  # fmt: skip
    comparison = cross_validate(collapse(*fitted), methods)
    draw("compare", (7, 3), lambda f, c: compare(f, c, comparison))
    draw("interval", (7, 4), statistics_figures.interval)
    draw("drift", (7, 3.6), statistics_figures.drift)
    draw("peers", (10.5, 5.6), statistics_figures.peers)


if __name__ == "__main__":
    main()
