"""Mutants of the product, one at a time: the tests named beside each must fail.

    python tests/mutants.py              # all, on a clean tree, some minutes each: names those that live
    python tests/mutants.py suspect psi  # those whose file or change contains one of these words

A mutant is a line changed in place, which is restored afterwards. `make test` does not run this.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A change of a file, and the tests that must notice it: files and options of pytest."""

    path: str
    old: str
    new: str
    tests: str


def _mutants() -> list[Mutant]:
    return [Mutant(*line) for line in MUTANTS]


def main(words: list[str]) -> int:
    """Run the mutants; return the number of those that live or could not be made."""
    changed = subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode
    if changed:
        sys.exit("expected a clean tree: mutants change files in place")
    alive = []
    for mutant in _mutants():
        if words and not any(word in f"{mutant.path} {mutant.new}" for word in words):
            continue
        start = time.monotonic()
        outcome = _outcome(mutant)
        print(
            f"{outcome:8} {time.monotonic() - start:5.0f} s  {mutant.path}: {mutant.new.strip()}", flush=True
        )
        if outcome != "killed":
            alive.append(mutant)
    print(f"{len(alive)} not killed")
    return len(alive)


def _outcome(mutant: Mutant) -> str:
    path = ROOT / mutant.path
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return "no line"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-x",
            "-q",
            "-m",
            "not slow",
            *mutant.tests.split(),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        path.write_text(source)
    # 1: tests failed; others are errors of the command, which would kill any mutant.
    return {0: "ALIVE", 1: "killed"}.get(done.returncode, f"error {done.returncode}")


MUTANTS = (
    # calibrators
    ("calibrators/auto/cross_validation.py", "ddof=1", "ddof=0", "tests/test_compare.py"),
    (
        "calibrators/measures/certainty.py",
        "weight * information_share)",
        "weight)",
        "tests/test_error_bars.py tests/test_sampling.py",
    ),
    (
        "calibrators/measures/drift.py",
        "ends[ends < a.size - 1]",
        "ends[ends < a.size]",
        "tests/test_drift.py tests/test_shift.py",
    ),
    (
        "calibrators/core/keys.py",
        "np.int32(1), np.int32(31)",
        "np.int32(1), np.int32(1)",
        "tests/test_keys.py",
    ),
    (
        "calibrators/core/sorting.py",
        "keys = (keys << 32) | order",
        "keys = (keys << 31) | order",
        "tests/test_keys.py",
    ),
    ("calibrators/core/kernels/keys.py", "w = 1.0 + tied * w", "w = 1.0 + w", "tests/test_keys.py"),
    (
        "calibrators/core/shrinking.py",
        "min(0.5, shrink / (2 * weight))",
        "min(0.5, shrink / weight)",
        "tests/test_enir.py tests/test_near_isotonic.py",
    ),
    (
        "calibrators/bayesian_binning/sbb.py",
        "(positives + 1.0) / (weight + 2.0)",
        "(positives + 1.0) / (weight + 1.0)",
        "tests/test_bayesian_binning.py",
    ),
    (
        "calibrators/binning/family.py",
        "min(int(np.ceil(total / 5)), bins)",
        "min(int(total / 5), bins)",
        "tests/test_bayesian_binning.py",
    ),
    ("calibrators/near_isotonic/model_search.py", "if j - i > 1:", "if j - i > 2:", "tests/test_enir.py"),
    (
        "calibrators/isotonic/calibrator.py",
        "distinct = np.append(True, np.diff(scores) > 0)",
        "distinct = np.append(True, np.diff(scores) >= 0)",
        "tests/test_isotonic.py",
    ),
    (
        "calibrators/sigmoid/beta.py",
        "math.log((n1 + 1.0) / (n0 + 1.0))",
        "math.log((n1 + 1.0) / (n0 + 2.0))",
        "tests/test_platt.py",
    ),
    (
        "calibrators/measures/certainty.py",
        "if hits <= 1 or misses <= 1:",
        "if hits < 1 or misses < 1:",
        "tests/test_error_bars.py",
    ),
    (
        "calibrators/measures/comparison.py",
        "never, always = chance <= 0, chance >= 1",
        "never, always = chance < 0, chance > 1",
        "tests/test_compare.py tests/test_measures.py tests/test_error_bars.py",
    ),
    (
        "calibrators/segments/own.py",
        "first_range = np.cumsum(new)[starts[:-1]] - 1",
        "first_range = np.cumsum(new)[starts[:-1]]",
        "tests/test_pooled_segments.py",
    ),
    (
        "calibrators/segments/totals.py",
        "np.minimum(positives, weight - positives) >= MANY",
        "positives >= MANY",
        "tests/test_pooled_segments.py",
    ),
    (
        "calibrators/core/passes.py",
        "len(needed) == len(requests)",
        "len(needed) >= 1",
        "tests/test_calibrator_contract.py",
    ),
    (
        "calibrators/core/intervals.py",
        "return Interval(lower[first], upper[last + 1])",
        "return Interval(lower[first], upper[last])",
        "tests/test_intervals.py",
    ),
    # logcal
    (
        "logcal/units.py",
        "_LEAST_PERCENT < highest <= 100",
        "_LEAST_PERCENT < highest < 100",
        "tests/test_logcal.py",
    ),
    (
        "logcal/segment_types.py",
        "-(2**63) <= int(value) < 2**63",
        "-(2**63) <= int(value) <= 2**63",
        "tests/test_segments.py tests/test_logcal.py",
    ),
    (
        "logcal/adjustments.py",
        "np.where(slope == 0.0, shift, shift + slope * x)",
        "shift + slope * x",
        "tests/test_segments.py tests/test_lookup_table.py tests/test_logcal.py tests/test_pooled_segments.py",
    ),
    ("logcal/comparison.py", "2 * _FOLDS", "_FOLDS", "tests/test_compare.py"),
    # pipeline/days, labels, log
    (
        "pipeline/days/suspect_days.py",
        "if len(even_days) < max(1, len(others)):",
        "if True:",
        "tests/test_day.py tests/test_days.py tests/test_windows.py",
    ),
    (
        "pipeline/days/suspect_days.py",
        "number.floor * math.sqrt(2), a[1], b[1]",
        "number.floor, a[1], b[1]",
        "tests/test_day.py tests/test_days.py tests/test_windows.py",
    ),
    (
        "pipeline/days/suspect_days.py",
        "auc + 4 * error < 0.5",
        "auc + error < 0.5",
        "tests/test_day.py tests/test_days.py tests/test_windows.py",
    ),
    (
        "pipeline/days/states.py",
        "files.labelled >= self.min_labelled * files.rows",
        "files.labelled > self.min_labelled * files.rows",
        "tests/test_daily.py tests/test_days.py",
    ),
    (
        "pipeline/days/states.py",
        "return files.day <= self.until",
        "return files.day < self.until",
        "tests/test_daily.py tests/test_days.py",
    ),
    (
        "pipeline/days/closed.py",
        "range(last - length + 1, last + 1)",
        "range(last - length + 2, last + 1)",
        "tests/test_windows.py",
    ),
    (
        "pipeline/days/source.py",
        "(1 - rule.min_labelled) * total.rows",
        "rule.min_labelled * total.rows",
        "tests/test_windows.py tests/test_labels.py tests/test_days.py",
    ),
    (
        "pipeline/labels/outcomes.py",
        "return day if start + part <= end else day - 1",
        "return day",
        "tests/test_calendars.py",
    ),
    (
        "pipeline/log/windows.py",
        "first = last - self.length + 1",
        "first = last - self.length + 2",
        "tests/test_windows.py",
    ),
    (
        "pipeline/log/quarantine.py",
        "good = np.isfinite(rows.score) & (rows.label <= 1)",
        "good = np.isfinite(rows.score) & (rows.label <= 2)",
        "tests/test_column_types.py",
    ),
    (
        "pipeline/log/decimals.py",
        "(low > _EXACT_UNSCALED)",
        "(low > 10 * _EXACT_UNSCALED)",
        "tests/test_column_types.py tests/test_bad_input.py",
    ),
    (
        "pipeline/log/log_files.py",
        "< GIVE_UP.get())",
        "> GIVE_UP.get())",
        "tests/test_log_changes.py tests/test_logs.py tests/test_bad_input.py",
    ),
    ("pipeline/log/thrift.py", "value >>= 7", "value >>= 8", "tests/test_parquet_columns.py"),
    # pipeline/sort, fit, score
    (
        "pipeline/sort/buckets.py",
        "passed = edges[:-1] >= run.below",
        "passed = edges[1:] >= run.below",
        "tests/test_run_files.py tests/test_score_table.py",
    ),
    (
        "pipeline/sort/counting.py",
        "labels = np.stack([weight - positives, positives], axis=1)[few]",
        "labels = np.stack([positives, weight - positives], axis=1)[few]",
        "tests/test_run_files.py tests/test_score_table.py",
    ),
    (
        "pipeline/sort/sections.py",
        "column[positions[matched]] += sums[matched]",
        "column[positions[matched]] = sums[matched]",
        "tests/test_run_files.py tests/test_score_table.py",
    ),
    (
        "pipeline/sort/division.py",
        "np.where(u >= 1 - share, rows, 0.0)",
        "np.where(u >= share, rows, 0.0)",
        "tests/test_holdout.py",
    ),
    (
        "pipeline/sort/runs.py",
        "np.abs(steps - rounded_steps) == 0.5",
        "np.abs(steps - rounded_steps) == 0.25",
        "tests/test_score_table.py",
    ),
    (
        "pipeline/sort/run_merging.py",
        "float(edges[i + 1]), segments, i == 0))",
        "float(edges[i + 1]), segments, True))",
        "tests/test_run_files.py",
    ),
    (
        "pipeline/fit/holdout.py",
        "self._tables]) - self.last + 1",
        "self._tables]) - self.last",
        "tests/test_holdout.py",
    ),
    (
        "pipeline/fit/calibration.py",
        "label = 0 if table.used_positive == 0 else 1",
        "label = 1 if table.used_positive == 0 else 0",
        "tests/test_fit.py tests/test_bad_input.py",
    ),
    (
        "pipeline/score/scored_file.py",
        "file.range.outside > scoring.max_outside * rows",
        "file.range.outside >= scoring.max_outside * rows",
        "tests/test_scored.py",
    ),
    (
        "pipeline/score/ranges.py",
        "np.count_nonzero(scores < self.within.lowest)",
        "np.count_nonzero(scores <= self.within.lowest)",
        "tests/test_scored.py tests/test_follow.py",
    ),
    (
        "pipeline/score/shift.py",
        "WARNED + chance if limit is None",
        "WARNED if limit is None",
        "tests/test_shift.py",
    ),
    # pipeline/evaluate, generate, follow, table, files, execution
    (
        "pipeline/evaluate/significance.py",
        "abs(difference) > UNSURE * error",
        "abs(difference) > error",
        "tests/test_evaluation.py tests/test_holdout.py",
    ),
    (
        "pipeline/evaluate/evaluation.py",
        "(difference > 0) == (name in HIGHER_IS_BETTER)",
        "difference < 0",
        "tests/test_evaluation.py",
    ),
    (
        "pipeline/generate/folds.py",
        "parts[rows.time >= self.stop] = UNUSED",
        "parts[rows.time > self.stop] = UNUSED",
        "tests/test_folds.py",
    ),
    (
        "logcal/schema.py",
        "int(text) > int(FORMAT_VERSION)",
        "int(text) > int(FORMAT_VERSION) + 1",
        "tests/test_follow.py",
    ),
    (
        "pipeline/follow/follower.py",
        "now - self._last_complete >= self.rules.relist",
        "now - self._last_complete < self.rules.relist",
        "tests/test_follow.py",
    ),
    (
        "pipeline/files/folders.py",
        'f"{newest + 1 + i:06d}-',
        'f"{newest + i:06d}-',
        "tests/test_publishing.py tests/test_tables_command.py",
    ),
    (
        "pipeline/table/journal.py",
        "if entry.event == ROLLBACK:",
        "if entry.event != ROLLBACK:",
        "tests/test_publishing.py tests/test_tables_command.py",
    ),
    (
        "pipeline/table/map_change.py",
        "self.mean / max(self.mean_old, self.mean_new)",
        "self.mean / self.mean_old",
        "tests/test_gate.py tests/test_map_pairs.py",
    ),
    (
        "pipeline/files/scratch.py",
        "stat.S_IMODE(facts.st_mode) != _MODE",
        "False",
        "tests/test_scratch.py tests/test_security.py",
    ),
    (
        "pipeline/execution/processors.py",
        "max(1, math.ceil(quota))",
        "max(1, math.floor(quota))",
        "tests/test_processors.py",
    ),
    # jobs
    (
        "jobs/record_exports.py",
        "state = RunState.COMPLETE if code in (0, 99) else ended",
        "state = RunState.COMPLETE if code == 0 else ended",
        "tests/test_records.py",
    ),
    (
        "jobs/record_exports.py",
        "round(end, 3) if code in (0, 99) else None",
        "round(end, 3) if code == 0 else None",
        "tests/test_records.py",
    ),
    (
        "calibrators/segments/totals.py",
        "sizes, beyond = np.count_nonzero(moved > _LEAST_MOVED), _SIGNIFICANT * _SIGNIFICANT",
        "sizes, beyond = np.count_nonzero(moved > _LEAST_MOVED), 1.0",
        "tests/test_pooled_segments.py",
    ),
    (
        "calibrators/segments/common_bend.py",
        "pull = gradient - before / variance",
        "pull = gradient",
        "tests/test_common_bend.py",
    ),
    (
        "calibrators/measures/dispersion.py",
        "return proven if 1.0 < proven < by_groups <= proven * chance else max(by_groups, proven)",
        "return max(by_groups, proven)",
        "tests/test_dispersion.py",
    ),
    (
        "jobs/cluster/watching.py",
        "w.assigned > w.executing and",
        "w.assigned >= w.executing and",
        "tests/test_cluster.py",
    ),
    (
        "jobs/gate/requirements.py",
        "bars.auc + ABOVE_CHANCE * bars.auc_error < 0.5",
        "bars.auc < 0.5",
        "tests/test_gate.py tests/test_holdout.py",
    ),
    (
        "jobs/config/jobs.py",
        "gate.days >= sections.whole_days(window.last)",
        "gate.days > sections.whole_days(window.last)",
        "tests/test_gate.py tests/test_holdout.py tests/test_config.py",
    ),
    (
        "jobs/gate/shift.py",
        "if len(distances) >= _FEWEST_DAYS else None",
        "if distances else None",
        "tests/test_shift.py",
    ),
    ("jobs/daily.py", "replace(record, at=last.at) == last", "True", "tests/test_daily.py"),
    ("jobs/day_steps.py", 'manifest.get("log_files") != digest_of(owned)', "False", "tests/test_daily.py"),
    ("jobs/refit.py", "attempts < _MOST_ATTEMPTS", "attempts <= _MOST_ATTEMPTS", "tests/test_refit.py"),
    ("jobs/records.py", "code != _CONFIG", "True", "tests/test_records.py"),
    (
        "jobs/stream_report.py",
        "if outside > WARNED * report.rows:",
        "if outside > report.rows:",
        "tests/test_follow.py tests/test_refit.py",
    ),
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
