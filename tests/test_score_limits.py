"""Scoring refuses what does not fit the table, and a scored folder is read by whoever reads Parquet."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 2000


def write_new(place, score, **columns):
    return place.write_log({"score": np.asarray(score, np.float64), **columns}, files=2, name="new")


def manifest(place):
    return json.loads((place.root / "output.logcal" / "manifest.json").read_text())


def test_scores_outside_the_range_are_counted_and_said(fitted, call):
    new = write_new(fitted, [-np.inf, -1.0, 0.5, np.nan, 2.0, np.inf, 3.0, 0.25])
    done = call("score", "--json", "score.max_outside_range=0.7", log__path=new).expect(
        0, "WARNING", "5 rows (62.5 %) with scores outside", ": 2 below 0.", ", 3 above 0."
    )
    assert (done.json["rows_below_range"], done.json["rows_above_range"]) == (2, 3)
    found = manifest(fitted)
    assert (found["rows_below_range"], found["rows_above_range"], found["null_rows"]) == (2, 3, 1)
    assert sum(file["rows_above_range"] for file in found["files"]) == 3


def test_percent_instead_of_shares_is_refused_by_default(fitted, call):
    new = write_new(fitted, np.linspace(0, 100, ROWS))
    before = fitted.tree()
    call("score", log__path=new).expect(
        4, "score.max_outside_range: expected at most 0.5", "are they percent?", "nothing was written"
    )
    assert fitted.tree() == before
    call("score", "score.max_outside_range=1", log__path=new).expect(0, "WARNING")
    half = fitted.write_log({"score": [0.2, 0.3, 20.0, 30.0]}, files=1, name="half")
    call("score", log__path=half, output__path=fitted.root / "half-scored").expect(0, "WARNING")


def test_follow_refuses_a_file_in_percent_by_name(fitted, call):
    new = fitted.write_log({"score": np.linspace(0, 1, 50)}, files=1, name="arriving")
    pq.write_table(pa.table({"score": np.linspace(0, 100, 50)}), new / "percent.parquet")
    done = fitted.job("follow", "--once", log__path=new, output__path=fitted.output)
    done.expect(3, "percent.parquet", "score.max_outside_range", "are they percent?")
    assert [path.name for path in fitted.output.glob("*.parquet")] == ["part-0.parquet"]
    status = fitted.job("follow", "--status", "--json", log__path=new, output__path=fitted.output).json
    assert set(status["refused"]) == {"percent.parquet"}
    fitted.job(
        "follow", "--once", "score.max_outside_range=1", log__path=new, output__path=fitted.root / "all"
    ).expect(0)


def test_few_rows_outside_are_no_reason_to_warn(fitted, call):
    new = write_new(fitted, [*np.linspace(0.1, 0.9, ROWS), 7.0])
    done = call("score", log__path=new).expect(0)
    assert "WARNING" not in done.stderr
    assert "1 row (" in done.stdout


def test_the_range_is_that_of_transformed_scores(place, call):
    columns = place.predictions()
    columns["score"] = np.log(columns["score"] / (1 - columns["score"]))
    place.write_log(columns)
    call("fit", "log.score_transform=sigmoid").expect(0)
    done = call("score", "--json", "score.max_outside_range=0").expect(0)
    assert (done.json["rows_below_range"], done.json["rows_above_range"]) == (0, 0)


def test_scores_rounded_to_a_grid_are_inside(place, call):
    place.write_log()
    call("fit", "score_table.grid=1e-1").expect(0)
    call("score", "score.max_outside_range=0").expect(0)


@pytest.mark.parametrize("own", ["none", "sigmoid"])
def test_a_transform_that_contradicts_the_tables(place, call, own):
    place.write_log()
    call("fit", f"log.score_transform={own}").expect(0)
    other = {"none": "sigmoid", "sigmoid": "none"}[own]
    for job in ("score", "evaluate"):
        call(job, f"log.score_transform={other}").expect(2, f"fitted with '{own}', found '{other}'")
        call(job, f"log.score_transform={own}", output__path=place.root / job).expect(0)


def test_unseen_segments(place, call):
    columns = place.predictions()
    place.write_log({**columns, "country": np.array(["at", "be"])[np.arange(3000) % 2]})
    call("fit", "log.segment=country").expect(0)
    new = write_new(place, np.linspace(0.1, 0.9, 100), country=["at"] * 90 + ["zz"] * 10)
    call("score", "score.max_unseen=0.05", log__path=new).expect(4, "score.max_unseen: expected at most 0.05")
    assert not place.output.exists()
    call("score", "score.max_unseen=0.1", log__path=new).expect(0, "WARNING", "10 rows (10 %) of segments")


def test_a_new_table_scores_in_place_of_the_old(fitted, call):
    call("score").expect(0)
    first = fitted.current
    call("fit", "calibrator.method=histogram").expect(0)
    call("score").expect(2, "the result of another run", "set output.mode=replace")
    assert manifest(fitted)["table_version"] == first
    call("score", "output.mode=replace").expect(0)
    call("score", "output.mode=replace").expect(99)
    assert manifest(fitted)["table_version"] == fitted.current != first
    assert set(pq.read_table(fitted.output)["table_version"].to_pylist()) == {fitted.current}
    assert sorted(p.name for p in fitted.root.iterdir()) == [
        "log",
        "output",
        "output.logcal",
        "scratch",
        "store",
    ]


def test_a_replacement_that_is_refused_leaves_the_old(fitted, call):
    call("score").expect(0)
    before = fitted.tree()
    new = write_new(fitted, np.linspace(0, 100, ROWS))
    shutil_tree = {name: digest for name, digest in fitted.tree().items() if name.startswith("new")}
    settings = ("output.mode=replace", "score.max_outside_range=0.05")
    call("score", *settings, log__path=new).expect(4)
    assert fitted.tree() == before | shutil_tree
