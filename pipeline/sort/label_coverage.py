"""Label coverage: days of a window whose labels are not known well enough yet are left out of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.log.windows import day_of
from pipeline.sort.day_tables import DayTable


def covered(tables: Sequence[DayTable], share: float) -> tuple[list[DayTable], list[dict[str, Any]]]:
    """The tables of the days of which enough rows have a label, and what there is of the other days.

    Parameters
    ----------
    tables : of a window
    share : of a day's rows that must not be waiting for their label, in [0, 1]

    Notes
    -----
    Positives and negatives become known at different speeds: what is known of a day early is biased.
    """
    rows: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for table in tables:
        receipt = table.receipt
        rows[table.day] = rows.get(table.day, 0) + receipt.rows
        left = receipt.rows - receipt.used - receipt.bad.total
        waiting[table.day] = waiting.get(table.day, 0) + left
    thin = {day for day, count in rows.items() if count and waiting[day] > (1 - share) * count}
    said = [
        {"day": day_of(day).isoformat(), "rows": rows[day], "rows_waiting": waiting[day]}
        for day in sorted(thin)
    ]
    return [table for table in tables if table.day not in thin], said
