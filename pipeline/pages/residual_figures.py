"""Figures of the residuals of a fit in the report: observed minus expected positives, by score and by segment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrators.measures.fit_check import normal_limit, roots
from logcal.displays.view import MUTED
from logcal.errors import counted, range_text
from pipeline.pages.figures import AFTER, ALERT, Tip, grid, number_text, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Residual(NamedTuple):
    """Observed against expected positives of a range of scores or of a segment, among the rows of the fit.

    name : range of scores or name of the segment, for a tooltip
    weight, observed, expected : sums over the rows
    errors : observed minus expected positives in standard errors: signed root of the binomial deviance
    found : whether the check of the fit found a misfit in it
    """

    name: str
    weight: float
    observed: float
    expected: float
    errors: float
    found: bool

    @property
    def text(self) -> str:
        """Tooltip."""
        return (
            f"{self.name}: {number_text(self.observed)} positives of {number_text(self.weight)}, expected "
            f"{number_text(self.expected)} ({self.errors:+.1f} standard errors)"
        )


def residual_figures(agreement: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Draw the residuals of a fit; None if its manifest has none.

    agreement : the manifest's facts of the check of the fit, see `pipeline.fit.self_check`

    Returns
    -------
    `svgs`: SVG elements, of ranges of scores, of segments, or of both
    `ranges`: number of ranges that are drawn; `segments`: residuals of the segments, in the order of the figure
    `sentence`: what is red, and what the check found besides
    """
    ranges = (agreement or {}).get("ranges")
    levels = [level for level in (agreement or {}).get("levels", ()) if level["most_informative"]]
    dispersion = ranges["dispersion"] if ranges else 1.0
    of_ranges = _of_ranges(ranges, dispersion) if ranges else []
    of_segments = _of_segments(levels[-1], dispersion) if levels else []
    svgs = []
    if ranges and of_ranges:
        draw = partial(_draw_ranges, of_ranges, ranges["profile"], _limit(ranges))
        alt = "Residuals of the fit: observed minus expected positives in standard errors, by range of scores"
        svgs.append(render(draw, _SIZE, "residuals-ranges", alt))
    if of_segments:
        draw = partial(_draw_segments, of_segments, _limit(levels[-1]))
        alt = "Residuals of the fit: observed minus expected positives in standard errors, by segment"
        svgs.append(render(draw, _SIZE, "residuals-segments", alt))
    if not svgs:
        return None
    shared = (agreement or {}).get("shared_maps")
    checks = [*(agreement or {}).get("levels", ()), *([shared] if shared else [])]
    sentence = _sentence(of_ranges, of_segments, checks)
    return {"svgs": svgs, "ranges": len(of_ranges), "segments": of_segments, "sentence": sentence}


def _sentence(
    of_ranges: Sequence[Residual], of_segments: Sequence[Residual], levels: Sequence[Mapping[str, Any]]
) -> str:
    """Say what the check found: misfits that are drawn in red, and those of segments that the manifest only counts."""
    red = sum(residual.found for residual in of_segments)
    others = sum(level["segments_with_misfits"] for level in levels) - red
    together = any(
        (largest := level[key]) is not None and abs(largest["deviance_residual"]) > largest["limit"]
        for level in levels
        for key in ("all_by_score", "all_by_size")
    )
    parts = []
    if red or any(residual.found for residual in of_ranges):
        parts.append("Red: the check found a misfit there, perhaps of a wider range.")
    if others:
        more = "more " if red else ""
        parts.append(f"The check found misfits in {counted(others, f'{more}segment')}, not marked here.")
    if together:
        parts.append("It found a misfit in all segments together, too.")
    return " ".join(parts) or "The check found no misfit."


_SIZE = (4.6, 3.2)


def _of_ranges(ranges: Mapping[str, Any], dispersion: float) -> list[Residual]:
    profile = ranges["profile"]
    misfits = [_ends(misfit["first_score"], misfit["last_score"]) for misfit in ranges["misfits"]]
    ends = list(map(_ends, profile["first_score"], profile["last_score"]))
    names = [_range_text(low, high) for low, high in ends]
    found = [any(low <= last and high >= first for first, last in misfits) for low, high in ends]
    columns = [profile[name] for name in ("weight", "positives", "expected")]
    return _residuals(names, columns, found, dispersion)


def _ends(first: float | None, last: float | None) -> tuple[float, float]:
    """Return the ends of a range; beyond all scores they are None in the manifest."""
    return -math.inf if first is None else first, math.inf if last is None else last


def _range_text(low: float, high: float) -> str:
    if math.isinf(low):
        return "All scores" if math.isinf(high) else f"Scores up to {high:.4g}"
    return f"Scores from {low:.4g} on" if math.isinf(high) else f"Scores {range_text(low, high)}"


def _of_segments(level: Mapping[str, Any], dispersion: float) -> list[Residual]:
    largest, misfits = level["most_informative"], [misfit["segment"] for misfit in level["misfits"]]
    names = [", ".join("null" if value is None else value for value in row["segment"]) for row in largest]
    columns = [[row[name] for row in largest] for name in ("weight", "positives", "expected")]
    return _residuals(names, columns, [row["segment"] in misfits for row in largest], dispersion)


def _residuals(
    names: Sequence[str], columns: Sequence[Sequence[float]], found: Sequence[bool], dispersion: float
) -> list[Residual]:
    weight, observed, expected = (np.array(column, np.float64) for column in columns)
    errors = roots(weight, observed, expected) / math.sqrt(dispersion)
    rows = zip(names, *(x.tolist() for x in (weight, observed, expected, errors)), found, strict=True)
    # Sums that no float can hold are None in the manifest.
    return [residual for row in rows if math.isfinite((residual := Residual(*row)).errors)]


def _limit(facts: Mapping[str, Any]) -> float:
    """Return the number of standard errors that counts as a misfit, allowing for the number of tests."""
    return float(facts["largest"]["limit"]) if facts["largest"] else normal_limit(facts["tests"])


def _draw_ranges(
    residuals: Sequence[Residual], profile: Mapping[str, Any], limit: float, figure: Figure
) -> list[Tip]:
    tips = _draw(residuals, limit, figure)
    edges = [*profile["first_score"], profile["last_score"][-1]]
    # Range i is drawn at i, from i - 1/2 to i + 1/2.
    marks = np.unique(np.linspace(0, len(edges) - 1, 4).round().astype(int)).tolist()
    axes = figure.axes[0]
    axes.set_xticks([i - 0.5 for i in marks], [_score_text(edges[i], i) for i in marks])
    # The right margin has no room for half a label.
    axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.set_xlabel("Score")
    return tips


def _score_text(score: float | None, i: int) -> str:
    if score is None:
        return "−∞" if i == 0 else "∞"
    return f"{score:.3g}".replace("-", "−")


def _draw_segments(residuals: Sequence[Residual], limit: float, figure: Figure) -> list[Tip]:
    tips = _draw(residuals, limit, figure)
    axes = figure.axes[0]
    # Names of any length and script stand in the table beside the figure.
    axes.set_xticks(range(len(residuals)), [str(i + 1) for i in range(len(residuals))], fontsize=8)
    axes.set_xlabel("Segment, by its number in the table")
    return tips


def _draw(residuals: Sequence[Residual], limit: float, figure: Figure) -> list[Tip]:
    axes = figure.add_subplot()
    axes.axhspan(-2, 2, color=MUTED, alpha=0.2, lw=0)
    axes.axhline(0, color=MUTED, lw=1)
    for end in (-limit, limit):
        axes.axhline(end, color=MUTED, lw=1, linestyle="--")
    for found, color in ((False, AFTER), (True, ALERT)):
        shown = [(i, residual.errors) for i, residual in enumerate(residuals) if residual.found is found]
        x, y = [i for i, _ in shown], [errors for _, errors in shown]
        axes.vlines(x, 0, y, color=color, lw=1.4, alpha=0.75)
        axes.plot(x, y, "o", color=color, markersize=4.5)
    highest = max(limit, *(abs(residual.errors) for residual in residuals)) * 1.12
    axes.set(xlim=(-0.6, len(residuals) - 0.4), ylim=(-highest, highest))
    axes.set_ylabel("Observed − expected positives, in standard errors")
    grid(axes, "y")
    return [Tip(i, residual.errors, residual.text) for i, residual in enumerate(residuals)]
