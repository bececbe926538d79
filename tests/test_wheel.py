"""The wheel holds all that the commands need: nothing of the clone is missed after `pip install`."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import run_command, simulated

import logcal
from calibrators.core.compilation_cache import cache_folders
from logcal import own_packages

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(
    path.name for path in sorted(ROOT.iterdir()) if (path / "__init__.py").exists() and path.name != "tests"
)


def tracked() -> list[str]:
    """The files of the packages that git knows, or that it will know once they are added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    listed = run_command(*command, cwd=ROOT).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tree, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in [*tracked(), "pyproject.toml", "README.md", "LICENSE"]:
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    run_command(sys.executable, "-W", "ignore", "-c", build, folder, cwd=folder / "source")
    (made,) = folder.glob("*.whl")
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-W", "ignore", "-m", "pip", "install", *options]
    run_command(*pip, "--target", folder / "installed", made)
    lend_compiled_code(folder / "installed")
    with zipfile.ZipFile(made) as archive:
        return folder / "installed", set(archive.namelist())


def lend_compiled_code(installed):
    """Let the wheel's kernels have the code that was compiled from the same sources: they take half a minute anew."""
    for package in ("calibrators", "pipeline"):
        own = installed / package / "__pycache__"
        own.mkdir(exist_ok=True)
        kept = cache_folders(str(ROOT / package))[1]
        for folder in kept.path.glob(f"{package}.*-*") if kept else ():
            (own / folder.name).symlink_to(folder)


def environment_of(wheel, home):
    """In which nothing but the wheel, and what it depends on, is found."""
    unset = ("LOGCAL_CACHE", "NUMBA_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    return {**environment, "PYTHONPATH": str(wheel[0]), "HOME": str(home)}


def test_the_wheel_has_every_file_of_the_packages(wheel):
    _, names = wheel
    assert [name for name in tracked() if name not in names] == []
    assert [name for name in names if name.startswith("tests/")] == []


FIRST_MINUTES = """
import sys
from click.testing import CliRunner
from jobs.cli import main
import calibrators, jobs, logcal, pipeline
for line in sys.stdin.read().splitlines():
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 0, (line, done.output)
print(*(module.__file__ for module in (calibrators, jobs, logcal, pipeline)), sep="\\n")
"""


def test_the_first_minutes_need_nothing_but_the_wheel(wheel, tmp_path):
    """README's commands after `pip install`, on a small log, and the pages, whose templates are files too."""
    installed, _ = wheel
    environment = environment_of(wheel, tmp_path)
    score, label = simulated(4000, 0, power=2)
    label = label.astype(np.int8)
    for name, rows in (("log", slice(None, None, 2)), ("new", slice(1, None, 2))):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"score": score[rows], "label": label[rows]}), tmp_path / name / "a.parquet")
    commands = [
        "config fit",
        "demo --dry-run",
        "generate --help",
        "init log first",
        "compare --config first/logcal.yaml --set compare.methods=[isotonic,platt]",
        "fit --config first/logcal.yaml --set store.path=store --set store.table=t",
        "fit --config first/logcal.yaml --set store.path=store --set store.table=t --set calibrator.method=platt",
        "evaluate --set log.path=new --set store.path=store --set store.table=t --set report.path=report",
        "tables diff --store store --table t 000001 000002 --report diff.html",
        "doctor",
    ]
    there = {"cwd": tmp_path, "env": environment}
    done = run_command(sys.executable, "-P", "-c", FIRST_MINUTES, input="\n".join(commands), **there)
    assert all(path.startswith(str(installed)) for path in done.stdout.split())
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000
    assert "<svg" in (tmp_path / "diff.html").read_text()
    # The command itself, as pip leaves it, and as a module.
    for command in ([str(installed / "bin" / "logcal")], ["-m", "logcal"]):
        said = run_command(sys.executable, "-P", *command, "--version", **there)
        assert said.stdout.startswith("logcal, version")


# The command where packages of the user's have the names of ours

OURS = Path(logcal.__file__).parents[1]
SHADOWED = ("jobs", "pipeline", "calibrators")


@pytest.fixture
def command(place):
    """The command as pip installs it, in a folder with packages of our names that cannot be imported."""
    (place.root / "__init__.py").touch()
    for name in SHADOWED:
        (place.root / name).mkdir()
        (place.root / name / "__init__.py").write_text(f"raise ImportError('the {name} of a user')")
    project = tomllib.loads((OURS / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["logcal"].partition(":")
    script = place.root / "bin" / "logcal"
    script.parent.mkdir()
    call = f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    script.write_text(f"import sys\nfrom {module} import {function}\n{call}")
    return [sys.executable, str(script)]


def run(place, command, *arguments, **environment):
    return run_command(*command, *arguments, cwd=place.root, env=place.environment | environment, timeout=240)


@pytest.mark.parametrize("kind", ["{kind: inline}", "{kind: threads}", "{kind: local, workers: 2}"])
@pytest.mark.parametrize("beside", [False, True])
def test_jobs_run_with_ours(place, command, kind, beside):
    """With such packages on the path, or in the working directory, which Python puts first."""
    place.write_log()
    program = [sys.executable, "-m", "logcal"] if beside else command
    path = {} if beside else {"PYTHONPATH": str(place.root)}
    for job, settings in (("fit", ("log.max_bad_fraction=0.1",)), ("score", ())):
        run(place, program, *place.arguments(job, f"cluster={kind}", *settings), **path)
    assert (place.output / "part-0.parquet").exists()


def test_other_packages_on_the_path_are_the_users(place, command):
    (place.root / "models").mkdir()
    (place.root / "models" / "__init__.py").write_text("MINE = True")
    code = "import logcal.command, models, jobs, pipeline as p; print(models.MINE, jobs.__file__, p.__file__)"
    done = run(place, [sys.executable, "-c"], code, PYTHONPATH=str(place.root))
    assert done.stdout.split() == ["True", str(OURS / "jobs/__init__.py"), str(OURS / "pipeline/__init__.py")]


def test_a_program_with_such_packages_runs_jobs_and_keeps_its_own(place, command):
    place.write_log()
    shutil.rmtree(place.root / "calibrators")
    (place.root / "jobs/__init__.py").write_text("MINE = True")
    store = {"path": str(place.store), "table": "ads"}
    config = {"log": {"path": str(place.log)}, "store": store, "gate": {"min_rows": 0}}
    code = f"import logcal; print(logcal.run('fit', {config}).version); import jobs; print(jobs.MINE)"
    done = run(place, [sys.executable, "-c"], code, PYTHONPATH=str(place.root))
    assert done.stdout.split() == [(place.store / "ads/CURRENT").read_text().strip(), "True"]


def test_a_changed_added_or_renamed_source_has_another_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(own_packages, "__file__", str(tmp_path / "logcal" / "own_packages.py"))
    digest = own_packages.source_digest.__wrapped__
    module = tmp_path / "jobs" / "module.py"
    module.parent.mkdir()
    found = [digest()]
    for text in ("x = 1", "x = 2"):
        module.write_text(text)
        found.append(digest())
    module.rename(module.with_name("other.py"))
    found.append(digest())
    assert len(set(found)) == 4
    (tmp_path / "jobs" / "data.json").touch()
    (tmp_path / "mine.py").touch()
    assert digest() == found[-1]


APPLIED = """
import sys
import logcal
table = logcal.load("store", "t")
assert logcal.load("store", "t", version="000001").version == table.version
segmented = logcal.load("store", "s")
print([float(table.predict(s)) for s in (0.1, 0.5, 2.0)] + table.predict([0.2, 0.9]).tolist())
print(float(table.predict([0.3] * (1 << 20)).max()), *map(float, (table.inverse(0.5), table.threshold(1, 5).score)))
print(float(segmented.predict(0.4, {"country": "a"})), segmented.predict([0.4] * 2, {"country": ["a", "b"]}).tolist())
"""


def test_tables_are_applied_with_numpy_and_pyarrow_alone(wheel, tmp_path):
    """In an environment that has nothing else: same numbers; whatever needs more says which package."""
    score, label = simulated(4000, 0, power=2)
    columns = {"score": score, "label": label.astype(np.int8), "country": np.where(score > 0.3, "a", "b")}
    (tmp_path / "log").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "log" / "a.parquet")
    fit = [
        sys.executable,
        "-m",
        "logcal",
        "fit",
        "--set",
        "log.path=log",
        "--set",
        "store.path=store",
        "--set",
    ]
    run_command(*fit, "store.table=t", cwd=tmp_path)
    run_command(*fit, "store.table=s", "--set", "log.segment=country", cwd=tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    for module in (np, pa):
        for folder in Path(module.__file__).parents[1].glob(f"{module.__name__}*"):
            (alone / folder.name).symlink_to(folder)
    for package in wheel[0].iterdir():
        (alone / package.name).symlink_to(package)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(alone), "HOME": str(tmp_path)}

    def isolated(*arguments, ends=0):
        # -S: no site-packages but those that are lent.
        return run_command(sys.executable, "-S", *arguments, cwd=tmp_path, env=environment, ends=ends)

    expected = run_command(sys.executable, "-W", "ignore", "-c", APPLIED, cwd=tmp_path).stdout
    assert isolated("-W", "ignore", "-c", APPLIED).stdout == expected
    for what, package in {
        "logcal.Platt": "llvmlite|numba|scipy|sklearn",
        "logcal.measures": "llvmlite|numba|scipy|sklearn",
        "logcal.load('memory://store', 't')": "fsspec",
    }.items():
        said = isolated("-c", f"import logcal; {what}", ends=1).stderr
        assert re.search(
            rf"ModuleNotFoundError: .* needs ({package}), which is not installed: `pip install", said
        ), said
    assert (
        "ModuleNotFoundError: No module named"
        in isolated("-c", "import logcal; logcal.run('fit', {})", ends=1).stderr
    )
    said = isolated("-m", "logcal", "fit", ends=2).stderr
    assert said.startswith("logcal: the command needs ")
    assert said.count("\n") == 1
