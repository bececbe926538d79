"""The evaluation on real score tables, in any number of parts, and the sentences that say what changed."""

import html
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from common import evaluate, over, simulated, write_log, write_lookup
from scipy.special import rel_entr

from calibrators import CalibrationMap, Isotonic, Points, collapse
from calibrators.core.passes import run_passes
from calibrators.measures.assessment import MEASURES, Assessment, Measures
from calibrators.measures.certainty import error_bar_passes
from calibrators.measures.in_memory import assess, assess_points
from calibrators.measures.reliability_curve import reliability_curve
from jobs.config.sections import REQUIRABLE
from logcal.displays.view import EXACT_ROWS, View
from logcal.errors import range_text
from pipeline.evaluate.evaluation import (
    MEASURE_LABELS,
    Evaluation,
    change_errors,
    changes,
    headline,
)
from pipeline.evaluate.report import render_report
from pipeline.evaluate.significance import chance_text, judge, required_values, unmet_requirements
from pipeline.execution import InlineExecutor
from pipeline.files.records import jsonable, to_json
from pipeline.fit.self_check import no_check
from pipeline.log.logs import Columns, open_log
from pipeline.pages.figures import number_text
from pipeline.pages.residual_figures import residual_figures
from pipeline.sort import run_files
from pipeline.sort.score_table import SortPlan, build_score_table
from pipeline.table.lookup_table import Predictor


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    score = rng.beta(0.6, 1.2, 6000).round(3)
    return score, (rng.random(6000) < score**1.7).astype(np.int8), rng.gamma(2.0, size=6000)


@pytest.fixture
def log(data, tmp_path):
    return write_log(tmp_path / "log", dict(zip(("score", "label", "weight"), data, strict=True)), 3)


def table_runner(log, folder, *, weight=None, bytes_each=2000, lookup=None):
    folder.mkdir()
    plan = SortPlan(folder, write=folder / "table", run_rows=1000, bucket_bytes=bytes_each, lookup=lookup)
    table, _ = build_score_table(open_log(log, Columns("score", "label", weight)), plan, InlineExecutor())
    return table, partial(table.run, executor=InlineExecutor())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_in_parts_gives_the_bits_of_memory(data, log, tmp_path, weighted, monkeypatch):
    monkeypatch.setattr(run_files, "SAMPLE_STRIDE", 16)
    score, label, weight = data
    weight = weight if weighted else None
    table, run = table_runner(log, tmp_path / "a", weight="weight" if weighted else None)
    assert len(table.parts) > 5
    assert [part.first for part in table.parts] == sorted(part.first for part in table.parts)
    fitted = Isotonic().fit(score[::2], label[::2]).calibration_map_
    found = evaluate(run, Predictor(write_lookup(tmp_path / "lookup.parquet", fitted)), rows=table.used)
    own = "weight" if weighted else None
    whole, run_whole = table_runner(log, tmp_path / "b", weight=own, bytes_each=1 << 20)
    assert len(whole.parts) == 1
    assert found == evaluate(run_whole, fitted, rows=table.used)
    assert found == evaluate(run_whole, fitted.predict, rows=table.used)
    positives = label if weight is None else label * weight
    ones = np.ones(score.size)
    for side, p in ((found.before, score), (found.after, fitted.predict(score))):
        expected = assess_points(
            Points(p, ones if weight is None else weight, positives), rows=score.size
        ).measures
        for name in MEASURE_LABELS:
            assert getattr(side.measures, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert found.before.weighted is weighted
    assert (found.rows, found.weight) == (6000, found.after.weight)


def test_a_map_that_decreases_needs_a_table_of_its_own(data, log, tmp_path):
    score, label, _ = data
    falling = CalibrationMap.from_bins(np.array([0.5]), np.array([0.8, 0.2]), np.ones(2), np.ones(2))
    _, run = table_runner(log, tmp_path / "a")
    with pytest.raises(ValueError, match="do not decrease"):
        evaluate(run, falling)
    lookup = write_lookup(tmp_path / "lookup.parquet", falling)
    _, run_after = table_runner(log, tmp_path / "b", lookup=lookup)
    found = evaluate(run, run_after=run_after, rows=6000)
    assert found.before == assess(label, score)
    assert found.after == assess(label, falling.predict(score))


def test_tables_of_different_rows_are_refused():
    def run_of(labels):
        return over(collapse(np.linspace(0, 1, len(labels)), labels))

    with pytest.raises(ValueError, match=r"same rows, found positives 1\.0 before and 2\.0 after"):
        evaluate(run_of([0, 1, 0]), run_after=run_of([1, 1, 0]))


def measured(**values):
    return replace(Measures(**dict.fromkeys(MEASURES, 0.5)), **values)


def beside(before, after):
    """An evaluation that knows measures and nothing else."""
    sides = [
        Assessment(1.0, 0.5, False, 0.0, 1.0, 0.5, measures, (), (), None) for measures in (before, after)
    ]
    return Evaluation(None, *sides)


def test_a_change_is_better_or_worse_beyond_its_error():
    """Beside the paired differences of the rows."""
    random = np.random.default_rng(0)
    x = random.normal(-1, 1.2, 20_000)
    label = random.random(x.size) < 1 / (1 + np.exp(-x))
    score = 1 / (1 + np.exp(-1.3 * x - 0.2))
    points = collapse(score, label)
    found = evaluate(
        over(points), lambda p: 1 / (1 + np.exp(-(np.log(p / (1 - p)) - 0.2) / 1.3)), rows=x.size
    )
    errors = change_errors(found)
    a = 1 / (1 + np.exp(-x))
    losses = [[(p - label) ** 2, -np.log(np.where(label, p, 1 - p))] for p in (score, a)]
    for name, before, after in zip(("brier", "log_loss"), *losses, strict=True):
        expected = np.std(after - before) / np.sqrt(x.size)
        assert errors[name] == pytest.approx(expected, rel=0.15)
    verdicts = {change.name: change.verdict for change in changes(found)}
    assert verdicts["log_loss"] == verdicts["ece_frequency"] == "better"
    # A bin of few rows says little: its own error counts, not that of the groups of equally many rows.
    fewest = min((group for group in found.after.by_width if group.weight), key=lambda group: group.weight)
    p = fewest.mean_prediction
    assert errors["mce_width"] >= 0.9 * np.sqrt(p * (1 - p) / fewest.weight)
    assert errors["mce_width"] > 2 * errors["mce_frequency"]
    assert verdicts["auc"] == "unchanged"
    # A map that is a little off on few rows is not measurably worse.
    few = collapse(a[:500], label[:500])
    found = evaluate(over(few), lambda p: np.clip(p * 1.02, 0, 1), rows=500)
    verdicts = {change.name: change.verdict for change in changes(found)}
    assert {verdicts[name] for name in ("brier", "log_loss", "ece_frequency")} <= {
        "may be chance",
        "unchanged",
    }
    assert headline(found).startswith("Calibration changed little")


def test_each_measure_can_be_shown_and_required():
    assert sorted(MEASURE_LABELS) == sorted(MEASURES)
    assert set(MEASURES) <= set(REQUIRABLE)


def test_changes_know_which_direction_is_better():
    before = measured(log_loss=math.inf, auc=0.8, brier=0.2, rmse=None)
    after = measured(log_loss=0.3, auc=0.7, brier=0.1, accuracy=0.50004)
    found = {change.name: change for change in changes(beside(before, after))}
    assert list(found) == list(MEASURE_LABELS)
    verdicts = {name: change.verdict for name, change in found.items()}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "unchanged"} == {
        "log_loss": "better",
        "brier": "better",
        "rmse": "",
        "auc": "worse",
    }
    assert found["log_loss"].difference is None
    assert found["auc"].difference == pytest.approx(-0.1)
    both = changes(beside(measured(log_loss=math.inf), measured(log_loss=math.inf)))
    assert [c.verdict for c in both if c.name == "log_loss"] == ["unchanged"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.145, 0.009, "off by 14.5 percentage points on average; after calibration, by 0.90."),
        (0.01, 0.02, "made the probabilities worse: they lie 2.0 percentage points"),
        (0.01, 0.01, "changed little: the probabilities lie 1.0 percentage points"),
        (None, 0.01, "The scores are not probabilities; calibrated, they are probabilities that lie 1.0"),
        (0.01, None, "are not probabilities"),
    ],
)
def test_the_headline_says_what_changed(before, after, said):
    assert said in headline(beside(measured(ece_frequency=before), measured(ece_frequency=after)))


def test_the_run_document_is_strict_json():
    points = collapse([0.0, 0.2, 0.7, 0.7], [1, 0, 1, 0])
    steps = CalibrationMap.from_bins(np.array([0.5]), np.array([0.5, 0.5]), np.ones(2), np.ones(2))
    found = evaluate(over(points), steps, rows=4)
    assert found.before.measures.log_loss == math.inf
    facts = {"path": Path("a/b"), "seconds": np.float64(1.5), "limit": math.inf, "n": {1: ("a", None)}}
    document = json.loads(
        to_json({"facts": facts, "evaluation": found.as_dict()}), parse_constant=pytest.fail
    )
    expected = {"path": "a/b", "seconds": 1.5, "limit": "Infinity", "n": {"1": ["a", None]}}
    assert document["facts"] == expected
    before = document["evaluation"]["before"]
    assert before["measures"]["log_loss"] == "Infinity"
    assert "probability 0" in before["measures"]["reasons"]["log_loss"]
    assert len(before["by_width"]) == 10
    assert sum(before["histogram"]["weight"]) == 4
    assert document["evaluation"]["rows"] == 4
    assert jsonable(found)["rows"] == 4


# What an evaluation concludes, requires and compares with


def bars(p, label):
    order = np.argsort(p, kind="stable")
    points = Points(p[order], np.ones(p.size), label[order].astype(np.float64))
    return run_passes(error_bar_passes(), over(points))


def judged(p, label):
    return judge(assess(label, p), bars(p, label))


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
    found = required_values(assess(label, p), bars(p, label))
    assert found["calibration_in_the_large"] == pytest.approx(p.mean() - label.mean())
    assert found["log_ratio"] == pytest.approx(math.log(label.sum() / p.sum()))
    kept = {"ece_frequency": 0.5, "auc": 0.5, "calibration_in_the_large": 0.5}
    assert unmet_requirements(kept, found) == []
    wanted = {"auc": 0.99, "calibration_in_the_large": 0.01, "log_loss": 0.1}
    said = unmet_requirements(wanted, found)
    assert len(said) == 3
    assert said[0].startswith("auc: expected at least 0.99, found 0.")
    assert said[1].startswith("calibration_in_the_large: expected at most 0.01, found -0.")
    assert unmet_requirements({"log_loss": 1e300}, {"log_loss": math.inf}) == [
        "log_loss: expected at most 1e+300, found inf"
    ]
    assert unmet_requirements({"auc": 0.5}, {"auc": None}) == ["auc: expected at least 0.5, found none"]


@pytest.fixture
def fitted(fitted):
    """A table, and a log of the day after."""
    fitted.write_log(fitted.predictions(seed=1), name="new")
    return fitted


def document(folder):
    return json.loads((folder / "run.json").read_text())


def test_the_fits_own_rows_are_said_or_refused(fitted, call):
    refused = call("evaluate", "evaluate.allow_in_sample=false")
    refused.expect(4, "In sample: All rows are in files", "Or evaluate before the fit")
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


def test_what_is_required_and_not_so_is_exit_4_each_time(fitted, call):
    wanted = "evaluate.require={ece_frequency: 1.0e-9, auc: 0.5}"
    paths = {"log__path": fitted.root / "new"}
    call("evaluate", wanted, **paths).expect(4, "evaluate.require: ece_frequency: expected at most 1e-09")
    assert document(fitted.output)["failed"][0].startswith("ece_frequency")
    assert "Not as required" in (fitted.output / "report.html").read_text()
    call("evaluate", wanted, **paths).expect(4, "ece_frequency: expected at most 1e-09")
    call("evaluate", "evaluate.require={eec: 1}", **paths).expect(2, "evaluate.require", "found 'eec'")


def evaluated(fitted, call, name, *settings, log="new"):
    """An evaluation of the day after, into a folder of its own."""
    paths = {"log__path": fitted.root / log, "output__path": fitted.root / name}
    return call("evaluate", "--json", *settings, **paths)


def test_versions_are_compared_on_the_same_rows(fitted, call):
    first = fitted.current
    alone = evaluated(fitted, call, "alone", "evaluate.against=previous")
    old = alone.expect(0, "has no previous one to compare with").json
    call("fit", "calibrator.method=histogram", "calibrator.params={bins: 2}").expect(0)
    done = evaluated(fitted, call, "two", "evaluate.against=previous").expect(0).json
    named = evaluated(fitted, call, "3", f"evaluate.against={first}").expect(0).json
    assert done["comparison"] == named["comparison"]
    loss = done["comparison"]["log_loss"]
    assert loss["old"] == pytest.approx(old["after"]["log_loss"], rel=1e-12)
    assert loss["new"] == pytest.approx(done["after"]["log_loss"], rel=1e-12)
    assert loss["error"] > 0
    page = (fitted.root / "two" / "report.html").read_text()
    assert "On the same rows the log loss of this version is" in page


def test_the_raw_score_to_compare_with(fitted, call):
    done = evaluated(fitted, call, "raw", "evaluate.against=raw").expect(0).json
    assert done["comparison"]["log_loss"]["old"] == pytest.approx(done["before"]["log_loss"], rel=1e-12)
    margins = fitted.predictions(seed=1)
    fitted.write_log({**margins, "score": 5 * margins["score"]}, name="margins")
    refused = evaluated(fitted, call, "m", "evaluate.against=raw", log="margins")
    refused.expect(3, "expected raw scores in [0, 1]")


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
    assert "than chance explains: 2 before calibration, 1 after. Small" in " ".join(page.split())
    assert "are shown <a" in page


def test_segments_of_margins_have_no_errors_before_calibration(place, call):
    columns = place.predictions(6000)
    place.write_log(
        {**columns, "score": 9 * columns["score"] - 3, "country": np.array(["at", "be"])[np.arange(6000) % 2]}
    )
    call("fit", "log.segment=country").expect(0)
    done = call("evaluate", "evaluate.allow_in_sample=true").expect(0)
    assert "errors beyond chance: 0 after\n" in done.stdout
    page = (place.output / "report.html").read_text()
    assert "than chance explains: 0 after" in " ".join(page.split())
    assert "are shown <a" not in page


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
    assert "In sample" not in page  # rows that no fit has seen


# The report as its reader gets it

FACTS = {"note": "<script>alert(1)</script>", "Log": {"path": "a & b", "rows_used": 12345, "parts": []}}


def evaluation_of(score, label, one, weight=None):
    positives = label if weight is None else label * weight
    before, after = (
        assess_points(Points(p, np.ones(p.size) if weight is None else weight, positives), rows=score.size)
        for p in (score, one.predict(score))
    )
    return Evaluation(score.size, before, after)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(3)
    score = rng.beta(0.5, 1.0, 3000)
    label = (rng.random(3000) < score**2).astype(float)
    fitted = Isotonic().fit(score[::2], label[::2]).calibration_map_
    return evaluation_of(score[1::2], label[1::2], fitted), fitted


@pytest.fixture(scope="module")
def page(case):
    return render_report(*case, FACTS)


def words(page):
    """What is read, without tags."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def references(page):
    """What attributes and styles refer to."""
    found = re.findall(r'\b(?:href|src|action|data|poster|srcset)="([^"]*)"', page)
    return {*found, *re.findall(r"url\(([^)]*)\)", page)}


def drawings(page):
    return [ET.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


def test_nothing_outside_the_page_is_needed_and_every_reference_arrives(page):
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 20
    assert references(page) <= {f"#{name}" for name in ids}
    tags = set(re.findall(r"<([a-z]+)", page))
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert "@import" not in page


def test_figures_are_labelled_and_scale(page):
    found = drawings(page)
    assert len(found) == 8
    for svg in found:
        assert svg.get("role") == "img"
        assert len(svg.get("aria-label")) > 20
        assert svg.get("viewBox")
        assert svg.get("width") is None
        assert svg.get("height") is None
    labels = [svg.get("aria-label") for svg in found]
    assert len(set(labels)) == len(labels)


def test_measures_are_shown_before_and_after(case, page):
    evaluation, _ = case
    said = words(page)
    for label in MEASURE_LABELS.values():
        assert label in said
    for side in (evaluation.before, evaluation.after):
        for name in ("ece_width", "brier", "auc"):
            assert f"{getattr(side.measures, name):.4f}" in said
    assert "Measured on 1,500 rows" in said
    assert f"{evaluation.before.by_width[0].weight:,.0f}" in said


@pytest.mark.parametrize(
    ("value", "text"), [(12.0, "12"), (8.4541, "8.454"), (27067.8, "27,068"), (9e20, "9e+20")]
)
def test_sums_are_written_without_a_power_of_ten(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.25, 0.5, "from 0.25 to 0.5"), (0.5, 0.50001, "from 0.5 to 0.50001"), (0.1, 0.1, "from 0.1 to 0.1")],
)
def test_two_scores_are_written_so_that_they_differ(low, high, text):
    assert range_text(low, high) == text


@pytest.mark.parametrize(
    ("positives", "badge", "headline"),
    [
        (210, "within chance", "within chance"),
        (231, None, "chance rarely"),
        (244, "too low", "beyond chance"),
        (300, "too low", "beyond chance"),
    ],
)
def test_totals_are_within_chance_only_where_the_headline_says_so(positives, badge, headline):
    constant = CalibrationMap.from_bins(np.array([0.5]), np.array([0.2, 0.2]), np.ones(2), np.zeros(2))
    rows = np.arange(1000)
    label = (rows * positives % 1000 < positives).astype(float)
    found = replace(evaluation_of(rows / 1000, label, constant), bars_after=bars(np.full(1000, 0.2), label))
    page = render_report(found, constant, {})
    badges = [
        re.findall(r'class="badge[^>]*>([^<]*)<', tile)
        for tile in re.findall(r'class="tile">\s*<div class="tile-label">.*?tile-hint', page, re.DOTALL)
    ]
    in_groups = "beyond chance" if badge == "too low" else "within chance"
    assert badges == [[badge] if badge else [], [in_groups], [], []]
    assert headline in words(page)


def residual_texts(page):
    """Tooltips of the figures of the residuals."""
    return [
        title.text
        for svg in drawings(page)
        if svg.get("aria-label").startswith("Residuals of the fit")
        for title in svg.iter("{http://www.w3.org/2000/svg}title")
    ]


def deviance_root(weight, observed, expected):
    positives, negatives = rel_entr(observed, expected), rel_entr(weight - observed, weight - expected)
    return np.sign(observed - expected) * np.sqrt(2 * (positives + negatives))


@pytest.mark.parametrize(("method", "wrong"), [("platt", True), ("isotonic", False)])
def test_residuals_of_the_fit_are_drawn_in_standard_errors(place, call, method, wrong):
    score = np.random.default_rng(3).random(20_000)
    truth = np.where((score > 0.5) & (score < 0.7), 0.1, score)
    label = (np.random.default_rng(7).random(score.size) < truth).astype(np.int8)
    place.write_log({"score": score, "label": label})
    red = "fill: var(--bad"
    call("fit", f"calibrator.method={method}", "gate.agreement=false").expect(0)
    call("evaluate", "evaluate.allow_in_sample=true").expect(0)
    page = (place.output / "report.html").read_text()
    ranges = place.newest_manifest["agreement"]["ranges"]
    profile = ranges["profile"]
    texts = residual_texts(page)
    assert len(texts) == len(profile["weight"]) > 10
    for i, text in enumerate(texts):
        low, high = profile["first_score"][i] or 0.0, profile["last_score"][i] or 1.0
        inside = (low <= score) & (score <= high)
        assert f"{label[inside].sum():,} positives of {inside.sum():,}" in text
        root = deviance_root(inside.sum(), label[inside].sum(), profile["expected"][i])
        errors = root / np.sqrt(ranges["dispersion"])
        assert float(re.search(r"\(([-+.0-9]+) standard errors", text)[1]) == pytest.approx(errors, abs=0.051)
    figure = re.search(r"<svg[^>]*aria-label=\"Residuals.*?</svg>", page, re.DOTALL)[0]
    assert (red in figure) is wrong
    assert ("Red: the check found a misfit" in words(page)) is wrong


def test_residuals_of_segments_stand_in_a_table(place, call):
    columns = place.predictions(6000)
    place.write_log({**columns, "country": np.array(["$x_1$", "be", None], object)[np.arange(6000) % 3]})
    call("fit", "log.segment=country").expect(0)
    call("evaluate", "log.segment=country", "evaluate.allow_in_sample=true").expect(0)
    largest = place.newest_manifest["agreement"]["levels"][0]["most_informative"]
    assert len(largest) == 3
    page = (place.output / "report.html").read_text()
    texts = residual_texts(page)[-3:]
    rows = re.search(r'aria-label="Residuals of the segments".*?</table>', page, re.DOTALL)[0]
    for i, (text, row) in enumerate(zip(texts, largest, strict=True)):
        name = row["segment"][0] or "null"
        assert text.startswith(f"{name}: {row['positives']:,.0f} positives of 2,000, expected ")
        assert f"{i + 1} {name} 2,000 {row['positives']:,.0f} " in words(rows)


@pytest.mark.parametrize(
    ("named", "count", "root", "sentence"),
    [
        ([], 0, 1.0, "The check found no misfit."),
        # The manifest names five at most: of 40 the segment that is drawn may be one.
        ([], 40, 1.0, "The check found misfits in 40 segments, not marked here."),
        (
            [["a"]],
            41,
            9.0,
            (
                "Red: the check found a misfit there, perhaps of a wider range. The check found misfits in 40 more "
                "segments, not marked here. It found a misfit in all segments together, too."
            ),
        ),
    ],
)
def test_misfits_that_are_only_counted_are_said(named, count, root, sentence):
    row = {"segment": ["a"], "weight": 100.0, "positives": 10.0, "expected": 12.0}
    level = {
        "most_informative": [row],
        "misfits": [{"segment": name} for name in named],
        "segments_with_misfits": count,
        "all_by_score": {"deviance_residual": root, "limit": 4.0},
        "all_by_size": None,
        "largest": None,
        "tests": 9,
    }
    found = residual_figures({"ranges": None, "levels": [level]})
    assert found["sentence"] == sentence


def test_ranges_without_ends_and_sums_are_drawn_as_far_as_they_can_be():
    profile = {
        "first_score": [None, 0.5, 0.75],
        "last_score": [0.4, 0.7, None],
        "weight": [100.0, 100.0, None],
        "positives": [10.0, 60.0, 1.0],
        "expected": [12.0, 30.0, 1.0],
    }
    misfit = {"first_score": 0.5, "last_score": 0.7}
    ranges = {"profile": profile, "misfits": [misfit], "dispersion": 4.0, "largest": None, "tests": 9}
    found = residual_figures({"ranges": ranges, "fallback": None, "before_fallback": None})
    assert (found["ranges"], found["segments"]) == (2, [])
    assert found["sentence"] == "Red: the check found a misfit there, perhaps of a wider range."
    assert "nan" not in found["svgs"][0]
    assert f"{deviance_root(100, 60, 30) / 2:+.1f} standard errors" in found["svgs"][0]
    assert "Scores up to 0.4: 10 positives of 100, expected 12 (" in found["svgs"][0]
    assert "−∞" in found["svgs"][0]
    assert residual_figures(None) is residual_figures(no_check()) is None


def test_the_same_page_every_time(case, page):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 22, "svg.fonttype": "path", "axes.grid": True}):
        assert render_report(*case, FACTS).partition("</time>")[2] == page.partition("</time>")[2]
        assert mpl.rcParams["font.size"] == 22


def test_scores_that_are_not_probabilities_have_an_after_side_only():
    rng = np.random.default_rng(4)
    score = rng.normal(0, 3, 800)
    label = (rng.random(800) < 1 / (1 + np.exp(-score))).astype(float)
    fitted = Isotonic().fit(score, label).calibration_map_
    page = render_report(evaluation_of(score, label, fitted), fitted, {})
    assert len(drawings(page)) == 5
    said = words(page)
    assert "The scores are not probabilities;" in said
    assert f"{len(MEASURES) - 1} measures before calibration: not taken, because scores from -" in said
    assert "they are not shown before calibration" in said


def test_an_infinite_log_loss_is_explained():
    score, label = np.array([0.1, 0.2, 0.8, 0.9]), np.array([1.0, 0, 1, 1])
    steps = CalibrationMap.from_bins(np.array([0.5]), np.array([0.0, 1.0]), np.ones(2), np.ones(2))
    page = render_report(evaluation_of(score, label, steps), steps, {})
    said = words(page)
    assert "∞" in said
    assert "infinite, because rows of weight 1 have a label that was given probability 0" in said
    assert "inf " not in said
    assert "nan" not in said.lower().split()


def test_large_maps_are_thinned():
    edges = np.linspace(0.0, 1.0, 20_001)[1:-1]
    level = np.linspace(0, 1, 20_000)
    fine = CalibrationMap.from_bins(edges, level, np.ones(20_000), np.zeros(20_000))
    score = np.linspace(0.01, 0.99, 300)
    page = render_report(evaluation_of(score, (score > 0.5).astype(float), fine), fine, {})
    assert "drawn at 1,500 places" in words(page)
    assert len(page) < 600_000
    for view in (View(0.0, 1.0), View(1e-4, 1 - 1e-4, logit_axes=True)):
        x = view.corners(fine)
        assert x.size == EXACT_ROWS
        assert (x[0], x[-1]) == (view.low, view.high)


@pytest.mark.parametrize("scores", [[0.5, 0.5], [1e308, -1e308], [0.0, 1.0], [-5.0, -5.0], [1e-300, 1.0]])
def test_extreme_scores_can_be_drawn(scores):
    points = collapse(scores, [0, 1])
    fitted = Isotonic().fit_points(points).calibration_map_
    page = render_report(evaluation_of(points.score, points.positives, fitted), fitted, {})
    assert "nan" not in " ".join(re.findall(r'\bd="([^"]*)"', page)).lower()
    assert all(list(svg) for svg in drawings(page))


def test_the_reliability_diagram_is_the_display_where_rows_were_not_sampled():
    score, label = simulated(400, 8, decimals=2)
    label = label.astype(float)
    fitted = Isotonic().fit(score, label).calibration_map_
    points = collapse(score, label)

    run = over(points)
    found = evaluate(run, fitted)
    expected = reliability_curve(points)
    drawn = found.certainty_before.decomposition.reliability
    np.testing.assert_allclose(drawn.predicted, expected.predicted)
    np.testing.assert_allclose(drawn.observed, expected.observed)
    said = words(render_report(found, fitted, {}))
    assert "it needs no bins" in said
    assert f"MCB {expected.miscalibration:.4f}" in said
    sampled = evaluate(run, fitted, sampling_rate=0.5)
    said = words(render_report(sampled, fitted, {}))
    assert "Bins of equal width." in said
    assert "MCB" not in said


@pytest.mark.parametrize(
    ("difference", "text"), [(1.9, "may explain it"), (-2.1, "beyond chance"), (2.1, "beyond")]
)
def test_two_standard_errors_are_beyond_chance(difference, text):
    assert text in chance_text(difference, 1.0)
