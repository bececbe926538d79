"""Rule for the distance between the scores of a log and a table's: score.max_shift."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from jobs.config.sections import AUTO_SHIFT, NO_SHIFT, RangeSection
from logcal.reading import cached_table
from pipeline.days.day_profiles import Profile, stored_profile
from pipeline.files.folders import Folder
from pipeline.score.shift import ShiftRule, bins_of
from pipeline.table.published import PublishedTable, Version

_FEWEST_DAYS = 5
_LABELLED = 0.9
"""Share of a day's rows that must have been fitted to: otherwise the scores of the others are not known."""


def shift_rule(section: RangeSection, store: PublishedTable, version: Version) -> ShiftRule | None:
    """Return the rule of a configuration for a version; None: distances are not measured.

    auto : the limit is the largest distance of the version's own days, from five days on
    """
    if section.max_shift == NO_SHIFT:
        return None
    refuse = section.on_shift == "refuse"
    if section.max_shift != AUTO_SHIFT:
        return ShiftRule(float(section.max_shift), refuse=refuse)
    log = version.manifest["config"]["log"]
    rates = (log.get(f"{name}_sampling_rate", 1.0) for name in ("negative", "positive"))
    # The rows of a sample are distributed otherwise than those that are scored.
    days = () if log.get("weight") is not None or any(rate != 1.0 for rate in rates) else _days(version)
    limit = _largest_distance(str(store.folder), version.lookup_path, days)
    return ShiftRule(limit, of_days=True, refuse=refuse)


_Days = tuple[tuple[str, ...], ...]
"""Names of the daily tables of each day, without their writers' random suffixes."""


def _days(version: Version) -> _Days:
    """Return the days that a version was fitted to, with all or nearly all of their rows."""
    window = version.manifest.get("window") or {}
    return tuple(
        tuple(day["tables"])
        for day in window.get("days", ())
        if "tables" in day and day["rows_used"] and day["rows_usable"] >= _LABELLED * day["rows_read"]
    )


@lru_cache(maxsize=8)
def _largest_distance(folder: str, lookup: str, days: _Days) -> float | None:
    """Return the largest distance of a day from the table; None if fewer than five days are known."""
    if len(days) < _FEWEST_DAYS:
        return None
    table = cached_table(lookup)
    bins = bins_of(table.map)
    edges = np.empty(0) if bins is None else bins.map.score_hi[:-1]
    # Scores that were rounded by more than a bin do not compare with others.
    moved = 2 * float(table.facts.data.get("largest_score_move") or 0.0)
    if bins is None or (np.diff(edges) <= moved).any():
        return None
    stored = Folder.at(folder) / "days"
    names = {name.rpartition("-")[0]: name for name in stored.names()}
    distances = []
    for tables in days:
        profiles = [stored_profile(f"{stored}/{names[table]}") for table in tables if table in names]
        found = [profile for profile in profiles if profile is not None]
        if found and len(found) == len(tables):
            profile = Profile.total(found)
            distances.append(bins.distance(bins.tally(profile.score, profile.weight)))
    return max(distances) if len(distances) >= _FEWEST_DAYS else None
