"""Compiled loops: arrays in, arrays out, no checks. Their callers check."""

from pathlib import Path


def _drop_stale_caches(folder: Path) -> int:
    """Remove compiled kernels that are older than any kernel's source; return how many files went.

    numba looks at a kernel's own source only: a cached kernel would keep calling the old version of another one.
    """
    newest = max(source.stat().st_mtime_ns for source in folder.glob("*.py"))
    stale = 0
    for cache in folder.glob("__pycache__/*.nb[ic]"):
        try:
            if cache.stat().st_mtime_ns < newest:
                cache.unlink()
                stale += 1
        except OSError:
            # Another process was quicker, or the folder is not ours to change.
            continue
    return stale


_drop_stale_caches(Path(__file__).parent)
