"""What the packages document can be imported, whatever was imported before."""

import re
from pathlib import Path

import pytest
from common import python

import calibrators
import logcal

DOCUMENTED = re.findall(
    r"^::: logcal\.(\w+)$",
    (Path(__file__).parents[1] / "docs" / "reference-python.md").read_text(),
    flags=re.MULTILINE,
)

ARE_CALLED = """
import importlib, pkgutil, sys, types

import calibrators, logcal

for package in (calibrators, logcal):
    if {first!r} == "files":
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if "preload" not in found.name and found.name != "logcal.__main__":
                importlib.import_module(found.name)
    for name in package.__all__:
        found = getattr(package, name)
        direct = {{}}
        exec(f"from {{package.__name__}} import {{name}}", direct)
        assert direct[name] is found, name
        assert callable(found) or (name == "measures" and callable(found.measure)), name
path = calibrators.near_isotonic_path([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
assert type(path).__name__ == "NearIsotonicPath"
from logcal import near_isotonic_path
assert near_isotonic_path is calibrators.near_isotonic_path
"""


@pytest.mark.system
@pytest.mark.parametrize("first", ["names", "files"])
def test_public_names_are_what_they_name_and_not_files(first):
    python(ARE_CALLED.format(first=first))


def test_documented_names_are_public():
    assert DOCUMENTED
    assert set(DOCUMENTED) <= set(logcal.__all__) | {"errors"}
    for package in (calibrators, logcal):
        files = {path.stem for path in Path(package.__file__).parent.rglob("*.py")}
        assert not files & (set(package.__all__) - {"measures"})
