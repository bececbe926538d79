"""The campaign in short: every job disturbed at some of its writes, run again, and compared with an undisturbed run.

`make chaos` does it at every write, for as long as it is told.
"""

import os
import posix
from collections import Counter
from importlib import import_module

import numpy as np
import pytest
from chaos.damaged_stores import DAMAGES, stores
from chaos.disks import disks
from chaos.inputs import configurations, files
from chaos.scenarios import SCENARIOS, Stage
from chaos.together import together
from chaos.tracing import possible, traced
from chaos.trials import AT_RANDOM, AT_WRITES

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not possible(), reason="processes cannot be traced here"),
]

FEW = [name for name in SCENARIOS if name not in ("compare", "tables diff")]
"""Of the others a run takes long, or nothing."""


@pytest.fixture(autouse=True)
def _flushes(monkeypatch):
    """Flushing to the disk is something that fails, too; elsewhere tests leave it out."""
    monkeypatch.setattr(os, "fsync", posix.fsync)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A scenario's stage, in a process that has imported what it needs."""
    for name in ("cli", "run", "fit", "score", "monitor", "follow", "tables"):
        import_module(f"jobs.{name}")
    folder = tmp_path_factory.mktemp("chaos")

    def make(name):
        """It and what its command writes."""
        made = Stage(SCENARIOS[name], folder)
        made.warm()
        made.reset()
        return made, traced(made.command, made.place.root).calls

    return make


@pytest.mark.parametrize("name", FEW)
def test_a_command_that_is_disturbed(stage, name):
    made, calls = stage(name)
    assert len(calls) >= 5
    random = np.random.default_rng(len(calls))
    kinds = list(AT_WRITES)
    if name in ("generate", "evaluate"):
        kinds = ["killed"]
    found = [
        trial for kind in kinds for trial in AT_WRITES[kind](made, calls[random.integers(len(calls))], random)
    ]
    assert [(trial.kind, trial.moment, trial.problems) for trial in found if trial.problems] == []


@pytest.mark.parametrize("name", ["follow, a ledger made anew", "follow, a refit", "monitor"])
def test_files_that_may_not_grow(stage, name):
    made, _ = stage(name)
    random = np.random.default_rng(len(name))
    found = [AT_RANDOM["files are limited"](made, random, 0.0) for _ in range(4)]
    assert 75 in {trial.code for trial in found}
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


def test_a_page_is_seen_whole(stage):
    made, calls = stage("monitor")
    own = [call for call in calls if "report.html" in call.paths[-1]]
    assert len(own) >= 3
    found = [trial for call in own for trial in AT_WRITES["killed"](made, call, None)]
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


@pytest.mark.parametrize("name", DAMAGES)
def test_a_byte_of_a_store_is_another(stage, tmp_path, name):
    found = list(stores(8, 5, tmp_path, (name,)))
    assert len(found) == 8
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []


def test_commands_at_the_same_time(stage, tmp_path):
    assert [(t.scenario, t.problems) for t in together(2, 4, tmp_path) if t.problems] == []


def test_small_disks_that_are_full(stage, tmp_path):
    found = list(disks(1, 6, tmp_path))
    if not found:
        pytest.skip("nothing can be mounted here")
    assert [(t.scenario, t.moment, t.problems) for t in found if t.problems] == []


def test_files_in_a_process_of_their_own(tmp_path):
    found = list(files(60, 7, tmp_path))
    assert len(found) == 60
    assert {trial.code for trial in found} == {0, 3}


def test_no_configuration_however_odd_is_a_bug(tmp_path):
    found = list(configurations(500, 0, tmp_path))
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []
    assert Counter(trial.code for trial in found)[2] > 100


# The means themselves


def test_a_difference_and_a_half_are_found(stage, tmp_path):
    made, calls = stage("tables promote")
    made.after = {**made.after, "store/ads/CURRENT": b"another\n"}
    [trial, *_] = AT_WRITES["killed"](made, calls[-1], None)
    assert "CURRENT neither old nor new" in " ".join(trial.problems)


# What the campaign found


def test_a_fit_that_is_killed_while_it_frees_its_runs_can_be_run_again(stage):
    """Its receipts told of runs that were gone, and the rerun ended with 2."""
    made, calls = stage("fit, segments")
    removed = [call for call in calls if call.name == "unlink" and call.paths[-1].startswith("scratch/")]
    assert len(removed) > 2
    outcomes = Counter()
    for call in removed[:: len(removed) // 3]:
        for trial in AT_WRITES["killed"](made, call, None):
            assert trial.problems == ()
            outcomes[trial.again] += 1
    assert outcomes == {0: sum(outcomes.values())}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("fit, a second version", "store/ads/versions"),
        ("fit, a replaced version again", "mkdir"),
        ("fit, refused", "store/ads/versions"),
        ("tables promote", "mkdir"),
        ("tables rollback", "mkdir"),
        ("tables prune", "mkdir"),
        ("follow", "mkdir"),
        ("follow, a ledger made anew", "mkdir"),
        ("follow, a file tried again", "mkdir"),
        # What comes before is the fit's own, whose trials are above.
        ("follow, a refit", "store/ads/versions"),
    ],
)
def test_a_command_that_is_killed_at_any_write_is_as_if_it_had_not_been(stage, name, first):
    """Before each write, and so after the one before it. A ledger that was being made anew blocked its stream, a
    candidate was not in the journal, and old versions stayed where a run ended before it had removed them.
    """
    made, calls = stage(name)
    start = next(call.number for call in calls if first in (call.name, *call.paths))
    found = [trial for call in calls[start:] for trial in AT_WRITES["killed"](made, call, None)]
    assert len(found) > (40 if name.startswith("follow") else 12)
    assert [(trial.moment, trial.problems) for trial in found if trial.problems] == []
