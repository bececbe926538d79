"""Docstrings of what applications import, by numpydoc's checks; and every example in a docstring, by running it."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import logcal

validation = pytest.importorskip("numpydoc.validate")

CHECKED = {
    "GL01", "GL02", "GL03", "GL05", "GL06", "GL07", "GL08", "GL09", "GL10",
    "SS01", "SS02", "SS04", "SS06", "PR01", "PR02", "PR03", "PR10", "RT01", "YD01",
}  # fmt: skip
"""Formats; that there is a docstring, with every parameter by its name in its order, and what is returned."""

LEFT_OUT = {"GL01", "GL02"}
"""The summary stands on the first line, and a docstring of one line is one line."""

FOR_AUTHORS = {
    "check_parameters", "facts", "first_pass", "fit_passes", "fit_points", "for_segments", "gathers", "path_facts",
    "block_ranges", "get_params", "in_lines", "set_params", "problem", "ends", "passes",
}  # fmt: skip
"""Methods that those who write calibrators know: a sentence each."""


def public():
    for name in logcal.__all__:
        thing = getattr(logcal, name)
        if inspect.ismodule(thing):
            continue
        path = f"{thing.__module__}.{thing.__qualname__}"
        yield path
        if inspect.isclass(thing):
            for own, member in vars(thing).items():
                function = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
                if function and not own.startswith("_") and own not in FOR_AUTHORS:
                    yield f"{path}.{own}"


@pytest.mark.parametrize("name", sorted(set(public())))
def test_a_public_name_is_documented(name):
    found = [error for error in validation.validate(name)["errors"] if error[0] in CHECKED - LEFT_OUT]
    # A table is loaded, not made; of what is a tuple or has fields these are listed as attributes.
    known = {"logcal.table.Table": {"PR01"}, "calibrators.core.passes.Points": {"PR01"}}
    assert [error for error in found if error[0] not in known.get(name, set())] == []


ROOT = Path(logcal.__file__).parents[1]
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("calibrators", "logcal", "pipeline", "jobs")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert found.failed == 0
    assert found.attempted > 0


def test_no_docstring_begins_by_allusion_or_uses_pictures():
    """A first line says what a function does or what a thing is; `What has a size` says neither."""
    allusive = r'^\s*r?"""(What|Of|Whether|How|Where|Which)\b'
    mannered = r"\b(what came of|comes? true|says of|leans? on|leaning on|borrows? strength|[Ww]hoever)\b"
    found = [
        f"{path.relative_to(ROOT)}: {words[0].strip()}"
        for package in ("calibrators", "logcal", "pipeline", "jobs")
        for path in sorted((ROOT / package).rglob("*.py"))
        for words in re.finditer(f"{allusive}|{mannered}", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert found == []


def test_the_page_on_methods_names_functions_that_exist():
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    table = page.partition("## From the papers to the code")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:\w+\.)+\w+)`", table)
    assert len(named) > 20
    for name in named:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"calibrators.{module}"), function)), name
