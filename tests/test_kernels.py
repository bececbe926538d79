"""Compiled kernels: where their code is kept, for whom, and for how long."""

from __future__ import annotations

import ast
import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibrators import METHODS
from calibrators.core import compilation_cache, compiled
from calibrators.core.compilation_cache import CompilationCache
from jobs import warm
from jobs.config.loading import Values, load_values, read_values
from jobs.registry import JOBS

ROOT = Path(compiled.__file__).parents[2]
SOURCES = [
    path
    for package in ("calibrators", "logcal", "pipeline", "jobs")
    for path in (ROOT / package).rglob("*.py")
]
KERNELS = sorted(path for path in SOURCES if "\n@kernel" in path.read_text("utf-8"))
SOMEONE_ELSE = 65534

INNER = """
from calibrators.core.compiled import kernel
STEP = 1
@kernel
def inner(x):
    return x + STEP
"""
OUTER = """
from calibrators.core.compiled import kernel
from calibrators.core.kernels.inner import (
    inner,
)
@kernel
def outer(x):
    return 10 * inner(x)
"""
APART = """
from calibrators.core.compiled import kernel
@kernel
def apart(x):
    return -x
"""
CALL = """
import json, sys, tempfile
if "--no-temporary-folder" in sys.argv:
    tempfile.tempdir = "."  # the copy, which is protected
from calibrators.core.kernels import apart, outer
values = [v for x in json.loads(sys.argv[1]) for v in (outer.outer(x), apart.apart(x))]
compiled = [k.py_func.__name__ for k in (outer.outer, apart.apart) if sum(k.stats.cache_misses.values())]
json.dump({"values": values, "compiled": compiled, "path": outer.outer.stats.cache_path}, sys.stdout)
"""


class Copy:
    """A copy of the package with kernels of its own, called by processes of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(
            ROOT / "calibrators", root / "calibrators", ignore=shutil.ignore_patterns("__pycache__")
        )
        self.kernels = root / "calibrators" / "core" / "kernels"
        for name, source in (("inner", INNER), ("outer", OUTER), ("apart", APART)):
            (self.kernels / f"{name}.py").write_text(source)
        self.call_file = root / "call.py"
        self.call_file.write_text(CALL)
        # Empty, so that nothing sets them anew.
        unset = dict.fromkeys(("LOGCAL_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"), "")
        self.environment = {name: value for name, value in os.environ.items() if name != "HOME"} | unset
        self.environment |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(root)}

    def start(self, *arguments: str, **environment: Path) -> subprocess.Popen[str]:
        """Start a process that calls the kernels, and may write only where the modes say so."""
        return subprocess.Popen(
            [sys.executable, str(self.call_file), *(arguments or ("[1]",))],
            env=self.environment | {name: str(path) for name, path in environment.items()},
            cwd=self.root,
            preexec_fn=_obey_modes,  # noqa: PLW1509 (no threads here)
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, **environment: Path) -> dict:
        """What the kernels said, and which of them were compiled."""
        return self.result(self.start(*arguments, **environment))

    def protect(self) -> None:
        """Let nothing be written here."""
        for path in (self.root, *self.root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

    @staticmethod
    def result(process: subprocess.Popen[str]) -> dict:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        return json.loads(out)


def _obey_modes() -> None:
    """Let root, whom no mode stops, be stopped by them like anyone else, in the program that this process becomes."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    root = tmp_path / "copy"
    root.mkdir()
    yield Copy(root)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


def test_code_is_kept_until_a_source_that_it_depends_on_changes(copy):
    assert copy.call() == {
        "values": [20, -1],
        "compiled": ["outer", "apart"],
        "path": str(next(copy.root.glob("calibrators/__pycache__/calibrators.core.kernels.outer-*"))),
    }
    for path in copy.kernels.glob("*.py"):
        os.utime(path)
    assert copy.call()["compiled"] == []
    inner = copy.kernels / "inner.py"
    before = inner.stat()
    inner.write_text(INNER.replace("STEP = 1", "STEP = 2"))
    # Of the same size, and no newer: only the content tells.
    os.utime(inner, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = copy.call()
    assert (changed["values"], changed["compiled"]) == ([30, -1], ["outer"])
    inner.write_text(INNER)
    back = copy.call()
    assert (back["values"], back["compiled"]) == ([20, -1], [])


LIBRARY = """
import numpy as np
from calibrators.core.compiled import kernel
@kernel
def doubled(x, n):
    out = np.empty(n)
    out[:] = np.sort(x)[:n] * 2
    return np.cumsum(out).sum() + np.median(x)
"""
CALL_LIBRARY = """
import json, sys
import numpy as np
from calibrators.core.kernels import library
value = library.doubled(np.array([3.0, 1.0, 2.0]), 2)
try:
    library.doubled(np.array([1.0]), -1)
except ValueError as error:
    said = str(error)
imported = sorted({"numba.np.arraymath", "scipy.linalg"} & set(sys.modules))
json.dump({"value": value, "said": said, "imported": imported}, sys.stdout)
"""


@pytest.mark.system
def test_cached_code_is_loaded_without_what_compiles(copy):
    """What of numba's own library has been compiled works, and raises, though it is not imported."""
    (copy.kernels / "library.py").write_text(LIBRARY)
    copy.call_file.write_text(CALL_LIBRARY)
    compiled_now, loaded = copy.call(), copy.call()
    assert compiled_now.pop("imported") == ["numba.np.arraymath", "scipy.linalg"]
    assert loaded.pop("imported") == []
    assert compiled_now == loaded == {"value": 10.0, "said": "negative dimensions not allowed"}


@pytest.mark.system
def test_a_read_only_package_reads_what_is_there_and_keeps_the_rest_with_the_user(copy, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    copy.call()
    copy.protect()
    assert copy.call(HOME=home)["compiled"] == []
    assert list(home.iterdir()) == []
    assert copy.call("[1.5]", HOME=home)["compiled"] == ["outer", "apart"]
    assert copy.call("[1, 1.5]", HOME=home)["compiled"] == []
    assert (home / ".cache" / "logcal").stat().st_mode & 0o777 == 0o700


@pytest.mark.system
def test_without_a_home_code_is_kept_below_the_temporary_folder_if_no_one_else_can_write_there(
    copy, tmp_path
):
    copy.protect()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o1777)
    own = temporary / f"logcal-{os.geteuid()}"
    settings = {"HOME": copy.root, "TMPDIR": temporary}
    assert copy.call(**settings)["compiled"] == ["outer", "apart"]
    assert own.stat().st_mode & 0o777 == 0o700
    assert copy.call(**settings)["compiled"] == []
    own.chmod(0o777)
    refused = {"values": [20, -1], "compiled": ["outer", "apart"], "path": None}
    assert copy.call(**settings) == refused
    if os.geteuid() == 0:
        own.chmod(0o755)
        os.chown(own, SOMEONE_ELSE, SOMEONE_ELSE)
        assert copy.call(**settings) == refused


@pytest.mark.system
def test_where_nothing_can_be_written_kernels_are_compiled_each_time(copy):
    copy.protect()
    for _ in range(2):
        found = copy.call("[1]", "--no-temporary-folder", HOME=copy.root)
        assert found == {"values": [20, -1], "compiled": ["outer", "apart"], "path": None}


@pytest.mark.system
def test_processes_at_once_share_a_place(copy, tmp_path):
    orders = ["[1, 1.5]", "[1.5, 1]", "[1, 1.5]", "[1.5, 1]"]
    running = [copy.start(order, LOGCAL_CACHE=tmp_path) for order in orders]
    for order, process in zip(orders, running, strict=True):
        expected = [20, -1, 25.0, -1.5] if order == orders[0] else [25.0, -1.5, 20, -1]
        assert copy.result(process)["values"] == expected
    assert copy.call("[1, 1.5]", LOGCAL_CACHE=tmp_path)["compiled"] == []
    assert not list(copy.root.glob("calibrators/__pycache__/calibrators*"))


@pytest.mark.system
def test_a_damaged_file_is_compiled_again(copy, tmp_path):
    copy.call(LOGCAL_CACHE=tmp_path)
    for path in tmp_path.rglob("*.nbc"):
        path.write_bytes(path.read_bytes()[:-1])
    assert copy.call(LOGCAL_CACHE=tmp_path)["compiled"] == ["outer", "apart"]
    assert copy.call(LOGCAL_CACHE=tmp_path)["compiled"] == []


def test_numba_has_the_private_parts_that_the_cache_uses():
    assert not compiled.CACHE_FAULT, (
        f"{compiled.CACHE_FAULT}: calibrators/core/compilation_cache.py uses this part of numba, so now every process "
        "compiles its kernels. Adapt the module, or lower numba's ceiling in pyproject.toml."
    )


@pytest.mark.parametrize(
    "change",
    [
        "del numba.core.environment._rebuild_env",
        "numba.core.caching.Cache._index_key = lambda self, sig: None",
    ],
)
def test_with_another_numba_kernels_are_compiled_but_not_kept(change, tmp_path):
    program = f"""
import numba, numba.core.environment, numba.core.caching
{change}
import numpy as np
from calibrators.core import compiled
from calibrators.core.kernels import log_odds
out = np.empty(1)
log_odds.logistic(np.zeros(1), out)
assert out == 0.5 and compiled.newly_compiled(), out
print(compiled.CACHE_FAULT)
"""
    env = {**os.environ, "LOGCAL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("numba 0.")
    assert not list(tmp_path.rglob("*.nbc"))


def test_variables_come_first_and_in_order(monkeypatch, tmp_path):
    def kept_at() -> Path:
        compilation_cache.cache_folders.cache_clear()
        return compilation_cache.cache_folders(str(tmp_path / "package"))[1].path

    try:
        monkeypatch.delenv("LOGCAL_CACHE", raising=False)
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        assert kept_at() == tmp_path / "package" / "__pycache__"
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
        assert kept_at() == tmp_path / "numba"
        monkeypatch.setenv("LOGCAL_CACHE", str(tmp_path / "own"))
        assert kept_at() == tmp_path / "own"
        (tmp_path / "own").write_text("a file where the folder should be")
        assert kept_at() == tmp_path / "numba"
    finally:
        compilation_cache.cache_folders.cache_clear()


def test_who_else_could_write_is_not_trusted(monkeypatch, tmp_path):
    folder = compilation_cache.CacheFolder(tmp_path / "place", shared=True)
    assert folder.is_trusted()
    folder.make()
    assert folder.is_trusted()
    for mode in (0o777, 0o770, 0o702):
        folder.path.chmod(mode)
        assert not folder.is_trusted()
        with pytest.raises(PermissionError):
            folder.make()
    folder.path.chmod(0o700)
    (tmp_path / "link").symlink_to(folder.path)
    assert not compilation_cache.CacheFolder(tmp_path / "link", shared=True).is_trusted()
    monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    assert not folder.is_trusted()


@pytest.mark.system
def test_precompiled_code_is_used_where_there_is_none_for_this_processor(copy, tmp_path):
    any_processor = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert copy.call(LOGCAL_CACHE=copy.root / "calibrators" / "core" / "precompiled", **any_processor)[
        "compiled"
    ]
    brought = copy.call(LOGCAL_CACHE=tmp_path / "own")
    assert (brought["values"], brought["compiled"]) == ([20, -1], [])
    assert not (tmp_path / "own").exists()
    # Another type of argument, and a changed source, are compiled here.
    assert copy.call("[1.5]", LOGCAL_CACHE=tmp_path / "own")["compiled"] == ["outer", "apart"]
    (copy.kernels / "inner.py").write_text(INNER.replace("STEP = 1", "STEP = 2"))
    assert copy.call(LOGCAL_CACHE=tmp_path / "own")["compiled"] == ["outer"]


def test_versions_used_longest_ago_are_removed(tmp_path):
    for i in range(compilation_cache._VERSIONS + 3):
        (tmp_path / f"a.b-{i:016x}").mkdir()
        os.utime(tmp_path / f"a.b-{i:016x}", (i, i))
    (tmp_path / "a.bc-0").mkdir()
    compilation_cache._tidy(tmp_path / "a.b-0000000000000005")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [*(f"a.b-{i:016x}" for i in range(3, compilation_cache._VERSIONS + 3)), "a.bc-0"]


def test_a_modules_digest_covers_all_of_ours_that_it_imports():
    for path in KERNELS:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        importlib.import_module(name)
        wanted, found = {name}, set()
        while wanted - found:
            module = (wanted - found).pop()
            found.add(module)
            tree = ast.parse(Path(sys.modules[module].__file__).read_bytes())
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
            wanted |= {node.module for node in imports if node.module.split(".")[0] in compiled._PACKAGES}
        assert set(compiled._sources(name)) == found
        assert compiled.source_digest(name)


def test_all_kernels_have_the_one_decorator():
    assert [path.name for path in SOURCES if "njit" in path.read_text("utf-8")] == ["compiled.py"]


def test_kernels_lie_where_types_and_coverage_pass_over_them():
    assert {path.stem if path.stem == "kernels" else path.parent.name for path in KERNELS} == {
        "kernels",
        "_kernels",
    }


# `logcal warm`

system = pytest.mark.system
COMPILING = "compiling for this machine"


def test_jobs_take_all_cases(monkeypatch, tmp_path):
    taken = set()

    def prepared(name, settings):
        config = load_values(JOBS[name].config_class(), Values(read_values((), settings).values))
        if name == "fit":  # others need its table
            JOBS[name].load_module().prepare(config)
            taken.add(config.calibrator.method)

    monkeypatch.setattr(warm, "_run_job", prepared)
    (tmp_path / "small").mkdir()
    warm._write_log(tmp_path / "small" / "log", 40)
    for number, case in enumerate(warm.cases()):
        warm._run(number, case, tmp_path / "small")
    assert taken == set(METHODS)


@system
def test_it_says_what_it_did(monkeypatch, tmp_path):
    monkeypatch.setattr(warm, "cases", lambda: iter([warm.Case((), (("score",),))]))
    monkeypatch.setattr(warm.tempfile, "tempdir", str(tmp_path))
    outcome = warm.warm()
    summary = outcome.summary
    assert summary["kernels"] >= summary["compiled"] >= 0
    assert summary["kernels"] == sum(len(types) for types in compiled.used().values())
    assert "kernels compiled in" in outcome.lines[0]
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_kept_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(CompilationCache, "cache_path", None)
    monkeypatch.setattr(warm, "_run", lambda *given: None)
    monkeypatch.setattr(warm.tempfile, "tempdir", str(tmp_path))
    assert "kept nowhere" in warm.warm().lines[0]


@system
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_it_no_job_compiles(place, tmp_path):
    cache = tmp_path / "cache"
    place.environment["LOGCAL_CACHE"] = str(cache)
    done = place.run("warm", "--json", timeout=1500).expect(0).json
    assert done["compiled"] == done["kernels"] > 100
    assert place.run("warm", "--json", timeout=1500).expect(0).json["compiled"] == 0
    for path in cache.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    rng = np.random.default_rng(1)
    score = rng.random(40_000)
    plain = {"score": score, "label": (rng.random(40_000) < score).astype(np.int8)}
    digits = {"score": score.round(2).astype(np.float32), "label": plain["label"].astype(np.int64)}
    text, few, ninth = (rng.integers(0, n, 40_000) for n in (50, 5, 9))
    for columns, weight, segment, methods in (
        (plain, (), (), METHODS),
        (digits, (), (), ("isotonic",)),
        (plain | {"w": score + 1}, ("log.weight=w",), (), METHODS),
        (plain | {"s": text.astype(str)}, (), ("log.segment=[s]",), ("isotonic",)),
        (plain | {"s": few.astype(str), "n": ninth}, (), ("log.segment=[s, n]",), ("isotonic",)),
    ):
        shutil.rmtree(place.log, ignore_errors=True)
        place.write_log(columns)
        said = ""
        for method in methods:
            grid = ("score_table.grid=0.01",) if method in ("sbb", "abb", "auto") else ()
            said += place.job("fit", *weight, *segment, *grid, f"calibrator.method={method}").expect(0).stderr
        for job, settings in (("score", ()), ("evaluate", (*weight, "evaluate.allow_in_sample=true"))):
            said += place.job(job, *segment, *settings).expect(0).stderr
            shutil.rmtree(place.output)
        assert COMPILING not in said, (list(columns), weight)
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755)
