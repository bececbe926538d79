"""Number of processors of this process, which a container may limit."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """Return the number of processors of this process, at least 1, by its affinity and its CPU quota.

    Fractions of a quota are rounded up. The affinity is read at each call, the quota only once.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(_GROUPS)
    return allowed if quota >= allowed else max(1, math.ceil(quota))


@functools.cache
def _quota(groups: Path) -> float:
    """Return the CPU quota of this process's control group in processors; infinite without a limit.

    groups : the folder of Linux's control groups, version 1 or 2; a container sees its own group there
    """
    # A file that cannot be read or has no number ('max') means no limit; version 1 writes -1 for none.
    with contextlib.suppress(OSError, ValueError):
        quota, period = (groups / "cpu.max").read_text("ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota = (groups / "cpu" / "cpu.cfs_quota_us").read_text("ascii")
        period = (groups / "cpu" / "cpu.cfs_period_us").read_text("ascii")
        if int(quota) > 0:
            return int(quota) / int(period)
    return math.inf
