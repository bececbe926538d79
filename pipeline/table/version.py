"""A version of a table: where it is, and what its manifest says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logcal.errors import InputRejectedError, listing
from pipeline.log.logs import Log
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


def check_segment_types(version: Version, log: Log) -> None:
    """Compare a log's segment columns with those that a version was fitted to.

    Raises
    ------
    InputRejectedError
        A column is of another kind, so that none of its values would be known.
    """
    fitted = version.manifest.get("log", {}).get("columns", {})
    known = {name: fitted[name] for name in segments_of(version) if name in fitted}
    if problems := segment_problems(known, log.types):
        raise InputRejectedError(f"the log's segments are not the table's.\n{listing(problems)}")


def segment_problems(fitted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is wrong with the types of segment columns, beside those that a table was fitted to."""
    problems = []
    for name, type_ in fitted.items():
        kinds = [_kind(type_), _kind(found[name])] if name in found else []
        if len(set(kinds)) == 2 and "null" not in kinds:
            problems.append(
                f"column '{name}': expected {kinds[0]} as the table's segments have ({type_}), found {kinds[1]} "
                f"({found[name]}): convert it, or fit to such a log"
            )
    return problems


def _kind(type_: str) -> str:
    if type_.startswith("dictionary<values="):
        type_ = type_.removeprefix("dictionary<values=")
    kinds = {"text": ("string", "large_string"), "whole numbers": ("int", "uint"), "booleans": ("bool",)}
    return next((kind for kind, starts in kinds.items() if type_.startswith(starts)), type_)
