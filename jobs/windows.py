"""The window of a job: which days of its log it uses."""

from __future__ import annotations

from typing import Any

from jobs.config import WindowConfig
from pipeline.log.logs import Log
from pipeline.log.windows import Window, choose_window, day_of


def window_of(config: WindowConfig, log: Log) -> Window | None:
    """The days that a configuration chooses, or None where it uses all of the log."""
    if config.column is None:
        return None
    return choose_window(log, config.column, config.length, config.last_day)


def window_days(window: Window) -> dict[str, Any]:
    """What a summary says of a window: the column, its first and its last day."""
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
    }
