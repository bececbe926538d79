"""What is said of a window: in a plan, and in a manifest."""

from __future__ import annotations

from typing import Any

from pipeline.log.windows import Window, day_of
from pipeline.sort.day_tables import DayTable, DayTables


def planned_facts(window: Window, days: DayTables) -> dict[str, Any]:
    """What a dry run says of a window."""
    covers = days.covers(window)
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_to_sort": sum(bool(cover.missing) for cover in covers.values()),
        "days_without_files": len(window.days) - len(covers),
    }


def window_facts(window: Window, tables: list[DayTable]) -> dict[str, Any]:
    """What a manifest says of a window."""
    by_day: dict[int, list[DayTable]] = {}
    for table in tables:
        by_day.setdefault(table.day, []).append(table)
    filled = {day: own for day, own in by_day.items() if any(table.receipt.rows for table in own)}
    new = [day for day, own in filled.items() if any(table.rows_sorted for table in own)]
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_sorted": len(new),
        "days_reused": len(filled) - len(new),
        "days_missing": [day_of(day).isoformat() for day in window.days if day not in filled],
        "rows_sorted": sum(table.rows_sorted for table in tables),
        "days": [
            {
                "day": day_of(day).isoformat(),
                "tables": [table.content for table in own],
                "files": sum(len(table.kept.files) for table in own),
                "rows_read": sum(table.receipt.rows for table in own),
                "rows_used": sum(table.receipt.used for table in own),
                "sorted_now": day in new,
            }
            for day, own in filled.items()
        ],
    }
