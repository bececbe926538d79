"""Names of pipeline's parameters in its messages, and the keys that jobs have for them.

A message of `pipeline` names a parameter as $[name], since one parameter has different keys in different jobs. Messages
also hold texts of users, such as a column $date: the brackets tell them apart.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.files.faults import as_fault

if TYPE_CHECKING:
    from jobs.config.jobs import JobConfig

T = TypeVar("T")

JOB: ContextVar[type[JobConfig] | None] = ContextVar("JOB", default=None)
"""Configuration class of the job that runs, whose keys are looked at first; None: those of fit."""

_OTHER_NAMES = {
    "paths": ("log.path", "data.path"),
    "date": ("window.column",),
    "probability": ("output.column",),
    "recipe.categories": ("estimator.categories",),
    "recipe.interval": ("calibrator.interval",),
    "scoring.interval": ("output.interval",),
}
"""Keys of parameters that do not end with the parameter's name. The others have the job's first key that does, of those
with the fewest sections above; the name of a section stands for its path.
"""


def in_keys(value: Any) -> Any:
    """Return a text with keys in place of the parameters that it names; likewise the texts of lists and dicts."""
    match value:
        case str():
            return re.sub(r"\$\[([a-z_.]+)\](\.[a-z_]+)?", _in_key, value) if "$[" in value else value
        case dict():
            return {in_keys(key): in_keys(inner) for key, inner in value.items()}
        case list():
            return [in_keys(inner) for inner in value]
    return value


def call_in_keys(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function; an error for the user, or that of a fault of the environment, says keys."""
    try:
        return function(*arguments)
    except Exception as error:
        fault = as_fault(error)
        if fault is None:
            raise
        fault.args = (in_keys(str(fault)),)
        if fault is error:
            raise
        raise fault from error


def _in_key(match: re.Match[str]) -> str:
    parts = f"{match[1]}{match[2] or ''}".split(".")
    for size in range(len(parts), 0, -1):
        if key := key_of(".".join(parts[:size]), JOB.get()):
            return ".".join([key, *parts[size:]])
    return ".".join(parts)


@cache
def key_of(name: str, job: type[JobConfig] | None) -> str | None:
    """Return the key of a parameter: the job's, or else another job's; None if there is none."""
    from jobs.config.jobs import JOB_CONFIGS
    from jobs.config.loading import known_keys

    for keys in map(known_keys, filter(None, (job, JOB_CONFIGS["fit"], *JOB_CONFIGS.values()))):
        ends = _OTHER_NAMES.get(name, (name, f"{name}.path"))
        found = [key for key in keys if any(f".{key}".endswith(f".{end}") for end in ends)]
        if found:
            return min(found, key=lambda key: key.count("."))
    return None


def _say_keys(record: logging.LogRecord) -> bool:
    record.msg, record.args = in_keys(record.getMessage()), ()
    return True


logging.getLogger("logcal").addFilter(_say_keys)
