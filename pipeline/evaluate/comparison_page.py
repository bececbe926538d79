"""The comparison of methods as a page: which to take, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from calibrators.methods.cross_validation import RAW, CrossValidation
from logcal.comparison import SHOWN, comparison_headline, label_of
from logcal.displays.view import MUTED
from pipeline.evaluate.figures import AFTER, BEFORE, fact_groups, grid, render, render_page
from pipeline.files.records import jsonable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_HEIGHT = 0.32
"""Height of a method's line in the figure, in inches."""


def render_comparison(
    comparison: CrossValidation,
    facts: Mapping[str, Any],
    *,
    notes: Sequence[str] = (),
) -> str:
    """The page as text: HTML without references to anything outside; the same text for the same arguments."""
    return render_page(
        "comparison.html.j2",
        {"method": label_of},
        title="Methods compared",
        headline=comparison_headline(comparison),
        size=_size(comparison),
        notes=notes,
        measures=SHOWN,
        found=comparison,
        infinity=math.inf,
        figures=[_dots(comparison, measure) for measure in ("log_loss", "ece_frequency")],
        facts=fact_groups(facts),
    )


def comparison_document(found: CrossValidation) -> dict[str, Any]:
    """For machines: every estimate, and every measure of every fold; sums as they agree on any partitioning."""
    methods = {
        method.name: {
            "estimates": {name: asdict(estimate) for name, estimate in method.estimates.items()},
            "infinite_losses": method.infinite,
            "folds": [measures.as_dict() for measures in method.folds],
        }
        for method in found.methods
    }
    document = {
        "folds": found.folds,
        "seed": found.seed,
        "weight": found.weight,
        "positives": found.positives,
        "best": found.best("log_loss"),
        "methods": methods,
    }
    return dict(jsonable(document))


def _size(found: CrossValidation) -> str:
    share = f"{100 * found.positives / found.weight:.3g} %"
    return (
        f"{found.weight:,.10g} rows, {share} of them positive, in {found.folds} folds. Each row was predicted "
        "without its own fold."
    )


def _dots(found: CrossValidation, measure: str) -> str:
    """Draw a measure's estimates with one standard error to either side; of the log loss the excess over the best."""
    rows = []
    for method in found.methods:
        estimate = method.estimates[measure]
        value, error = estimate.mean, estimate.error
        if measure == "log_loss":
            value, error = estimate.excess, estimate.excess_error
        rows.append((method.name, value, error or 0.0))
    best = found.best(measure)
    label = "Log loss above the best method's" if measure == "log_loss" else "Calibration error (ECE)"

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "x")
        # What is far from all others would hide their differences.
        limit = 1.15 * max(
            [1e-6, *(value + error for name, value, error in rows if name != RAW and value is not None)]
        )
        for y, (name, value, error) in enumerate(rows):
            color = AFTER if name == best else BEFORE if name == RAW else MUTED
            if value is None or value - error > limit:
                said = "infinite" if value is None else f"{value:.4f}, beyond the axis"
                axes.text(limit, y, f"{said} ", ha="right", va="center", fontsize=9)
                continue
            axes.hlines(y, max(0.0, value - error), min(limit, value + error), color=color, lw=1.6)
            axes.scatter([value], [y], s=42, color=color, zorder=3, clip_on=False)
        axes.set_yticks(range(len(rows)), [label_of(name) for name, _, _ in rows])
        axes.set(xlim=(-0.03 * limit, limit), ylim=(len(rows) - 0.4, -0.6), ylabel=label)
        axes.locator_params(axis="x", nbins=5)
        axes.spines["left"].set_visible(False)
        figure.subplots_adjust(left=0.3)

    alt = f"{label} of each method, with one standard error to either side"
    return render(draw, (4.8, 0.9 + _HEIGHT * len(rows)), f"dots-{measure}", alt)
