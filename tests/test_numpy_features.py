"""numpy's vector instructions that a command does without."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from jobs import numpy_features

ZEN_4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f avx512dq\n"
ZEN_3 = ZEN_4.replace(" avx512f avx512dq", "")
ZEN_5 = ZEN_4.replace("25", "26")
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f\n"


def features(tmp_path, monkeypatch, cpu, **environment):
    file = tmp_path / "cpuinfo"
    file.write_text(f"{cpu}\n{ZEN_4.replace('25', '1')}")
    monkeypatch.setattr(numpy_features, "_CPUS", file)
    numpy_features.sort_fast(environment)
    return environment


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numpy knows the names on x86-64 only")
def test_zen_4_sorts_without_the_instructions_that_numpy_has_for_it(tmp_path, monkeypatch):
    found = features(tmp_path, monkeypatch, ZEN_4)
    assert list(found) == ["NPY_DISABLE_CPU_FEATURES"]
    # numpy says so where it does not know a name, or loads one nevertheless.
    code = (
        "from numpy._core._multiarray_umath import __cpu_features__ as found, __cpu_dispatch__ as known; "
        "import os; names = os.environ['NPY_DISABLE_CPU_FEATURES'].split(); "
        "print(names and set(names) <= set(known) and not any(found[name] for name in names))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("cpu", [ZEN_3, ZEN_5, INTEL, "", "flags without a colon"])
def test_other_processors_keep_all(tmp_path, monkeypatch, cpu):
    assert features(tmp_path, monkeypatch, cpu) == {}


@pytest.mark.parametrize("name", ["NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"])
def test_what_a_user_has_set_stays(tmp_path, monkeypatch, name):
    assert features(tmp_path, monkeypatch, ZEN_4, **{name: "AVX2"}) == {name: "AVX2"}


def test_without_proc_nothing_is_known_of_the_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(numpy_features, "_CPUS", tmp_path / "none")
    environment = {}
    numpy_features.sort_fast(environment)
    assert environment == {}


def test_numpys_version_is_found_without_loading_it():
    assert numpy_features._numpy_version() == tuple(int(part) for part in np.__version__.split(".")[:2])


@pytest.mark.parametrize(
    ("version", "names"),
    [((2, 3), "AVX512F AVX512_SKX"), ((2, 4), "X86_V4"), ((2, 5), "X86_V4"), (None, None)],
)
def test_names_are_those_of_numpys_version(version, names):
    assert numpy_features._features_of_sort(version) == names


def test_the_command_asks_before_numpy_is_loaded():
    code = "import sys, jobs.cli; print('numpy' in sys.modules, hasattr(jobs.cli, 'sort_fast'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n"
