"""Making a job's configuration of files and settings, or saying everything that is wrong with them at once."""

from __future__ import annotations

import datetime as dt
import difflib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from jobs.config.files import KeyPath, Origin, Values, raise_all, read_values
from jobs.config.section import Section, section_of
from jobs.config.table import CalibratorConfig
from jobs.registry import JOBS
from logcal.errors import ConfigError

log = logging.getLogger("logcal")

C = TypeVar("C", bound=Section)


def load(model: type[C], files: Sequence[str | Path] = (), settings: Sequence[str] = ()) -> C:
    """The configuration in YAML files, later ones over earlier ones, and KEY.PATH=VALUE settings over all.

    Parameters
    ----------
    model : type
        The job's configuration class.
    files : sequence of path
        Maps are merged key by key; anything else is replaced.
    settings : sequence of str
        The value is read as YAML; a map or list replaces what was there.

    Raises
    ------
    ConfigError
        All problems together, each with its key and where it was written.
    """
    return load_values(model, read_values(files, settings))


def load_values(model: type[C], values: Values) -> C:
    """The configuration of values that have been read. Raises ConfigError as `load` does."""
    raise_all(list(_text_problems(values, values.values, ())))
    _stand_in(model, values)
    passed, problems = pass_over(model, values)
    if passed:
        log.debug("keys of other jobs, not used here: %s", ", ".join(passed))
    try:
        config = model.model_validate(values.values)
    except ValidationError as error:
        problems += [
            p for detail in error.errors(include_url=False) for p in _describe(detail, model, values)
        ]
        raise_all(problems + _calibrator_problems(model, values))
        raise
    raise_all(problems)
    return config


def _text_problems(values: Values, value: Any, above: KeyPath) -> Iterator[str]:
    """Text that no file system, store or manifest can hold."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _unspeakable(str(key)):
                yield _at(above, values, f"expected keys in UTF-8 without NUL, found {str(key)!r}")
            else:
                yield from _text_problems(values, inner, (*above, str(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _text_problems(values, inner, above)
    elif isinstance(value, str) and _unspeakable(value):
        yield _at(above, values, f"expected text in UTF-8 without NUL, found {value[:60]!r}")


def _unspeakable(text: str) -> bool:
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)


def _stand_in(model: type[Section], values: Values) -> None:
    """Give keys that are not given the values of those that may stand for them."""
    for path, other in getattr(model, "stand_ins", {}).items():
        if values.get(path) is None and values.get(other) is not None:
            values.put(path, values.get(other), {path: values.origins[other]})


def pass_over(model: type[Section], values: Values) -> tuple[list[str], list[str]]:
    """Take out what other jobs know and this one does not, so that one file can serve all jobs.

    Returns
    -------
    passed : dotted paths of what was taken out
    problems : of keys inside other jobs' sections that no job knows; elsewhere they stay where they are
    """
    passed: list[str] = []
    problems: list[str] = []
    if not _unknown(model, values.values):
        return passed, problems
    others = [job.config_class() for job in JOBS.values()]

    def walk(
        inner: dict[str, Any], own: type[Section] | None, known: Sequence[type[Section]], above: KeyPath
    ) -> None:
        for key in list(inner):
            path = (*above, key)
            mine = own.model_fields.get(key) if own else None
            theirs = [m.model_fields[key] for m in known if key in m.model_fields]
            section = section_of(mine.annotation) if mine else None
            sections = [s for s in (section_of(info.annotation) for info in theirs) if s]
            deeper = isinstance(inner[key], dict) and bool(sections)
            if mine is not None:
                if deeper and section:
                    walk(inner[key], section, sections, path)
            elif theirs:
                if deeper:
                    walk(inner[key], None, sections, path)
                passed.append(_dotted(path))
                del inner[key]
            elif own is None:
                problems.append(_at(path, values, f"unknown key{_suggestion(path, others)}"))

    walk(values.values, model, others, ())
    return passed, problems


def _unknown(model: type[Section], values: Mapping[str, Any]) -> bool:
    """Whether there is a key that the model does not know."""
    for key, value in values.items():
        info = model.model_fields.get(key)
        if info is None:
            return True
        section = section_of(info.annotation)
        if section and isinstance(value, dict) and _unknown(section, value):
            return True
    return False


def known_keys(model: type[Section]) -> list[str]:
    """Dotted paths of all keys that have a value of their own."""
    return [".".join(path) for path, _ in _keys(model)]


def key_choices(model: type[Section]) -> dict[str, tuple[str, ...]]:
    """The values that each key may have, where they are few; others have none here."""
    return {".".join(path): _choices(info.annotation) for path, info in _keys(model)}


def _choices(annotation: Any) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def _keys(model: type[Section], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is None:
            yield (*above, name), info
        else:
            yield from _keys(section, (*above, name))


def _calibrator_problems(model: type[Section], values: Values) -> list[str]:
    # Checked by the job's preparation, since it takes the libraries; looked at here only to say everything at once.
    section = values.values.get("calibrator")
    if "calibrator" not in model.model_fields or not isinstance(section, dict):
        return []
    from pipeline.fit.calibration import make_calibrator

    try:
        config = CalibratorConfig.model_validate(section)
        make_calibrator(config.method, config.params)
    except ValidationError:
        return []
    except ConfigError as error:
        return [str(error)]
    return []


def _describe(detail: ErrorDetails, model: type[Section], values: Values) -> Iterator[str]:
    path = detail["loc"]
    if detail["type"] == "conflicts":
        for key, text in detail["ctx"]["conflicts"]:
            yield _at((*path, key), values, text)
    elif detail["type"] == "extra_forbidden":
        yield _at(path, values, f"unknown key{_suggestion(path, [model])}")
    elif detail["type"] == "missing":
        yield _at(path, values, f"REQUIRED; give it in a file or with --set {_dotted(path)}=...")
    elif detail["type"] == "value_error":
        yield _at(path, values, str(detail["ctx"]["error"]))
    else:
        origin = values.origin(path)
        expected = _expected(detail)
        hint = _hint(detail, expected, origin, path)
        yield _at(path, values, f"expected {expected}, found {_found(detail['input'])}{hint}")


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def _at(path: Sequence[str | int], values: Values, text: str) -> str:
    origin = values.origin(path)
    exact = origin is not None and tuple(str(p) for p in path) in values.origins
    where = f" ({origin.place})" if origin is not None and exact else ""
    return f"{_dotted(path)}{where}: {text}"


_EXPECTED: Mapping[str, str | Callable[[dict[str, Any]], str]] = {
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "too_short": "at least one",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a map of keys and values",
    "model_type": "a map of keys and values",
    "tuple_type": "text, or a list of texts",
    "greater_than": lambda ctx: f"a number > {ctx['gt']:g}",
    "greater_than_equal": lambda ctx: f"a number >= {ctx['ge']:g}",
    "less_than_equal": lambda ctx: f"a number <= {ctx['le']:g}",
    "literal_error": lambda ctx: (
        "one of " + re.sub(r"'| or", lambda m: "," if m[0] == " or" else "", ctx["expected"])
    ),
    "choice": lambda ctx: f"one of {', '.join(ctx['choices'])}, or {ctx['or']}",
}


def _expected(detail: ErrorDetails) -> str:
    text = _EXPECTED.get(detail["type"], detail["msg"])
    return text if isinstance(text, str) else text(detail.get("ctx", {}))


def _found(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {value}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text '{value}'" if len(value) <= 60 else f"the text '{value[:57]}...'"
        case dt.date():
            return f"the date {value}"
        case dict():
            return "a map"
        case list() | tuple():
            return "a list" if value else "an empty list"
    return f"{type(value).__name__} {value!r:.60}"


def _hint(detail: ErrorDetails, expected: str, origin: Origin | None, path: Sequence[str | int]) -> str:
    """How to write what was probably meant, where YAML read something else."""
    value, written = detail["input"], origin.written if origin else None
    if detail["type"] == "literal_error" or detail["type"] == "choice":
        choices = re.split(r"\W+", expected)
        close = difflib.get_close_matches(str(value), choices, n=1)
        return f"; did you mean {close[0]}?" if close else ""
    if expected.startswith("text") and isinstance(value, bool | int | float | dt.date) and written:
        quoted = f"""put it in quotes: --set "{_dotted(path)}='{written}'\""""
        quotes = quoted if origin and origin.place.startswith("--set") else "put it in quotes"
        if isinstance(value, bool):
            return f"; YAML reads an unquoted {written} as {str(value).lower()}: {quotes}"
        return f"; {quotes}"
    if "number" in expected and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        if written is None:
            return "; leave out the quotes"
        plain = f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else f"{number:.15g}"
        return f"; YAML reads {value} as text: write {plain}"
    return ""


def _suggestion(path: Sequence[str | int], models: Sequence[type[Section]]) -> str:
    known = list(dict.fromkeys(key for model in models for key in known_keys(model)))
    dotted, last = _dotted(path), str(path[-1])
    if any(key.startswith(f"{dotted}.") for key in known):
        return ""
    same = [key for key in known if key.rsplit(".", 1)[-1] == last]
    siblings = [key for key in known if key.rpartition(".")[0] == _dotted(path[:-1])]
    fields = {name: info for model in models for name, info in model.model_fields.items()}
    sections = [name for name, info in fields.items() if section_of(info.annotation)]
    close = (
        same
        or _close(last, siblings)
        or (_close(last, sections) if len(path) == 1 else [])
        or difflib.get_close_matches(dotted, known, n=1, cutoff=0.7)
        or _close(last, known)
    )
    if close:
        return f"; did you mean {close[0]}?"
    here = list(fields) if len(path) == 1 else [key.rpartition(".")[2] for key in siblings]
    return f"; known here: {', '.join(here)}" if here else ""


def _close(name: str, keys: Sequence[str]) -> list[str]:
    """The key whose last part is nearest to a name."""
    lasts = {key.rsplit(".", 1)[-1]: key for key in keys}
    return [lasts[match] for match in difflib.get_close_matches(name, list(lasts), n=1)]
