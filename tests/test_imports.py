"""Which module imports which, and when: no circles, those imported within functions or named for later included."""

import ast
import datetime as dt
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pyarrow as pa
import pytest
from common import python

import calibrators
import logcal

ROOT = Path(logcal.__file__).parents[1]
PACKAGES = ("calibrators", "logcal", "pipeline", "jobs")


@functools.cache
def arrows():
    """The modules that each module imports, by name."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    known = {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}
    return {name: imported(path, known) - {name} for name, path in known.items()}


def imported(path, known):
    """The modules that a module imports anywhere, and those whose names it holds as text, as `module` or `module:name`.

    What is imported for types alone is imported nowhere.
    """
    found, pending = set(), [ast.parse(path.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names = [f"{node.module}.{alias.name}", str(node.module)]
                found |= {next((name for name in names if name in known), "")}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and "." in str(node.value):
            found.add(str(node.value).partition(":")[0])
        pending += ast.iter_child_nodes(node)
    return found & known.keys()


def test_no_module_imports_itself_by_way_of_others():
    # A package's lazy names are those of its modules.
    own = {name: found - set(PACKAGES) for name, found in arrows().items() if name not in PACKAGES}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        raise AssertionError(f"expected no circle, found {' -> '.join(error.args[1])}") from None


def test_only_the_command_imports_what_is_above_it():
    above = {package: PACKAGES[i + 1 :] for i, package in enumerate(PACKAGES)}
    upward = {
        (name, other)
        for name, found in arrows().items()
        for other in found
        if other.partition(".")[0] in above[name.partition(".")[0]]
    }
    assert upward == {("logcal.command", "jobs.cli"), ("logcal.runs", "jobs.interface")}


def test_no_two_classes_share_a_name():
    """But what each verb prepares. Names of one module alone count, too."""
    places = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name != "Prepared"} == {}


def loaded(code, *arguments):
    """The modules that a process has imported when it has run some code."""
    return set(python(f"import sys\n{code}\nprint(*sys.modules)", *arguments).stdout.splitlines()[-1].split())


COMMAND = "from jobs.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit as end: assert not end.code"
LIBRARIES = {"numpy", "pydantic", "dask", "distributed", "pyarrow", "pandas", "rich", "numba", "sklearn"}


@pytest.mark.system
@pytest.mark.parametrize(
    ("code", "arguments", "later"),
    [
        (COMMAND, ("fit", "--help"), LIBRARIES),
        ("import logcal.displays", (), {"matplotlib"}),
        ("import pipeline.evaluate.report", (), {"matplotlib", "jinja2"}),
        ("import jobs.cluster.worker_preload, jobs.cli", (), {"pandas", "sklearn", "scipy.optimize"}),
    ],
)
def test_what_takes_long_to_import_is_imported_when_it_is_needed(code, arguments, later):
    assert loaded(code, *arguments) & later == set()


@pytest.mark.system
def test_a_list_of_tables_imports_what_it_shows(fitted):
    """It took four times as long, for the calibrators and the configuration's models."""
    list_tables = ("tables", "list", "--store", fitted.store)
    assert loaded(COMMAND, *list_tables) & LIBRARIES == {"numpy", "pyarrow"}
    assert loaded(COMMAND, *list_tables, "--table", "ads") & LIBRARIES == {"numpy", "pyarrow"}


@pytest.mark.system
@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 26, reason="PyArrow 20 imports it to make arrays")
def test_a_fit_and_its_evaluation_import_neither_pandas_nor_scikit_learn(place):
    """The command that a scheduler starts anew each time: importing them takes longer than many a fit."""
    day = [dt.date(2026, 1, 1 + i % 2) for i in range(3000)]
    place.write_log({**place.predictions(), "model": [f"m{i % 4}" for i in range(3000)], "day": day})
    segments = (
        "log.segment=[model, day]",
        "calibrator.method=auto",
        "segments={min_rows: 1, min_positives: 1}",
    )
    for job, settings in (("fit", segments), ("evaluate", segments[:1])):
        found = loaded(COMMAND, *place.arguments(job, *settings))
        assert "numba" in found
        assert {"pandas", "sklearn", "scipy.optimize", "scipy.stats"} & found == set()


# What the packages document can be imported, whatever was imported before

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


def test_no_test_file_imports_from_another():
    # What several need stands in a module of its own, so that each file runs by itself.
    found = [
        f"{path.name}: {module}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for module in re.findall(
            r"^(?:from|import) (?:tests\.)?(test_\w+)", path.read_text("utf-8"), re.MULTILINE
        )
    ]
    assert not found
