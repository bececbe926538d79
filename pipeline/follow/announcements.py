"""Which versions of a table its streams still need, so that nobody removes them.

A batch that was begun is ended with the version that its plan names, by whoever follows next, months later perhaps. So
a stream leaves a note of itself beside the table, `<store>/<table>/streams/<digest>.json`, and who removes versions
looks into the ledgers that the notes lead to.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import fsspec

from logcal.errors import TemporaryError
from pipeline.files.folders import Folder
from pipeline.follow.ledger import Ledger

FOLDER = "streams"


def announce(table: Folder, ledger: Ledger) -> None:
    """Leave a note beside a table that a stream scores with it; nothing where there is one.

    Raises
    ------
    OSError
        The store cannot be written to.
    """
    output = str(ledger.filesystem.unstrip_protocol(ledger.output))
    name = f"{hashlib.sha256(output.encode()).hexdigest()[:16]}.json"
    notes = table / FOLDER
    content = json.dumps({"output": output}).encode()
    if notes.read(name) != content:
        notes.make()
        notes.replace(name, content)


def needed_versions(table: Folder) -> set[str]:
    """The versions that batches were begun with and not ended.

    Raises
    ------
    TemporaryError
        A stream's ledger cannot be read now.
    """
    notes = table / FOLDER
    found = set()
    for name in notes.names():
        if not name.endswith(".json"):
            continue
        output = _output(notes, name)
        try:
            filesystem, root = fsspec.core.url_to_fs(output)
            batch = Ledger(filesystem, root).begun()
        except OSError as error:
            raise TemporaryError(
                f"{output}: expected the ledger of a stream that uses this table, found that it cannot be read "
                f"({error}): run again later, or remove {notes.root}/{name} if that stream is no more"
            ) from error
        if batch is not None and batch.version:
            found.add(batch.version)
    return found


def _output(notes: Folder, name: str) -> str:
    data = notes.read(name)
    try:
        content: Any = json.loads(data or b"")
        return str(content["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise TemporaryError(
            f"{notes.root}/{name}: expected the note of a stream, found a file that is damaged ({error}): remove it; "
            "a stream that is still followed writes it anew"
        ) from error
