"""The jobs as a whole: one answer wherever they run; reruns, versions, places and dry runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

# Reruns and versions


def test_a_rerun_recognises_its_result(place, call):
    place.write_log()
    call("fit").expect(0)
    before = place.tree()
    call("fit").expect(99, f"were published as version {place.current}: nothing to do")
    assert place.tree() == before
    # Another configuration, or another log, is another run.
    call("fit", "calibrator.method=histogram").expect(0)
    os.utime(place.log / "part-0.parquet", (1, 1))
    call("fit").expect(0)
    assert len(place.versions) == 3


def test_a_rerun_with_another_store_publishes_although_the_quarantine_is_there(place, call):
    columns = place.predictions()
    columns["score"][[3, 2000]] = np.nan
    place.write_log(columns)
    settings = ("log.on_bad_rows=quarantine", f"log.quarantine_path={place.root / 'bad'}")
    done = call("fit", *settings, "--json").expect(0)
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
    call("fit", *settings, store__path=place.root / "other").expect(0)
    (other,) = (place.root / "other").rglob("lookup.parquet")
    assert other.read_bytes() == before
    call("fit", *settings).expect(99)


# Dry runs


@pytest.mark.parametrize("job", ["fit", "score", "evaluate"])
def test_a_dry_run_writes_nothing_and_reads_only_footers(place, call, job):
    place.write_log(files=1)
    call("fit")
    place.write_log(place.predictions(seed=1), files=1, name="new")
    path = place.root / "new" / "part-0.parquet"
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    # A log without its data pages is good enough.
    data[4:-footer] = bytes(len(data) - footer - 4)
    path.write_bytes(data)
    before = place.tree()
    for flags in (["--dry-run"], ["--dry-run", "--json"]):
        done = call(job, *flags, log__path=place.root / "new").expect(0)
        assert place.tree() == before
    assert done.json["job"] == job
    assert done.json["facts"]["rows"] == 3000
    assert {"stages", "reads", "writes"} <= set(done.json)
    call(job, log__path=place.root / "new").expect(3)
    call(job, "--dry-run", log__path=place.root / "none").expect(3)


# URLs


def test_places_as_urls(place, call):
    place.write_log()
    url = f"file://{place.root}"
    paths = {"log__path": f"{url}/log", "store__path": f"{url}/store", "scratch": f"{url}/scratch"}
    call("fit", **paths).expect(0)
    # The same log and store, so the same run.
    call("fit").expect(99)
    call("score", **paths, output__path=f"{url}/output").expect(0)
    call("score").expect(99)
    call("evaluate", **paths, output__path=f"{url}/report").expect(0)
    assert (place.root / "report" / "report.html").exists()
    call("score", **paths, output__path=f"{url}/log/scored").expect(2, "overlaps")
    call("fit", **{**paths, "scratch": "s3://bucket/scratch", "log__path": f"{url}/output"}).expect(2)
    there = {path.name for path in place.root.iterdir()}
    assert there == {"log", "output", ".output.logcal", "report", "scratch", "store"}
    assert list(place.scratch.iterdir()) == []


def test_a_log_of_several_places(place, call):
    place.write_log(name="log/day=1")
    place.write_log(place.predictions(seed=1), name="log/day=2")
    call("fit", log__path=place.root / "log").expect(0)
    both = f"log.path=[{place.root}/log/day=1, {place.root}/log/day=2]"
    done = call("fit", both, "--json", log__path=None, store__path=place.root / "other")
    assert done.json["rows_used"] == 6000
    (other,) = (place.root / "other").rglob("lookup.parquet")
    assert other.read_bytes() == place.lookup()
    call("score", log__path=place.root / "log" / "day=*").expect(0)
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
def test_a_kept_score_table_that_is_not_whole(place, call, spoil):
    place.write_log()
    kept = call("fit", "score_table.keep=true", "--json")
    folder = Path(kept.json["lookup_path"]).parent / "score_table"
    spoil(folder)
    said = f"{folder}: expected the parts that manifest.json names, found"
    call("evaluate", log__path=folder).expect(3, said)


def test_a_kept_score_table_below_a_file(place, call):
    place.write_log()
    call("fit").expect(0)
    below = place.log / "part-0.parquet" / "score_table"
    refused = call("evaluate", log__path=below)
    refused.expect(refused.code, f"{below}: ")
    assert refused.code in {2, 3}


def test_a_kept_score_table_of_other_scores(place, call):
    random = np.random.default_rng(4)
    score = random.normal(size=300)
    place.write_log({"score": score, "label": random.random(300) < 0.5})
    kept = call("fit", "score_table.keep=true", "--json")
    call("fit", "log.score_transform=sigmoid").expect(0)
    refused = call("evaluate", log__path=Path(kept.json["lookup_path"]).parent / "score_table")
    refused.expect(2, "log.path: expected a score table of scores with the transform 'sigmoid'")
