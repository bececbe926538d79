"""A table compared with another on the same rows, where either has segments: as `score` predicts with each."""

import json
import math
import shutil

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss


def countries(place, rows=2500, seed=0):
    """Predictions of three countries, each off in its own way, the last of them thin, in two sites."""
    columns = place.predictions(rows, seed)
    random = np.random.default_rng(seed + 100)
    country = random.choice(np.array(["at", "de", None], object), rows, p=[0.6, 0.38, 0.02])
    power = np.array([{"at": 1.0, "de": 3.0}.get(name, 2.0) for name in country])
    columns["label"] = (random.random(rows) < columns["score"] ** power).astype(np.int8)
    site = random.choice(["a", "b"], rows)
    return {**columns, "country": country.tolist(), "site": site.tolist()}


@pytest.fixture
def versions(place, call):
    """Three versions of a table: without segments, of countries, of sites and countries; and rows of the day after."""
    place.write_log(countries(place))
    found = {}
    for name, segment in (("plain", "[]"), ("country", "[country]"), ("both", "[site, country]")):
        fit = call("fit", f"log.segment={segment}", "segments.min_rows=150", "--json")
        found[name] = fit.expect(0).json["version"]
    new = countries(place, 2000, seed=1)
    new["country"][:20] = ["fr"] * 20  # a country that no table knows
    place.write_log(new, name="new")
    return found, new


def scored(place, call, version):
    """The probability of each new row."""
    output = place.root / f"scored-{version}"
    call("score", f"store.version={version}", log__path=place.root / "new", output__path=output).expect(0)
    found = pl.read_parquet(output / "*.parquet")["probability"].to_numpy()
    shutil.rmtree(output)
    return found


@pytest.mark.parametrize(
    ("mine", "other"), [("country", "plain"), ("plain", "country"), ("both", "country"), ("country", "raw")]
)
def test_both_predict_as_score_does(place, call, versions, mine, other):
    found, new = versions
    label = np.asarray(new["label"])
    settings = (f"store.version={found[mine]}", f"evaluate.against={found.get(other, 'raw')}")
    done = call("evaluate", *settings, "--json", log__path=place.root / "new").expect(0).json
    q = scored(place, call, found[mine])
    p = np.asarray(new["score"]) if other == "raw" else scored(place, call, found[other])
    loss = done["comparison"]["log_loss"]
    assert loss["old"] == pytest.approx(log_loss(label, p), rel=1e-12)
    assert loss["new"] == pytest.approx(log_loss(label, q), rel=1e-12)
    assert loss["new"] == pytest.approx(done["after"]["log_loss"], rel=1e-12)
    each = np.array([-np.log(np.where(label == 1, one, 1 - one)) for one in (p, q)])
    difference = each[1] - each[0]
    assert loss["error"] == pytest.approx(np.std(difference) / math.sqrt(label.size), rel=1e-9)
    # Segment by segment, where these are the table's own.
    run = json.loads((place.output / "run.json").read_text())
    assert run["evaluation"]["comparison"]["log_loss"] == loss
    if mine == "country" and other != "both":
        table = pq.read_table(place.output / "segments.parquet").to_pylist()
        country = np.array(new["country"], object)
        for row in table:
            own = difference[country == row["country"]]
            assert row["log_loss_difference"] == pytest.approx(own.mean(), rel=1e-9, abs=1e-15)
            error = np.std(own) / math.sqrt(own.size)
            assert row["log_loss_difference_error"] == pytest.approx(error, rel=1e-6, abs=1e-12)
    if (mine, other) == ("plain", "country"):
        assert ["de"] in [one["segment"] for one in done["comparison"]["segments_worse"]]
        assert "in 2 of the segments: " in (place.output / "report.html").read_text()
    if (mine, other) == ("country", "plain"):
        assert done["comparison"]["segments_worse"] == []


def test_a_kept_table_of_segments_is_a_log_to_compare_on(place, call):
    place.write_log(countries(place))
    first = call("fit", "--json").expect(0).json["version"]
    kept = call(
        "fit", "log.segment=country", "segments.min_rows=150", "score_table.keep=true", "--json"
    ).expect(0)
    version = kept.json["version"]
    table = place.store / "ads" / "versions" / version / "score_table"
    settings = (f"store.version={version}", f"evaluate.against={first}", "--json")
    one = call("evaluate", *settings, log__path=table).expect(0).json
    two = call("evaluate", *settings, output__path=place.root / "two").expect(0).json
    assert one["comparison"] == two["comparison"]
    turned = (f"store.version={first}", f"evaluate.against={version}", "--json")
    found = (
        call("evaluate", *turned, log__path=table, output__path=place.root / "3").expect(0).json["comparison"]
    )
    assert found["log_loss"]["difference"] == -one["comparison"]["log_loss"]["difference"]
    sites = call("fit", "log.segment=site", "--json").expect(0).json["version"]
    wrong = (f"store.version={version}", f"evaluate.against={sites}")
    call("evaluate", *wrong, log__path=table, output__path=place.root / "4").expect(
        2, "evaluate.against: expected a log"
    )


def test_a_log_that_does_not_say_the_others_segments(place, call, versions):
    found, new = versions
    place.write_log({name: column for name, column in new.items() if name != "site"}, name="siteless")
    settings = (f"store.version={found['country']}", f"evaluate.against={found['both']}")
    refused = call("evaluate", *settings, log__path=place.root / "siteless")
    refused.expect(3, "evaluate.against: expected a log with the columns site")
    assert not place.output.exists()
