"""Wheels that bring machine code: nothing is compiled where they suit, with the same results; elsewhere all is."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from numba import types

from calibrators._kernels import kept_code, measures
from calibrators._kernels.kept_code import MACHINE_CODE
from jobs import machine_code
from logcal.errors import ConfigError

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[1]
KERNELS = [
    ["calibrators._kernels.log_odds.logits", "float64[1C] float64[1C] float64[1C]"],
    ["calibrators._kernels.logistic.logistic", "float64[1C] float64[1C]"],
    ["calibrators._kernels.measures.ascending", "float64[1C]"],
    ["calibrators._kernels.sums.expansion_of", "float64[1C]"],
]
"""Logarithms, exponentials and exact sums: where multiplying and adding at once would give something else."""
ALL = [name for name, _ in KERNELS]
ASCENDING = "calibrators._kernels.measures.ascending"
CALL = """
import importlib, json, sys
import numpy as np
from calibrators._kernels import compiled
random = np.random.default_rng(0)
n = 10_001
p, q, x = random.random(n), random.random(n), random.normal(size=n) * 30
far = random.normal(size=n) * 10.0 ** random.integers(-200, 200, n)
given = {"logits": (p, q, np.zeros(n)), "logistic": (x, np.zeros(n)), "ascending": (x,), "expansion_of": (far,)}
said = {}
for name in sys.argv[1:]:
    module, _, function = name.rpartition(".")
    result = getattr(importlib.import_module(module), function)(*given[function])
    said[name] = [np.asarray(a).tobytes().hex() for a in (*given[function], result) if a is not None]
json.dump({"said": said, "compiled": sorted(compiled.newly_compiled()), "of": compiled.__file__}, sys.stdout)
"""


def call(installed: Path, cache: Path, *names: str, **more: str) -> dict:
    """What kernels give, and which were compiled: by a process for which code is kept in `cache`."""
    environment = os.environ | {"PYTHONPATH": str(installed), "LOGCAL_CACHE": str(cache)} | more
    command = [sys.executable, "-P", "-c", CALL, *(names or ALL)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("of").startswith(str(installed))
    return said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of the packages as they are, and of it one that brings the code of some kernels."""
    folder = tmp_path_factory.mktemp("wheel")
    plain = folder / "logcal-0.1.0-py3-none-any.whl"
    files = [
        path for package in ("calibrators", "jobs", "logcal", "pipeline") for path in package_files(package)
    ]
    described = "logcal-0.1.0.dist-info"
    with zipfile.ZipFile(plain, "w") as archive:
        for path in files:
            archive.write(path, path.relative_to(ROOT).as_posix())
        archive.writestr(f"{described}/METADATA", "Metadata-Version: 2.1\nName: logcal\nVersion: 0.1.0\n")
        archive.writestr(
            f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        lines = [f"{name},," for name in archive.namelist()]
        archive.writestr(f"{described}/RECORD", "\n".join([*lines, f"{described}/RECORD,,", ""]))
    return plain, machine_code.build(plain, folder / "dist", KERNELS)


def package_files(package: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / package).rglob("*"))
        if path.is_file() and not {"__pycache__", MACHINE_CODE} & set(path.parts)
    ]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-W", "ignore", "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    pip += ["--quiet", "--disable-pip-version-check", "--target", str(folder), str(wheel[1])]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_says_what_it_brings(wheel):
    plain, brings = wheel
    assert re.fullmatch(r"logcal-0\.1\.0-1_\w+-py3-none-any\.whl", brings.name)
    with zipfile.ZipFile(plain) as before, zipfile.ZipFile(brings) as archive:
        added = set(archive.namelist()) - set(before.namelist())
        assert all(
            re.fullmatch(r"calibrators/_kernels/machine_code/[\w.]+-\w+/[\w.-]+\.nbc", x) for x in added
        )
        assert {name.split("/")[-1].partition("-")[0] for name in added} >= {
            x[0].split(".")[-1] for x in KERNELS
        }
        record = archive.read("logcal-0.1.0.dist-info/RECORD").decode()
        listed = {row[0]: row[1:] for row in csv.reader(record.splitlines())}
        assert set(listed) == set(archive.namelist())
        for name in [*added, "logcal-0.1.0.dist-info/WHEEL"]:
            content = archive.read(name)
            assert listed[name] == [machine_code._digest(content), str(len(content))]
        assert (
            f"Build: {brings.name.split('-')[2]}\n" in archive.read("logcal-0.1.0.dist-info/WHEEL").decode()
        )


def test_nothing_is_compiled_and_results_are_those_of_code_for_this_machine(installed, tmp_path):
    brought = call(installed, tmp_path / "empty")
    assert brought["compiled"] == []
    assert not (tmp_path / "empty").exists()
    own = call(ROOT, tmp_path / "own")
    assert set(own["compiled"]) >= set(ALL)
    assert own["said"] == brought["said"]


def test_code_for_this_machine_comes_first(installed, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(kept_code, "_read", asked.append)
    monkeypatch.setattr(
        kept_code, "places", lambda package: ([kept_code.Place(tmp_path, shared=False)], None)
    )
    kept = measures.ascending._cache
    assert kept.load_overload((types.float64[::1],), measures.ascending.targetctx) is None
    first, last = asked
    assert first.parents[1] == tmp_path
    assert last.parent == ROOT / "calibrators" / "_kernels" / MACHINE_CODE / first.parent.name
    # What the wheel brings is what is looked for last.
    found = {path.name for path in installed.rglob("ascending*.nbc")}
    assert found == {last.name}


def test_with_other_settings_or_sources_all_is_compiled(installed, tmp_path):
    assert call(installed, tmp_path / "checked", ASCENDING, NUMBA_OPT="1")["compiled"] == [ASCENDING]
    source = installed / "calibrators" / "_kernels" / "measures.py"
    before = source.read_bytes()
    source.write_bytes(before + b"\n")
    try:
        assert call(installed, tmp_path / "changed")["compiled"] == [ASCENDING]
    finally:
        source.write_bytes(before)


def test_what_is_no_wheel_is_refused(tmp_path):
    (tmp_path / "no.whl").write_bytes(b"no archive")
    for name in ("no.whl", "missing.whl"):
        with pytest.raises(ConfigError, match="expected a wheel of logcal"):
            machine_code.build(tmp_path / name, tmp_path)
