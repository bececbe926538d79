"""Where a version stands: current, or why it is not. From its manifest, the journal and what CURRENT holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.table.journal import Entry, taken_back, was_current
from pipeline.table.version import Version


class Standing(Enum):
    """Where a version stands.

    UNFINISHED: it has never been current, though nothing speaks against it: its run was killed. REPLACED: others have
    been made current since.
    """

    CURRENT = "current"
    CANDIDATE = "candidate"
    REFUSED = "refused"
    TAKEN_BACK = "taken back"
    UNFINISHED = "unfinished"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Stand:
    """Where a version stands, and by which rollback, if that is known."""

    standing: Standing
    rollback: Entry | None = None

    @property
    def to_be_current(self) -> bool:
        """Whether its run, run again, makes it current."""
        return self.standing in (Standing.UNFINISHED, Standing.REPLACED)


def standing(version: Version, entries: Sequence[Entry], now: str | None) -> Stand:
    """Where a version stands.

    Parameters
    ----------
    entries : of the journal
    now : what CURRENT holds
    """
    if version.name == now:
        return Stand(Standing.CURRENT)
    if was_current(entries, version.name, now):
        rollback = taken_back(entries, version.name, now)
        return Stand(Standing.REPLACED) if rollback is None else Stand(Standing.TAKEN_BACK, rollback)
    if version.candidate:
        return Stand(Standing.REFUSED if version.refusals else Standing.CANDIDATE)
    # A version from before there was a journal, with a higher number than the current one, was taken back.
    if "publish" not in version.manifest and now is not None:
        return Stand(Standing.TAKEN_BACK if version.name > now else Standing.REPLACED)
    return Stand(Standing.UNFINISHED)
