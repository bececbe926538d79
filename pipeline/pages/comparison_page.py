"""Page of a comparison of methods, and its JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from calibrators.auto.cross_validation import RAW, CrossValidation
from logcal.comparison import SHOWN, comparison_headline, label_of
from logcal.displays.view import MUTED
from pipeline.files.records import jsonable
from pipeline.pages.figures import AFTER, BEFORE, fact_groups, grid, render, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_HEIGHT = 0.32
"""Height per method in the figure, in inches."""


def render_comparison(
    comparison: CrossValidation,
    facts: Mapping[str, Any],
    *,
    notes: Sequence[str] = (),
) -> str:
    """Render the page: HTML without external references; the same text for the same arguments."""
    return render_page(
        "comparison.html.j2",
        {"method": label_of},
        title="Methods compared",
        headline=comparison_headline(comparison),
        size=_size(comparison),
        notes=notes,
        measures=SHOWN,
        comparison=comparison,
        infinity=math.inf,
        figures=[_dots(comparison, measure) for measure in ("log_loss", "ece_frequency")],
        facts=fact_groups(facts),
    )


def comparison_document(comparison: CrossValidation) -> dict[str, Any]:
    """Return all estimates, and the measures of every fold, as JSON values that do not depend on the partitioning."""
    methods = {
        method.name: {
            "estimates": {name: asdict(estimate) for name, estimate in method.estimates.items()},
            "infinite_losses": method.infinite,
            "folds": [measures.as_dict() for measures in method.folds],
        }
        for method in comparison.methods
    }
    document = {
        "folds": comparison.folds,
        "seed": comparison.seed,
        "weight": comparison.weight,
        "positives": comparison.positives,
        "best": comparison.best("log_loss"),
        "methods": methods,
    }
    return dict(jsonable(document))


def _size(comparison: CrossValidation) -> str:
    share = f"{100 * comparison.positives / comparison.weight:.3g} %"
    return (
        f"{comparison.weight:,.10g} rows, {share} of them positive, in {comparison.folds} folds. Each row was "
        "predicted without its own fold."
    )


def _dots(comparison: CrossValidation, measure: str) -> str:
    """Draw a measure's estimates (log loss: excess over the best), with one standard error to either side."""
    rows = []
    for method in comparison.methods:
        estimate = method.estimates[measure]
        value, error = estimate.mean, estimate.error
        if measure == "log_loss":
            value, error = estimate.excess, estimate.excess_error
        rows.append((method.name, value, error or 0.0))
    best = comparison.best(measure)
    label = "Log loss above the best method's" if measure == "log_loss" else "Calibration error (ECE)"

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "x")
        # The raw scores may be so far off that the differences of the methods would be invisible.
        limit = 1.15 * max(
            [1e-6, *(value + error for name, value, error in rows if name != RAW and value is not None)]
        )
        for y, (name, value, error) in enumerate(rows):
            color = AFTER if name == best else BEFORE if name == RAW else MUTED
            if value is None or value - error > limit:
                text = "infinite" if value is None else f"{value:.4f}, beyond the axis"
                axes.text(limit, y, f"{text} ", ha="right", va="center", fontsize=9)
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
