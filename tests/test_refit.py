"""Refits of a stream's table: what the fit job would have published, when it is time."""

import datetime as dt
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import ANY_TABLE

from jobs import fit
from jobs import refit as refits
from jobs.config.jobs import FollowConfig
from jobs.config.loading import load
from jobs.config.sections import parse_duration
from pipeline.execution import InlineExecutor
from pipeline.files.folders import Folder
from pipeline.follow.ledger import Ledger
from pipeline.log import logs


def lands(folder, name, rows=400, seed=0):
    """A labelled file arrives."""
    rng = np.random.default_rng([seed, *name.encode()])
    score = rng.random(rows)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": score, "label": (rng.random(rows) < score**2).astype(np.int8)}), hidden)
    hidden.rename(path)


@pytest.fixture
def stream(place, call):
    """Follow a folder of labelled files; and the folder."""
    arriving = place.root / "arriving"
    arriving.mkdir()

    def follow(*settings, run=call):
        return run("follow", *settings, log__path=arriving, output__path=place.output)

    return follow, arriving


@pytest.fixture
def begun(stream):
    """The same once a first table was made of a file."""
    follow, arriving = stream
    lands(arriving, "a.parquet")
    follow("--once", "refit.every=1h").expect(0)
    return stream


def test_the_first_table_comes_from_the_stream_and_later_ones_when_it_is_time(place, stream):
    follow, arriving = stream
    lands(arriving, "date=2026-11-19/a.parquet")
    lands(arriving, "date=2026-11-20/a.parquet")
    settings = ("--once", "window.column=date", "refit.rows=700", "log.labels.wait=1h")
    done = follow(*settings, "--json").expect(0).json
    assert (done["refits"], done["files"], done["version"]) == (1, 2, place.current)
    first = place.lookup()
    lands(arriving, "date=2026-11-21/a.parquet")
    assert follow(*settings, "--json").expect(0).json["refits"] == 0
    lands(arriving, "date=2026-11-21/b.parquet", rows=500)
    assert follow(*settings, "--json").expect(0).json["refits"] == 1
    assert place.lookup() != first
    status = follow("--status", "--json").expect(0).json
    assert status["refit"]["outcome"] == "published"
    assert status["refit"]["version"] == place.current
    # What fit would have made of it, in a store of its own.
    paths = {"log__path": arriving, "store__path": place.root / "own"}
    fitted = place.job("fit", "window.column=date", "--json", **paths).expect(0).json
    assert place.manifest()["fingerprint"] == fitted["fingerprint"]


def test_a_refit_that_was_killed_after_it_published_publishes_once(place, begun):
    follow, _ = begun
    versions = place.versions
    (place.root / ".output.logcal" / "refit.json").unlink()
    follow("--once", "refit.every=1h").expect(99)
    assert place.versions == versions


@pytest.mark.parametrize("said", [False, True])
def test_versions_that_a_disturbed_run_left_are_removed_by_one_that_has_nothing_to_do(place, stream, said):
    follow, arriving = stream
    for i in range(3):
        lands(arriving, f"{i}.parquet", seed=i)
        follow("--once", "refit.rows=1").expect(0)
    assert len(place.versions) == 3
    status = follow("--status", "--json").expect(0).json["refit"]
    if not said:
        (place.root / ".output.logcal" / "refit.json").unlink()
    follow("--once", "refit.rows=1", "retention.versions=1").expect(99)
    assert len(place.versions) == 2
    again = follow("--status", "--json").expect(0).json["refit"]
    told = ("outcome", "version", "rows", "label_coverage")
    assert [again[key] for key in told] == [status[key] for key in told]


def test_versions_that_a_killed_fit_left_are_removed_by_one_that_has_nothing_to_do(place, call):
    place.write_log()
    for method in ("isotonic", "platt", "histogram"):
        call("fit", f"calibrator.method={method}").expect(0)
    last = ("fit", "calibrator.method=histogram", "retention.versions=1")
    call(*last, "--dry-run").expect(99)
    assert len(place.versions) == 3
    call(*last).expect(99)
    assert len(place.versions) == 2


def test_a_log_that_does_not_suit_stops_no_stream(place, begun):
    follow, arriving = begun
    (place.root / ".output.logcal" / "refit.json").unlink()
    labelled = place.root / "labelled"
    labelled.mkdir()
    pq.write_table(pa.table({"score": [0.1, 0.2], "label": [0, 0]}), labelled / "one-class.parquet")
    lands(arriving, "b.parquet")
    result = follow("--once", "refit.every=1h", f"labelled.path={labelled}").expect(0)
    assert "no refit: expected labels of both classes" in result.stderr
    assert (place.output / "b.parquet").exists()
    assert len(place.versions) == 1


def test_a_damaged_file_stops_no_refit(place, stream):
    follow, arriving = stream
    lands(arriving, "date=2026-11-19/a.parquet")
    refits = ("window.column=date", "refit.every=1h", "log.give_up=0s")
    follow("--once", *refits).expect(0)
    for name in ("refused", "half"):
        (arriving / f"date=2026-11-19/{name}.parquet").write_text("this is no Parquet file")
    follow("--once", *refits).expect(3, "2 files refused")
    lands(arriving, "date=2026-11-20/b.parquet")
    (place.root / ".output.logcal" / "refit.json").unlink()
    (arriving / "date=2026-11-20/later.parquet").write_text("nor is this one, yet")
    done = follow("--once", "--json", *refits[:2], "log.give_up=1h").expect(0).json
    assert (done["refits"], done["files"], done["waiting"]) == (1, 1, 1)
    status = follow("--status", "--json").expect(0).json
    assert status["refit"]["outcome"] == "published"
    assert status["label_coverage"] == 1.0


def halved(path):
    """Half of it is written; the footer comes last."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changes_in_the_middle(path):
    """It has its footer, and pages that do not decode."""
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)


def refit(place, arriving):
    """A refit of a stream whose ledger is what the followers before have left."""
    own = {"log": {"path": [str(arriving)]}, "store": {"path": str(place.store), "table": place.table}}
    own |= {"output": {"path": str(place.output)}, "refit": {"every": "1h"}}
    config = FollowConfig.model_validate({**own, "gate": ANY_TABLE, "scratch": str(place.scratch)})
    ledger = Ledger(Folder.at(place.output))
    ledger.load()
    found = refits.Refits(config, ledger)
    found.run(InlineExecutor())
    return found.last["outcome"]


def rows_of_current(place):
    return place.manifest()["data"]["rows_used"]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("c.parquet", halved),
        ("c.parquet", changes_in_the_middle),
        ("c.parquet", lambda path: path.write_bytes(b"")),
        # It is known, and written anew in its place.
        ("b.parquet", halved),
    ],
)
def test_a_file_that_lands_as_a_refit_begins_puts_it_off_by_nothing(place, stream, name, spoil):
    follow, arriving = stream
    lands(arriving, "a.parquet")
    lands(arriving, "b.parquet", seed=1)
    follow("--once", "refit.every=1h").expect(0)
    lands(arriving, "late.parquet", rows=300)
    follow("--once").expect(0)
    # After the ledger's last batch, and before the fit lists the folder.
    lands(arriving, name, rows=500, seed=2)
    whole = (arriving / name).read_bytes()
    spoil(arriving / name)
    assert refit(place, arriving) == "published"
    assert rows_of_current(place) == (700 if name == "b.parquet" else 1100)
    # The next one has it.
    (arriving / name).write_bytes(whole)
    assert refit(place, arriving) == "published"
    assert rows_of_current(place) == (1200 if name == "b.parquet" else 1600)


def test_a_file_that_lands_before_the_first_table_puts_it_off_by_nothing(place, stream):
    """No file is known by then."""
    follow, arriving = stream
    for name in ("a.parquet", "half.parquet"):
        lands(arriving, name)
    halved(arriving / "half.parquet")
    found = follow("--once", "refit.every=1h", "--json").expect(0)
    assert (found.json["refits"], found.json["files"], found.json["waiting"]) == (1, 1, 1)
    assert "tried once more without half.parquet" in found.stderr


@pytest.mark.parametrize(
    ("change", "rows"), [(Path.unlink, 700), (lambda path: lands(path.parent, path.name, rows=50), 800)]
)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("module", "name"), [(logs, "find_files"), (fit, "prepare")])
def test_files_that_change_or_go_while_a_refit_runs_put_it_off_by_nothing(
    place, begun, monkeypatch, module, name, known, change, rows
):
    """They were listed, or their footers were read, and they are others when they are to be read."""
    follow, arriving = begun
    lands(arriving, "b.parquet", rows=300)
    for later in ("c.parquet", "d.parquet"):
        lands(arriving, later)
    if known:
        follow("--once").expect(0)
    there, left = getattr(module, name), [arriving / "c.parquet", arriving / "d.parquet"]

    def then_one_changes(*args, **named):
        result = there(*args, **named)
        if left:
            change(left.pop())
        return result

    monkeypatch.setattr(module, name, then_one_changes)
    assert refit(place, arriving) == "published"
    assert rows_of_current(place) == rows


@pytest.mark.parametrize(("damaged", "outcome"), [(3, "published"), (9, "rejected")])
def test_damaged_files_may_land_while_a_refit_is_tried_again(place, begun, monkeypatch, damaged, outcome):
    follow, arriving = begun
    lands(arriving, "b.parquet", rows=300)
    follow("--once").expect(0)
    there, left = logs.find_files, list(range(damaged))

    def then_one_more(*args, **named):
        if left:
            (arriving / f"damaged-{left.pop()}.parquet").write_text("this is no Parquet file")
        return there(*args, **named)

    monkeypatch.setattr(logs, "find_files", then_one_more)
    assert refit(place, arriving) == outcome
    assert len(left) == max(0, damaged - 6)
    assert rows_of_current(place) == (700 if outcome == "published" else 400)


def test_a_refit_is_tried_again_without_new_files_alone(place, begun):
    """What fails for another reason fails with it: files that were scored are never left out."""
    follow, arriving = begun
    pq.write_table(pa.table({"score": [0.5]}), arriving / "unlabelled.parquet")
    follow("--once").expect(0)
    assert refit(place, arriving) == "rejected"
    lands(arriving, "b.parquet")
    assert refit(place, arriving) == "rejected"
    assert len(place.versions) == 1


def test_a_rejected_refit_waits_for_other_rows_or_labels(place, stream):
    """The same ones would be rejected again, however often it is time."""
    follow, arriving = stream
    labelled = place.root / "labelled"
    lands(arriving, "a.parquet")
    lands(labelled, "a.parquet")
    page = place.root / "page"
    settings = ("--once", "--json", "refit.every=1ms", f"labelled.path={labelled}", f"report.path={page}")

    def headline():
        return re.search(r'<p class="headline (\w+)">(.*)</p>', (page / "report.html").read_text()).groups()

    def refitted():
        done = follow(*settings)
        return done.code, done.stderr.count("no refit: "), done.stderr.count("INFO refit: ")

    assert refitted() == (0, 0, 2)  # the first table; and it is time again at the end
    pq.write_table(pa.table({"score": [0.5]}), labelled / "unlabelled.parquet")
    assert headline()[0] == "within"
    assert refitted() == (99, 1, 1)
    for _ in range(2):
        kind, text = headline()
        assert kind == "high"
        assert re.match(r"The refit of <.*UTC</span> was rejected\.", text)
        assert "unlabelled.parquet" in (page / "report.html").read_text()
        assert refitted() == (99, 0, 0)
    assert follow("--status", "--json", f"labelled.path={labelled}").json["refit"]["outcome"] == "rejected"
    (labelled / "unlabelled.parquet").unlink()
    lands(labelled, "b.parquet")
    assert refitted() == (0, 0, 1)
    assert len(place.versions) == 2
    assert headline() == ("within", "1 file scored; nothing is waiting.")


def test_what_does_not_go_with_refits(place, stream):
    follow, arriving = stream
    lands(arriving, "a.parquet")
    follow("--once", "refit.every=1h", "store.version=000001-a").expect(2, "expected null with refits")
    follow("--once", "log.labels.wait=2d").expect(2, "expected labels.path, or window.column")
    follow("--once", "refit.every=soon").expect(2, "expected a duration")
    follow("--once", "refit.every=1h", "calibrator.method=isotnic").expect(2, "isotonic")
    assert not (place.root / ".output.logcal").exists()


@pytest.mark.system
def test_refits_of_a_stream_that_goes_on(place, stream, start):
    follow, arriving = stream
    lands(arriving, "a.parquet")
    running = follow("follow.poll=50ms", "refit.rows=300", run=partial(start, place))
    running.await_that((place.output / "a.parquet").exists, "a.parquet")
    lands(arriving, "b.parquet")
    running.await_that(lambda: len(place.versions) == 2, "a second version")
    running.process.send_signal(signal.SIGTERM)
    assert running.result().code == 143
    shutil.rmtree(place.output)
    follow("--once").expect(0)
    assert (place.output / "b.parquet").exists()


@pytest.mark.parametrize(
    ("last", "rows", "expected"),
    [
        ({}, 0, True),
        ({"at": 1000.0, "rows": 0}, 99, False),
        ({"at": 1000.0, "rows": 0}, 100, True),
        ({"at": 1000.0 - 3600, "rows": 0}, 0, True),
        # The clock was set back.
        ({"at": 1000.0 + 10, "rows": 0}, 0, True),
    ],
)
def test_when_it_is_time(last, rows, expected, monkeypatch):
    places = ["log.path=log", "store.path=store", "store.table=t", "output.path=out"]
    config = load(FollowConfig, [], [*places, "refit.every=1h", "refit.rows=100"])
    ledger = SimpleNamespace(files={"a": SimpleNamespace(rows=rows)})
    stream = refits.Refits(config, ledger)
    stream.last = last
    monkeypatch.setattr(refits.time, "time", lambda: 1000.0)
    assert stream.due() == expected


def test_durations():
    seconds = {"500ms": 0.5, "2s": 2, "1.5m": 90, "24h": 86400, "3d": 259200}
    assert {text: parse_duration(text) for text in seconds} == seconds
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration("3 weeks")


def test_an_alarm_is_a_reason_for_a_refit(place, stream):
    follow, arriving = stream
    today = dt.datetime.now(dt.UTC).date()

    def lands_on(days_ago, shift=0.0, rows=3000):
        rng = np.random.default_rng(days_ago)
        score = rng.random(rows)
        odds = np.exp(shift) * score**2 / (1.001 - score**2)
        path = arriving / f"date={today - dt.timedelta(days_ago)}" / "rows.parquet"
        path.parent.mkdir(parents=True)
        labels = (rng.random(rows) < odds / (1 + odds)).astype(np.int8)
        pq.write_table(pa.table({"score": score, "label": labels}), path.with_name("_rows"))
        path.with_name("_rows").rename(path)

    settings = ("--once", "window.column=date", "window.last=3d", "refit.alarm=0s")
    for days_ago in (9, 8, 7):
        lands_on(days_ago)
    assert follow(*settings, "--json").expect(0).json["refits"] == 1
    lands_on(6)
    assert follow(*settings, "--json").expect(0).json["refits"] == 0
    lands_on(5, shift=2.0)
    found = follow(*settings, "--json").expect(0)
    assert found.json["refits"] == 1
    assert "alarm: " in found.stderr
    status = follow("--status", "--json").expect(0).json
    assert status["refit"]["alarm"] is False
    assert len(place.versions) == 2


def test_days_whose_labels_are_not_known_yet_are_left_out(place):
    for day, missing in ((1, 0), (2, 10), (3, 200)):
        rng = np.random.default_rng(day)
        score = rng.random(400)
        labels = [bool(value) for value in rng.random(400) < score]
        folder = place.log / f"date=2026-11-0{day}"
        folder.mkdir(parents=True)
        known = pa.array([None] * missing + labels[missing:], pa.bool_())
        pq.write_table(pa.table({"score": score, "label": known}), folder / "rows.parquet")
    found = place.job("fit", "window.column=date", "window.min_labelled=0.95", "--json").expect(0).json
    assert found["rows_used"] == 790
    manifest = place.manifest()
    assert manifest["window"]["days_unlabelled"] == [{"day": "2026-11-03", "rows": 400, "rows_waiting": 200}]
    whole = place.job("fit", "window.column=date", "window.suspect_days=use", "--json").expect(0).json
    assert whole["rows_used"] == 990
    assert whole["window"]["days_sorted"] == 0
    few = place.job("fit", "window.column=date", "window.min_labelled=0.95", "window.last=1d")
    few.expect(3, "of days with too few labels (window.min_labelled) 2026-11-03 has 50%")
