"""The process that helps to compile at a first run: what it compiles, when it starts, that it ends."""

import importlib
import json
import subprocess
import sys

import pytest
from numba.core import event, types
from record_first_runs import RECORDING

from jobs import compile_ahead
from jobs.demo import write_logs


@pytest.fixture(scope="module")
def lists():
    return json.loads(compile_ahead.LISTS.read_text("utf-8"))


def test_lists_name_kernels_and_types(lists):
    assert tuple(lists) == compile_ahead.JOBS
    for uses in lists.values():
        assert len(uses) == len({tuple(use) for use in uses}) > 1
        for name, text in uses:
            module, _, function = name.rpartition(".")
            assert hasattr(importlib.import_module(module), function)
            assert compile_ahead.text_of(map(compile_ahead._type_of, text.split())) == text


def test_types_as_text():
    there = (types.Array(types.float64, 2, "C", readonly=True), types.boolean, types.int64)
    text = compile_ahead.text_of(there)
    assert text == "float64[2Cr] bool int64"
    assert tuple(map(compile_ahead._type_of, text.split())) == there
    assert compile_ahead.text_of([types.UniTuple(types.int64, 2)]) == "?"


def test_a_fit_needs_what_is_listed(tmp_path, lists):
    """If this fails, run tests/record_first_runs.py."""
    write_logs(tmp_path)
    settings = [f"log.path={tmp_path}/log/calibration", f"store.path={tmp_path}/store", "store.table=ads"]
    done = subprocess.run(
        [sys.executable, "-c", RECORDING, "fit", *settings], capture_output=True, text=True, check=True
    )
    found = {tuple(use) for use in json.loads(done.stdout)}
    assert {tuple(use) for use in lists["fit"]} <= found


def test_it_compiles_what_is_listed_once_something_is_compiled(tmp_path, monkeypatch):
    listed = tmp_path / "lists.json"
    listed.write_text(
        json.dumps(
            {"fit": [["calibrators._kernels.measures.ascending", "float64[1C]"], ["no.such.kernel", ""]]}
        )
    )
    cache = tmp_path / "cache"
    monkeypatch.setenv("LOGCAL_CACHE", str(cache))
    started = []
    popen = subprocess.Popen

    def start(*command, **more):
        started.append(popen(*command, **more))
        return started[-1]

    monkeypatch.setattr(compile_ahead, "LISTS", listed)
    monkeypatch.setattr(compile_ahead.subprocess, "Popen", start)
    with compile_ahead.helping("fit", 2):
        assert started == []
        for _ in range(2):
            with event.trigger_event("numba:compile", {}):
                pass
        assert len(started) == 1
        assert started[0].wait(240) == 0
        assert [path.name.partition("-")[0] for path in cache.rglob("*.nbc")] == ["ascending"]


def test_it_ends_with_the_job(monkeypatch):
    helper = compile_ahead._Helper("fit")
    monkeypatch.setattr(compile_ahead, "__file__", "/nowhere/jobs/compile_ahead.py")
    helper.start()
    helper.stop()
    assert helper.process.returncode is not None
    helper.start()
    assert helper.process.returncode is not None


@pytest.mark.parametrize(("job", "processors"), [("fit", 1), ("generate", 2)])
def test_without_another_processor_or_a_list_there_is_none(job, processors, monkeypatch):
    monkeypatch.setattr(compile_ahead, "_Helper", None)
    with compile_ahead.helping(job, processors), event.trigger_event("numba:compile", {}):
        pass
