"""A run whose data end earlier than those of the current version does not take its place unasked."""

import os

import pytest

from jobs import fit
from jobs.config.jobs import FitConfig
from jobs.config.loading import load
from jobs.resume import older_data
from logcal.errors import CheckFailedError
from pipeline.execution import InlineExecutor
from pipeline.table.published import Version


def version(name, *, last=None, stamps=(), started="2026-01-01"):
    window = {"window": {"last": last}} if last else {}
    files = {"files": [{"stamp": stamp} for stamp in stamps]}
    return Version(name, "", {"log": files, "started": started, **window})


CASES = [
    # what the run says, what is current, what was current at its start, told when to end: refused, and why
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "a", False, "its data end on 2026-01-02"),
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "b", True, "its data end on 2026-01-02"),
    ({"last": "2026-01-02"}, {"last": "2026-01-03"}, "b", False, None),
    ({"last": "2026-01-03"}, {"last": "2026-01-03"}, "a", True, None),
    ({"stamps": ("1.5", "2.5")}, {"stamps": ("3",)}, "a", False, "its log's newest file is older"),
    ({"stamps": ("1.5", "3")}, {"stamps": ("3",)}, "a", False, None),
    ({"stamps": ("1",)}, {"stamps": ("3",)}, "b", False, None),
    ({"stamps": ("tag",)}, {"stamps": ("3",), "started": "2026-01-02"}, "a", False, "it began before"),
    ({"stamps": ("tag",), "started": "2026-01-03"}, {"stamps": ("3",)}, "a", False, None),
]


@pytest.mark.parametrize(("run", "current", "seen", "until", "said"), CASES)
def test_what_is_refused(run, current, seen, until, said):
    found = older_data(version("", **run).manifest, version("b", **current), seen, until=until)
    assert bool(found) == (said is not None)
    if said is not None:
        (refusal,) = found
        assert refusal["rule"] == "older_data"
        assert said in refusal["message"]
        assert "--force" in refusal["message"]
        assert ("meanwhile" in refusal["message"]) == (seen != "b")
    assert older_data(version("", **run).manifest, None, None, until=until) == []


@pytest.fixture
def days(place):
    for day in (1, 2, 3):
        place.write_log(place.predictions(1500, seed=day), name=f"log/date=2026-01-0{day}", files=1)
    return ("window.column=date", "window.last=2d")


def prepared(place, *settings):
    own = (
        f"log.path={place.log}",
        f"store.path={place.store}",
        "store.table=ads",
        f"scratch={place.scratch}",
    )
    return fit.prepare(load(FitConfig, [], [*own, "cluster.kind=inline", *settings]))


def test_a_slow_run_does_not_move_current_back(place, days):
    slow = prepared(place, *days, "window.until=2026-01-02")
    fast = prepared(place, *days, "window.until=2026-01-03")
    newest = fast.execute(InlineExecutor()).summary["version"]
    with pytest.raises(CheckFailedError, match=r"its data end on 2026-01-02.*which was published meanwhile"):
        slow.execute(InlineExecutor())
    assert place.current == newest
    kept = place.manifest(place.versions[1])
    assert kept["publish"] == "candidate"
    # Run again it is refused again, and --force finds what it made.
    with pytest.raises(CheckFailedError, match="saved as a candidate"):
        prepared(place, *days, "window.until=2026-01-02")
    forced = prepared(place, *days, "window.until=2026-01-02", "store.force=true")
    assert forced.execute(InlineExecutor()).summary["version"] == place.versions[1] == place.current


def test_a_slow_run_of_older_files_does_not_either(place):
    old, new = (place.write_log(place.predictions(1500, seed=seed), name=f"log-{seed}") for seed in (1, 2))
    for file in old.iterdir():
        os.utime(file, (1, 1))
    slow = prepared(place, f"log.path={old}")
    prepared(place, f"log.path={new}").execute(InlineExecutor())
    newest = place.current
    with pytest.raises(CheckFailedError, match="its log's newest file is older"):
        slow.execute(InlineExecutor())
    assert place.current == newest


def test_a_command_may_be_forced(place, days, call):
    call("fit", *days).expect(0)
    call("fit", *days, "window.until=2026-01-02").expect(4, "its data end on 2026-01-02", "--force publishes")
    call("fit", *days, "window.until=2026-01-02", "store.force=true").expect(0)
    assert place.current == place.versions[1]


def test_a_deleted_day_is_no_reason(place, days, call):
    call("fit", *days).expect(0)
    first = place.current
    late = place.write_log(place.predictions(1500, seed=9), name="log/date=2026-01-04", files=1)
    call("fit", *days).expect(0)
    (late / "part-0.parquet").unlink()
    late.rmdir()
    call("fit", *days).expect(0)
    assert place.current == first
