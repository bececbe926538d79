"""Classifier behind a generated log, from the files that `logcal generate` left beside it."""

from __future__ import annotations

import posixpath
from functools import partial
from typing import Any

from logcal.storage import parse_json
from pipeline.files.output import MANIFEST
from pipeline.files.requests import together
from pipeline.log.logs import Log


def generated_by(log: Log) -> str | None:
    """The run id of the classifier that a log was generated with; None for a log not made by `logcal generate`."""
    folders = {posixpath.dirname(file.path) for file in log.files}
    # Each place once, and many together: a log may have hundreds of hive folders.
    places = sorted({*folders, *map(posixpath.dirname, folders)})
    asked = together(partial(_classifier_of, log.filesystem), places, remote=not log.local)
    made_by = dict(zip(places, asked, strict=True))
    found = {made_by[folder] or made_by[posixpath.dirname(folder)] for folder in folders}
    return found.pop() if len(found) == 1 else None


def _classifier_of(filesystem: Any, place: str) -> str | None:
    try:
        manifest = parse_json(filesystem.cat_file(f"{place}/{MANIFEST}"))
        return str(manifest["classifier"].get("run_id"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
