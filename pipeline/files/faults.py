"""Conversion of the environment's errors to errors for the user; only this module knows object stores' exceptions.

These come from several optional libraries, so they are recognised by their names.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from logcal.errors import ConfigError, FileChangedError, LogcalError, TemporaryError
from pipeline.files.folders import size
from pipeline.files.storage import without_secrets

_NO_CREDENTIALS = re.compile(r"Credential|Token|ProfileNotFound|InvalidConfig|RefreshError")
_WRONG_SETTINGS = re.compile(r"Region|InvalidURL|NonHttpUrl|ParamValidation|UnknownEndpoint")
"""Parts of the names of stores' exceptions; any other exception means that a store is not reached, or fails."""
_STORES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
_NO_BUCKET = re.compile(
    r"NoSuchBucket|bucket does not exist|Invalid bucket name|Bucket is not valid", re.IGNORECASE
)
_DENIED = re.compile(
    r"AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|Unauthorized|\b40[13]\b",
    re.IGNORECASE,
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_NAME = (errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
_NO_MEMORY = ("can't start new thread", "failed to map segment", "annot allocate memory", "bad_alloc")
_OURS = ("calibrators", "jobs", "logcal", "pipeline")
_CGROUP = "/sys/fs/cgroup/memory.max"


def as_fault(error: BaseException, subject: str = "") -> LogcalError | None:
    """Convert an error of the environment to an error for the user; return None for any other error.

    Parameters
    ----------
    error : error that a library, the operating system or an object store raised
    subject : file or setting that the error concerns; begins the message

    Returns
    -------
    TemporaryError : no memory, no threads, no space; a store that is not reached, fails or breaks off.
    ConfigError : no such bucket, no credentials, no permission, invalid names, no driver, unknown options.
    FileChangedError : no such object.
    """
    head = f"{subject}: " if subject else ""
    cause = _text_of(error)
    if isinstance(error, LogcalError):
        return error
    if out_of_memory(error):
        return TemporaryError(
            f"{head}out of memory{f' ({cause})' if cause else ''}; {memory_limits()}: tasks are cut for "
            "$[memory]; lower it, or $[workers], or give the command more"
        )
    for link in _chain(error):
        fault = _store_fault(link, head, cause)
        if fault is not None:
            return fault
    if isinstance(error, OSError) and error.errno is not None:
        return write_fault(error, subject)
    return _setting_fault(error, head, cause)


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out; libraries raise several types for that."""
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in _NO_MEMORY)


def _setting_fault(error: BaseException, head: str, cause: str) -> ConfigError | None:
    """Return the error for a missing package, or for options that a store's library does not take."""
    module = _raised_in(error)
    missing = next((e for e in (error, error.__cause__) if isinstance(e, ModuleNotFoundError)), None)
    if missing is not None and (missing.name or "").partition(".")[0] not in _OURS:
        return ConfigError(
            f"{head}expected a package that is not installed ({cause}): pip install {missing.name}"
        )
    if "range requests" in cause:
        return ConfigError(
            f"{head}expected a server that gives parts of files (range requests), found one that does not: copy the "
            "files to a folder or an object store"
        )
    if _of_store(module) and isinstance(error, (AttributeError, TypeError, ValueError)):
        return ConfigError(
            f"{head}expected options that {module.partition('.')[0]} takes, found others ({cause}): correct "
            "$[options] for its protocol"
        )
    return None


def _of_store(module: str) -> bool:
    return module.partition(".")[0] in _STORES and module != "fsspec.implementations.local"


def _raised_in(error: BaseException) -> str:
    """Return the name of the module in which an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    yielded: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in yielded:
        yielded.append(link)
        yield link
        link = link.__cause__ or link.__context__


def _store_fault(error: BaseException, head: str, cause: str) -> LogcalError | None:
    names = " ".join(cls.__name__ for cls in type(error).__mro__)
    of_store = type(error).__module__.partition(".")[0] in _STORES or (
        type(error) is OSError and error.errno is None and _of_store(_raised_in(error))
    )
    text = str(error)
    if _NO_BUCKET.search(text):
        return ConfigError(f"{head}expected a bucket that exists, found none ({cause}): correct the URL")
    if of_store and _NO_CREDENTIALS.search(names):
        return ConfigError(
            f"{head}expected credentials for the object store, found none that work ({cause}): set them as its "
            "library reads them, or with $[options]"
        )
    if of_store and _WRONG_SETTINGS.search(names):
        return ConfigError(f"{head}expected settings that the object store takes ({cause}): correct the URL")
    if isinstance(error, PermissionError) or (of_store and _DENIED.search(text)):
        return ConfigError(
            f"{head}expected to be allowed to do this, found no permission ({cause}): correct the credentials, or "
            "choose another place"
        )
    if isinstance(error, FileNotFoundError):
        return FileChangedError(f"{head}expected a file or folder, found none ({cause})")
    if of_store or isinstance(error, (ConnectionError, TimeoutError)):
        return TemporaryError(
            f"{head}the object store was not reached, failed or broke off "
            f"({cause or type(error).__name__}): run again"
        )
    return None


def write_fault(error: OSError, subject: str, effect: str = "") -> LogcalError:
    """Convert a file operation's error to one for the user. subject : see `as_fault`. effect : ends the message."""
    head, cause = (f"{subject}: " if subject else ""), _text_of(error)
    effect = f"; {effect}" if effect else ""
    if error.errno in _FULL:
        return TemporaryError(
            f"{head}no space left ({cause}): free some, or choose a place with more{effect}"
        )
    if error.errno in _NO_NAME:
        return ConfigError(
            f"{head}expected a path that is possible, found one that is not ({cause}): choose another{effect}"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ConfigError(f"{head}expected a place that can be written to ({cause}): choose another{effect}")
    return TemporaryError(f"{head}a file operation failed ({cause}): run again{effect}")


def _text_of(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]


def memory_limits() -> str:
    """Describe this process's memory limit and free memory, as far as the system knows them, for a message."""
    import resource

    parts = []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        parts.append(f"this process may map {size(limit)} (ulimit -v)")
    group = _number(_CGROUP)
    if group is not None:
        parts.append(f"its container has {size(group)}")
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        parts.append(f"the machine has {size(total)}, {size(available)} of it unused")
    except (OSError, ValueError):
        pass
    return ", ".join(parts)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - nothing may be imported when memory is short
            return int(file.read())
    except (OSError, ValueError):
        return None
