"""The wheel holds all that the commands need: nothing of the clone is missed after `pip install`."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import run_command

from calibrators._kernels.compilation_cache import places

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
        own = installed / package / "_kernels" / "__pycache__"
        own.mkdir(exist_ok=True)
        kept = places(str(ROOT / package / "_kernels"))[1]
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
    random = np.random.default_rng(0)
    score = random.random(4000)
    label = (random.random(4000) < score**2).astype(np.int8)
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
    for command in ([str(installed / "bin" / "logcal")], ["-m", "jobs"]):
        said = run_command(sys.executable, "-P", *command, "--version", **there)
        assert said.stdout.startswith("logcal, version")
