"""Compilation cache: machine code of kernels, shared by processes.

Code is written to the first writable place of these: the folders that ``LOGCAL_CACHE`` and ``NUMBA_CACHE_DIR`` name,
the package's own ``__pycache__``, the user's cache folder, a private folder below the temporary one. It is read from
all places up to that one, so code compiled before a file system became read-only is used. If no place is writable,
every process compiles for itself; the cache never causes an error.

A precompiled wheel (``make wheel``) has code in the folder ``precompiled``, for any processor of an architecture. It is
used if there is no code for this machine's processor; results are the same.

Loaded code is run. Others could have made the last two places, so a folder there is used only if the user owns it and
nobody else may write to it. A place has a folder for each module and digest of its sources, so that versions of the
source can share places.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.environment import Environment, _rebuild_env, lookup_environment
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

_VERSIONS = 8
"""Number of versions of a module whose code a place keeps: those used last."""
_DAY = 86400.0
PRECOMPILED = Path(__file__).with_name("precompiled")
"""The folder with the code that a wheel brings."""
_ANY_PROCESSOR = "generic"
"""LLVM's name of the least processor of a kind."""


class CompilationCache(FunctionCache):
    """Compilation cache of one kernel: a file for each combination of argument types and processor.

    numba's own cache looks for its place when a function is decorated, though most kernels of a process are never
    called; has an index, so that of two processes which compile at once one may be given the other's code; and
    raises where it may not write.

    Parameters
    ----------
    function : what is compiled.
    folder : name of the folder for its module and all that its code depends on.
    """

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._py_func = function
        self._name = repr(function)
        self._folder = folder
        self.enable()

    @property
    def cache_path(self) -> str | None:
        """Folder for new code; None if there is none."""
        place = places(self._package)[1]
        return place and str(place.path / self._folder)

    def flush(self) -> None:
        """Forget what is kept where new code is."""
        if self.cache_path:
            for path in Path(self.cache_path).glob(f"{self._stem}-*.nbc"):
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def _package(self) -> str:
        return os.path.dirname(self._py_func.__code__.co_filename)  # noqa: PTH120 (as Python has the name)

    @property
    def _stem(self) -> str:
        return f"{self._py_func.__qualname__}-{self._py_func.__code__.co_firstlineno}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for some argument types, or None.

        As numba's own, without what compiling needs and loading does not: all that numba can compile, and what of
        scipy and numpy that refers to, takes 0.3 s to import.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        if not self._enabled:
            return None
        codegen = target_context.codegen()
        name = self._file_name(sig, codegen)
        for place in places(self._package)[0]:
            code = _read(place.path / self._folder / name)
            if code is not None:
                _mark_as_used(place.path / self._folder)
                return _rebuilt(target_context, code)
        name = self._file_name(sig, _AnyProcessor(codegen))
        code = _read(PRECOMPILED / self._folder / name)
        return None if code is None else _rebuilt(target_context, code)

    def _save_overload(self, sig: Any, data: Any) -> None:
        place = places(self._package)[1]
        if not self._enabled or place is None or data.library.has_dynamic_globals or data.lifted:
            return
        # A full disk, or a place that was taken away: the code is used, and not kept.
        with contextlib.suppress(OSError):
            folder = place.path / self._folder
            if not folder.is_dir():
                place.make()
                folder.mkdir(exist_ok=True)
                _tidy(folder)
            _write(folder / self._file_name(sig, data.codegen), dumps(data._reduce()))

    def _file_name(self, sig: Any, codegen: Any) -> str:
        key = hashlib.sha256(repr(self._index_key(str(sig), codegen)).encode()).hexdigest()
        return f"{self._stem}-{key[:24]}.nbc"


class _AnyProcessor:
    """The processor that precompiled code is for, as numba describes one."""

    def __init__(self, codegen: Any) -> None:
        self._system = codegen.magic_tuple()[0]

    def magic_tuple(self) -> tuple[str, str, str]:
        """The system, the processor and what it has more than others of its kind."""
        return self._system, _ANY_PROCESSOR, ""


def _rebuilt(target_context: Any, code: bytes) -> Any:
    return CompileResult._rebuild(target_context, *_Loader(io.BytesIO(code)).load())


class _Loader(pickle.Unpickler):
    """Unpickler of cached machine code, which is then run: see the module for who may have written it."""

    def find_class(self, module: str, name: str) -> Any:
        """Find a class; the stand-in for a compiled function's module names is made here."""
        return _environment if name == _rebuild_env.__name__ else super().find_class(module, name)


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Numba's environment without importing the module: compiled code of numba's looks none of its names up."""
    if not module.startswith("numba.") or lookup_environment(name) is not None:
        return _rebuild_env(module, constants, name)
    found = Environment({"__name__": module})
    found.consts[:] = constants
    found.env_name = name
    Environment._memo[name] = found
    return found


# Places


class Place(NamedTuple):
    """A folder that may hold code, and whether others could have made it, so that it must be seen to be the user's."""

    path: Path
    shared: bool

    def make(self) -> None:
        """Make the folder; raise OSError if it is not to be used."""
        self.path.mkdir(mode=0o700 if self.shared else 0o777, parents=True, exist_ok=True)
        if not self.is_trusted():
            raise PermissionError(f"{self.path} is not this user's own")

    def is_trusted(self) -> bool:
        """Tell whether nobody else could have put code there, if it is there."""
        if not self.shared or not hasattr(os, "geteuid"):
            return True
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def is_writable(self) -> bool:
        """Tell whether the folder can be written to, or made, without trying it."""
        try:
            there = next((path for path in (self.path, *self.path.parents) if path.exists()), None)
            return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
        except OSError:
            return False


@functools.cache
def places(package: str) -> tuple[list[Place], Place | None]:
    """Return the places where the code of a package's kernels may lie, and the one for new code, if any.

    As the environment is when a kernel is first called.
    """
    found = []
    for place in _all_places(package):
        if place.is_trusted():
            found.append(place)
            if place.is_writable():
                return found, place
    return found, None


def _all_places(package: str) -> Iterator[Place]:
    for variable in ("LOGCAL_CACHE", "NUMBA_CACHE_DIR"):
        if given := os.environ.get(variable):
            yield Place(Path(given).absolute(), shared=False)
    yield Place(Path(package) / "__pycache__", shared=False)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 (it never raises)
    if caches.is_absolute():
        yield Place(caches / "logcal", shared=True)
    if hasattr(os, "geteuid"):
        with contextlib.suppress(OSError):  # no temporary folder at all
            yield Place(Path(tempfile.gettempdir()) / f"logcal-{os.geteuid()}", shared=True)


# Files


def _read(path: Path) -> bytes | None:
    """Read what `_write` wrote; None if it is missing or incomplete."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Write code and its digest: who reads meanwhile sees all of it or nothing."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        new.write_bytes(hashlib.sha256(code).digest() + code)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _mark_as_used(folder: Path) -> None:
    """Let it be seen, to the day, when a folder was last used."""
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > _DAY:
            os.utime(folder)


def _tidy(folder: Path) -> None:
    """Remove what is kept for the versions of a folder's module that have not been used for longest."""
    versions = [
        (path.stat().st_mtime, path) for path in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*")
    ]
    for _, old in sorted(versions, reverse=True)[_VERSIONS:]:
        shutil.rmtree(old, ignore_errors=True)
