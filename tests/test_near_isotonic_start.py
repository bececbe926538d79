"""Paths that begin at a lambda > 0, from parts merged apart, against paths of all runs."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import assert_same_map, cut, wave
from hypothesis import given
from hypothesis import strategies as st

from calibrators._kernels import near_isotonic_tree as tree
from calibrators.arithmetic.label_runs import join_runs, part_runs
from calibrators.arithmetic.passes import Points, collapse
from calibrators.methods import enir
from calibrators.methods.enir import ENIR, penalty_of
from calibrators.methods.near_isotonic_regression import (
    NearIsotonic,
    join_blocks,
    least_criterion,
    part_blocks,
    path_from,
)
from calibrators.methods.solution_path import NearIsotonicPath
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import fit_log
from pipeline.log.logs import Columns, open_log
from pipeline.sort.score_table import SortedRows, SortPlan


@st.composite
def cut_points(draw):
    """Points of one of several shapes, in parts."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(3, 400))
    score = generator.random(n)
    if draw(st.booleans()):
        score = np.round(score * draw(st.integers(2, n))) / n
    shape = draw(st.sampled_from(["noise", "rising", "waves", "falling"]))
    p = {"noise": np.full(n, 0.3), "rising": score, "waves": wave(score), "falling": 0.9 - 0.8 * score}[shape]
    weights = draw(st.sampled_from(["none", "whole", "real"]))
    weight = {
        "none": None,
        "whole": generator.integers(1, 9, n).astype(float),
        "real": generator.lognormal(0.0, 1.0, n),
    }[weights]
    points = collapse(score, generator.random(n) < p, weight)
    parts = cut(points, draw(st.lists(st.integers(0, points.score.size), max_size=4)))
    return points, parts, weights != "real"


def path_of(points):
    return NearIsotonicPath.of_runs(join_runs([part_runs(points)]))


def assert_same(actual, expected, exact):
    for a, b in zip(actual, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@given(cut_points(), st.integers(1, 12))
def test_a_path_from_parts_goes_on_as_the_whole_one(case, keep):
    points, parts, exact = case
    whole = path_of(points)
    blocks = join_blocks([part_blocks(part, keep=keep) for part in parts])
    path = path_from(blocks)
    late = whole.breakpoints > path.start
    assert_same([path.breakpoints], [whole.breakpoints[late]], exact)
    np.testing.assert_array_equal(path.degrees_of_freedom, whole.degrees_of_freedom[late])
    for lam in [path.start, *path.breakpoints, 2 * path.start + 1, np.inf]:
        assert_same(path.solution(lam), whole.solution(lam), exact)


@given(cut_points(), st.integers(1, 12), st.sampled_from(["bic", "aic"]))
def test_no_model_below_the_start_beats_the_bound(case, keep, criterion):
    points, parts, _ = case
    whole = path_of(points)
    blocks = join_blocks([part_blocks(part, keep=keep) for part in parts])
    penalty = penalty_of(criterion, float(points.weight.sum()))
    bound = least_criterion(blocks, penalty)
    for lam, df in zip(whole.breakpoints, whole.degrees_of_freedom, strict=True):
        if lam > blocks.start:
            break
        _, weight, positives, level = whole.blocks(lam)
        criterion_here = penalty(np.array([df]))[0] - 2 * tree.log_likelihood(level, weight, positives)
        assert criterion_here >= bound - 1e-9 * abs(criterion_here)


@given(cut_points(), st.floats(0, 50) | st.sampled_from([0.0, 0.5, np.inf]))
def test_one_solution_from_parts(case, lam):
    points, parts, exact = case
    blocks = join_blocks([part_blocks(part, lam) for part in parts])
    assert_same(path_from(blocks, limit=lam).solution(lam), path_of(points).solution(lam), exact)


def test_one_solution_gathers_few_blocks():
    points = waves(200_000)
    blocks = part_blocks(points, 20.0)
    whole = path_of(points).solution(20.0)
    assert whole.level.size <= blocks.falls.size < 1.1 * whole.level.size + 50
    # In memory the calibrator goes the same way.
    fitted = NearIsotonic(lam=20.0, shrink=0).fit(points.score, points.positives)
    assert_same_map(fitted.calibration_map_, whole.calibration_map())


def waves(n, seed=1):
    generator = np.random.default_rng(seed)
    score = np.sort(generator.random(n))
    label = generator.random(n) < wave(score)
    return Points(score, np.ones(n), label.astype(float))


def test_enir_keeps_the_models_that_it_keeps_of_the_whole_path(caplog):
    points = waves(300_000)
    whole = enir.score(path_of(points), penalty_of("bic", 300_000.0))
    with caplog.at_level(logging.INFO, "logcal"):
        fitted = ENIR(shrink=0).fit(points.score, points.positives)
    assert "the path begins at lambda" in caplog.text
    for name in whole._fields:
        np.testing.assert_array_equal(getattr(fitted.models_, name), getattr(whole, name))


def test_enir_starts_again_with_more_blocks_where_the_path_began_too_late(tmp_path, monkeypatch, caplog):
    points = waves(20_000)
    whole = ENIR(shrink=0).fit(points.score, points.positives)
    pq.write_table(pa.table({"score": points.score, "label": points.positives}), tmp_path / "log.parquet")
    monkeypatch.setattr(enir, "KEEP", 16)
    passes = []
    original = enir.blocks_pass
    monkeypatch.setattr(enir, "blocks_pass", lambda keep: passes.append(keep) or original(keep=keep))
    log = open_log([str(tmp_path / "log.parquet")], Columns("score", "label", None))
    plan = SortPlan(tmp_path, run_rows=3000, bucket_bytes=50_000)
    with caplog.at_level(logging.INFO, "logcal"):
        fit = fit_log(ENIR(shrink=0), SortedRows(log, plan, None), InlineExecutor())
    assert passes[:2] == [16, 256]
    assert "times less likely" in caplog.text
    for name in whole.models_._fields:
        np.testing.assert_array_equal(getattr(fit.calibrator.models_, name), getattr(whole.models_, name))
    assert_same_map(fit.calibrator.calibration_map_, whole.calibration_map_)


def test_a_path_knows_nothing_below_its_start():
    path = path_from(part_start(waves(5000)))
    assert path.start > 0
    with pytest.raises(ValueError, match=r"lam: expected a number >= .* where this path begins"):
        path.solution(path.start / 2)


def part_start(points):
    return join_blocks([part_blocks(points, keep=8)])
