"""Critical-difference diagrams: average ranks on a line, and a bar over methods that do not differ from the target."""

from __future__ import annotations

import io
from collections.abc import Mapping

from benchmarks.reproduction.ranks import Ranking

_HEIGHTS = (0.5, -0.95, 0.95, -0.6, 0.72, -1.15, 1.15, -0.77)


def draw_ranks(rankings: Mapping[str, Ranking], target: str, names: Mapping[str, str], title: str) -> bytes:
    """Draw an SVG with one line of ranks per measure; equal ranks give equal bytes.

    Parameters
    ----------
    rankings : rankings by label of the measure
    target : method that the others are compared with: a bar joins it with those that are not significantly different
        from it (Friedman's test, then Holm's procedure, at 0.05)
    names : displayed names of the methods
    title : title of the figure
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    most = max(len(ranking.methods) for ranking in rankings.values())
    with mpl.rc_context({"svg.hashsalt": "logcal", "font.size": 8, "svg.fonttype": "none"}):
        height = 0.4 + (1.1 if most <= 8 else 2.2) * len(rankings)
        figure = Figure(figsize=(9, height))
        # Fixed margins for names at both ends and the title: measuring the labels takes as long as drawing them.
        figure.subplots_adjust(
            left=1.3 / 9, right=1 - 0.6 / 9, bottom=0.1 / height, top=1 - 0.3 / height, hspace=0.05
        )
        FigureCanvasSVG(figure)
        figure.suptitle(title, fontsize=9, y=1 - 0.05 / height, va="top")
        axes = figure.subplots(len(rankings), 1, squeeze=False)[:, 0]
        for axis, (label, ranking) in zip(axes, rankings.items(), strict=True):
            _draw_line(axis, label, ranking, target, names)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _draw_line(axis: object, label: str, ranking: Ranking, target: str, names: Mapping[str, str]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    mean, marks = ranking.mean, ranking.marks(target)
    axis.set_xlim(0.8, len(ranking.methods) + 0.2)
    axis.set_ylim(-1.3, 1.3)
    axis.set_yticks([])
    axis.spines[["left", "right", "top"]].set_visible(False)
    axis.spines["bottom"].set_position(("data", 0))
    axis.set_xticks(range(1, len(ranking.methods) + 1))
    axis.tick_params(axis="x", labelsize=6, pad=1)
    axis.set_ylabel(label, rotation=0, ha="right", va="center")
    same = [mean[name] for name in ranking.methods if not marks[name]]
    if len(same) > 1:
        axis.plot([min(same), max(same)], [0.16, 0.16], color="0.25", linewidth=3, solid_capstyle="butt")
    for i, name in enumerate(sorted(ranking.methods, key=lambda method: (mean[method], method))):
        height = _HEIGHTS[i % len(_HEIGHTS)] if len(ranking.methods) > 8 else _HEIGHTS[i % 4]
        color = "#b2182b" if name == target else "black"
        axis.plot([mean[name], mean[name]], [0, height * 0.8], color="0.7", linewidth=0.6)
        axis.plot([mean[name]], [0], marker="o", markersize=3, color=color)
        axis.text(
            mean[name], height, f"{names[name]} {mean[name]:.2f}", ha="center", va="center", color=color
        )
