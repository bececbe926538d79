"""Options of object stores, applied to every file system opened by URL; removal of secrets; hidden folders' names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from logcal.errors import ConfigError

HIDDEN = "***"

_RECORDS = ".logcal"

_secrets: set[str] = set()
_IN_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")
_USER = re.compile(r"://[^/\s@:'\"]*:(?P<password>[^/\s@'\"]+)@")
_PARAMETER = re.compile(
    r"(?i)(?<=[?&])(?P<name>[\w.-]*(?:secret|token|passw|pwd|signature|credential|key|sas|sig)[\w.-]*)="
    r"(?P<value>[^&\s,;'\"}{]+)"
)
_SECRET_NAME = re.compile(r"(?i)secret|token|passw|pwd|signature|credential|key|sas|auth|sig$")


def remember(value: Any) -> None:
    """Hide a text in all messages from now on; text shorter than four characters would hide too much."""
    text = str(value)
    if len(text) >= 4:
        _secrets.add(text)


def remember_urls(values: Any) -> None:
    """Hide the secrets in URLs among JSON values in all messages from now on: libraries show parts of URLs."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        for value in values:
            remember_urls(value)
    elif isinstance(values, str) and "://" in values:
        for user in _USER.finditer(values):
            remember(user["password"])
        for parameter in _PARAMETER.finditer(values):
            remember(parameter["value"])


def without_secrets(text: str) -> str:
    """Hide passwords in URLs, parameters of signed URLs and remembered values in a text.

    >>> without_secrets("s3://me:pw@host/log?X-Amz-Signature=abc&x=1")
    's3://***@host/log?X-Amz-Signature=***&x=1'
    """
    for value in sorted(_secrets, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _IN_URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\g<name>={HIDDEN}", text)


def is_secret_name(name: str) -> bool:
    """Tell whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(values: Any) -> Any:
    """Apply `without_secrets` to all text in JSON values."""
    if isinstance(values, dict):
        return {key: redacted(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [redacted(value) for value in values]
    return without_secrets(values) if isinstance(values, str) else values


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRETS_OF_LIBRARIES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
)


def use(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Use these options for every file system opened from now on, in this process and in processes started later.

    Parameters
    ----------
    options : keyword arguments of fsspec's file system by protocol, such as {'s3': {'endpoint_url': ...}}; the text
        ${NAME} stands for the environment variable of that name

    Raises
    ------
    ConfigError
        An environment variable is not set.
    """
    from fsspec.config import conf

    for name in _SECRETS_OF_LIBRARIES:
        if name in os.environ:
            remember(os.environ[name])
    for protocol, arguments in options.items():
        resolved = _resolved(arguments, f"$[options].{protocol}")
        conf[protocol] = {**conf.get(protocol, {}), **resolved}
        # Workers of this machine inherit the environment; fsspec reads this variable when it is imported.
        os.environ[f"FSSPEC_{protocol.upper()}"] = json.dumps(conf[protocol])


def _resolved(value: Any, name: str, *, secret: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _resolved(inner, f"{name}.{key}", secret=secret or is_secret_name(str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_resolved(inner, name, secret=secret) for inner in value]
    if not isinstance(value, str):
        return value
    match = _VARIABLE.fullmatch(value)
    if match is not None:
        if match[1] not in os.environ:
            raise ConfigError(f"{name}: expected the environment variable {match[1]} to be set, found none")
        value = os.environ[match[1]]
        remember(value)
    elif secret:
        remember(value)
    return value


def records_beside(path: str) -> str:
    """Return the folder of logcal's records beside an output: `<parent>/.<name>.logcal`.

    Its name is hidden: pandas, Arrow, Dask and Spark, which read the outputs of a common folder together, skip it.

    >>> records_beside("s3://bucket/scored/")
    's3://bucket/.scored.logcal'
    """
    folder, slash, name = path.rstrip("/").rpartition("/")
    return f"{folder}{slash}.{name}{_RECORDS}"


def is_records_folder(path: str) -> bool:
    """Tell whether a path has the form of `records_beside`."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.startswith(".") and name.endswith(_RECORDS)
