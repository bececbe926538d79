"""Another model's scores: their distance from those that the table was fitted to, refused or scored and said."""

import json
import shutil
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_log
from scipy.stats import ks_2samp

from calibrators.core.map import CalibrationMap
from pipeline.score.shift import Bins, ShiftRule, bins_of


@pytest.fixture
def call(place):
    return place.job


def days(place, shift, first=1, count=8, rows=1500, name="log"):
    """Write a day a file, whose log odds differ a little from day to day, and all by `shift`."""
    for number in range(first, first + count):
        random = np.random.default_rng([number, int(10 * shift)])
        z = random.normal(shift + 0.1 * random.normal(), 1, rows)
        label = random.random(rows) < 1 / (1 + np.exp(-z))
        folder = place.root / name / f"date=2026-01-{number:02}"
        write_log(folder, {"score": 1 / (1 + np.exp(-z)), "label": label})
    return place.root / name


DATED = "window.column=date"


def test_another_models_scores_are_refused_or_scored_and_said(place, call):
    """auto knows how the table's own days differ; the oracle is scipy's distance."""
    days(place, 0.0)
    call("fit", DATED).expect(0)
    days(place, 0.0, first=9, count=1)
    own = call("score", "--json", DATED, "score.last=1d").expect(0)
    assert "WARNING" not in own.stderr
    shifted = days(place, 3.0, first=10, count=1, name="other")
    new = ("score.last=1d", DATED)
    before = place.tree()
    paths = {"log__path": shifted, "output__path": place.root / "shifted"}
    call("score", *new, **paths).expect(4, "score.max_shift: the scores of 1,500 rows", "nothing was written")
    assert place.tree() == before
    for _ in range(2):  # the same run again says the same
        done = call("score", "score.on_shift=write", *new, **paths)
        done.expect(4, "score.max_shift", "scored all the same (score.on_shift=write)")
    found = json.loads((place.root / ".shifted.logcal/manifest.json").read_text())
    assert pq.read_table(place.root / "shifted").num_rows == found["rows"] == 1500
    fitted, scored = (
        pq.read_table(path, columns=["score"])["score"].to_numpy() for path in (place.log, shifted)
    )
    fitted = fitted[: 8 * 1500]
    assert found["shift"]["distance"] == pytest.approx(ks_2samp(fitted, scored).statistic, abs=1 / 64)
    assert found["shift"]["beyond"] is True
    call("score", "score.max_shift=0.95", *new, log__path=shifted, output__path=place.root / "a").expect(0)
    call("score", "score.max_shift=0.1", *new, log__path=shifted, output__path=place.root / "b").expect(4)
    call("score", "score.max_shift=none", *new, log__path=shifted, output__path=place.root / "c").expect(0)
    call("score", "score.max_shift=2", *new, **paths).expect(2, "expected auto, none or a distance in [0, 1]")


def test_without_five_days_or_with_few_rows_there_is_only_a_warning(place, call):
    days(place, 0.0, count=4)
    call("fit", DATED).expect(0)
    shifted = days(place, 3.0, first=10, count=1, name="other")
    call("score", log__path=shifted).expect(0, "WARNING", "are they another model's?")
    few = place.write_log({"score": np.full(900, 0.95)}, files=1, name="few")
    settings = ("score.max_shift=0.5",)
    call("score", *settings, log__path=few, output__path=place.root / "few-scored").expect(0, "WARNING")


def test_with_fewer_than_five_kept_days_there_is_only_a_warning(place, call):
    """A table of eight days, of which four are no longer kept."""
    days(place, 0.0)
    call("fit", DATED).expect(0)
    shifted = days(place, 3.0, first=10, count=1, name="other")
    kept = sorted(path for path in place.root.rglob("days/*") if path.is_dir() or path.is_file())
    assert len(kept) >= 8
    names = sorted({path.name.rpartition("-")[0] for path in kept})
    for path in kept:
        if path.name.rpartition("-")[0] in names[:4]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    call("score", log__path=shifted).expect(0, "WARNING", "are they another model's?")


def test_weights_or_segments(place, call):
    """A weighted table's rows are no distribution of scores that are scored; a segmented one has all rows together."""
    folder = days(place, 0.0)
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        weight = pa.array(np.ones(table.num_rows))
        pq.write_table(table.append_column("w", weight).append_column("s", pa.array(["a", "b"] * 750)), path)
    shifted = days(place, 3.0, first=10, count=1, name="other")
    for path in shifted.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).append_column("s", pa.array(["a", "b"] * 750)), path)
    call("fit", DATED, "log.weight=w", "store.table=weighted").expect(0)
    call("score", "store.table=weighted", log__path=shifted).expect(0, "WARNING", "another model's")
    call("fit", DATED, "log.segment=s", "store.table=segmented").expect(0)
    paths = {"log__path": shifted, "output__path": place.root / "segmented"}
    call("score", "store.table=segmented", **paths).expect(4, "score.max_shift")


def test_follow_refuses_files_with_another_models_scores(place, call):
    days(place, 0.0)
    call("fit", DATED).expect(0)
    arriving = place.root / "arriving"
    days(place, 3.0, first=10, count=1, name="arriving")
    days(place, 3.0, first=11, count=3, rows=400, name="arriving")
    follow = partial(place.job, "follow", "--once", log__path=arriving)
    refused = follow(output__path=place.output).expect(3, "4 files refused", "score.max_shift").code
    assert (refused, list(place.output.rglob("*.parquet"))) == (3, [])
    written = {"output__path": place.root / "written"}
    follow("score.on_shift=write", **written).expect(4, "score.max_shift: the files were scored")
    assert pq.read_table(written["output__path"]).num_rows == 1500 + 3 * 400
    days(place, 0.0, first=20, count=2, name="arriving")
    follow(output__path=place.output).expect(0)


@pytest.mark.system
def test_ordinary_days_are_hardly_ever_beyond_the_limit():
    """False alarms of auto, by simulation: days whose log odds have a common shift from day to day."""
    random, refused, trials = np.random.default_rng(5), 0, 2000
    for _ in range(trials):
        moves, scale = 0.15 * random.normal(size=29), random.uniform(0.5, 2)
        own = [random.normal(move, scale, 2000) for move in moves[:28]]
        values, counts = np.unique(np.concatenate(own), return_counts=True)
        bins = bins_of(step_map(values, counts))
        limit = max(bins.distance(bins.tally(day)) for day in own)
        new = tuple(map(int, bins.tally(random.normal(moves[28], scale, 2000))))
        refused += ShiftRule(limit, of_days=True).judge(bins, new).beyond
    assert refused / trials < 0.005


def step_map(values, counts):
    """A map with a row for each score."""
    zeros = np.zeros(values.size)
    return CalibrationMap(
        np.concatenate([[-np.inf], values[1:]]),
        np.append(values[1:], np.inf),
        zeros,
        zeros,
        zeros,
        counts,
        zeros,
    )


def test_where_no_limit_is_known_chance_is_allowed_for():
    """Of few rows a distance of 0.4 is no sign of another model: two standard errors of it are 1 / sqrt(rows) each."""
    bins = Bins(CalibrationMap.from_bins(np.empty(0), np.ones(1), np.ones(1), np.ones(1)), np.full(10, 0.1))
    for rows, warned in ((300, False), (30_000, True)):
        shift = ShiftRule(None).judge(bins, (0,) * 4 + (rows // 6,) * 6)
        assert shift.distance == pytest.approx(0.4)
        assert (shift.warned, shift.beyond) == (warned, False)
