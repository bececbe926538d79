"""Errors, one class for each remedy. Each class has its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

MAX_PROBLEMS = 10


class LogcalError(Exception):
    """A clear error for the user: what was expected, what was found, what to do. Never a traceback.

    Attributes
    ----------
    outcome : outcome of a job that did a part of its work, or found what there is; None: there is nothing to show
    """

    exit_code = 1

    def __init__(self, *message: str, missing: str = "", outcome: Any = None) -> None:
        """Make an error. missing : path of the local file that was not found, which another machine may see."""
        super().__init__(*message)
        self.missing, self.outcome = missing, outcome


class ConfigError(LogcalError):
    """The command or its configuration is wrong: nothing was read."""

    exit_code = 2


class InputRejectedError(LogcalError):
    """The data contradicts the configuration."""

    exit_code = 3


class LabelsWaitingError(InputRejectedError):
    """No row can be used: no row has a label yet."""


class FileRejectedError(InputRejectedError):
    """A file is not Parquet, damaged, or half-written: the same run may succeed later, or without this file."""


class FileChangedError(FileRejectedError):
    """A listed file was removed or replaced: the same run may succeed at once, with the present files."""

    exit_code = 75


class FileBeingWrittenError(FileChangedError):
    """A file has no readable footer yet and was modified a short time ago: the same run may succeed later."""


class CheckFailedError(LogcalError):
    """A result was computed and refused; nothing was published.

    Attributes
    ----------
    version : name of the candidate version that holds the result; None if it was not saved
    written : whether the result was written all the same
    """

    exit_code = 4
    version: str | None = None
    written: bool = False


class TemporaryError(LogcalError):
    """A resource is unavailable (disk space, a worker, a scheduler): the same run may succeed later."""

    exit_code = 75


class NothingToDoError(LogcalError):
    """The same inputs and configuration have already been published.

    Parameters
    ----------
    tidy : function that removes a killed run's leftovers, called by the run that finds them
    """

    exit_code = 99

    def __init__(
        self, message: str, tidy: Callable[[], object] = lambda: None, *, outcome: Any = None
    ) -> None:
        super().__init__(message, outcome=outcome)
        self.tidy = tidy


def listing(problems: Sequence[object]) -> str:
    """Format problems as a list, one per line, at most `MAX_PROBLEMS` of them."""
    lines = [f"- {problem}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"- and {len(problems) - MAX_PROBLEMS} more")
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural, such as '1 file' or '2,000 batches'."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun[-2:] == 'ch' else 's'}"


def range_text(low: float, high: float) -> str:
    """Return 'from LOW to HIGH' with four digits, or as many as tell different numbers apart."""
    for digits in (4, 6, 9, 17):
        texts = [f"{x:.{digits}g}" for x in (low, high)]
        if texts[0] != texts[1] or low == high:
            break
    return f"from {texts[0]} to {texts[1]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Ask whether the most similar name was meant; empty if no name is similar."""
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def examples(items: Sequence[object], most: int = 5) -> str:
    """Format at most `most` items as one line, and count the others."""
    shown = ", ".join(str(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
