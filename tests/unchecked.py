"""Compiled loops that no test has run with every access checked: `python tests/unchecked.py`, after such tests.

What was run was compiled, and what was compiled was kept, in the folder that LOGCAL_CACHE names.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import numba

from calibrators.core.compiled import KERNELS


def unchecked() -> list[str]:
    """The names of loops whose code is not kept."""
    for package in ("calibrators", "pipeline"):
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if "kernels" in module.name:
                import_module(module.name)
    return sorted(
        f"{one.py_func.__module__}.{one.py_func.__name__}"
        for one in KERNELS
        if not any(Path(one._cache.cache_path).glob(f"{one._cache._stem}-*.nbc"))
    )


if __name__ == "__main__":
    if not numba.config.BOUNDSCHECK:
        sys.exit("expected NUMBA_BOUNDSCHECK=1: otherwise no access is checked")
    found = unchecked()
    sys.stdout.write(f"{len(KERNELS)} compiled loops, {len(found)} of them in no test\n")
    sys.exit("\n".join(found) or None)
