"""Import of this project's packages even if users have packages named `jobs` or `pipeline` on the path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("calibrators", "jobs", "logcal", "pipeline")


class _Finder:
    """Finder for `sys.meta_path` that finds this project's packages before the path is searched."""

    root = str(Path(__file__).parents[1])

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module; None for modules of other projects."""
        return PathFinder.find_spec(name, [cls.root], target) if name in NAMES else None


def install_finder() -> None:
    """Make this process import this project's packages under the names in `NAMES`."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


@cache
def source_digest() -> str:
    """Return a digest of the installed source: two installations of one version may differ."""
    root, digest = Path(__file__).parents[1], sha256()
    for path in sorted(path for name in NAMES for path in (root / name).rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
