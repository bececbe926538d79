"""An interval for each row of a table: the band against a double loop, Venn-Abers against refitted regressions."""

from __future__ import annotations

import json
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import over, simulated, write_log
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

import logcal
from calibrators import ABB, Isotonic
from calibrators.base import Sampling
from calibrators.core import pointwise
from calibrators.core.curve import _PRIORS
from calibrators.core.intervals import (
    band,
    cell_bounds,
    cell_passes,
    divided,
    interval_passes,
    lightened,
    ranks,
    venn_abers_pass,
)
from calibrators.core.map import Interval
from calibrators.core.passes import collapse, run_in_memory, run_passes
from calibrators.core.sampling import sampling_weights
from jobs import tables
from logcal.errors import ConfigError, InputRejectedError
from logcal.reading import read_table
from pipeline.fit.calibration import make_calibrator
from pipeline.log.log_files import read_batches
from pipeline.score import scored_file
from pipeline.sort.score_table import SortPlan
from tests.sorted_logs import run


def some_rows(rng, n):
    score = np.floor(rng.random(n) * rng.choice([4, 30, 10**6]))
    return score, (rng.random(n) < 0.1 + 0.8 * score / max(score.max(), 1)).astype(int)


def in_parts(points, rng):
    return over(points, *rng.integers(0, points.score.size + 1, 3))


def test_the_grid_has_the_stretches_of_the_specification():
    n = 10**8
    edges = np.append(ranks(n), n)
    rows = np.diff(edges, prepend=0.0)
    assert rows.size == 294
    count = sum(len(range(0, 294 - 2**t + 1, max(1, 2**t // 4))) for t in range(20) if 2**t <= 294)
    assert count == 1147


def loop(score, label, one):
    """The band by its definition."""
    order = np.argsort(score, kind="stable")
    s, y = score[order], label[order]
    n = s.size
    targets = [j * n / 256 for j in range(1, 256)]
    t = 0
    while 2**t < n / 256:
        targets += [2**t, n - 2**t]
        t += 1
    ends = {int(np.searchsorted(s, s[int(np.ceil(x)) - 1], "right")) for x in targets} | {n}
    ends = sorted(ends)
    starts = [0, *ends[:-1]]
    stretches = []
    size = 1
    while size <= len(ends):
        stretches += [(a, a + size) for a in range(0, len(ends) - size + 1, max(1, size // 4))]
        size *= 2
    tail = 0.05 / (2 * len(stretches))
    lower, upper = np.zeros(len(one)), np.ones(len(one))
    last = [s[e - 1] for e in ends]
    first = np.searchsorted(last, one.score_lo)
    end = np.append(np.searchsorted(last, np.nextafter(one.score_hi[:-1], -np.inf)), len(last))
    for a, b in stretches:
        k, rows = y[starts[a] : ends[b - 1]].sum(), ends[b - 1] - starts[a]
        low = beta.ppf(tail, k, rows - k + 1) if k else 0.0
        high = beta.isf(tail, k + 1, rows - k) if k < rows else 1.0
        lower[first >= b] = np.maximum(lower[first >= b], low)
        upper[end < a] = np.minimum(upper[end < a], high)
    return lower, upper


@pytest.mark.parametrize("seed", range(4))
def test_the_band_is_that_of_a_double_loop(seed):
    rng = np.random.default_rng(seed)
    score, label = some_rows(rng, [40, 300, 900, 400][seed])
    points = collapse(score, label)
    one = (ABB() if seed == 3 else Isotonic()).fit_points(points).calibration_map_
    cells = run_passes(cell_passes(), in_parts(points, rng))
    found = band(one, cells)
    lower, upper = loop(score, label, one)
    np.testing.assert_allclose(found.lower, lower, rtol=1e-9)
    np.testing.assert_allclose(found.upper, upper, rtol=1e-9)
    assert (found.lower <= found.upper).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1]), st.booleans())
def test_venn_abers_is_that_of_refitted_regressions(seed, ends, weighted):
    rng = np.random.default_rng(seed)
    score, label = some_rows(rng, int(rng.integers(2, 40)))
    weight = some_weights(rng, score.size) if weighted else np.ones(score.size)
    points = collapse(score, label, weight)
    one = Isotonic(ends=ends).fit_points(points).calibration_map_
    found = in_parts(points, rng)(venn_abers_pass(one))
    for a, b in zip(found, run_in_memory(interval_passes("venn_abers", one), points), strict=True):
        np.testing.assert_array_equal(a, b)

    def refit(x, extra):
        fitted = IsotonicRegression().fit(np.append(score, x), np.append(label, extra), np.append(weight, 1))
        return fitted.predict([x])[0]

    for r in range(len(one)):
        low, high = one.score_lo[r], one.score_hi[r]
        inside = points.score[(points.score >= low) & (points.score < high)]
        if one.weight[r] == 0:
            inside = [points.score[points.score < low][-1], points.score[points.score >= high][0]]
        assert found.lower[r] == pytest.approx(0 if r == 0 else refit(inside[0], 0), abs=1e-12)
        assert found.upper[r] == pytest.approx(1 if r == len(one) - 1 else refit(inside[-1], 1), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_rows_venn_abers_interval_is_the_least_that_contains_those_of_its_scores(seed, weighted):
    """F0 and F1 by refitting at every score and between scores."""
    rng = np.random.default_rng(seed)
    score, label = some_rows(rng, int(rng.integers(2, 25)))
    weight = some_weights(rng, score.size) if weighted else np.ones(score.size)
    points = collapse(score, label, weight)
    one = Isotonic(ends=0).fit_points(points).calibration_map_
    found = in_parts(points, rng)(venn_abers_pass(one))

    def at(x):
        rows = (np.append(score, x), np.append(weight, 1))
        fits = [IsotonicRegression().fit(rows[0], np.append(label, extra), rows[1]) for extra in (0, 1)]
        return [float(fit.predict([x])[0]) for fit in fits]

    middles = (points.score[1:] + points.score[:-1]) / 2
    for x in np.concatenate([points.score, middles, [-1.0, points.score[-1] + 1]]):
        (lower, upper), (f0, f1) = found.at(one.score_hi, np.array([x])), at(x)
        assert lower[0] <= f0 + 1e-12
        assert f1 - 1e-12 <= upper[0]
    for r in np.flatnonzero(one.weight > 0):
        inside = points.score[(points.score >= one.score_lo[r]) & (points.score < one.score_hi[r])]
        least, most = min(at(x)[0] for x in inside), max(at(x)[1] for x in inside)
        assert r == 0 or found.lower[r] == pytest.approx(least, abs=1e-12)
        assert r == len(one) - 1 or found.upper[r] == pytest.approx(most, abs=1e-12)


def some_weights(rng, n):
    return (
        rng.choice([0.1, 0.3, 1.0, 2.5, 7.0], n)
        if rng.random() < 0.5
        else rng.integers(1, 4, n).astype(float)
    )


@given(st.integers(0, 2**32 - 1))
def test_a_weight_of_two_is_the_row_twice(seed):
    rng = np.random.default_rng(seed)
    score, label = some_rows(rng, int(rng.integers(2, 400)))
    weight = rng.integers(1, 4, score.size)
    repeated = collapse(np.repeat(score, weight), np.repeat(label, weight))
    points = collapse(score, label, weight)
    one = Isotonic().fit_points(points).calibration_map_
    for kind in ("band", "venn_abers"):
        found = run_passes(interval_passes(kind, one), in_parts(points, rng))
        expected = run_in_memory(interval_passes(kind, one), repeated)
        if expected is None:
            assert found is None
            continue
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_venn_abers_is_that_of_the_package():
    venn_abers = pytest.importorskip("venn_abers")
    score, label = simulated(600, 3, decimals=2)
    label = label.astype(int)
    peer = venn_abers.VennAbers()
    peer.fit(np.column_stack([1 - score, score]), label)
    points = collapse(score, label)
    one = Isotonic(ends=0).fit_points(points).calibration_map_
    found = over(points)(venn_abers_pass(one))
    rows = np.flatnonzero(one.weight > 0)[1:-1]
    for r in rows:
        inside = points.score[(points.score >= one.score_lo[r]) & (points.score < one.score_hi[r])]
        _, p = peer.predict_proba(np.column_stack([1 - inside[[0, -1]], inside[[0, -1]]]))
        assert found.lower[r] == p[0, 0]
        assert found.upper[r] == p[1, 1]


@pytest.mark.system
@pytest.mark.parametrize("kind", ["counts", "decay", "sampling"])
def test_bands_of_weights_hold_the_truth(kind):
    rng = np.random.default_rng(7)
    held, n = 0, 3000
    for _ in range(40):
        score = rng.random(n)
        truth = 0.02 + 0.3 * score**3
        label = rng.random(n) < truth
        weight = {
            "counts": np.ones(n),
            "decay": 0.5 ** rng.integers(0, 7, n),
            "sampling": sampling_weights(np.exp(rng.normal(0, 0.5, n))),
        }[kind]
        cells = run_in_memory(cell_passes(), collapse(score, label, weight))
        lower, upper = cell_bounds(lightened(cells, weight.max()))
        cell = np.searchsorted(cells.last, score)
        held += bool(np.all((lower[cell] <= truth) & (truth <= upper[cell + 1])))
    assert held >= 38


def test_draws_vary_as_the_posterior_does():
    """Of each prior the variance at a place is a quadratic form of an inverse that numpy makes."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(300)
    score = 1 / (1 + np.exp(-z))
    curve = make_calibrator("smooth", {}).fit(score, rng.random(300) < score).curve_
    cells = curve.cells
    x = curve.table(cells.clipped, cells.rank)[:, : curve.thetas.shape[1]]
    total, mean = 0.0, cells.clipped + x @ (curve.share @ curve.thetas)
    for share, theta, prior in zip(curve.share, curve.thetas, _PRIORS, strict=True):
        own = x[:, : prior.variance.size]
        f = cells.clipped + own @ theta[: prior.variance.size]
        p = 1 / (1 + np.exp(-f))
        inverse = np.linalg.inv((own.T * (cells.weight * p * (1 - p))) @ own + np.diag(1 / prior.variance))
        total += share * (np.einsum("ij,jk,ik->i", own, inverse, own) + (f - mean) ** 2)
    normal = pointwise._normal(0, (1000, curve.thetas.shape[1]))
    assert abs(normal.mean()) < 0.01
    assert normal.var() == pytest.approx(1, abs=0.02)
    place, draws = curve.draws(normal)
    spread = draws[:, np.searchsorted(place, cells.position)].std(axis=0)
    # Draws are made to rise, which makes them vary a little less.
    assert np.median(spread / np.sqrt(total)) == pytest.approx(0.95, abs=0.08)


def test_the_posterior_holds_the_truth_beside_a_jump():
    """500 rows do not show where the truth jumps; intervals of mostly smooth curves held 57 % of these truths."""

    def truth(z):
        return expit(np.select([z < -1, z < 1.5], [-2.5, -1.0], 0.5))

    beside = np.concatenate([np.linspace(-0.99, -0.7, 30), np.linspace(1.51, 1.9, 30)])
    held, widths = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        z = 2 * rng.standard_normal(500)
        fitted = make_calibrator("auto", {}).fit(expit(z), rng.random(500) < truth(z))
        one = fitted.calibration_map_
        lower, upper = fitted.posterior_.interval(one).at(one.score_hi, expit(beside))
        held.append((lower <= truth(beside)) & (truth(beside) <= upper))
        widths.append(upper - lower)
    assert np.mean(held) > 0.8
    assert np.mean(widths) < 0.35


# From a log to a scored one


def expected_interval(kind, method, points, one, rate=1.0, heaviest=1.0):
    """The interval of a map's rows, in memory; None if it is refuted."""
    if kind == "posterior":
        fitted = make_calibrator(method, {}).fit_points(points, Sampling(rate, heaviest))
        return fitted.posterior_.interval(one)
    found = run_in_memory(interval_passes(kind, one, heaviest), points)
    return None if found is None else divided(found, rate)


def a_log(root, weights=None):
    """Write it; returns its points, the heaviest row's sampling weight and the sections that say how rows count."""
    score, label = simulated(6000, 5, power=2)
    score, label = np.append(score, [0.5, 0.5]), np.append(label, [0, 1]).astype(np.int8)
    rng = np.random.default_rng(9)
    day, counts, drawn = rng.integers(0, 4, 6002), 1.0 + (rng.random(6002) < 0.05), rng.normal(0, 1, 6002)
    weight = np.exp(drawn) if weights == "sampling" else counts
    date = np.datetime64("2025-03-01") + day.astype("timedelta64[D]")
    write_log(root / "log", {"score": score, "label": label, "w": weight, "date": pa.array(date)}, 3)
    if weights == "half_life":
        window = {"column": "date", "last": "4d", "half_life": "1d"}
        return collapse(score, label, 0.5 ** (3 - day)), 1.0, {"window": window}
    if weights is None:
        return collapse(score, label), 1.0, {"log": {}}
    own = sampling_weights(weight) if weights == "sampling" else weight
    heaviest = own.max() if weights == "sampling" else 1.0
    return collapse(score, label, own), heaviest, {"log": {"weight": "w", "weights": weights}}


@pytest.mark.parametrize(
    ("kind", "method", "weights"),
    [
        ("band", "isotonic", None),
        ("band", "abb", None),
        ("venn_abers", "isotonic", None),
        ("posterior", "auto", None),
        ("posterior", "smooth", None),
        ("band", "isotonic", "sampling"),
        ("band", "isotonic", "half_life"),
        ("venn_abers", "isotonic", "counts"),
        ("posterior", "auto", "sampling"),
        ("posterior", "auto", "half_life"),
    ],
)
def test_from_a_log_to_scored_rows(tmp_path, monkeypatch, kind, method, weights):
    points, heaviest, sections = a_log(tmp_path, weights)
    plain = {"segment": []}
    calibrator = {"method": method, "interval": "auto" if method == "auto" and not weights else kind}
    rate = 0.5 if method in ("abb", "smooth") else 1.0
    log = {**plain, "negative_sampling_rate": rate, **sections.pop("log", {})}
    made = run("fit", tmp_path, calibrator=calibrator, log=log, **sections)
    loaded = read_table(made["lookup_path"])
    assert loaded.facts.interval == kind
    assert loaded.facts.features == ("interval",)
    np.testing.assert_allclose(loaded.map.weight.sum(), points.weight.sum())
    expected = expected_interval(kind, method, points, loaded.map, rate, heaviest)
    for found, own in zip(loaded.interval, expected, strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-9)
    if weights:
        return
    decoded = []
    monkeypatch.setattr(scored_file, "read_batches", lambda *of: decoded.append(of[3]) or read_batches(*of))
    scored, lower, upper = check_scored(tmp_path, kind, plain, inline=method == "isotonic")
    groups = sum(pq.ParquetFile(path).num_row_groups for path in (tmp_path / "out").rglob("*.parquet"))
    assert len(decoded) == groups  # each once
    p = scored["probability"].to_numpy()
    if method != "abb":
        assert ((lower <= p) & (p <= upper)).all()
    # NaN is above all numbers where it is sorted; null and NaN have no interval.
    special = pa.table({"score": [float("nan"), None, 0.5]})
    ends = [row[-2:] for row in by_duckdb(tmp_path, special, inline=False).fetchall()]
    assert sorted(ends, key=str)[1:] == [(None, None)] * 2


def check_scored(root, kind, log, *, inline):
    """Score and evaluate the log; what it got is what applications and queries give it. Returns it, with both ends."""
    run("score", root, log=log, output={"path": str(root / "out"), "interval": True})
    scored = pq.read_table(root / "out")
    assert scored.column_names[-4:] == ["probability", "prob_lower", "prob_upper", "table_version"]
    segments = {name: scored[name] for name in log["segment"]}
    ends = logcal.load(str(root / "store"), "t").interval(scored["score"].to_numpy(), segments or None)
    asked = scored.select(["score", *segments]).append_column("row", pa.array(np.arange(scored.num_rows)))
    for how in (False, True) if inline else (False,):
        rows = by_duckdb(root, asked, inline=how).order("row").fetchnumpy()
        for name, end in zip(("prob_lower", "prob_upper"), ends, strict=True):
            np.testing.assert_array_equal(scored[name], end)
            np.testing.assert_array_equal(rows[name], end)
    report = {"path": str(root / "report")}
    run("evaluate", root, log=log, evaluate={"allow_in_sample": True}, report=report)
    page = (root / "report" / "report.html").read_text()
    said = ("The band contains" in page, "multiprobabilities" in page, "posterior interval" in page)
    assert said == (kind == "band", kind == "venn_abers", kind == "posterior")
    return scored, *ends


def by_duckdb(root, rows, *, inline):
    """What the table's query says of rows."""
    error = 0 if inline else None
    query = tables.sql(str(root / "store"), "t", None, "duckdb", inline, error, "scored", "score").lines[0]
    connection = duckdb.connect()
    connection.register("scored", rows)
    return connection.sql(query.rstrip(";"))


def a_log_of_segments(root, weights=None):
    """Segments a and b have maps of their own, c is too thin, and d refutes a truth that never decreases."""
    rng = np.random.default_rng(11)
    rows = {"a": 3000, "b": 2000, "c": 40, "d": 1500}
    segment = np.repeat(list(rows), list(rows.values()))
    score = rng.random(segment.size)
    truth = np.where(segment == "a", score**2, np.where(segment == "d", 1 - score, 0.3 * score))
    label = (rng.random(segment.size) < truth).astype(np.int8)
    # Few repeated rows: many of them would refute what holds, since they are not independent.
    weight = 1 + (rng.random(segment.size) < 0.05) if weights == "counts" else np.ones(segment.size)
    if weights == "sampling":
        weight = np.exp(rng.normal(0, 0.3, segment.size))
    order = rng.permutation(segment.size)
    columns = {"score": score, "label": label, "a": segment, "w": weight.astype(float)}
    columns = {name: column[order] for name, column in columns.items()}
    write_log(root / "log", pa.table(columns), 3)
    return columns


@pytest.mark.parametrize(
    ("kind", "method", "weights", "rate"),
    [
        ("band", "isotonic", "sampling", 1.0),
        ("band", "platt", "counts", 0.5),
        ("venn_abers", "isotonic", None, 0.5),
        ("posterior", "smooth", "counts", 0.5),
    ],
)
def test_each_segments_map_has_the_interval_of_its_own_rows(
    tmp_path, caplog, monkeypatch, kind, method, weights, rate
):
    # By tasks that hold a part of a segment's rows each.
    small = {"run_rows": 700, "bucket_bytes": 9000}
    monkeypatch.setattr(SortPlan, "within", lambda plan, *_: replace(plan, **small))
    rows = a_log_of_segments(tmp_path, weights)
    weighing = {"weight": "w", "weights": weights} if weights else {}
    log = {"segment": ["a"], "negative_sampling_rate": rate, **weighing}
    weight = sampling_weights(rows["w"]) if weights == "sampling" else rows["w"]
    heaviest = weight.max() if weights == "sampling" else 1.0
    segments = {"shrinkage": "none", "min_rows": 100}
    made = run("fit", tmp_path, log=log, segments=segments, calibrator={"method": method, "interval": kind})
    found = read_table(made["lookup_path"])
    assert found.facts.interval == kind
    assert found.facts.features == ("segments", "interval")
    assert made["segments"]["intervals_refuted"] == (1 if kind == "band" else 0)
    assert ("of 1 of the segments' maps refute" in caplog.text) == (kind == "band")
    for name in "abd":
        own = rows["a"] == name
        points = collapse(rows["score"][own], rows["label"][own], weight[own])
        one = found.unadjusted_map((name,))
        expected = expected_interval(kind, method, points, one, rate, heaviest)
        start, stop = found.rows_of((name,))
        assert (expected is None) == (kind == "band" and name == "d")
        ends = (np.zeros(1), np.ones(1)) if expected is None else expected
        for column, values in zip(found.interval, ends, strict=True):
            np.testing.assert_allclose(column[start:stop], np.broadcast_to(values, stop - start), rtol=1e-9)
    scored, *ends = check_scored(tmp_path, kind, log, inline=method == "isotonic")
    thin = np.asarray(scored["a"]) == "c"
    rows = slice(*found.bounds[()])
    whole = Interval(*(column[rows] for column in found.interval)).at(
        found.map.score_hi, scored["score"].to_numpy()
    )
    for own, of_all in zip(ends, whole, strict=True):
        np.testing.assert_array_equal(own[thin], of_all[thin])
    with pytest.raises(ConfigError, match="found none of a"):
        logcal.load(str(tmp_path / "store"), "t").interval([0.5])


def test_what_does_not_go_with_intervals(tmp_path):
    a_log(tmp_path)
    for log, calibrator, said in (
        ({"segment": ["a"]}, {"interval": "band"}, "with segments, found segments.shrinkage=auto"),
        ({"segment": []}, {"interval": "venn_abers", "method": "platt"}, "expected method isotonic"),
        ({"segment": []}, {"interval": "posterior", "method": "platt"}, "expected method auto"),
    ):
        with pytest.raises(ConfigError, match=said):
            run("fit", tmp_path, log=log, calibrator=calibrator)
    run("fit", tmp_path, log={"segment": []})
    with pytest.raises(ConfigError, match=r"output.interval: expected a table with intervals"):
        run("score", tmp_path, log={"segment": []}, output={"path": tmp_path / "o", "interval": True})
    with pytest.raises(ConfigError, match="found one without"):
        logcal.load(str(tmp_path / "store"), "t").interval([0.5])


def test_a_refuted_band_is_said_and_left_out(tmp_path, caplog):
    score = np.arange(4000) / 4000
    write_log(tmp_path / "log", {"score": score, "label": np.abs(score - 0.4) < 0.2})
    made = run("fit", tmp_path, log={"segment": []}, calibrator={"interval": "band"})
    assert "refute" in caplog.text
    loaded = read_table(made["lookup_path"])
    assert loaded.interval is None
    assert loaded.facts.features == ()
    manifest = json.loads(next((tmp_path / "store").glob("t/versions/*/manifest.json")).read_text())
    assert manifest["interval"] == "refuted"


def test_intervals_that_cannot_be(tmp_path):
    a_log(tmp_path)
    path = run("fit", tmp_path, log={"segment": []}, calibrator={"interval": "band"})["lookup_path"]
    table = pq.read_table(path, partitioning=None)
    at = table.schema.get_field_index("prob_lower")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(np.full(table.num_rows, 1.5))), path)
    with pytest.raises(InputRejectedError, match="fingerprint"):
        read_table(path)
