"""Number of processors of this process, which in a container are fewer than the machine has."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """Return the number of processors of this process, at least 1, by its affinity and its quota of time.

    A quota of part of a processor counts as one. The affinity is as it is now, the quota as it was first found.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(_GROUPS)
    return allowed if quota >= allowed else max(1, math.ceil(quota))


@functools.cache
def _quota(groups: Path) -> float:
    """Processors' worth of time that the control group of this process is given; infinite where nothing limits it.

    groups : where Linux shows control groups. A container sees its own there, in either version's files.
    """
    # What cannot be read, or is no number ('max'), is no limit; the first version writes -1 for none.
    with contextlib.suppress(OSError, ValueError):
        quota, period = (groups / "cpu.max").read_text("ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota = (groups / "cpu" / "cpu.cfs_quota_us").read_text("ascii")
        period = (groups / "cpu" / "cpu.cfs_period_us").read_text("ascii")
        if int(quota) > 0:
            return int(quota) / int(period)
    return math.inf
