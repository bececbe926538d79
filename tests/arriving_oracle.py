"""Which rows of which day must have been scored with which version: the daily job's rules, written again with pandas.

Nothing here is imported from the project. Arrivals are a table with one row for each write of a file: `at`, `day`,
`file`, `ids` (of its rows) and `bad`. Versions are numbered by the fits that must have happened.
"""

from __future__ import annotations

import pandas as pd

HOURS, LOOKBACK, WEEK = pd.Timedelta("3h"), pd.Timedelta("3D"), pd.Timedelta("7D")


def present(arrivals: pd.DataFrame, at: pd.Timestamp) -> pd.DataFrame:
    """Return the last write of each file up to a time."""
    return arrivals[arrivals["at"] <= at].sort_values("at").groupby(["day", "file"], as_index=False).last()


def expected(arrivals: pd.DataFrame, runs: list[pd.Timestamp]) -> tuple[pd.DataFrame, set, set]:
    """Return the scored rows (`day`, `id`, `version`), the days set aside and the missing days, after all runs."""
    version, begin, compared = 0, None, None
    scored: dict[pd.Timestamp, tuple[tuple, int, list]] = {}
    fitted: dict[pd.Timestamp, tuple] = {}
    aside: set = set()
    missing: set = set()
    for run in runs:
        files = present(arrivals, run)
        newest_by_clock = (run - HOURS).normalize() - pd.Timedelta("1D")
        complete = files[files["day"] <= newest_by_clock]
        days = dict(list(complete.groupby("day")))
        newest = max(days)
        begin = newest if begin is None else begin
        all_days = compared is None or run - compared >= WEEK
        compared = run if all_days else compared
        state = {day: tuple(zip(group["file"], group["at"], strict=True)) for day, group in days.items()}
        aside = {day for day, group in days.items() if day >= begin and group["bad"].any()}
        missing = set(pd.date_range(begin, newest_by_clock)) - set(days)

        def due(day, done, state=state, newest=newest, all_days=all_days):
            if day not in done:
                return True
            return done[day] != state[day] and (all_days or day >= newest - LOOKBACK)

        usable = [day for day in sorted(days) if day >= begin and day not in aside]
        to_fit = [day for day in usable if due(day, fitted)]
        if to_fit or not version:
            version += 1
            fitted |= {day: state[day] for day in to_fit}
        for day in usable:
            if due(day, {other: entry[0] for other, entry in scored.items()}):
                ids = [row for rows in days[day]["ids"] for row in rows]
                scored[day] = state[day], version, ids
    rows = [(day, row, number) for day, (_, number, ids) in scored.items() for row in ids]
    return pd.DataFrame(rows, columns=["day", "id", "version"]), aside, missing
