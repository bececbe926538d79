"""Import of this project's packages even if users have modules named `calibrators`, `jobs` or `pipeline`."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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


def foreign(name: str) -> str | None:
    """Return where another project's module lies that this process imports under one of our names; None if it is ours.

    name : one of `NAMES`
    """
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as one that a program has made
        return "no path"
    paths = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(path and Path(path).is_relative_to(_Finder.root) for path in paths):
        return None
    return str(paths[0]) if paths else "no path"


_aside: dict[str, ModuleType] = {}
"""Our package, while the name belongs to a module of the program."""


@contextmanager
def importing(name: str = "calibrators") -> Iterator[None]:
    """Import our package of a name in the block, if the program has a module of that name, which keeps the name.

    Our modules below the package stay in `sys.modules` under their full names, by which our code imports them later.
    """
    if foreign(name) is None:
        yield
        return
    others = sys.modules.pop(name, None)
    sys.modules.update(_aside)
    sys.meta_path.insert(0, _Finder)
    try:
        yield
        _import_all(name)
    finally:
        sys.meta_path.remove(_Finder)
        if (ours := sys.modules.pop(name, None)) is not None:
            _aside[name] = ours
        if others is not None:
            sys.modules[name] = others


def _import_all(name: str) -> None:
    """Import the other modules of the packages below a package that are imported, since our code may do so later."""
    for loaded in [key for key in sys.modules if key.startswith(f"{name}.")]:
        for module in pkgutil.walk_packages(getattr(sys.modules[loaded], "__path__", ()), f"{loaded}."):
            with suppress(ModuleNotFoundError):  # numba, where only numpy and pyarrow are installed
                importlib.import_module(module.name)


@cache
def source_digest() -> str:
    """Return a digest of the installed source: two installations of one version may differ."""
    root, digest = Path(__file__).parents[1], sha256()
    for path in sorted(path for name in NAMES for path in (root / name).rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
