"""Identity of a run: the same inputs and settings give the same id, so that a rerun recognises its result."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from importlib import metadata
from typing import Any

from pipeline import schema
from pipeline.log.logs import Log

_PACKAGES = ("logcal", "dask", "numpy", "numba", "pyarrow", "scikit-learn", "scipy")


def run_id(job: str, log: Log, settings: dict[str, Any]) -> str:
    """A digest of what a job's result depends on: its files, by path, size and modification, and its settings.

    Parameters
    ----------
    job : the job's name
    log : the input
    settings : the part of the configuration that can change the result, as JSON values

    Returns
    -------
    32 hexadecimal digits
    """
    content: dict[str, Any] = {
        "job": job,
        "format_version": schema.FORMAT_VERSION,
        "logcal": metadata.version("logcal"),
        "settings": settings,
        "files": [(file.path, file.size, file.stamp) for file in log.files],
    }
    if log.columns.labels is not None:
        content["labels"] = log.columns.labels.identity()
    if log.snapshots:
        content["snapshots"] = log.snapshots
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def software() -> dict[str, str]:
    """Versions of what computed a result."""
    return dict(_versions())


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    versions = ((package, metadata.version(package)) for package in _PACKAGES)
    return (("python", platform.python_version()), *versions)
