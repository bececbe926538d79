"""Reading configuration: YAML files and --set, merged key by key, with the place each value came from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from logcal.errors import ConfigError, listing

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a value was written, and how."""

    place: str
    """A file and line, or the --set itself."""
    written: str | None = None
    """A scalar as it stood, without quotes; None: quoted, or not a scalar."""


@dataclass
class Values:
    """Configuration values as nested dictionaries, with the origin of every key."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def origin(self, path: Sequence[str | int]) -> Origin | None:
        """Of a key, or of the nearest key above it."""
        names = tuple(str(part) for part in path)
        while names:
            if names in self.origins:
                return self.origins[names]
            names = names[:-1]
        return None

    def get(self, path: KeyPath) -> Any:
        """The value at a path; None where there is none."""
        inner: Any = self.values
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        return inner

    def overlay(self, other: Values) -> None:
        """Take over the other's keys: maps are merged, an empty section changes nothing."""
        _merge(self.values, other.values)
        self.origins.update(other.origins)

    def put(self, path: KeyPath, value: Any, origins: Mapping[KeyPath, Origin]) -> None:
        """Replace the value at a path, whatever was there."""
        inner = self.values
        for name in path[:-1]:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[path[-1]] = value
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]
        self.origins.update(origins)


def read_values(files: Sequence[str | Path], settings: Sequence[str]) -> Values:
    """Values of files, later ones over earlier ones, and of --set arguments, which come last.

    Raises
    ------
    ConfigError
        All files that cannot be read and all settings that are not KEY.PATH=VALUE, together.
    """
    merged = Values()
    problems = []
    for file in files:
        read, found = _read_file(str(file))
        merged.overlay(read)
        problems += found
    for setting in settings:
        problems += _put_setting(merged, setting)
    raise_all(problems)
    return merged


def raise_all(problems: Sequence[str]) -> None:
    """Raise a ConfigError that says all problems, if there are any."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"the configuration has {len(problems)} problems:\n{listing(problems)}")


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        elif not (isinstance(below, dict) and value is None):
            base[key] = value


class _Reader:
    """Makes values of YAML nodes, which alone know lines and spelling, and collects what is wrong with them."""

    def __init__(self, source: str, lines: bool) -> None:
        self.source = source
        self.lines = lines
        self.problems: list[str] = []
        self.origins: dict[KeyPath, Origin] = {}

    def parse(self, text: str, path: KeyPath = ()) -> Any:
        """The value that the text stands for, at a key path. Raises yaml.YAMLError."""
        self.loader = yaml.SafeLoader(text)
        try:
            node = self.loader.get_single_node()
            return None if node is None else self._value(node, path, frozenset())
        finally:
            self.loader.dispose()

    def _place(self, node: yaml.Node) -> str:
        return f"{self.source}, line {node.start_mark.line + 1}" if self.lines else self.source

    def _value(
        self, node: yaml.Node, path: KeyPath, above: frozenset[int], key: yaml.Node | None = None
    ) -> Any:
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        self.origins[path] = Origin(self._place(key or node), node.value if plain else None)
        if isinstance(node, yaml.MappingNode):
            if id(node) in above:
                raise yaml.constructor.ConstructorError(
                    None, None, "a map that contains itself", node.start_mark
                )
            return self._map(node, path, above | {id(node)})
        try:
            return self.loader.construct_object(node, deep=True)
        except ValueError as error:  # Such as the date 2024-13-45.
            self.problems.append(
                f"{'.'.join(path)} ({self._place(node)}): {error}; if this is text, put it in quotes"
            )
            return None

    def _map(self, node: yaml.MappingNode, path: KeyPath, above: frozenset[int]) -> dict[str, Any]:
        own = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in own and name != "<<":
                self.problems.append(
                    f"{'.'.join((*path, name))} ({self._place(key)}): the key is given twice"
                )
            own.add(name)
        self.loader.flatten_mapping(node)
        values = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is not text", key.start_mark)
            # As it is written: a key `no` is the text "no", whatever YAML makes of it.
            values[str(key.value)] = self._value(value, (*path, str(key.value)), above, key)
        return values


def _read_file(file: str) -> tuple[Values, list[str]]:
    reader = _Reader(file, lines=True)
    try:
        values = reader.parse(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Values(), [
            f"{file}: expected a YAML file, found no such file; `logcal config NAME` prints one"
        ]
    except UnicodeDecodeError:
        return Values(), [f"{file}: expected YAML in UTF-8, found other bytes"]
    except OSError as error:
        return Values(), [f"{file}: cannot be read: {error.strerror}"]
    except (yaml.YAMLError, RecursionError) as error:
        return Values(), [f"{file}: not valid YAML: {_yaml_problem(error)}"]
    if values is not None and not isinstance(values, dict):
        return Values(), [f"{file}: expected keys with values, found {type(values).__name__} {values!r:.60}"]
    return Values(values or {}, reader.origins), reader.problems


def _put_setting(merged: Values, setting: str) -> list[str]:
    name, equals, text = setting.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        return [
            f"--set {setting}: expected KEY.PATH=VALUE, such as --set log.label=clicked, found "
            + ("an empty key" if equals else "no '='")
        ]
    reader = _Reader(f"--set {setting}", lines=False)
    try:
        value = reader.parse(text, path)
    except (yaml.YAMLError, RecursionError) as error:
        # *.parquet is no YAML, but there is no doubt what it means.
        if re.match(r"\s*[\[{'\"]", text):
            return [f"--set {setting}: the value is not valid YAML: {_yaml_problem(error)}"]
        value = text
    if value is None and not reader.problems and text.strip().lower() not in {"", "~", "null"}:
        value = text  # '#name' would be a comment in a file.
    merged.put(path, value, {path: Origin(reader.source, text.strip()), **reader.origins})
    return reader.problems


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())
