"""The command where packages of the user's have the names of ours."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from common import run_command

import logcal
from logcal import own_packages

pytestmark = pytest.mark.system

ROOT = Path(logcal.__file__).parents[1]
SHADOWED = ("jobs", "pipeline", "calibrators")


@pytest.fixture
def command(place):
    """The command as pip installs it, in a folder with packages of our names that cannot be imported."""
    (place.root / "__init__.py").touch()
    for name in SHADOWED:
        (place.root / name).mkdir()
        (place.root / name / "__init__.py").write_text(f"raise ImportError('the {name} of a user')")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["logcal"].partition(":")
    script = place.root / "bin" / "logcal"
    script.parent.mkdir()
    call = f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    script.write_text(f"import sys\nfrom {module} import {function}\n{call}")
    return [sys.executable, str(script)]


def run(place, command, *arguments, **environment):
    return run_command(*command, *arguments, cwd=place.root, env=place.environment | environment, timeout=240)


@pytest.mark.parametrize("kind", ["inline", "threads", "{kind: local, workers: 2}"])
def test_jobs_run_with_ours(place, command, kind):
    place.write_log()
    cluster = f"cluster={kind}" if kind[0] == "{" else f"cluster.kind={kind}"
    path = {"PYTHONPATH": str(place.root)}
    run(place, command, *place.arguments("fit", cluster, "log.max_bad_fraction=0.1"), **path)
    run(place, command, *place.arguments("score", cluster), **path)
    assert (place.output / "part-0.parquet").exists()


@pytest.mark.parametrize("kind", ["inline", "{kind: local, workers: 2}"])
def test_jobs_run_from_a_folder_with_such_packages(place, command, kind):
    # Python puts the working directory first.
    place.write_log()
    cluster = f"cluster={kind}" if kind[0] == "{" else f"cluster.kind={kind}"
    run(place, [sys.executable, "-m", "logcal"], *place.arguments("fit", cluster))
    assert place.lookup()


def test_other_packages_on_the_path_are_the_users(place, command):
    (place.root / "models").mkdir()
    (place.root / "models" / "__init__.py").write_text("MINE = True")
    code = (
        "import logcal.command, models, jobs, pipeline; print(models.MINE, jobs.__file__, pipeline.__file__)"
    )
    done = run(place, [sys.executable, "-c"], code, PYTHONPATH=str(place.root))
    assert done.stdout.split() == ["True", str(ROOT / "jobs/__init__.py"), str(ROOT / "pipeline/__init__.py")]


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
