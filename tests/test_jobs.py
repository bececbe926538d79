"""The jobs as a whole: one answer wherever they run; reruns, versions, places and dry runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def run(place):
    """Run a job on the place."""

    def job(name, *settings, dry_run=False, as_json=False, **paths):
        flags = ["--dry-run"] * dry_run + ["--json"] * as_json
        return place.job(name, *settings, *flags, **paths)

    return job


# Reruns and versions


def test_a_rerun_recognises_its_result(place, run):
    place.write_log()
    assert run("fit").code == 0
    before = place.tree()
    again = run("fit")
    assert again.code == 99
    assert f"were published as version {place.current}: nothing to do" in again.stderr
    assert place.tree() == before
    # Another configuration, or another log, is another run.
    assert run("fit", "calibrator.method=histogram").code == 0
    os.utime(place.log / "part-0.parquet", (1, 1))
    assert run("fit").code == 0
    assert len(place.versions) == 3


def test_a_rerun_with_another_store_publishes_although_the_quarantine_is_there(place, run):
    columns = place.predictions()
    columns["score"][[3, 2000]] = np.nan
    place.write_log(columns)
    settings = ("log.on_bad_rows=quarantine", f"log.quarantine_path={place.root / 'bad'}")
    done = run("fit", *settings, as_json=True)
    assert done.code == 0
    assert done.json["rows_read"] == 3000
    assert done.json["rows_used"] == 2998
    assert done.json["quarantined_by_reason"] == {"score_nan": 2}
    (folder,) = (place.root / "bad").iterdir()
    kept = pq.read_table(folder, columns=["file", "row", "reason"]).to_pylist()
    names = [(Path(row["file"]).name, row["row"], row["reason"]) for row in kept]
    assert names == [("part-0.parquet", 3, "score_nan"), ("part-2.parquet", 0, "score_nan")]
    manifest = place.manifest()
    assert manifest["quarantine"] == str(folder)
    before = place.lookup()
    assert run("fit", *settings, store__path=place.root / "other").code == 0
    (other,) = (place.root / "other").rglob("lookup.parquet")
    assert other.read_bytes() == before
    assert run("fit", *settings).code == 99


def test_a_table_that_is_not_monotone_is_measured(place, run):
    random = np.random.default_rng(2)
    score = random.random(3000)
    place.write_log({"score": score, "label": random.random(3000) < 0.5 + 0.4 * np.sin(9 * score)})
    done = run("fit", "calibrator.method=histogram", "calibrator.params={bins: 12}", as_json=True)
    assert done.json["monotone"] is False
    done = run("evaluate", as_json=True)
    assert done.code == 0
    assert done.json["after"]["log_loss"] < done.json["before"]["log_loss"]
    assert done.json["after"]["auc"] > done.json["before"]["auc"]
    assert sorted(path.name for path in place.output.iterdir()) == [
        "_logcal.json", "reliability.parquet", "report.html", "run.json"
    ]  # fmt: skip
    assert list(place.scratch.iterdir()) == []


# Dry runs


@pytest.mark.parametrize("job", ["fit", "score", "evaluate"])
def test_a_dry_run_writes_nothing_and_reads_only_footers(place, run, job):
    place.write_log(files=1)
    run("fit")
    place.write_log(place.predictions(seed=1), files=1, name="new")
    path = place.root / "new" / "part-0.parquet"
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    # A log without its data pages is good enough.
    data[4:-footer] = bytes(len(data) - footer - 4)
    path.write_bytes(data)
    before = place.tree()
    for as_json in (False, True):
        done = run(job, dry_run=True, as_json=as_json, log__path=place.root / "new")
        done.expect(0)
        assert place.tree() == before
    assert done.json["job"] == job
    assert done.json["facts"]["rows"] == 3000
    assert {"stages", "reads", "writes"} <= set(done.json)
    assert run(job, log__path=place.root / "new").code == 3
    assert run(job, dry_run=True, log__path=place.root / "none").code == 3


# URLs


def test_places_as_urls(place, run):
    place.write_log()
    url = f"file://{place.root}"
    paths = {"log__path": f"{url}/log", "store__path": f"{url}/store", "scratch": f"{url}/scratch"}
    assert run("fit", **paths).code == 0
    # The same log and store, so the same run.
    assert run("fit").code == 99
    assert run("score", **paths, output__path=f"{url}/output").code == 0
    assert run("score").code == 99
    assert run("evaluate", **paths, output__path=f"{url}/report").code == 0
    assert (place.root / "report" / "report.html").exists()
    inside = run("score", **paths, output__path=f"{url}/log/scored")
    assert (inside.code, "overlaps" in inside.stderr) == (2, True)
    assert run("fit", **{**paths, "scratch": "s3://bucket/scratch", "log__path": f"{url}/output"}).code == 2
    there = {path.name for path in place.root.iterdir()}
    assert there == {"log", "output", "output.logcal", "report", "scratch", "store"}
    assert list(place.scratch.iterdir()) == []


def test_a_log_of_several_places(place, run):
    place.write_log(name="log/day=1")
    place.write_log(place.predictions(seed=1), name="log/day=2")
    assert run("fit", log__path=place.root / "log").code == 0
    both = f"log.path=[{place.root}/log/day=1, {place.root}/log/day=2]"
    done = run("fit", both, log__path=None, store__path=place.root / "other", as_json=True)
    assert done.json["rows_used"] == 6000
    (other,) = (place.root / "other").rglob("lookup.parquet")
    assert other.read_bytes() == place.lookup()
    done = run("score", log__path=place.root / "log" / "day=*")
    assert done.code == 0
    assert {path.parent.name for path in place.output.rglob("*.parquet")} == {"day=1", "day=2"}


# Kept score tables


def cut_short(folder):
    part = next(folder.iterdir())
    part.write_bytes(part.read_bytes()[:-1])


def replaced_by_a_file(folder):
    shutil.rmtree(folder)
    folder.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil", [cut_short, lambda folder: next(folder.iterdir()).unlink(), replaced_by_a_file]
)
def test_a_kept_score_table_that_is_not_whole(place, run, spoil):
    place.write_log()
    kept = run("fit", "score_table.keep=true", as_json=True)
    folder = Path(kept.json["lookup_path"]).parent / "score_table"
    spoil(folder)
    said = f"{folder}: expected the parts that manifest.json names, found"
    run("evaluate", log__path=folder).expect(3, said)


def test_a_kept_score_table_below_a_file(place, run):
    place.write_log()
    run("fit").expect(0)
    below = place.log / "part-0.parquet" / "score_table"
    refused = run("evaluate", log__path=below)
    refused.expect(refused.code, f"{below}: ")
    assert refused.code in {2, 3}


def test_a_kept_score_table_of_other_scores(place, run):
    random = np.random.default_rng(4)
    score = random.normal(size=300)
    place.write_log({"score": score, "label": random.random(300) < 0.5})
    kept = run("fit", "score_table.keep=true", as_json=True)
    assert run("fit", "log.score_transform=sigmoid").code == 0
    refused = run("evaluate", log__path=Path(kept.json["lookup_path"]).parent / "score_table")
    assert refused.code == 2
    assert "log.path: expected a score table of scores with the transform 'sigmoid'" in refused.stderr
