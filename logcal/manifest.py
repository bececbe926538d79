"""A version's manifest: one check of all that its readers rely on."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, NamedTuple

from logcal import schema
from logcal.errors import InputRejectedError
from logcal.storage import parse_checked

MOST_BYTES = 64 << 20
"""Size limit of a manifest: a log of 300,000 files is listed in fewer bytes."""

_TEXT: tuple[type, ...] = (str,)
_WHOLE: tuple[type, ...] = (int,)
_NUMBER: tuple[type, ...] = (int, float)
_FLAG: tuple[type, ...] = (bool,)
_OBJECT: tuple[type, ...] = (dict,)
_LIST: tuple[type, ...] = (list,)
_NONE: tuple[type, ...] = (type(None),)
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
_EACH = "*"
_SHOWN = 40


class _Key(NamedTuple):
    """A key, and what it may hold. `path` : its names from the top; `*` stands for each entry of what is above it."""

    path: str
    types: tuple[type, ...]
    required: bool = True


_MODEL = (
    _Key("table", _TEXT),
    _Key("version", _TEXT),
    _Key("previous_version", _TEXT + _NONE),
    _Key("created", _TEXT),
    _Key("fingerprint", _TEXT),
    _Key("publish", _TEXT, False),
    _Key("refused", _LIST, False),
    _Key("refused.*", _OBJECT),
    _Key("refused.*.rule", _TEXT),
    _Key("refused.*.message", _TEXT),
    _Key("files", _OBJECT),
    _Key("files.*", _OBJECT),
    _Key("files.*.bytes", _WHOLE),
    _Key("files.*.sha256", _TEXT),
    _Key("run_id", _TEXT),
    _Key("method", _TEXT),
    _Key("parameters", _OBJECT),
    _Key("score_transform", _TEXT),
    _Key("monotone", _FLAG),
    _Key("lookup_rows", _WHOLE),
    _Key("seconds", _NUMBER),
    _Key("started", _TEXT, False),
    _Key("interval", _TEXT + _NONE, False),
    _Key("software", _OBJECT),
    _Key("config", _OBJECT),
    _Key("config.log", _OBJECT),
    _Key("config.log.weight", _TEXT + _NONE, False),
    _Key("config.score_table", _OBJECT, False),
    _Key("data", _OBJECT),
    _Key("data.rows_read", _WHOLE),
    _Key("data.rows_used", _WHOLE),
    _Key("data.rows_positive", _WHOLE),
    _Key("data.distinct_scores", _WHOLE),
    _Key("data.weight", _NUMBER),
    _Key("data.positives", _NUMBER),
    _Key("data.lowest_score", _NUMBER + _TEXT + _NONE),
    _Key("data.highest_score", _NUMBER + _TEXT + _NONE),
    _Key("data.quarantined_by_reason", _OBJECT),
    _Key("data.quarantined_by_reason.*", _WHOLE),
    _Key("log", _OBJECT),
    _Key("log.columns", _OBJECT, False),
    _Key("log.columns.*", _TEXT),
    _Key("log.generated_by", _TEXT + _NONE, False),
    _Key("log.files", _LIST),
    _Key("log.files.*", _OBJECT),
    _Key("log.files.*.path", _TEXT),
    _Key("log.files.*.bytes", _WHOLE + _NONE),
    _Key("log.files.*.rows", _WHOLE + _NONE),
    _Key("log.files.*.stamp", _TEXT + _NUMBER + _NONE, False),
    _Key("segments", _OBJECT + _NONE, False),
    _Key("segments.columns", _LIST),
    _Key("segments.columns.*", _TEXT),
    _Key("gate", _OBJECT + _NONE, False),
    _Key("gate.auc", _NUMBER + _NONE, False),
    _Key("gate.holdout", _OBJECT + _NONE, False),
    _Key("window", _OBJECT + _NONE, False),
    _Key("window.column", _TEXT),
    _Key("window.first", _TEXT),
    _Key("window.last", _TEXT),
    _Key("window.days", _LIST, False),
    _Key("window.days.*", _OBJECT),
    _Key("window.days.*.day", _TEXT),
    _Key("window.days.*.rows_read", _WHOLE),
    _Key("window.days.*.rows_used", _WHOLE),
    _Key("window.days_set_aside", _LIST, False),
    _Key("window.days_set_aside.*", _OBJECT),
    _Key("window.days_set_aside.*.day", _TEXT),
    _Key("window.days_set_aside.*.reasons", _LIST),
    _Key("window.days_set_aside.*.reasons.*", _TEXT),
)
"""Keys that readers rely on. A manifest may hold more; a part that is absent or null has no keys below it."""

_DATES = ("created", "started", "window.first", "window.last", "window.days.*.day")


def read_manifest(path: str, content: bytes) -> dict[str, Any]:
    """A version's manifest.

    Parameters
    ----------
    path : of the file, for messages
    content : of the file

    Raises
    ------
    InputRejectedError
        It is not a version's manifest, or one of a format that is not known.
    """
    if len(content) > MOST_BYTES:
        raise _damaged(path, f"a manifest of at most {MOST_BYTES:,} bytes", f"{len(content):,}")
    try:
        manifest = parse_checked(content)
    except ValueError as error:
        raise _damaged(path, "JSON", f"a damaged file ({error})") from None
    found = manifest.get("format_version") if isinstance(manifest, dict) else None
    if found not in schema.FORMAT_VERSIONS:
        raise InputRejectedError(f"{path}: {schema.other_format(found)}")
    for key in _MODEL:
        names = key.path.split(".")
        for above, place in _places(manifest, names[:-1], ()):
            _check(path, key, above, (*place, names[-1]))
    return dict(manifest)


def _places(value: Any, names: list[str], place: tuple[str, ...]) -> list[tuple[Any, tuple[str, ...]]]:
    """The objects and lists that a key may be in, and where each is; what is above it has been checked before."""
    found = [(value, place)]
    for name in names:
        below = []
        for above, at in found:
            if name == _EACH:
                below += [(entry, (*at, str(own))) for own, entry in _entries(above)]
            elif name in above:
                below.append((above[name], (*at, name)))
        found = [(entry, at) for entry, at in below if entry is not None]
    return found


def _entries(above: Any) -> Any:
    return above.items() if isinstance(above, dict) else enumerate(above)


def _check(path: str, key: _Key, above: Any, place: tuple[str, ...]) -> None:
    if place[-1] == _EACH:
        entries = [((*place[:-1], str(own)), entry) for own, entry in _entries(above)]
    elif place[-1] in above:
        entries = [(place, above[place[-1]])]
    elif key.required:
        raise _damaged(path, f"{'.'.join(place)} to be {_words(key.types)}", "nothing")
    else:
        return
    for at, value in entries:
        # True is no whole number here, though Python has it so.
        right = type(value) in key.types and (key.path not in _DATES or _is_date(value))
        if not right:
            expected = "a date" if key.path in _DATES else _words(key.types)
            raise _damaged(path, f"{'.'.join(at)} to be {expected}", _shown(value))


def _is_date(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _words(types: tuple[type, ...]) -> str:
    return " or ".join(_WORDS[kind] for kind in types if not (kind is int and float in types))


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _WORDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _damaged(path: str, expected: str, found: str) -> InputRejectedError:
    return InputRejectedError(
        f"{path}: expected {expected}, found {found}: the version is damaged; go back to another with "
        "`logcal tables rollback`, or fit again"
    )
