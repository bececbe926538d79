"""The report as its reader gets it: one page, complete, the same every time; and the figures' geometry."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from common import evaluate, over, python

from calibrators import CalibrationMap, Isotonic
from calibrators.arithmetic.passes import collapse
from calibrators.measures.predictions import assess
from calibrators.measures.reliability_curve import reliability_curve
from logcal.displays.view import EXACT_ROWS, View
from pipeline.evaluate.evaluation import MEASURE_FACTS, Evaluation
from pipeline.evaluate.report import render_report

FACTS = {"note": "<script>alert(1)</script>", "Log": {"path": "a & b", "rows_used": 12345, "parts": []}}


def evaluation_of(score, label, calibration_map, weight=None):
    positives = label if weight is None else label * weight
    before, after = (
        assess(p, weight, positives, rows=score.size) for p in (score, calibration_map.predict(score))
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


class Page(HTMLParser):
    """Ids, references, tags and visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.tags, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("href", "src", "xlink:href", "action", "data", "poster", "srcset"):
                self.references.append(value)

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def drawings(page):
    return [ET.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


def test_nothing_outside_the_page_is_needed(page):
    parsed = Page(page)
    assert all(reference.startswith("#") for reference in parsed.references)
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []


def test_ids_occur_once_and_every_reference_arrives(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    used = set(parsed.references) | {f"#{name}" for name in re.findall(r"url\(#([^)]*)\)", page)}
    assert {reference[1:] for reference in used} <= set(parsed.ids)


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


def test_facts_are_shown_as_text(page):
    parsed = Page(page)
    assert "<script>alert(1)</script>" in parsed.words
    assert "<script" not in page
    for shown in ("a & b", "rows used", "12,345", "none"):
        assert shown in parsed.words


def test_measures_are_shown_before_and_after(case, page):
    evaluation, _ = case
    words = Page(page).words
    for facts in MEASURE_FACTS.values():
        assert facts.label in words
    for side in (evaluation.before, evaluation.after):
        for name in ("ece_width", "brier", "auc"):
            assert f"{getattr(side.measures, name):.4f}" in words
    assert "Measured on 1,500 rows" in words
    assert f"{evaluation.before.by_width[0].weight:,.0f}" in words


def test_the_same_page_every_time(case, page):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 22, "svg.fonttype": "path", "axes.grid": True}):
        assert render_report(*case, FACTS) == page
        assert mpl.rcParams["font.size"] == 22


def test_scores_that_are_not_probabilities_have_an_after_side_only():
    rng = np.random.default_rng(4)
    score = rng.normal(0, 3, 800)
    label = (rng.random(800) < 1 / (1 + np.exp(-score))).astype(float)
    fitted = Isotonic().fit(score, label).calibration_map_
    page = render_report(evaluation_of(score, label, fitted), fitted, {})
    assert len(drawings(page)) == 5
    words = Page(page).words
    assert "8 measures before calibration: not taken, because scores from -" in words
    assert "they are not shown before calibration" in words


def test_an_infinite_log_loss_is_explained():
    score, label = np.array([0.1, 0.2, 0.8, 0.9]), np.array([1.0, 0, 1, 1])
    steps = CalibrationMap.from_bins(np.array([0.5]), np.array([0.0, 1.0]), np.ones(2), np.ones(2))
    page = render_report(evaluation_of(score, label, steps), steps, {})
    words = Page(page).words
    assert "∞" in words
    assert "infinite, because rows of weight 1 have a label that was given probability 0" in words
    assert "inf " not in words
    assert "nan" not in words.lower().split()


def test_weights_are_spoken_of(case):
    evaluation, fitted = case
    rng = np.random.default_rng(6)
    score = rng.random(500)
    weighted = evaluation_of(score, (score > 0.6).astype(float), fitted, rng.gamma(2.0, size=500))
    assert "Kish" in Page(render_report(weighted, fitted, {})).words
    assert "Kish" not in Page(render_report(evaluation, fitted, {})).words


def test_large_maps_are_thinned():
    edges = np.linspace(0.0, 1.0, 20_001)[1:-1]
    level = np.linspace(0, 1, 20_000)
    fine = CalibrationMap.from_bins(edges, level, np.ones(20_000), np.zeros(20_000))
    score = np.linspace(0.01, 0.99, 300)
    page = render_report(evaluation_of(score, (score > 0.5).astype(float), fine), fine, {})
    assert "drawn at 1,500 places" in Page(page).words
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
    random = np.random.default_rng(8)
    score = random.random(400).round(2)
    label = (random.random(400) < score).astype(float)
    fitted = Isotonic().fit(score, label).calibration_map_
    points = collapse(score, label)

    run = over(points)
    found = evaluate(run, fitted)
    expected = reliability_curve(points)
    drawn = found.certainty_before.decomposition.reliability
    np.testing.assert_allclose(drawn.predicted, expected.predicted)
    np.testing.assert_allclose(drawn.observed, expected.observed)
    words = Page(render_report(found, fitted, {})).words
    assert "it needs no bins" in words
    assert f"MCB {expected.miscalibration:.4f}" in words
    sampled = evaluate(run, fitted, sampling_rate=0.5)
    words = Page(render_report(sampled, fitted, {})).words
    assert "Bins of equal width." in words
    assert "MCB" not in words


@pytest.mark.system
def test_a_command_that_ends_early_waits_for_what_it_imports_meanwhile():
    """A thread that is stopped amid a library of C++ aborts the process."""
    code = """
import time
from pipeline.evaluate import report
report._import = lambda: (time.sleep(0.2), print("imported"))
report.import_meanwhile()
raise SystemExit(3)
"""
    done = python(code, ends=3)
    assert (done.stdout, done.stderr) == ("imported\n", "")
