"""Decorator `kernel`, which compiles loops with numba, and the digest of the sources that their code depends on.

A kernel is compiled on its first call with arguments of new types, which takes about a second. The compilation cache
(`compilation_cache`) keeps its code under a digest of the source of its module, of the project's modules that the
module imports, and of the compiler's versions. Only a changed kernel and its callers are compiled again. If a new numba
has other private parts than the cache uses, each process compiles what it calls.
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

CACHE_FAULT = ""
"""Why numba's private parts are not what the compilation cache uses; empty if they are."""
try:
    from calibrators.core.compilation_cache import CompilationCache
except (ImportError, AttributeError) as _error:
    CACHE_FAULT = f"numba {numba.__version__}: {_error}"

_PACKAGES = ("calibrators", "logcal", "pipeline")
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+(\([^)]*\)|.*)", re.MULTILINE)
_NAMES = re.compile(rb"[\w.]+")


def kernel(function: Callable[..., Any] | None = None, *, inline: bool = False) -> Any:
    """Compile a function on its first call, to run without the GIL, and cache its code.

    Parameters
    ----------
    function : function at the top of a module that takes and returns arrays and numbers. A division by zero gives
        an infinity or NaN.
    inline : whether to inline its machine code into the kernels that call it. (numba can also inline the source. That
        is no faster and makes compilation take half as long again.)
    """
    if function is None:
        return functools.partial(kernel, inline=inline)
    # Divisions follow IEEE 754. Checking each divisor for zero, to raise Python's error, would prevent vectorisation.
    options = {"nogil": True, "inline": "never", "forceinline": inline, "error_model": "numpy"}
    # C does not call kernels.
    compiled = numba.njit(**options, no_cfunc_wrapper=True)(function)
    digest = "" if CACHE_FAULT else source_digest(function.__module__)
    if digest:
        # With NUMBA_DISABLE_JIT, `compiled` is the function itself and the attribute has no effect.
        compiled._cache = CompilationCache(function, f"{function.__module__}-{digest}")
    if hasattr(compiled, "signatures"):
        KERNELS.append(compiled)
        # Otherwise a kernel is compiled once more for a variable of its caller that begins as a constant.
        template = compiled.get_call_template
        compiled.get_call_template = lambda types, names: template(
            tuple(map(numba.types.unliteral, types)), names
        )
    return compiled


KERNELS: list[Any] = []
"""All kernels that this process has imported."""


def used() -> dict[str, set[str]]:
    """Return the argument types of each kernel that this process has called, directly or through another kernel."""
    return _by_name((k, k.signatures) for k in KERNELS)


def newly_compiled() -> dict[str, set[str]]:
    """Return the argument types for which this process has compiled each kernel, because the cache had no code."""
    return _by_name((k, k.stats.cache_misses) for k in KERNELS)


def _by_name(kernels: Iterable[tuple[Any, Iterable[Any]]]) -> dict[str, set[str]]:
    typed = {f"{k.py_func.__module__}.{k.py_func.__name__}": {str(s) for s in types} for k, types in kernels}
    return {name: types for name, types in typed.items() if types}


def source_digest(module: str) -> str:
    """Return the digest of the sources, versions and options that a module's kernels are compiled with.

    It is empty if a source cannot be read. Call it while the module is imported: a source that is changed afterwards
    is not the one that is compiled.
    """
    sources = _sources(module)
    if not all(sources.values()):
        return ""
    versions = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    options = [str(config.OPT), config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT]
    if getattr(config, "USING_SVML", False):  # logarithms and exponentials from Intel's library
        options.append("svml")
    return hashlib.sha256(repr((versions, options, sorted(sources.items()))).encode()).hexdigest()[:16]


_known_sources: dict[str, dict[str, str]] = {}


def _sources(module: str) -> dict[str, str]:
    """Return digests of the sources of a module and of the project's modules that it imports, directly or indirectly.

    The digest of a module without a readable source is empty.
    """
    if module in _known_sources:
        return _known_sources[module]
    digests = _known_sources[module] = {module: ""}
    loaded = sys.modules[module]
    file, loader = getattr(loaded, "__file__", None) or "", getattr(loaded, "__loader__", None)
    if file.endswith(".py") and loader is not None and hasattr(loader, "get_data"):
        source = loader.get_data(file)
        digests[module] = hashlib.sha256(source).hexdigest()
        for imported in _imported(source, loaded.__package__ or ""):
            digests.update(_sources(imported))
    return digests


def _imported(source: bytes, package: str) -> Iterator[str]:
    """Yield the names of the project's modules that a source imports. A superfluous name does no harm."""
    for origin, names in _IMPORTS.findall(source):
        base = origin.decode()
        if base.startswith("."):
            base = importlib.util.resolve_name(base, package)
        inner = [name.decode() for name in _NAMES.findall(names)]
        for name in [base, *(f"{base}.{part}" for part in inner)] if base else inner:
            if name.partition(".")[0] in _PACKAGES and name in sys.modules:
                yield name
