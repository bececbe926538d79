"""Which run made which version, in one small file, so that a fit need not read every manifest there is.

    <store>/<table>/index.json

It says nothing that the manifests do not say: versions that it lacks are looked up there, and a missing or damaged one
is made anew by the next run that publishes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pipeline import schema
from pipeline.files.folders import Folder

INDEX = "index.json"


class RunIndex:
    """The index of a table, in its folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def runs(self, names: Sequence[str], look_up: Callable[[str], str | None]) -> dict[str, str | None]:
        """The run id of each version.

        Parameters
        ----------
        names : of the versions that are there
        look_up : from a version's name to the run id in its manifest, for versions that the index lacks
        """
        known = self._known()
        return {name: known[name] if name in known else look_up(name) for name in names}

    def write(self, runs: dict[str, str | None]) -> None:
        """Write it, if it says something else; only for one that has the table's turn."""
        if runs != self._known():
            content = {"format_version": schema.FORMAT_VERSION, "runs": runs}
            self._folder.replace(INDEX, json.dumps(content).encode())

    def _known(self) -> dict[str, str | None]:
        try:
            content = json.loads(self._folder.read(INDEX) or b"")
        except ValueError:
            return {}
        if not isinstance(content, dict) or content.get("format_version") != schema.FORMAT_VERSION:
            return {}
        runs = content.get("runs")
        return runs if isinstance(runs, dict) else {}
