"""Memory of a process whose threads run tasks: what one gives back is kept for the next.

Buffers of some MB come and go with every task. The system's allocators hand them back at once, and whoever asks again
gets pages that the kernel must clear first, one thread after the other: of a sort of weighted rows it was a third.
"""

from __future__ import annotations

import ctypes
import sys

_LARGE = 1 << 30
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt."""


def keep() -> None:
    """Let this process keep what it frees, from here on: to be called before its threads start."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _LARGE)
        mallopt(_MMAP_THRESHOLD, _LARGE)
        # A thread's own arena cannot hold large buffers.
        mallopt(_ARENA_MAX, 1)
