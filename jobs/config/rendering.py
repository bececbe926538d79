"""Rendering of configurations as commented YAML, from the models: the files in conf/."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from ast import AnnAssign, ClassDef, Constant, Expr, Name, parse
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from jobs.config.base import Section, section_of
from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import JOB_CONFIGS, fields_of
from jobs.outcome import Outcome
from logcal.errors import ConfigError

_WIDTH = 98


HEADER = (
    "Configuration of `logcal {job}`: every key, with its meaning and its default. Keys marked REQUIRED have no "
    "default: set them here, in another file that follows with --config, or with --set. Keys that are left out "
    "have their defaults."
)


def render_job(name: str, model: type[Section]) -> str:
    """Render a job's configuration: every key with its meaning and its default, or REQUIRED."""
    return "\n".join([*_comment(HEADER.format(job=name), ""), "", *_section(model)]) + "\n"


OVERLAYS = ("local", "slurm", "kubernetes")
"""Configurations of the cluster, to use with any job's: in jobs/data/cluster, and with meanings in conf/cluster."""


def _overlay(name: str) -> str:
    """Render an overlay: its keys with their meanings."""
    text = (Path(__file__).parents[1] / "data" / "cluster" / f"{name}.yaml").read_text("utf-8")
    for key, meaning in meanings(ClusterConfig).items():
        comment = "\n".join(_comment(meaning, "  "))
        text = text.replace(f"\n  {key}:", f"\n{comment}\n  {key}:")
    return text


def conf_files() -> dict[str, str]:
    """Render all files of conf/, by relative path."""
    jobs = {f"{name}.yaml": render_job(name, model) for name, model in JOB_CONFIGS.items()}
    # A job without required keys needs no file.
    jobs = {name: text for name, text in jobs.items() if "# REQUIRED." in text}
    overlays = {f"cluster/{name}.yaml": _overlay(name) for name in OVERLAYS}
    return {**jobs, **overlays}


@cache
def meanings(model: type[Section]) -> dict[str, str]:
    """Return the meaning of each key: its description, the docstring below it, or its section's docstring.

    Pydantic can read such docstrings when it builds a class, but this would cost every command 40 ms.
    """
    docstrings: dict[str, str] = {}
    for kind in (kind for kind in reversed(model.__mro__) if issubclass(kind, Section) and kind.__doc__):
        docstrings |= _docstrings(kind)
    texts = {}
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        texts[name] = info.description or docstrings.get(name) or (section and inspect.getdoc(section)) or ""
    return texts


@cache
def _docstrings(model: type[Section]) -> dict[str, str]:
    """Return the docstrings below the keys that a class itself defines."""
    [class_node] = parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(class_node, ClassDef)
    docstrings = {}
    for key, text in pairwise(class_node.body):
        match key, text:
            case AnnAssign(target=Name(id=name)), Expr(value=Constant(value=str(docstring))):
                docstrings[name] = inspect.cleandoc(docstring)
    return docstrings


def _section(model: type[Section], indent: str = "") -> Iterator[str]:
    shown = [item for item in fields_of(model) if item[0] not in model.command_options]
    for i, (name, info) in enumerate(shown):
        section = section_of(info.annotation)
        if i and not indent:
            yield ""
        meaning = meanings(model)[name]
        required = section is None and info.is_required()
        yield from _comment(f"REQUIRED. {meaning}" if required else meaning, indent)
        if section:
            yield f"{indent}{name}:"
            yield from _section(section, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_scalar(None if required else info.default)}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\d:]+", value):
        return f"'{value}'"  # YAML quotes only some texts of digits; quote all of them.
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def show_configuration(name: str | None) -> Outcome:
    """Return a file of conf/ by its name without the suffix, or list all names.

    Raises
    ------
    ConfigError
        There is no such file.
    """
    files = {key.removesuffix(".yaml"): text for key, text in conf_files().items()}
    if name is None:
        return Outcome({"names": list(files)}, list(files))
    if name not in files:
        close = difflib.get_close_matches(name, files, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(files)}"
        raise ConfigError(f"NAME: expected a configuration that logcal has, found '{name}'; {hint}")
    return Outcome({"name": name, "yaml": files[name]}, [files[name].removesuffix("\n")])


if __name__ == "__main__":
    for name, text in conf_files().items():
        path = Path("conf") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
