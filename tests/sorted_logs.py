"""Sorted logs without and with segments, and a plain loop over segments to compare with."""

import numpy as np

from calibrators import Points
from pipeline.days.source import Source
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import make_calibrator
from pipeline.sort.score_table import SortedRows
from tests.common import ANY_TABLE, run_job


class Shuffled(InlineExecutor):
    """Runs tasks in another order, as several workers do."""

    def run(self, stage, function, tasks):
        results = [None] * len(tasks)
        for i in np.random.default_rng(len(tasks)).permutation(len(tasks)):
            results[i] = function(*tasks[i])
        return results


def sorted_rows(log, plan, executor):
    """A log's rows, sorted."""
    return SortedRows(log, plan, Source(log).sort(plan, executor).total)


def points_of(table) -> Points:
    parts = [part.read() for part in table.parts]
    return Points(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def assert_same(a, b):
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, other)


def reason_of(rules, rows, positives):
    """Why a segment of so many rows has no map of its own, None where it has one; the first that holds."""
    tests = [
        ("min_rows", rows < rules.min_rows and not rules.partial_pooling),
        ("one_class", positives in (0, rows)),
        ("min_positives", positives < rules.min_positives),
        ("min_negatives", rules.partial_pooling and rows - positives < rules.min_positives),
    ]
    return next((name for name, holds in tests if holds), None)


def without_refits(patch):
    """Keep maps that the rows of their users contradict, as the plain loop does."""
    patch.setattr("pipeline.fit.segment_fit.fit_bent_parents", lambda *_: 0)
    patch.setattr("pipeline.fit.segment_fit.bends_all_rows", lambda *_: False)


def maps_of_segments(score, label, weight, keys, rules, method="isotonic", params=None):
    """A plain loop over the segments of every level: key -> map, line or reason. keys : of rows."""
    calibrator = make_calibrator(method, params or {})
    for_segments = calibrator.for_segments().in_lines(falling=True)
    found = {}
    for level in range(len(keys[0]) + 1):
        own = [key[:level] for key in keys]
        for key in set(own):
            at = np.array([other == key for other in own])
            reason = reason_of(rules, at.sum(), label[at].sum())
            if reason is None and np.unique(score[at] + 0.0).size == 1:
                reason = "one_score"
            if reason is not None:
                found[key] = reason
                continue
            # Of all rows there is a map in any case.
            fitted = for_segments if key else calibrator
            fitted.fit(score[at], label[at], None if weight is None else weight[at])
            found[key] = fitted.line_ or fitted.calibration_map_
    return found


def run(job, root, **sections):
    """Run a job on a log with two segment columns, in this process; returns its summary."""
    content = {
        "log": {"path": root / "log", "segment": ["a", "b"]},
        "store": {"path": root / "store", "table": "t"},
    }
    if job == "fit":
        content |= {"gate": ANY_TABLE, "scratch": root}
    return run_job(
        job, **content | {name: {**content.get(name, {}), **own} for name, own in sections.items()}
    )
