"""The window of a job: which days of its log it uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jobs.config.sections import WindowConfig
from logcal.errors import ConfigError
from pipeline.log.logs import Columns, Log, open_log
from pipeline.log.windows import Window, choose_window, day_of, open_window

DAY = "{day}"
"""In the path of an output: the last day of the window."""


def window_of(config: WindowConfig, log: Log, last: str | None = None) -> Window | None:
    """The days that a configuration chooses, or None where it uses all of the log.

    last : the job's own number of days, such as 1d, in place of window.last
    """
    column = config.column
    if column is None:
        return None
    if last is not None:
        config = config.model_copy(update={"last": last, "half_life": None})
    return choose_window(log, column, config.length, config.last_day)


def open_dated(
    config: WindowConfig, paths: Sequence[str], columns: Columns, without: Collection[str] = ()
) -> tuple[Log, Window | None]:
    """A log's files that a configuration chooses, and its days; all files and None where it uses all of the log.

    without : see `open_log`
    """
    if config.column is None:
        return open_log(paths, columns, without), None
    window = open_window(paths, columns, config.column, config.length, config.last_day, without)
    return window.log, window


def place_of(path: str, setting: str, window: Window | None) -> str:
    """An output's path, with the window's last day where it names it.

    Raises
    ------
    ConfigError
        There is no window.
    """
    if DAY not in path:
        return path
    if window is None:
        raise ConfigError(
            f"{setting}: expected a path without {DAY} where window.column is null, found {path}: {DAY} is the last "
            "day of the window"
        )
    return path.replace(DAY, day_of(window.last).isoformat())


def above_days(path: str) -> str | None:
    """The folder whose outputs an output's path tells apart by days; None where there is none with a name."""
    if DAY not in path:
        return None
    folder = path.partition(DAY)[0].rpartition("/")[0]
    # Of a URL without its host, or bucket.
    inside = folder.partition("://")[2].partition("/")[2] if "://" in folder else folder
    return folder if inside.rpartition("/")[2].strip(".") else None


def window_days(window: Window) -> dict[str, Any]:
    """What a summary says of a window: the column, its first and its last day."""
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
    }
