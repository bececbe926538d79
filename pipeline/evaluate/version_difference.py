"""Difference between two versions of a table: of their facts and their maps, and a page about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.core.map import CalibrationMap
from logcal.displays.view import EXACT_ROWS, MUTED, View
from logcal.reading import cached_table
from pipeline.evaluate.significance import UNSURE, chance_text
from pipeline.pages.figures import AFTER, grid, map_figure, render, render_page
from pipeline.table.map_change import MapChange, TableChange, map_of, table_change
from pipeline.table.published import Version, segments_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (4.8, 3.6)
MOST_MAPS = 3
"""Largest number of segments whose maps are shown."""
MOST_SEGMENTS = 10
"""Largest number of segments that are listed: those that changed most."""


@dataclass(frozen=True)
class VersionDifference:
    """Difference between two versions.

    Attributes
    ----------
    facts : old and new value of each fact that differs, by name
    change : change of the maps over the new version's rows; None if the maps cannot be compared
    segments : key, number of rows and change of the segments that changed most, in descending order; empty unless both
        versions have the same segment columns
    only_old, only_new : number of segments that only one version has
    """

    old: Version
    new: Version
    facts: dict[str, tuple[Any, Any]]
    change: MapChange | None
    segments: list[tuple[dict[str, Any], int, MapChange]]
    only_old: int
    only_new: int

    @property
    def better(self) -> list[str]:
        """Sentences that compare the log loss and the AUC of both versions, as measured by their fits."""
        return [*_by_loss(self.old, self.new), *_by_ranking(self.old, self.new)]

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "old": self.old.name,
            "new": self.new.name,
            "facts": {name: {"old": old, "new": new} for name, (old, new) in self.facts.items()},
            "comparison": self.better,
            "change": None if self.change is None else self.change.as_dict(),
            "segments": [
                {"segment": key, "rows": rows, **change.as_dict()} for key, rows, change in self.segments
            ],
            "segments_only_old": self.only_old,
            "segments_only_new": self.only_new,
        }

    @property
    def headline(self) -> str:
        """The difference in one plain sentence."""
        if self.change is None:
            return (
                "Their scores go through different transforms, or their segments are of different columns, so that "
                "their maps cannot be compared."
            )
        if self.change.largest == 0:
            return "Both give every row the same probability."
        change = self.change
        return (
            f"Probabilities change by {percentage(change.mean)} points on average and by {percentage(change.largest)} "
            f"at most, at score {change.at_score:.3g}; their mean "
            f"{_from_to(f'{percentage(change.mean_old)} %', f'{percentage(change.mean_new)} %')}."
        )


def _from_to(old: str, new: str) -> str:
    return f"stays at {old}" if old == new else f"changes from {old} to {new}"


def _by_loss(old: Version, new: Version) -> list[str]:
    """Compare log losses on rows that the later fit held out and that neither version was fitted to."""
    for earlier, later in ((old, new), (new, old)):
        holdout = (later.manifest.get("gate") or {}).get("holdout") or {}
        if later.manifest.get("previous_version") != earlier.name or not holdout.get("compared"):
            continue
        loss = holdout["against_current"]["log_loss"]
        if loss["difference"] is None or loss["error"] is None:
            continue
        direction = "lower" if loss["difference"] < 0 else "higher"
        verdict = chance_text(loss["difference"], loss["error"])
        size = f"{abs(loss['difference']):.5f} {direction} than that of {earlier.name}"
        rows = f"On {holdout['rows_compared']:,.10g} rows held out of the fit of {later.name}"
        return [f"{rows} its log loss was {size} (standard error {loss['error']:.5f}): {verdict}."]
    return ["Log losses are not compared here: `logcal evaluate` with $[against] does so."]


def _by_ranking(old: Version, new: Version) -> list[str]:
    """Compare the AUC of both versions, each on the rows that it was fitted to."""
    gates = [version.manifest.get("gate") or {} for version in (old, new)]
    if any(gate.get("auc") is None or gate.get("auc_error") is None for gate in gates):
        return []
    (a, b), errors = (gate["auc"] for gate in gates), [gate["auc_error"] for gate in gates]
    error = math.hypot(*errors)
    conclusion = (
        "within chance" if abs(b - a) <= UNSURE * error else f"{'higher' if b > a else 'lower'} beyond chance"
    )
    return [
        f"The AUC, each on its own rows, {_from_to(f'{a:.4f}', f'{b:.4f}')} (standard error {error:.4f}): {conclusion}."
    ]


def percentage(value: float) -> str:
    """Format a fraction in percent, with three digits."""
    return f"{100 * value:.3g}"


def version_difference(old: Version, new: Version) -> VersionDifference:
    """Compare two versions of a table. Raises InputRejectedError if a table cannot be read."""
    before, after = _facts(old), _facts(new)
    facts = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    change = table_change(old, new)
    if change is None:
        return VersionDifference(old, new, facts, None, [], 0, 0)
    return VersionDifference(old, new, facts, change.whole, *_segments(old, new, change))


def _facts(version: Version) -> dict[str, Any]:
    manifest = version.manifest
    data, window, gate = manifest["data"], manifest.get("window") or {}, manifest.get("gate") or {}
    return {
        "created": manifest["created"],
        "method": manifest["method"],
        "parameters": manifest["parameters"],
        "score transform": manifest["score_transform"],
        "first day": window.get("first"),
        "last day": window.get("last"),
        "rows": data["rows_used"],
        "rows with label 1": data["rows_positive"],
        "rows left out": data["rows_quarantined"],
        "distinct scores": data["distinct_scores"],
        "lowest score": data["lowest_score"],
        "highest score": data["highest_score"],
        "AUC": gate.get("auc"),
        "rows of the table": manifest["lookup_rows"],
        "monotone": manifest["monotone"],
        "segment columns": list(segments_of(version)),
        "segments": (manifest.get("segments") or {}).get("count"),
        "software": manifest["software"].get("logcal"),
    }


def _segments(
    old: Version, new: Version, change: TableChange
) -> tuple[list[tuple[dict[str, Any], int, MapChange]], int, int]:
    columns = segments_of(new)
    if not columns or columns != segments_of(old):
        return [], 0, 0
    before, after = (cached_table(version.lookup_path).fitted_on for version in (old, new))
    order = [i for i in change.order().tolist() if change.keys[i] in before][:MOST_SEGMENTS]
    segments = [
        (dict(zip(columns, change.keys[i], strict=True)), int(change.rows[i]), change.of(i)) for i in order
    ]
    only_old = sum(key not in after for key in before)
    return segments, only_old, sum(key not in before for key in after)


def render_difference(difference: VersionDifference, table: str) -> str:
    """Render the page: HTML without external references; the same text for the same arguments."""
    figures: list[tuple[str, str]] = []
    if difference.change is not None:
        data = difference.new.manifest["data"]
        new, old = map_of(difference.new), map_of(difference.old)
        maps = _named(difference, new, old)
        alt = f"Calibrated probability against score: {difference.headline}"
        view = View(data["lowest_score"], data["highest_score"])
        figures.append(("all rows", map_figure(maps, view, name="maps", alt=alt)))
        figures.append(("all rows, the difference", _difference_figure(new, old, view, alt)))
        figures += _segment_figures(difference, view)
    return render_page(
        "version_difference.html.j2",
        {"segment": _name},
        title=f"{table}: {difference.old.name} and {difference.new.name}",
        headline=difference.headline,
        better=difference.better,
        figures=figures,
        old=difference.old.name,
        new=difference.new.name,
        differences=difference.facts,
        segments=difference.segments,
        only_old=difference.only_old,
        only_new=difference.only_new,
    )


def _difference_figure(new: CalibrationMap, old: CalibrationMap, view: View, alt: str) -> str:
    """Draw the new probability minus the old one, in percentage points, against the score."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "y")
        score = view.grid(EXACT_ROWS)
        change = 100 * (np.asarray(new.predict(score)) - np.asarray(old.predict(score)))
        axes.axhline(0.0, color=MUTED, lw=0.8)
        axes.fill_between(view.x(score), change, color=AFTER, alpha=0.2, lw=0)
        axes.plot(view.x(score), change, color=AFTER, lw=1.2)
        axes.set(xlabel="Score", ylabel="Change in percentage points")

    return render(draw, _SIZE, "difference", f"New less old probability. {alt}")


def _segment_figures(difference: VersionDifference, view: View) -> list[tuple[str, str]]:
    """Draw the maps of the segments that changed most: name and figure of each."""
    if not difference.segments:
        return []
    new, old = (cached_table(version.lookup_path) for version in (difference.new, difference.old))
    figures = []
    for i, (key, _, change) in enumerate(difference.segments[:MOST_MAPS]):
        values = tuple(key.values())
        maps = _named(difference, new.map_of(values), old.map_of(values))
        alt = (
            f"Calibrated probability against score of {_name(key)}: it changes by {percentage(change.mean)} points on "
            f"average and by {percentage(change.largest)} at most"
        )
        figures.append((_name(key), map_figure(maps, view, name=f"maps-{i}", alt=alt)))
    return figures


def _named(pair: VersionDifference, new: CalibrationMap, old: CalibrationMap) -> dict[str, CalibrationMap]:
    """Label the maps with the numbers of their versions: full names would cover the curves."""
    numbers = [version.name.partition("-")[0] for version in (pair.new, pair.old)]
    return {f"{numbers[0]} (new)": new, f"{numbers[1]} (old)": old}


def _name(key: dict[str, Any]) -> str:
    return ", ".join(f"{k} = {'null' if v is None else v}" for k, v in key.items())
