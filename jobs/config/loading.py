"""Load a job's configuration from YAML files and --set; report all problems at once."""

from __future__ import annotations

import datetime as dt
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from yaml.constructor import ConstructorError

from jobs.config.base import Section, holds_paths, section_of
from jobs.config.jobs import JOB_CONFIGS, JobConfig, fields_of
from jobs.config.paths import folder_of, resolve
from jobs.config.sections import CalibratorConfig
from logcal import storage
from logcal.errors import ConfigError, counted, listing
from pipeline.files.storage import HIDDEN

log = logging.getLogger("logcal")

C = TypeVar("C", bound=Section)

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Provenance:
    """Provenance of a value: the file or option, and its spelling."""

    source: str
    """A file and line, or the --set option."""
    written: str | None = None
    """Spelling of an unquoted scalar; None: quoted, or not a scalar."""
    folder: str = ""
    """Folder or URL of the file; '': the working folder."""


@dataclass
class Values:
    """Configuration values as nested dictionaries, with the provenance of every key."""

    values: dict[str, Any] = field(default_factory=dict)
    provenances: dict[KeyPath, Provenance] = field(default_factory=dict)

    def provenance(self, path: Sequence[str | int]) -> Provenance | None:
        """Return the provenance of a key, or of the nearest key above it."""
        names = tuple(str(part) for part in path)
        while names:
            if names in self.provenances:
                return self.provenances[names]
            names = names[:-1]
        return None

    def get(self, path: KeyPath) -> Any:
        """Return the value at a path, or None."""
        inner: Any = self.values
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        return inner

    def overlay(self, other: Values) -> None:
        """Take over the other's values: maps are merged, an empty section changes nothing."""
        _merge(self.values, other.values)
        self.provenances.update(other.provenances)

    def replace(self, path: KeyPath, value: Any) -> None:
        """Replace an existing value; its provenance stays."""
        self.get(path[:-1])[path[-1]] = value

    def put(self, path: KeyPath, value: Any, provenances: Mapping[KeyPath, Provenance]) -> None:
        """Replace the value at a path, or add it."""
        inner = self.values
        for name in path[:-1]:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[path[-1]] = value
        for key_path in [p for p in self.provenances if p[: len(path)] == path]:
            del self.provenances[key_path]
        self.provenances.update(provenances)


def read_values(files: Sequence[str | Path], settings: Sequence[str]) -> Values:
    """Read files, of which later ones override earlier ones, and --set arguments, which override files.

    Files may be URLs. Paths are resolved.

    Raises
    ------
    ConfigError
        Files cannot be read, or settings are not KEY.PATH=VALUE; the error lists all of them.
    """
    merged = Values()
    problems = []
    for file in files:
        # A shell expands ~ neither in quotes nor after `--config=`; Path would change URLs.
        file_values, file_problems = _read_file(os.path.expanduser(file))  # noqa: PTH111
        merged.overlay(file_values)
        problems += file_problems
    for setting in settings:
        problems += _put_setting(merged, setting)
    raise_all(problems)
    resolve_paths(merged)
    return merged


def resolve_paths(values: Values) -> None:
    """Expand all paths, and make those of files relative to the files' folders: see `jobs.config.paths`.

    Raises
    ------
    ConfigError
        An environment variable is not set, or is not written as ${NAME}; the error lists all of them.
    """
    problems = []
    for path in _paths_of_all_jobs():
        value = values.get(path)
        texts = value if isinstance(value, (list, tuple)) else [value]
        origin = values.provenance(path)
        try:
            resolved = [
                resolve(text, origin.folder if origin else "") if isinstance(text, str) else text
                for text in texts
            ]
        except ValueError as error:
            problems.append(_at(path, values, str(error)))
            continue
        if resolved != list(texts):
            values.replace(path, resolved if isinstance(value, (list, tuple)) else resolved[0])
    raise_all(problems)


@cache
def _paths_of_all_jobs() -> tuple[KeyPath, ...]:
    """Return all keys of all jobs that hold paths."""
    return tuple(sorted(path for path, key in _keys_of_all_jobs().items() if holds_paths(key.info)))


def raise_all(problems: Sequence[str]) -> None:
    """Raise a ConfigError that lists all problems, if there are any."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"the configuration has {counted(len(problems), 'problem')}:\n{listing(problems)}")


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        elif not (isinstance(below, dict) and value is None):
            base[key] = value


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class _Reader:
    """Converts YAML nodes, which have lines and spelling, to values; collects provenances and problems."""

    def __init__(self, source: str, lines: bool, folder: str = "") -> None:
        self.source = source
        self.lines = lines
        self.folder = folder
        self.problems: list[str] = []
        self.provenances: dict[KeyPath, Provenance] = {}

    def parse(self, text: str, path: KeyPath = ()) -> Any:
        """Parse YAML text to the value of a key path. Raises yaml.YAMLError."""
        self.loader = yaml.SafeLoader(text)
        try:
            node = self.loader.get_single_node()
            return None if node is None else self._value(node, path, frozenset())
        finally:
            self.loader.dispose()

    def _location(self, node: yaml.Node) -> str:
        return f"{self.source}, line {node.start_mark.line + 1}" if self.lines else self.source

    def _value(
        self, node: yaml.Node, path: KeyPath, above: frozenset[int], key: yaml.Node | None = None
    ) -> Any:
        unquoted = isinstance(node, yaml.ScalarNode) and node.style is None
        written = node.value if unquoted else None
        self.provenances[path] = Provenance(self._location(key or node), written, self.folder)
        if isinstance(node, yaml.MappingNode):
            if id(node) in above:
                raise ConstructorError(None, None, "a map that contains itself", node.start_mark)
            return self._map(node, path, above | {id(node)})
        try:
            value = self.loader.construct_object(node, deep=True)
            # 1e-7 is a number in YAML 1.2; PyYAML requires a point and a sign: 1.0e-7.
            return float(value) if unquoted and _EXPONENT.fullmatch(str(value)) else value
        except ValueError as error:  # Such as the date 2024-13-45.
            message = f"{_dotted(path)} ({self._location(node)}): {error}"
            self.problems.append(f"{message}; if this is text, put it in quotes")
            return None

    def _map(self, node: yaml.MappingNode, path: KeyPath, above: frozenset[int]) -> dict[str, Any]:
        names = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in names and name != "<<":
                location = f"{_dotted((*path, name))} ({self._location(key)})"
                self.problems.append(f"{location}: the key is given twice")
            names.add(name)
        self.loader.flatten_mapping(node)
        values = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key that is not text", key.start_mark)
            # Keys are text as written: YAML would read a key `no` as a boolean.
            values[str(key.value)] = self._value(value, (*path, str(key.value)), above, key)
        return values


def _read_file(file: str) -> tuple[Values, list[str]]:
    reader = _Reader(file, lines=True, folder=folder_of(file))
    try:
        values = reader.parse(storage.read(file).decode())
    except FileNotFoundError:
        problem = "expected a YAML file, found no such file"
        return Values(), [f"{file}: {problem}; `logcal config NAME` prints one"]
    except UnicodeDecodeError:
        return Values(), [f"{file}: expected YAML in UTF-8, found other bytes"]
    except ConfigError as error:
        return Values(), [str(error)]
    except OSError as error:
        return Values(), [f"{file}: cannot be read: {error.strerror or error}"]
    except (yaml.YAMLError, RecursionError) as error:
        return Values(), [f"{file}: not valid YAML: {_yaml_problem(error)}"]
    if values is not None and not isinstance(values, dict):
        return Values(), [f"{file}: expected keys with values, found {type(values).__name__} {values!r:.60}"]
    return Values(values or {}, reader.provenances), reader.problems


def _put_setting(merged: Values, setting: str) -> list[str]:
    name, equals, text = setting.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        problem = "an empty key" if equals else "no '='"
        return [f"--set {setting}: expected KEY.PATH=VALUE, such as --set log.label=clicked, found {problem}"]
    hidden = f"--set {name}={HIDDEN}"
    reader = _Reader(f"--set {setting}" if _is_shown(path) else hidden, lines=False)
    try:
        value = reader.parse(text, path)
        if not all(map(_is_shown, reader.provenances)):
            reader.source, provenances = hidden, reader.provenances
            reader.provenances = {key: replace(entry, source=hidden) for key, entry in provenances.items()}
    except (yaml.YAMLError, RecursionError) as error:
        # Text such as *.parquet is not valid YAML, but unambiguous.
        if re.match(r"\s*[\[{'\"]", text):
            return [f"{reader.source}: the value is not valid YAML: {_yaml_problem(error)}"]
        value = text
    if value is None and not reader.problems and text.strip().lower() not in {"", "~", "null"}:
        value = text  # '#name' would be a comment in a file.
    merged.put(path, value, {path: Provenance(reader.source, text.strip()), **reader.provenances})
    return reader.problems


def _is_shown(path: Sequence[str | int]) -> bool:
    """True if messages may show a value: its key is a job's, and not below `storage`.

    The value of a misspelt key may be a secret.
    """
    names, keys = tuple(map(str, path)), _keys_of_all_jobs()
    if names[:1] == ("storage",):
        return False
    above = [keys.get(names[:end]) for end in range(1, len(names))]
    return not names or names in keys or any(key is not None and key.section is None for key in above)


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())


def load(model: type[C], files: Sequence[str | Path] = (), settings: Sequence[str] = ()) -> C:
    """Load a configuration from YAML files, of which later ones override earlier ones, and from settings.

    Parameters
    ----------
    model : type
        The job's configuration class.
    files : sequence of path
        Maps are merged key by key; anything else is replaced.
    settings : sequence of str
        KEY.PATH=VALUE, over the files. The value is read as YAML; a map or list replaces the earlier value.

    Raises
    ------
    ConfigError
        Lists all problems, each with its key and its location.
    """
    return load_values(model, read_values(files, settings))


def load_values(model: type[C], values: Values) -> C:
    """Validate values that have been read. Raises ConfigError as `load` does."""
    raise_all(list(_text_problems(values, values.values, ())))
    ignored, problems = remove_foreign_keys(model, values)
    problems += _refused_settings(values, ignored)
    try:
        config = model.model_validate(values.values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += [problem for detail in details for problem in _describe(detail, model, values)]
        raise_all(problems + _calibrator_problems(model, values))
        raise
    raise_all(problems)
    return config


def derived(config: JobConfig, job: type[C], **sections: Mapping[str, Any]) -> C:
    """Return another job's configuration: the keys that both have. sections : keys that replace those of a section."""
    values = config.model_dump(mode="json") | {"storage": config.storage.model_dump(mode="json")}
    for name, keys in sections.items():
        values[name] = {**values.get(name, {}), **keys}
    return load_values(job, Values(values))


def _refused_settings(values: Values, ignored: Sequence[KeyPath]) -> Iterator[str]:
    """Yield a problem for each key that only other jobs use and that --set gives; files may serve several commands."""
    for path in ignored:
        origin = values.provenance(path)
        if origin and origin.source.startswith("--set") and not any(key[:-1] == path for key in ignored):
            jobs = [name for name, model in JOB_CONFIGS.items() if path in _keys_of(model)]
            yield _at(path, values, f"this command does not use it: leave it out; used by {', '.join(jobs)}")


def _text_problems(values: Values, value: Any, above: KeyPath) -> Iterator[str]:
    """Yield problems with text that file systems, stores and manifests cannot store."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _cannot_be_stored(str(key)):
                yield _at(above, values, f"expected keys in UTF-8 without NUL, found {str(key)!r}")
            else:
                yield from _text_problems(values, inner, (*above, str(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _text_problems(values, inner, above)
    elif isinstance(value, str) and _cannot_be_stored(value):
        shown = repr(value[:60]) if _is_shown(above) else "other text"
        yield _at(above, values, f"expected text in UTF-8 without NUL, found {shown}")


def _cannot_be_stored(text: str) -> bool:
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)


class Key(NamedTuple):
    """Key of a configuration.

    info : its field
    section : its type if it is a section
    option : whether it is an option of the command
    """

    info: FieldInfo
    section: type[Section] | None
    option: bool


@cache
def _keys_of(model: type[Section]) -> dict[KeyPath, Key]:
    """Return all keys of a model; a section is followed by its keys."""
    keys: dict[KeyPath, Key] = {}
    for name, info in fields_of(model):
        section = section_of(info.annotation)
        keys[(name,)] = Key(info, section, name in model.command_options)
        if section:
            keys |= {(name, *path): key for path, key in _keys_of(section).items()}
    return keys


@cache
def _keys_of_all_jobs() -> dict[KeyPath, Key]:
    return {path: key for model in JOB_CONFIGS.values() for path, key in _keys_of(model).items()}


def remove_foreign_keys(model: type[Section], values: Values) -> tuple[list[KeyPath], list[str]]:
    """Remove keys that only other jobs have, so that one file can serve all jobs.

    Returns
    -------
    ignored : paths of the removed keys
    problems : unknown keys inside other jobs' sections; validation reports the other unknown keys
    """
    ignored: list[KeyPath] = []
    problems: list[str] = []
    job_keys, all_keys = _keys_of(model), _keys_of_all_jobs()

    def walk(inner: dict[str, Any], above: KeyPath) -> None:
        for key in list(inner):
            path = (*above, key)
            if isinstance(inner[key], dict) and path in all_keys and all_keys[path].section:
                walk(inner[key], path)
            if path in all_keys and path not in job_keys:
                ignored.append(path)
                del inner[key]
            elif path not in job_keys and above and above not in job_keys:
                suggestion = _suggestion(path, list(JOB_CONFIGS.values()))
                problems.append(_at(path, values, f"unknown key{suggestion}"))

    walk(values.values, ())
    return ignored, problems


def path_keys() -> set[str]:
    """Return the dotted names of all jobs' keys that hold paths."""
    return {_dotted(path) for path in _paths_of_all_jobs()}


def known_keys(model: type[Section]) -> dict[str, tuple[str, ...]]:
    """Return the dotted paths of all keys that are not sections, with the values of enumerations and booleans."""
    keys = _keys_of(model).items()
    return {
        _dotted(path): _choices(key.info.annotation) for path, key in keys if not (key.section or key.option)
    }


def _choices(annotation: Any) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def _calibrator_problems(model: type[Section], values: Values) -> list[str]:
    # The job's preparation checks these, since it imports the libraries; here they complete the list of problems.
    if "calibrator" in model.model_fields:
        from pipeline.fit.calibration import make_calibrator

        try:
            config = CalibratorConfig.model_validate(values.get(("calibrator",)))
            make_calibrator(config.method, config.params, keys=("calibrator.method", "calibrator.params"))
        except ConfigError as error:
            return [str(error)]
        except ValidationError:
            pass
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
        expected, found = _expected(detail), "something else (values of this key are not shown)"
        if _is_shown(path):
            found = _describe_value(detail["input"]) + _hint(detail, expected, values.provenance(path), path)
        yield _at(path, values, f"expected {expected}, found {found}")


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def _at(path: Sequence[str | int], values: Values, text: str) -> str:
    provenance = values.provenance(path)
    exact = provenance is not None and tuple(str(p) for p in path) in values.provenances
    location = f" ({provenance.source})" if provenance is not None and exact else ""
    return f"{_dotted(path)}{location}: {text}"


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


def _describe_value(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case str():
            return f"the text '{value}'" if len(value) <= 60 else f"the text '{value[:57]}...'"
        case dict():
            return "a map"
        case list() | tuple():
            return "a list" if value else "an empty list"
    kinds = {bool: "the boolean", int: "the number", float: "the number", dt.date: "the date"}
    kind = next((description for type_, description in kinds.items() if isinstance(value, type_)), None)
    return f"{kind} {value}" if kind else f"{type(value).__name__} {value!r:.60}"


def _hint(
    detail: ErrorDetails, expected: str, provenance: Provenance | None, path: Sequence[str | int]
) -> str:
    """Suggest how to write a value that YAML read as something else."""
    value, written = detail["input"], provenance.written if provenance else None
    if detail["type"] == "literal_error" or detail["type"] == "choice":
        choices = re.split(r"\W+", expected)
        close = difflib.get_close_matches(str(value), choices, n=1)
        return f"; did you mean {close[0]}?" if close else ""
    if detail["type"] == "tuple_type" and value is None:
        return ": write [] for none"
    if expected.startswith("text") and isinstance(value, bool | int | float | dt.date) and written:
        quoted = f"""put it in quotes: --set "{_dotted(path)}='{written}'\""""
        quotes = quoted if provenance and provenance.source.startswith("--set") else "put it in quotes"
        if isinstance(value, bool):
            return f"; YAML reads an unquoted {written} as {str(value).lower()}: {quotes}"
        return f"; {quotes}"
    if "number" in expected and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return "; leave out the quotes" if written is None else ""
    return ""


def _suggestion(path: Sequence[str | int], models: Sequence[type[Section]]) -> str:
    candidates = list(dict.fromkeys(key for model in models for key in known_keys(model)))
    dotted, last = _dotted(path), str(path[-1])
    if any(key.startswith(f"{dotted}.") for key in candidates):
        return ""
    same = [key for key in candidates if key.rsplit(".", 1)[-1] == last]
    siblings = [key for key in candidates if key.rpartition(".")[0] == _dotted(path[:-1])]
    top = {p[0]: key.section for model in models for p, key in _keys_of(model).items() if len(p) == 1}
    sections = [name for name, section in top.items() if section]
    close = (
        same
        or _close(last, siblings)
        or (_close(last, sections) if len(path) == 1 else [])
        or difflib.get_close_matches(dotted, candidates, n=1, cutoff=0.7)
        or _close(last, candidates)
    )
    if close:
        return f"; did you mean {close[0]}?"
    options = list(top) if len(path) == 1 else [key.rpartition(".")[2] for key in siblings]
    return f"; known here: {', '.join(options)}" if options else ""


def _close(name: str, keys: Sequence[str]) -> list[str]:
    """Return the key whose last part is closest to a name."""
    lasts = {key.rsplit(".", 1)[-1]: key for key in keys}
    return [lasts[match] for match in difflib.get_close_matches(name, list(lasts), n=1)]
