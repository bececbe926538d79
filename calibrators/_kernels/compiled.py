"""The decorator of compiled loops, and what their code depends on.

A kernel is compiled when it is first called with arguments of new types, which takes about a second. The compilation
cache (`compilation_cache`) keeps its code under a digest of the source of its module, of the project's modules that
this one imports, and of the compiler's versions. A changed kernel and its callers are compiled again, and no others.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config

from calibrators._kernels.compilation_cache import CompilationCache

_OURS = ("calibrators", "logcal", "pipeline")
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+(\([^)]*\)|.*)", re.MULTILINE)
_NAMES = re.compile(rb"[\w.]+")


def kernel(function: Callable[..., Any] | None = None, *, inline: bool = False) -> Any:
    """Compile a function when it is first called, to run without the GIL, and cache its code.

    Parameters
    ----------
    function : the loop: arrays and numbers in and out, at the top of a module. Divided by zero, they are infinite
        or NaN.
    inline : whether its machine code takes the place of each call of it in other kernels. (numba can put its source
        there, too, which is no faster, and makes that kernel take half as long again to be compiled.)
    """
    if function is None:
        return functools.partial(kernel, inline=inline)
    # Divisions as IEEE 754 has them: a look at each divisor for zero, to raise Python's error, would keep the compiler
    # from dividing several numbers at a time.
    options = {"nogil": True, "inline": "never", "forceinline": inline, "error_model": "numpy"}
    compiled = numba.njit(**options)(function)
    if digest := source_digest(function.__module__):
        # What it asks before it compiles. With NUMBA_DISABLE_JIT it is the function itself, which never asks.
        compiled._cache = CompilationCache(function, f"{function.__module__}-{digest}")
    if hasattr(compiled, "signatures"):
        KERNELS.append(compiled)
    return compiled


KERNELS: list[Any] = []
"""All that this process has imported."""


def used() -> dict[str, set[str]]:
    """The kernels that this process has called, or that those call: of each the types of its arguments."""
    return _by_name((k, k.signatures) for k in KERNELS)


def newly_compiled() -> dict[str, set[str]]:
    """The kernels that this process has compiled, and not found kept: of each the types of its arguments."""
    return _by_name((k, k.stats.cache_misses) for k in KERNELS)


def _by_name(kernels: Iterable[tuple[Any, Iterable[Any]]]) -> dict[str, set[str]]:
    found = {f"{k.py_func.__module__}.{k.py_func.__name__}": {str(s) for s in types} for k, types in kernels}
    return {name: types for name, types in found.items() if types}


def source_digest(module: str) -> str:
    """Digest of all that a module's kernels are compiled from and by; empty if some source is not to be had.

    Read while the module is imported: a source that is changed afterwards is not the one that is compiled.
    """
    sources = _sources(module)
    if not all(sources.values()):
        return ""
    versions = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    options = [str(config.OPT), config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT]
    if getattr(config, "USING_SVML", False):  # another library's logarithms and exponentials
        options.append("svml")
    return hashlib.sha256(repr((versions, options, sorted(sources.items()))).encode()).hexdigest()[:16]


_known_sources: dict[str, dict[str, str]] = {}


def _sources(module: str) -> dict[str, str]:
    """Digests of the sources of a module, of those of ours that it imports, and so on; empty where there is none."""
    if module in _known_sources:
        return _known_sources[module]
    found = _known_sources[module] = {module: ""}
    loaded = sys.modules[module]
    file, loader = getattr(loaded, "__file__", None) or "", getattr(loaded, "__loader__", None)
    if file.endswith(".py") and hasattr(loader, "get_data"):
        source = loader.get_data(file)
        found[module] = hashlib.sha256(source).hexdigest()
        for imported in _imported(source, loaded.__package__ or ""):
            found.update(_sources(imported))
    return found


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Names of our modules that a source imports. One too many does no harm."""
    for origin, names in _IMPORTS.findall(source):
        base = origin.decode()
        if base.startswith("."):
            base = importlib.util.resolve_name(base, package)
        inner = [name.decode() for name in _NAMES.findall(names)]
        for name in [base, *(f"{base}.{part}" for part in inner)] if base else inner:
            if name.partition(".")[0] in _OURS and name in sys.modules:
                yield name
