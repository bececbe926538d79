"""Provenance of a generated log: its classifier, from the manifest that `logcal generate` wrote with it."""

from __future__ import annotations

import posixpath
from functools import partial
from typing import Any

from logcal.storage import parse_json
from pipeline.files.output import MANIFEST
from pipeline.files.requests import together
from pipeline.log.logs import Log


def generated_by(log: Log) -> str | None:
    """Return the run id of the classifier that generated a log; None for a log not made by `logcal generate`."""
    folders = {posixpath.dirname(file.path) for file in log.files}
    # Read each manifest once, and concurrently: a log may have hundreds of hive folders.
    candidates = sorted({*folders, *map(posixpath.dirname, folders)})
    ids = together(partial(_classifier_of, log.filesystem), candidates, remote=not log.local)
    run_ids = dict(zip(candidates, ids, strict=True))
    generators = {run_ids[folder] or run_ids[posixpath.dirname(folder)] for folder in folders}
    return generators.pop() if len(generators) == 1 else None


def _classifier_of(filesystem: Any, folder: str) -> str | None:
    try:
        manifest = parse_json(filesystem.cat_file(f"{folder}/{MANIFEST}"))
        return str(manifest["classifier"].get("run_id"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
