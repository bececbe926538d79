"""Options for object stores, for all that a process and its workers open by URL."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from logcal.errors import ConfigError
from pipeline.files.secrets import is_secret_name, remember

_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRETS_OF_LIBRARIES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
)


def use(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Have every file system of a protocol made with these options from now on, here and in processes started later.

    Parameters
    ----------
    options : keyword arguments of fsspec's file system by protocol, such as {'s3': {'endpoint_url': ...}}; text
        ${NAME} is the environment variable of that name

    Raises
    ------
    ConfigError
        An environment variable is not set.
    """
    from fsspec.config import conf

    for name in _SECRETS_OF_LIBRARIES:
        if name in os.environ:
            remember(os.environ[name])
    for protocol, given in options.items():
        known = _resolved(given, f"storage.options.{protocol}")
        conf[protocol] = {**conf.get(protocol, {}), **known}
        # Workers of this machine inherit the environment; fsspec reads this when it is imported.
        os.environ[f"FSSPEC_{protocol.upper()}"] = json.dumps(conf[protocol])


def _resolved(value: Any, where: str, *, secret: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _resolved(inner, f"{where}.{key}", secret=secret or is_secret_name(str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_resolved(inner, where, secret=secret) for inner in value]
    if not isinstance(value, str):
        return value
    match = _NAMED.fullmatch(value)
    if match is not None:
        if match[1] not in os.environ:
            raise ConfigError(f"{where}: expected the environment variable {match[1]} to be set, found none")
        value = os.environ[match[1]]
        remember(value)
    elif secret:
        remember(value)
    return value
