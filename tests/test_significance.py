"""What an evaluation concludes, requires and compares with."""

import json
import math
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from common import over

from calibrators.arithmetic.passes import Points
from calibrators.measures.certainty import error_bar_passes
from calibrators.measures.predictions import assess, run_passes
from pipeline.evaluate.significance import failed, judge, required_values


def bars(p, label):
    order = np.argsort(p, kind="stable")
    points = Points(p[order], np.ones(p.size), label[order].astype(np.float64))
    return run_passes(error_bar_passes(), over(points))


def judged(p, label):
    return judge(assess(p, None, label), bars(p, label))


def some(rows=20_000, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    z = random.normal(size=rows) - 1
    p = 1 / (1 + np.exp(-z))
    return p, (random.random(rows) < 1 / (1 + np.exp(-z - shift))).astype(np.float64)


def test_verdicts_say_direction_size_and_chance():
    low = judged(*some(shift=0.6))
    assert (low.kind, low.beyond_chance) == ("low", True)
    assert "points too low" in low.headline
    assert "beyond chance, z = " in low.headline
    assert judged(*some(shift=-0.6)).kind == "high"
    right = judged(*some())
    assert (right.kind, right.beyond_chance) == ("right", False)
    assert "within chance" in right.headline
    # Right on average and wrong everywhere else.
    p, label = some()
    off = judged(np.full(p.size, 0.0) + np.where(p > np.median(p), 0.1, 2 * label.mean() - 0.1), label)
    assert (off.kind, off.beyond_chance) == ("off", True)


def test_calibrated_predictions_are_seldom_called_otherwise():
    assert sum(judged(*some(3000, seed)).beyond_chance for seed in range(60)) <= 2


def test_requirements():
    p, label = some(shift=0.6)
    found = required_values(assess(p, None, label), bars(p, label))
    assert found["calibration_in_the_large"] == pytest.approx(p.mean() - label.mean())
    assert found["log_ratio"] == pytest.approx(math.log(label.sum() / p.sum()))
    kept = {"ece_frequency": 0.5, "auc": 0.5, "calibration_in_the_large": 0.5}
    assert failed(kept, found) == []
    wanted = {"auc": 0.99, "calibration_in_the_large": 0.01, "log_loss": 0.1}
    said = failed(wanted, found)
    assert len(said) == 3
    assert said[0].startswith("auc: expected at least 0.99, found 0.")
    assert said[1].startswith("calibration_in_the_large: expected at most 0.01, found -0.")
    assert failed({"log_loss": 1e300}, {"log_loss": math.inf}) == [
        "log_loss: expected at most 1e+300, found inf"
    ]
    assert failed({"auc": 0.5}, {"auc": None}) == ["auc: expected at least 0.5, found none"]


@pytest.fixture
def fitted(fitted):
    """A table, and a log of the day after."""
    fitted.write_log(fitted.predictions(seed=1), name="new")
    return fitted


def document(folder):
    return json.loads((folder / "run.json").read_text())


def test_unseen_rows_are_no_sample_of_the_fit(fitted, call):
    done = call("evaluate", "--json", "evaluate.allow_in_sample=false", log__path=fitted.root / "new").expect(
        0
    )
    assert (done.json["in_sample"], document(fitted.output)["in_sample_share"]) == (False, 0.0)
    assert "In sample" not in (fitted.output / "report.html").read_text()


def test_the_fits_own_rows_are_said_or_refused(fitted, call):
    refused = call("evaluate", "evaluate.allow_in_sample=false")
    refused.expect(4, "In sample: All rows are in files", "Evaluate before the fit")
    assert not fitted.output.exists()
    done = call("evaluate", "--json").expect(0)
    assert (done.json["in_sample"], done.json["in_sample_share"]) == (True, 1.0)
    assert document(fitted.output)["in_sample"] is True
    assert "In sample: All rows" in (fitted.output / "report.html").read_text()


def test_some_files_and_copies_are_recognised(fitted, call):
    (fitted.root / "new" / "again.parquet").write_bytes((fitted.log / "part-0.parquet").read_bytes())
    (fitted.log / "late.parquet").write_bytes((fitted.root / "new" / "part-1.parquet").read_bytes())
    done = call("evaluate", "--json").expect(0)
    assert done.json["in_sample_share"] == 0.75
    (fitted.log / "late.parquet").unlink()
    fitted.log.rename(fitted.root / "moved")
    paths = {"log__path": fitted.root / "moved", "output__path": fitted.root / "copy"}
    assert call("evaluate", "--json", **paths).expect(0).json["in_sample_share"] == 1.0
    paths["output__path"] = fitted.root / "third"
    call("evaluate", "evaluate.allow_in_sample=false", **paths).expect(4, "In sample")
    assert not (fitted.root / "third").exists()


def test_what_is_required_and_not_so_is_exit_4_each_time(fitted, call):
    wanted = "evaluate.require={ece_frequency: 1.0e-9, auc: 0.5}"
    paths = {"log__path": fitted.root / "new"}
    call("evaluate", wanted, **paths).expect(4, "evaluate.require: ece_frequency: expected at most 1e-09")
    assert document(fitted.output)["failed"][0].startswith("ece_frequency")
    assert "Not as required" in (fitted.output / "report.html").read_text()
    call("evaluate", wanted, **paths).expect(4, "ece_frequency: expected at most 1e-09")
    call("evaluate", "evaluate.require={eec: 1}", **paths).expect(2, "evaluate.require", "found 'eec'")


def test_an_infinite_loss_is_infinity_and_fails_any_limit(place, call):
    place.write_log({"score": [0.1, 0.2, 0.8, 0.9] * 10, "label": [0, 0, 1, 1] * 10})
    call("fit", "calibrator.params={ends: 0}").expect(0)
    place.write_log({"score": [0.1, 0.9] * 10, "label": [1, 0] * 10}, name="new")
    paths = {"log__path": place.root / "new"}
    call("evaluate", "evaluate.require={log_loss: 1000}", **paths).expect(4, "log_loss: expected at most")
    assert document(place.output)["evaluation"]["after"]["measures"]["log_loss"] == "Infinity"


def test_versions_are_compared_on_the_same_rows(fitted, call):
    first = fitted.current
    paths = {"log__path": fitted.root / "new"}
    call("evaluate", "evaluate.against=previous", **paths).expect(0, "has no previous one to compare with")
    call("fit", "calibrator.method=histogram", "calibrator.params={bins: 2}").expect(0)
    done = call(
        "evaluate", "--json", "evaluate.against=previous", output__path=fitted.root / "two", **paths
    ).expect(0)
    named = call(
        "evaluate", "--json", f"evaluate.against={first}", output__path=fitted.root / "3", **paths
    ).expect(0)
    assert done.json["comparison"] == named.json["comparison"]
    old = call(
        "evaluate", "--json", f"store.version={first}", output__path=fitted.root / "one", **paths
    ).expect(0)
    loss = done.json["comparison"]["log_loss"]
    assert loss["old"] == pytest.approx(old.json["after"]["log_loss"], rel=1e-12)
    assert loss["new"] == pytest.approx(done.json["after"]["log_loss"], rel=1e-12)
    assert loss["error"] > 0
    assert (
        "On the same rows the log loss of this version is"
        in (fitted.root / "two" / "report.html").read_text()
    )


def test_the_raw_score_to_compare_with(fitted, call):
    paths = {"log__path": fitted.root / "new"}
    done = call("evaluate", "--json", "evaluate.against=raw", **paths).expect(0)
    assert done.json["comparison"]["log_loss"]["old"] == pytest.approx(
        done.json["before"]["log_loss"], rel=1e-12
    )
    margins = fitted.predictions(seed=1)
    fitted.write_log({**margins, "score": 5 * margins["score"]}, name="margins")
    call(
        "evaluate", "evaluate.against=raw", log__path=fitted.root / "margins", output__path=fitted.root / "m"
    ).expect(3, "expected raw scores in [0, 1]")


def test_segments_that_are_off_are_flagged_with_their_maps(place, call):
    columns = place.predictions(6000)
    country = np.array(["at", "be"])[np.arange(6000) % 2]
    place.write_log({**columns, "country": country})
    call("fit", "log.segment=country").expect(0)
    new = place.predictions(6000, seed=1)
    new["label"] = np.where(country == "be", 1 - new["label"], new["label"])
    place.write_log({**new, "country": country}, name="new")
    call("evaluate", log__path=place.root / "new").expect(0)
    page = (place.output / "report.html").read_text()
    assert page.count('<span class="badge bad">beyond chance</span></th>') == 1
    assert "Maps of the segments with errors beyond chance" in page
    assert "The calibration map of all rows" in page


def test_the_reliability_table_is_parquet(fitted, call):
    call("evaluate", "evaluate.bins=5", log__path=fitted.root / "new").expect(0)
    table = pq.read_table(fitted.output / "reliability.parquet").to_pylist()
    assert len(table) == 2 * 2 * 5
    written = document(fitted.output)["evaluation"]["after"]["by_frequency"]
    mine = [row for row in table if (row["side"], row["groups"]) == ("after", "frequency")]
    assert [row["group"] for row in mine] == list(range(5))
    for row, group in zip(mine, written, strict=True):
        assert all(row[name] == value for name, value in group.items())


def test_plain_rows_are_not_said_to_weigh_anything(fitted, call):
    call("evaluate", log__path=fitted.root / "new").expect(0)
    page = re.sub(r"<svg.*?</svg>", "", (fitted.output / "report.html").read_text(), flags=re.DOTALL)
    assert "weigh" not in page.partition("<main>")[2].lower()
