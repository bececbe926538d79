"""Methods compared by cross-validation: against brute force, through the real command, and as a page."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.stats

import calibrators
import logcal
from calibrators import ABB, BBQ, Auto, HistogramBinning, Isotonic, Platt, Points, collapse
from calibrators.auto.cross_validation import RAW, _mean_over_folds, cross_validate
from calibrators.auto.folded import FoldedPoints
from calibrators.base import Sampling
from calibrators.core.cumulative import layout_of, part_totals
from calibrators.measures.in_memory import measure
from logcal.errors import ConfigError, InputRejectedError
from pipeline.pages.comparison_page import render_comparison

METHODS = {"isotonic": Isotonic(), "bbq": BBQ(), "platt": Platt(), "histogram": HistogramBinning(smoothing=1)}


@pytest.fixture(scope="module")
def points():
    random = np.random.default_rng(5)
    score = random.random(1500).round(2)
    return collapse(score, random.random(1500) < 0.1 + 0.8 * score**2)


def rows_of(points):
    """Each observation by itself: its score and its label."""
    counts = np.column_stack([points.weight - points.positives, points.positives]).astype(int)
    return np.repeat(points.score, counts.sum(axis=1)), np.concatenate([[0] * n + [1] * k for n, k in counts])


def brute_force(points, methods, folds, seed, rate):
    """Held-out labels, folds, weights and probabilities of each method, row by row."""
    folded = FoldedPoints(layout_of([part_totals(points)]), folds, seed)
    label, fold, said = [], [], {name: [] for name in [RAW, *methods]}
    for i in range(folds):
        outside, inside = folded.split(points, i)
        s, y = rows_of(inside)
        said[RAW].append(s)
        label.append(y)
        fold.append(np.full(s.size, i))
        for name, calibrator in methods.items():
            own = type(calibrator)(**calibrator.get_params())
            said[name].append(own.fit(*rows_of(outside), sampling=Sampling(rate)).predict(s))
    label, fold = np.concatenate(label), np.concatenate(fold)
    return label, fold, np.where(label == 1, 1.0, 1 / rate), {n: np.concatenate(p) for n, p in said.items()}


def test_the_error_of_a_mean_over_folds_is_scipys():
    values = [0.71, 0.74, 0.69, 0.78]
    folds = [SimpleNamespace(measures=SimpleNamespace(auc=value), weight=9.0) for value in values]
    found = _mean_over_folds("auc", folds)
    assert (found.mean, found.error) == pytest.approx((np.mean(values), scipy.stats.sem(values)))


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_estimates_are_those_of_rows_predicted_one_by_one(points, rate):
    """Each negative that was kept of a sample weighs 1 / rate, and is one observation all the same."""
    found = cross_validate(points, METHODS, folds=4, seed=3, sampling=Sampling(rate))
    label, fold, weight, said = brute_force(points, METHODS, 4, 3, rate)
    assert [m.name for m in found.methods] == [RAW, *METHODS]
    assert found.weight == weight.sum()
    losses = {}
    for method in found.methods:
        p = said[method.name]
        with np.errstate(divide="ignore"):
            loss = -np.log(np.where(label == 1, p, 1 - p))
        losses[method.name] = {"log_loss": loss, "brier": (label - p) ** 2}
        for i, measures in enumerate(method.folds) if rate == 1 else ():
            expected = measure(label[fold == i], p[fold == i])
            for name in ("ece_frequency", "auc", "brier"):
                assert math.isclose(getattr(measures, name), getattr(expected, name), abs_tol=1e-12)

    def mean_and_error(values):
        mean = np.average(values, weights=weight)
        return mean, math.sqrt((weight**2 * (values - mean) ** 2).sum()) / weight.sum()

    for name in ("log_loss", "brier"):
        best = losses[found.best(name)][name]
        for method in found.methods:
            estimate, own = method.estimates[name], losses[method.name][name]
            if math.isinf(own.max()):
                assert (estimate.mean, estimate.error, estimate.excess) == (math.inf, None, None)
                continue
            assert (estimate.mean, estimate.error) == pytest.approx(mean_and_error(own), rel=1e-9)
            excess, error = mean_and_error(own - best)
            assert estimate.excess == pytest.approx(excess, abs=1e-12)
            assert estimate.excess_error == pytest.approx(error, rel=1e-6, abs=1e-9)


def test_infinite_losses_are_counted():
    label = np.r_[np.zeros(300), np.ones(300), [1.0], [0.0]]
    score = np.r_[np.linspace(0, 0.4, 300), np.linspace(0.6, 1, 300), [0.1], [0.9]]
    found = cross_validate(collapse(score, label), {"isotonic": Isotonic(ends=0), "abb": ABB()}, folds=3)
    by_name = {method.name: method for method in found.methods}
    assert by_name["isotonic"].infinite == 2
    assert by_name["isotonic"].estimates["log_loss"].mean == math.inf
    assert by_name["abb"].infinite == 0
    assert found.best("log_loss") == "abb"
    page = render_comparison(found, {})
    assert "The log loss of isotonic is infinite: it gave probability 0 to the label of 2 rows" in page


# The command


def test_the_command_prints_a_table_and_writes_a_page(place):
    place.write_log()
    shown = place.job("compare").expect(0).stdout
    for name in ("no calibration", "isotonic", "platt", "histogram", "enir", "bbq", "abb"):
        assert re.search(rf"^{name} .*±0\.\d{{4}}", shown, flags=re.MULTILINE)
    assert "the same as a page: --set report.path=FOLDER" in shown
    assert "not compared: near_isotonic, sbb, beta, smooth (set compare.methods" in shown
    arguments = ("compare", "report.path=out", "compare.methods=[isotonic, platt]")
    found = place.job(*arguments, "--json").expect(0).json
    assert set(found["methods"]) == {"before", "isotonic", "platt"}
    page = (place.root / "out" / "report.html").read_text()
    assert found["headline"].partition(",")[0] in page
    assert re.findall(r'(?:src|href)="(?!#)', page) == []
    document = json.loads((place.root / "out" / "run.json").read_text())
    assert document["comparison"]["methods"] == found["methods"]
    loss = found["methods"]["before"]["estimates"]["log_loss"]
    lead = f"{loss['excess']:.5f} ±{loss['excess_error']:.5f}"
    done = place.job(*arguments, "report.path=null").expect(0)
    assert re.search(rf"^no calibration .* {re.escape(lead)}$", done.stdout, flags=re.MULTILINE)
    assert "compare all, pass 1: 1 task" in done.stderr
    place.job(*arguments).expect(99)


def test_what_does_not_go_is_said_before_anything_is_read(place):
    place.write_log()
    for setting, said in (
        ("compare.methods=[isotnic]", "compare.methods: expected one of isotonic, "),
        ("compare.methods=[isotnic]", "did you mean 'isotonic'?"),
        (
            "compare={params: {abb: {no: 1}}, methods: [abb]}",
            "compare.params.abb.no: abb has no such parameter",
        ),
        ("compare.methods=[dg]", "found dg, which is for logs that `logcal"),
        ("compare.methods=[abb, abb]", "expected each method once"),
        ("compare={params: {platt: {}}, methods: [abb]}", "expected names of compare.methods, found platt"),
    ):
        place.job("compare", setting).expect(2, said)
    assert "compare: fit auto, isotonic" in place.job("compare", "--dry-run").expect(0).stdout


def test_margins_leave_bbq_out(place):
    columns = place.predictions()
    columns["score"] = columns["score"] * 10 - 5
    place.write_log(pa.table(columns))
    shown = place.job("compare").expect(0).stdout
    assert "bbq was left out: it needs scores in [0, 1]" in shown
    assert "before" not in shown
    place.job("compare", "compare.methods=bbq").expect(2, "no method is left; bbq was left out")


# Sampling weights.


def unrelated(seed, ties, rows=1000):
    """Rows whose labels know nothing of the score, with sampling weights that vary much, scaled to Kish's size."""
    rng = np.random.default_rng(seed)
    score = rng.uniform(size=rows)
    if ties:
        score = np.round(score, 2)
    weight = rng.lognormal(sigma=1.5, size=rows)
    weight *= weight.sum() / (weight**2).sum()
    return score, rng.uniform(size=rows) < 0.4, weight


def test_the_loss_that_auto_says_of_half_the_rows_is_not_below_the_true_one_of_all():
    said, true = [], []
    for seed in range(8):
        score, label, weight = unrelated(seed, ties=False)
        auto = Auto().fit(score, label, weight, Sampling(heaviest=weight.max()))
        p = auto.predict(np.linspace(0, 1, 1001))
        said.append(min(auto.cross_validated_log_loss_.values()))
        true.append(-np.mean(0.4 * np.log(p) + 0.6 * np.log1p(-p)))
    assert np.mean(said) > np.mean(true)


def test_a_row_with_a_sampling_weight_is_not_both_trained_on_and_held_out():
    """Labels know nothing of the score: two parameters are best, and losses are not below those of the truth."""
    methods = {"platt": Platt(), "bbq": BBQ(), "histogram": HistogramBinning(bins=200), "abb": ABB()}
    excess, wins = [], []
    for seed in range(6):
        score, label, weight = unrelated(seed, seed % 2 == 1, rows=600)
        points = collapse(score, label, weight)
        found = cross_validate(points, methods, sampling=Sampling(heaviest=weight.max()))
        share = np.average(label, weights=weight)
        means = {method.name: method.estimates["brier"].mean for method in found.methods}
        excess.append([means[name] - share * (1 - share) for name in methods])
        wins.append(found.best("brier"))
        wins.append(Auto(["platt", "abb"]).fit_points(points, Sampling(heaviest=weight.max())).chosen_)
    # A few rows have most of the weight: by accident another method may win twice. bbq predicts nearly one number.
    assert wins.count("platt") + wins.count("bbq") >= 8
    platt, bbq, histogram, abb = np.mean(excess, axis=0)
    assert 0 < min(bbq, platt) < max(bbq, platt) < min(histogram, abb)


@pytest.mark.parametrize("weights", [[0.3, 1.7, 2.5, 9.0], [3.1, 3.1, 3.1]])
def test_of_sampling_weights_each_row_is_in_one_fold_whole(weights):
    rng = np.random.default_rng(5)
    weight = rng.choice(weights, 600)
    points = collapse(np.arange(600.0), rng.uniform(size=600) < 0.5, weight)
    folded = FoldedPoints(layout_of([part_totals(points)]), 4, 7, weight.max())
    found = [folded.split(points, fold) for fold in range(4)]
    inside = np.concatenate([own.score for _, own in found])
    assert np.array_equal(np.sort(inside), points.score)
    for outside, own in found:
        assert np.array_equal(own.weight, points.weight[own.score.astype(int)])
        assert np.array_equal(own.positives, points.positives[own.score.astype(int)])
        assert not set(outside.score) & set(own.score)
        assert 100 < own.score.size < 200


@pytest.mark.parametrize("heaviest", [0.7, 1.0, 3.3])
def test_of_tied_rows_nothing_is_lost_to_rounding(heaviest):
    rng = np.random.default_rng(1)
    positives, negatives = rng.choice([0.7, 1.1, 3.3, 6.6, 100.1], (2, 500))
    points = Points(np.arange(500.0), positives + negatives, positives)
    folded = FoldedPoints(layout_of([part_totals(points)]), 3, 0, heaviest)
    for fold in range(3):
        for own in folded.split(points, fold):
            assert own.weight.min() > 1e-6
            assert (own.positives >= 0).all()
            assert (own.positives <= own.weight).all()
    total = sum(folded.split(points, fold)[1].weight.sum() for fold in range(3))
    assert total == pytest.approx(points.weight.sum(), rel=1e-12)


def test_rows_of_logs_with_sampling_weights_are_held_out_whole(place, call):
    """In the command, from several files, and in the choice of auto."""
    score, label, weight = unrelated(0, ties=False)
    place.write_log({"score": score, "label": label, "w": weight}, files=7)
    settings = ["log.weight=w", "log.weights=sampling"]
    methods = ["compare.methods=[platt, histogram]", "compare.params={histogram: {bins: 200}}"]
    one = place.job("compare", "--json", *settings, *methods).expect(0).json
    points = collapse(score, label, weight)
    sampling = Sampling(heaviest=weight.max())
    calibrators = {"platt": Platt(), "histogram": HistogramBinning(bins=200)}
    rows = cross_validate(points, calibrators, sampling=sampling)
    for method in rows.methods:
        found = one["methods"][method.name]["estimates"]["brier"]["mean"]
        assert found == pytest.approx(method.estimates["brier"].mean, rel=1e-9)
    candidates = "calibrator.params={candidates: [platt, isotonic]}"
    call("fit", *settings, "calibrator.method=auto", candidates).expect(0)
    manifest = place.manifest()
    losses = Auto(["platt", "isotonic"]).fit_points(points, sampling).cross_validated_log_loss_
    assert manifest["data"]["cross_validated_log_loss"] == pytest.approx(losses, rel=1e-9)


# In memory


def test_frames_of_all_makes_are_compared(place):
    random = np.random.default_rng(0)
    score, drawn = random.random(2000), random.random(2000)
    label = [bool(d < s**2) if i > 30 else None for i, (d, s) in enumerate(zip(drawn, score, strict=True))]
    country = random.choice(["at", "de"], 2000).tolist()
    # Positives for one more than the five folds: too few to have two in each.
    country[31:37] = ["fr"] * 6
    label[31:37] = [True] * 6
    for i in [i for i in range(100, 2000) if label[i] is False][:15]:
        country[i] = "fr"
    columns = {"s": score, "y": label, "country": country}
    with pytest.warns(UserWarning, match="31 rows without a label were left out"):
        found = logcal.compare(columns, score="s", label="y", segments="country")
    place.write_log({"score": score, "label": label})
    job = place.job("compare", "--json").expect(0).json
    for method in found.all_rows.methods:
        for name, estimate in method.estimates.items():
            of_job = job["methods"][method.name]["estimates"][name]["mean"]
            assert estimate.mean == pytest.approx(of_job, rel=1e-12)
    assert found.best == job["best"]
    own = [i for i in range(31, 2000) if country[i] == "de"]
    alone = {name: [values[i] for i in own] for name, values in columns.items()}
    assert logcal.compare(alone, score="s", label="y").all_rows == found.segments["de",]
    assert (list(found.segments), found.too_few) == ([("at",), ("de",)], (("fr",),))
    assert found.table().num_rows == 3 * (len(calibrators.COMPARED) + 1)
    assert repr(found).startswith(job["headline"])
    methods = {"isotonic": Isotonic(), "platt": Platt()}
    with pytest.warns(UserWarning, match="left out"):
        of_dict, *others = (
            logcal.compare(kind(columns), score="s", label="y", segments="country", methods=methods)
            for kind in (dict, pd.DataFrame, pl.DataFrame, pa.table)
        )
    for one in others:
        assert (one.all_rows, one.segments) == (of_dict.all_rows, of_dict.segments)
    named = logcal.compare(alone, score="s", label="y", methods=list(methods))
    assert named.all_rows == logcal.compare(alone, score="s", label="y", methods=methods).all_rows
    with pytest.raises(ConfigError, match=r"methods: .*names among isotonic.*found 'isotnic'"):
        logcal.compare(alone, score="s", label="y", methods=["isotnic"])


def test_what_cannot_be_compared_is_said():
    frame = {"score": [2.0, 0.1] * 20, "label": [0, 1] * 20}
    assert "bbq was left out" in repr(logcal.compare(frame))
    with pytest.raises(ConfigError, match="expected a frame with the column 'p', found none"):
        logcal.compare(frame, score="p")
    with pytest.raises(ConfigError, match="methods: no method is left"):
        logcal.compare(frame, methods={"beta": logcal.Beta()})
    with pytest.raises(InputRejectedError, match="expected at least twice as many observations of each"):
        logcal.compare({name: values[:10] for name, values in frame.items()})
    with pytest.raises(InputRejectedError, match="the rows do not suit the comparison"):
        logcal.compare(frame | {"label": ["a", "b"] * 20})
