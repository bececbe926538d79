"""Classifier behind a generated log, from the files that `logcal generate` left beside it."""

from __future__ import annotations

import posixpath
from typing import Any

from logcal.storage import parse_json
from pipeline.files.output import MANIFEST
from pipeline.log.logs import Log


def generated_by(log: Log) -> str | None:
    """The run id of the classifier that a log was generated with; None for a log not made by `logcal generate`."""
    folders = {posixpath.dirname(file.path) for file in log.files}
    found = {_classifier_of(log.filesystem, folder) for folder in folders}
    return found.pop() if len(found) == 1 else None


def _classifier_of(filesystem: Any, folder: str) -> str | None:
    for place in (folder, posixpath.dirname(folder)):
        try:
            manifest = parse_json(filesystem.cat_file(f"{place}/{MANIFEST}"))
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and isinstance(manifest.get("classifier"), dict):
            return str(manifest["classifier"].get("run_id"))
    return None
