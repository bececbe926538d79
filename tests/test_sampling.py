"""Sampled logs: maps of all rows from the rows that were kept, against scikit-learn with weights and T itself."""

import json

import numpy as np
import pyarrow as pa
import pytest
from common import over, write_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logit
from sklearn.isotonic import IsotonicRegression

from calibrators import ABB, BBQ, DGG, ENIR, HistogramBinning, Isotonic, Platt, Points, collapse
from calibrators.auto.calibrator import Auto
from calibrators.base import Sampling
from calibrators.core.passes import run_passes
from calibrators.core.sampling import odds_divided, sampling_weights
from calibrators.measures.certainty import certainty_passes, error_bar_passes
from calibrators.measures.in_memory import assess_points
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import make_calibrator
from pipeline.log.logs import Columns, open_log
from pipeline.sort.score_table import SortPlan, build_score_table
from tests.sorted_logs import assert_same, points_of
from tests.window_logs import content, rows_of, run, window, write_day
from tests.window_logs import manifest as manifest_of

RATES = (0.01, 0.3, 4.0)


def sample(n=3000, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    s = rng.random(n)
    return (s if digits is None else s.round(digits)), rng.random(n) < 0.1 + 0.7 * s**2


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("n", "digits"), [(50, 1), (3000, None), (3000, 2)])
def test_isotonic_equals_scikit_learn_with_weighed_negatives(rate, n, digits):
    s, z = sample(n, n, digits)
    weight = np.where(z, 1.0, 1 / rate)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(s, z.astype(float), sample_weight=weight)
    at = np.concatenate([s, np.linspace(-0.2, 1.2, 700)])
    ours = Isotonic(ends=0).fit(s, z, sampling=Sampling(rate))
    np.testing.assert_allclose(ours.predict(at), theirs.predict(at), rtol=0, atol=4e-16)
    assert ours.calibration_map_.monotone
    assert ours.calibration_map_.weight.sum() == n


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(
    "make",
    [HistogramBinning, ABB, BBQ, ENIR, DGG, lambda: Isotonic(strict=True), Platt, lambda: Auto(["platt"])],
)
def test_at_its_rows_every_map_is_the_raw_one_with_other_odds(make, rate):
    s, z = sample()
    raw, ours = make().fit(s, z), make().fit(s, z, sampling=Sampling(rate))
    error = np.abs(ours.predict(s) - odds_divided(raw.predict(s), rate))
    # Platt's own map is within 1e-9 of its sigmoid on either side.
    assert error.max() < (1e-9 * (1 + 2 / min(rate, 1.0)) if isinstance(raw, (Platt, Auto)) else 1.1e-9)
    for own, other in (("weight", s.size), ("positives", z.sum())):
        assert getattr(ours.calibration_map_, own).sum() == pytest.approx(other)
    assert ours.calibration_map_.monotone == raw.calibration_map_.monotone


@pytest.mark.parametrize("rate", RATES)
def test_lines_that_are_cut_hold_the_rows_between_the_cuts(rate):
    s, z = sample(2000)
    table = Isotonic(strict=True).fit(s, z, sampling=Sampling(rate)).calibration_map_
    row = np.searchsorted(table.score_hi, s, side="right")
    assert table.weight.tolist() == np.bincount(row, minlength=len(table)).tolist()
    assert table.positives.tolist() == np.bincount(row, z, len(table)).tolist()
    assert len(table) > len(Isotonic(strict=True).fit(s, z).calibration_map_)


@given(st.floats(0, 1), st.floats(1e-4, 1e4))
def test_the_inverse_rate_undoes_it(p, rate):
    back = odds_divided(odds_divided(p, rate), 1 / rate)
    assert back == pytest.approx(p, abs=1e-9 * max(rate, 1 / rate))


def test_measures_of_all_rows_from_those_that_were_kept():
    s, z = sample(4000, digits=2)
    points, rate = collapse(s, z), 0.25
    run = over(points)
    found, bars, certainty = run_passes(certainty_passes(None, rate=rate), run)
    weight = np.where(z, 1.0, 1 / rate)
    assert found.measures == assess_points(Points(s, weight, z)).measures
    # Observed over expected and Cox's line are of all rows as well: of the same weights.
    assert bars.observed == z.sum()
    assert bars.expected == pytest.approx(weight @ s)
    x = logit(s.clip(0.004, 0.996))
    inner = (s > 0) & (s < 1)
    theirs = minimize(
        lambda line: np.logaddexp(0, (1 - 2 * z) * (line[0] + line[1] * x - np.log(rate)))[inner].sum(),
        [0, 1],
    )
    assert (certainty.agreement.intercept, certainty.agreement.slope) == pytest.approx(theirs.x, abs=1e-4)
    # Tests of single predictions count the rows that there are, with the odds that they have among these.
    p = odds_divided(s, 1 / rate)
    residual = (z - p) * (1 - 2 * p)
    spread = p * (1 - p) * (1 - 2 * p) ** 2
    assert bars.spiegelhalter_z == pytest.approx(residual.sum() / np.sqrt(spread.sum()))
    assert bars.auc_error == run_passes(error_bar_passes(), run).auc_error


# Sampling weights

rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1e-300, 1.0]),
        st.integers(0, 1),
        st.sampled_from([0.1, 1.0, 1e-9, 1e12, 0.3, 7.5]),
    ),
    min_size=1,
    max_size=80,
)


def weighted_log(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    score = rng.random(n).round(3)
    return {"score": score, "label": rng.random(n) < 0.05 + 0.4 * score**2, "w": rng.lognormal(2, 1, n)}


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50), st.integers(-8, 8))
def test_weights_add_up_to_the_effective_size(weights, power):
    w = np.array(weights)
    found = sampling_weights(w)
    assert found.sum() == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert found.sum() <= w.size * (1 + 1e-12)
    assert np.array_equal(found, sampling_weights(w * 2.0**power))


def test_weights_out_of_range_are_refused():
    for bad in ([], [0.0], [[1.0]], ["a"]):
        with pytest.raises(ValueError, match=r"sample_weight|expected"):
            sampling_weights(bad)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, st.tuples(st.integers(1, 3), st.integers(1, 40)), st.integers(1, 50), st.integers(24, 1000))
def test_a_score_table_is_that_of_scaled_sums(tmp_path_factory, rows, cut, run_rows, bucket_bytes):
    score, label, weight = (np.array(column) for column in zip(*rows, strict=True))
    folder = tmp_path_factory.mktemp("log")
    path = write_log(folder / "log", {"score": score, "label": label, "w": weight}, *cut)
    log = open_log(path, Columns("score", "label", "w", sampling=True))
    plan = SortPlan(folder, write=folder / "table", run_rows=run_rows, bucket_bytes=bucket_bytes)
    table, _ = build_score_table(log, plan, InlineExecutor())
    plain = collapse(score, label, weight)
    scale = table.scale
    assert scale == pytest.approx(weight.sum() / (weight**2).sum())
    assert_same(points_of(table), (plain.score, plain.weight * scale, plain.positives * scale))
    assert table.weight == pytest.approx(weight.sum() ** 2 / (weight**2).sum())


@pytest.mark.filterwarnings("ignore:the table was fitted to probabilities")
@pytest.mark.parametrize("method", ["isotonic", "bbq"])
def test_a_fit_equals_the_one_in_memory(place, call, method):
    columns = weighted_log()
    place.write_log(columns)
    done = call("fit", "log.weight=w", "log.weights=sampling", f"calibrator.method={method}", "--json")
    done.expect(0)
    assert "add up to" not in done.stderr
    size = columns["w"].sum() ** 2 / (columns["w"] ** 2).sum()
    assert place.newest_manifest["data"]["weight"] == pytest.approx(size)
    assert place.newest_manifest["data"]["rows_used"] == 3000
    weight = sampling_weights(columns["w"])
    fitted = make_calibrator(method, {}).fit(columns["score"], columns["label"], weight)
    from logcal import load

    at = np.linspace(-0.1, 1.1, 500)
    probability = load(str(place.store), place.table).predict(at)
    np.testing.assert_allclose(probability, fitted.predict(at), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("segment", [[], ["model"]])
def test_neither_the_scale_nor_days_matter(tmp_path, segment):
    sections = {"log": {"segment": segment, "weight": "w", "weights": "sampling"}}
    rng = np.random.default_rng(0)
    for day in range(3):
        own, table = rng.lognormal(0, 1, 400), rows_of(day, rows=400)
        for name, unit in (("log", 1), ("large", 64)):
            write_day(tmp_path / name, day, table.set_column(2, "w", pa.array(own * unit)), "a")
    plain, large = (run(tmp_path, tmp_path / name, f"of-{name}", **sections) for name in ("log", "large"))
    assert 0 < manifest_of(plain)["data"]["weight"] == manifest_of(large)["data"]["weight"] < 1200
    assert manifest_of(large)["data"]["weight_scale"] == manifest_of(plain)["data"]["weight_scale"] / 64
    days = run(tmp_path, tmp_path / "log", "days", window=window("3d"), **sections)
    assert content(days) == content(plain)
    # Kept days know what their rows count for, also where a half-life weighs them down.
    fading = run(tmp_path, tmp_path / "log", "days", window=window("3d", half_life="1d"), **sections)
    assert fading["window"]["days_sorted"] == 0
    assert manifest_of(fading)["data"]["weight_scale"] == manifest_of(plain)["data"]["weight_scale"]


def test_evaluate_counts_what_rows_stand_for(place, call):
    columns = weighted_log()
    place.write_log(columns)
    call("fit").expect(0)
    found = {}
    for kind, weights in {
        "sampling": columns["w"],
        "counts": columns["w"],
        "scaled": sampling_weights(columns["w"]),
    }.items():
        place.write_log({**columns, "w": weights}, name=kind)
        log = {
            "log__path": place.root / kind,
            "report__path": place.root / f"{kind}-report",
            "output__path": None,
        }
        how = "sampling" if kind == "sampling" else "counts"
        more = ("evaluate.allow_in_sample=true", "log.weight=w", f"log.weights={how}", "--json")
        call("evaluate", *more, **log).expect(0)
        found[kind] = json.loads((place.root / f"{kind}-report" / "run.json").read_text())
    ours, counts, scaled = (found[kind] for kind in ("sampling", "counts", "scaled"))
    assert ours["evaluation"]["after"]["measures"]["log_loss"] == pytest.approx(
        counts["evaluation"]["after"]["measures"]["log_loss"]
    )
    for name in ("ratio_z", "auc_error"):
        own, whole, same = (
            one["evaluation"]["after"]["significance"]["error_bars"][name] for one in (ours, counts, scaled)
        )
        assert own == pytest.approx(same)
        assert whole != pytest.approx(own, rel=0.5)


def test_sampling_weights_need_weights(place, call):
    place.write_log()
    call("fit", "log.weights=sampling").expect(2, "expected log.weight with log.weights=sampling")


@pytest.mark.parametrize("weights", ["counts", "sampling"])
def test_the_gate_counts_rows_as_the_fit_does(place, call, weights):
    columns = weighted_log(1200)
    place.write_log(columns)
    size = {"counts": columns["w"].sum(), "sampling": sampling_weights(columns["w"]).sum()}[weights]
    enough, more = (f"gate={{min_rows: {int(size) + i}, max_rows_drop: 0.1}}" for i in range(2))
    log = ("log.weight=w", f"log.weights={weights}")
    call("fit", *log, enough).expect(0)
    call("fit", *log, more).expect(4, f"found {size:,.10g} (1,200 rows whose weights count for so many)")
    # The same rows may count for less; where they are fewer, too, some are missing.
    call("fit", "gate={min_rows: 0, max_rows_drop: 0.1}").expect(0)
    place.write_log({name: column[:900] for name, column in columns.items()}, files=1, name="fewer")
    call("fit", "gate={min_rows: 0, max_rows_drop: 0.1}", log__path=place.root / "fewer").expect(
        4, "max_rows_drop"
    )
