"""Compilation cache: machine code of kernels, shared by processes.

Code is written to the first writable cache folder of these: the folders that ``LOGCAL_CACHE`` and ``NUMBA_CACHE_DIR``
name, the package's ``__pycache__``, the user's cache folder, a private folder below the temporary one. It is read from
all cache folders up to that one, so code compiled before a file system became read-only is used. If no cache folder is
writable, every process compiles for itself; the cache never causes an error.

A precompiled wheel (``make wheel``) has code in the folder ``precompiled``, for any processor of an architecture. It is
used if there is no code for this machine's processor; results are the same.

Loaded code is run. Other users could have made the last two cache folders, so these are used only if the user owns them
and nobody else may write to them. A cache folder has a subfolder for each module and digest of its sources, so that
versions of the source can share it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
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
"""Number of versions of a module whose code a cache folder keeps: the most recently used ones."""
_DAY = 86400.0
PRECOMPILED = Path(__file__).with_name("precompiled")
"""Folder with the code in a precompiled wheel."""
_ANY_PROCESSOR = "generic"
"""LLVM's name for the baseline processor of an architecture."""


class CompilationCache(FunctionCache):
    """Compilation cache of one kernel: a file for each combination of argument types and processor.

    It differs from numba's cache in three ways. numba chooses the folder when a function is decorated, though most
    kernels of a process are never called. It has an index file, so two processes that compile at the same time can
    load each other's code. It raises an error if it cannot write.

    Parameters
    ----------
    function : function to compile
    folder : name of the subfolder for its module and the digest of its sources
    """

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._py_func = function
        self._name = repr(function)
        self._folder = folder
        self.enable()

    @property
    def cache_path(self) -> str | None:
        """Folder for new code; None if no cache folder is writable."""
        root = cache_folders(self._package)[1]
        return root and str(root.path / self._folder)

    def flush(self) -> None:
        """Remove the kernel's code from the folder for new code."""
        if self.cache_path:
            for path in Path(self.cache_path).glob(f"{self._stem}-*.nbc"):
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def _package(self) -> str:
        """Folder of the kernel's top package, whose kernels share a cache folder."""
        function = self._py_func
        return str(Path(function.__code__.co_filename).parents[max(function.__module__.count(".") - 1, 0)])

    @property
    def _stem(self) -> str:
        return f"{self._py_func.__qualname__}-{self._py_func.__code__.co_firstlineno}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the code for some argument types; return None if there is none.

        Unlike numba's method, it imports only what loading needs. The imports for compilation take 0.3 s.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        if not self._enabled:
            return None
        codegen = target_context.codegen()
        name = self._file_name(sig, codegen)
        for root in cache_folders(self._package)[0]:
            code = _read(root.path / self._folder / name)
            if code is not None:
                _mark_as_used(root.path / self._folder)
                return _rebuild(target_context, code)
        name = self._file_name(sig, _AnyProcessor(codegen))
        code = _read(PRECOMPILED / self._folder / name)
        return None if code is None else _rebuild(target_context, code)

    def _save_overload(self, sig: Any, data: Any) -> None:
        root = cache_folders(self._package)[1]
        if not self._enabled or root is None or data.library.has_dynamic_globals or data.lifted:
            return
        # If the disk is full or the folder was removed, the code is used but not kept.
        with contextlib.suppress(OSError):
            folder = root.path / self._folder
            if not folder.is_dir():
                root.make()
                folder.mkdir(exist_ok=True)
                _tidy(folder)
            _write(folder / self._file_name(sig, data.codegen), dumps(data._reduce()))

    def _file_name(self, sig: Any, codegen: Any) -> str:
        key = hashlib.sha256(repr(self._index_key(str(sig), codegen)).encode()).hexdigest()
        return f"{self._stem}-{key[:24]}.nbc"


class _AnyProcessor:
    """Stand-in for numba's code generator that describes the baseline processor, which precompiled code is for."""

    def __init__(self, codegen: Any) -> None:
        self._system = codegen.magic_tuple()[0]

    def magic_tuple(self) -> tuple[str, str, str]:
        """Return the system, the processor and its additional features."""
        return self._system, _ANY_PROCESSOR, ""


def _rebuild(target_context: Any, code: bytes) -> Any:
    return CompileResult._rebuild(target_context, *_Loader(io.BytesIO(code)).load())


class _Loader(pickle.Unpickler):
    """Unpickler of cached machine code, which is then run; the module's docstring says which files are trusted."""

    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function; replace numba's function that rebuilds an environment by `_environment`."""
        return _environment if name == _rebuild_env.__name__ else super().find_class(module, name)


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Rebuild an environment without importing its module if that is numba's: such code looks up no global names."""
    if not module.startswith("numba.") or lookup_environment(name) is not None:
        return _rebuild_env(module, constants, name)
    environment = Environment({"__name__": module})
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


# Parts of numba that are not public, with the arguments that this module gives or takes.
_PRIVATE: list[tuple[Callable[..., Any], str]] = [
    (FunctionCache.load_overload, "(self, sig, target_context)"),
    (FunctionCache.save_overload, "(self, sig, data)"),
    (FunctionCache._load_overload, "(self, sig, target_context)"),
    (FunctionCache._save_overload, "(self, sig, data)"),
    (FunctionCache._index_key, "(self, sig, codegen)"),
    (CompileResult._reduce, "(self)"),
    (_rebuild_env, "(modname, consts, env_name)"),
    (Environment._memo.__setitem__, "(key, value)"),
]

for _function, _arguments in _PRIVATE:
    if str(inspect.signature(_function)) != _arguments:
        # `compiled` then does without this module.
        raise ImportError(f"{_function.__qualname__}{_arguments} has now {inspect.signature(_function)}")


# Cache folders


class CacheFolder(NamedTuple):
    """Folder that may contain code.

    shared : whether other users could have made it; then its owner and permissions are checked
    """

    path: Path
    shared: bool

    def make(self) -> None:
        """Make the folder; raise OSError if it is not trusted."""
        self.path.mkdir(mode=0o700 if self.shared else 0o777, parents=True, exist_ok=True)
        if not self.is_trusted():
            raise PermissionError(f"{self.path} does not belong to this user alone")

    def is_trusted(self) -> bool:
        """Tell whether only this user can have written to the folder, or it does not exist."""
        if not self.shared or not hasattr(os, "geteuid"):
            return True
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def is_writable(self) -> bool:
        """Tell by its permissions, or those of its nearest existing parent, whether the folder can be written to."""
        try:
            nearest = next((p for p in (self.path, *self.path.parents) if p.exists()), None)
            return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
        except OSError:
            return False


@functools.cache
def cache_folders(package: str) -> tuple[list[CacheFolder], CacheFolder | None]:
    """Return the cache folders to read the code of a package's kernels from, and the one for new code, if any.

    The environment variables are read when a kernel is first called.
    """
    readable = []
    for root in _candidate_folders(package):
        if root.is_trusted():
            readable.append(root)
            if root.is_writable():
                return readable, root
    return readable, None


def _candidate_folders(package: str) -> Iterator[CacheFolder]:
    for variable in ("LOGCAL_CACHE", "NUMBA_CACHE_DIR"):
        if value := os.environ.get(variable):
            yield CacheFolder(Path(value).absolute(), shared=False)
    yield CacheFolder(Path(package) / "__pycache__", shared=False)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 (it never raises)
    if caches.is_absolute():
        yield CacheFolder(caches / "logcal", shared=True)
    if hasattr(os, "geteuid"):
        with contextlib.suppress(OSError):  # no temporary folder at all
            yield CacheFolder(Path(tempfile.gettempdir()) / f"logcal-{os.geteuid()}", shared=True)


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
    """Write code and its digest atomically."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        new.write_bytes(hashlib.sha256(code).digest() + code)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _mark_as_used(folder: Path) -> None:
    """Set a folder's modification time to now, at most once a day: it tells when the folder was last used."""
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > _DAY:
            os.utime(folder)


def _tidy(folder: Path) -> None:
    """Remove the least recently used versions of a folder's module."""
    versions = [
        (path.stat().st_mtime, path) for path in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*")
    ]
    for _, old in sorted(versions, reverse=True)[_VERSIONS:]:
        shutil.rmtree(old, ignore_errors=True)
