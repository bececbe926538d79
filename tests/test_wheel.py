"""The wheel holds all that the commands need: nothing of the clone is missed after `pip install`."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(
    path.name for path in sorted(ROOT.iterdir()) if (path / "__init__.py").exists() and path.name != "tests"
)


def tracked() -> list[str]:
    """The files of the packages that git knows, or that it will know once they are added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tree, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in [*tracked(), "pyproject.toml", "README.md", "LICENSE"]:
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build, str(folder)],
        cwd=folder / "source",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder / "installed")
        return folder / "installed", set(archive.namelist())


def test_the_wheel_has_every_file_of_the_packages(wheel):
    _, names = wheel
    assert [name for name in tracked() if name not in names] == []
    assert [name for name in names if name.startswith("tests/")] == []


def test_commands_run_from_the_wheel_alone(wheel, tmp_path):
    installed, _ = wheel
    environment = {**os.environ, "PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    for arguments in (["config", "fit"], ["demo", "--dry-run"], ["generate", "--help"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "jobs", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    where = "import jobs, pipeline, calibrators; print(*{m.__file__ for m in (jobs, pipeline, calibrators)})"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(str(installed) in path for path in found.stdout.split())
