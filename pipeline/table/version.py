"""A version of a table: where it is, and what its manifest says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.table.journal import CANDIDATE

MANIFEST = "manifest.json"
LOOKUP = "lookup.parquet"
SCORE_TABLE = "score_table"


@dataclass(frozen=True)
class Version:
    """A version that is in the store. `folder` is a local path or a URL."""

    name: str
    folder: str
    manifest: dict[str, Any]

    @property
    def lookup_path(self) -> str:
        """Path or URL of the lookup table."""
        return f"{self.folder}/{LOOKUP}"

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """Why it was not made current: `rule` and `message` each; empty if nothing spoke against it."""
        return list(self.manifest.get("refused", ()))

    @property
    def candidate(self) -> bool:
        """Whether its run was not to make it current, or was refused."""
        return self.manifest.get("publish") == CANDIDATE


def segments_of(version: Version) -> tuple[str, ...]:
    """The names of a version's segment columns; empty without segments."""
    return tuple(version.manifest.get("segments", {}).get("columns", ()))
