"""Secrets: what must not be shown, and text without it."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_known: set[str] = set()
_IN_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]+@")
_USER = re.compile(r"://[^/\s@:'\"]*:(?P<password>[^/\s@'\"]+)@")
_PARAMETER = re.compile(
    r"(?i)(?<=[?&])(?P<name>[\w.-]*(?:secret|token|passw|pwd|signature|credential|key|sas|sig)[\w.-]*)="
    r"(?P<value>[^&\s,;'\"}{]+)"
)
_SECRET_NAME = re.compile(r"(?i)secret|token|passw|pwd|signature|credential|key|sas|auth|sig$")


def remember(value: Any) -> None:
    """Keep text out of all messages from now on; shorter text than four characters would hide too much."""
    text = str(value)
    if len(text) >= 4:
        _known.add(text)


def remember_urls(values: Any) -> None:
    """Keep out of all messages what is secret in the URLs among JSON values: libraries show parts of them."""
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
    """Text for messages, logs and manifests: passwords in URLs, parameters of signed URLs and known values hidden.

    >>> without_secrets("s3://me:pw@host/log?X-Amz-Signature=abc&x=1")
    's3://***@host/log?X-Amz-Signature=***&x=1'
    """
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _IN_URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\g<name>={HIDDEN}", text)


def is_secret_name(name: str) -> bool:
    """Tell whether the value of this name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def redacted(values: Any) -> Any:
    """JSON values whose texts are `without_secrets`."""
    if isinstance(values, dict):
        return {key: redacted(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [redacted(value) for value in values]
    return without_secrets(values) if isinstance(values, str) else values
