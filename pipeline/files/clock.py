"""The clock of everything that depends on the present time, in one function that tests replace."""

from __future__ import annotations

import datetime as dt


def now() -> dt.datetime:
    """Return the present time, in UTC."""
    return dt.datetime.now(dt.UTC)
