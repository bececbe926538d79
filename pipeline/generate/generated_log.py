"""The generated log: cross-validated scores of labelled data, to calibrate a classifier without held-out data.

Each repeat trains on one part of the rows and scores the other, until enough scores are collected. The shipped
classifier is trained on all rows. Each repeat is one task, which reads its own rows.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.passes import collapse
from logcal.errors import ConfigError, InputRejectedError, listing
from pipeline.classifier.estimators import score_method
from pipeline.classifier.features import FeatureTable
from pipeline.classifier.shipped_classifier import (
    FOLDER,
    MODEL,
    TRAINING_SCORES,
    dump_model,
    sha256,
    training_scores_bytes,
)
from pipeline.execution import Executor
from pipeline.files.output import Staging
from pipeline.generate.feature_facts import DataFacts
from pipeline.generate.folds import SCORED, TRAINED, Fold, Folds, random_bits
from pipeline.generate.training import SHIPPED, Scored, Training, TrainingFailedError, train_and_score
from pipeline.log.column_types import values_type
from pipeline.score.parquet.append import open_target

SCORE, LABEL, REPEAT, ROW_ID = "score", "label", "repeat", "row_id"
"""Columns of a generated log; copied columns (`Roles.keep`) follow."""

TIME_REPEATS = 5
"""Default number of repeats by time; each row is scored once, whatever the number."""

MOST_REPEATS = 10_000
MOST_TRIES = 10
"""Most repeats tried, as a multiple of those planned at first; after failures, the log may have fewer rows."""

TRAINING_SCORES_ROWS = 1_000_000
"""Approximate number of rows, chosen at random, whose scores by the shipped classifier are kept."""

_TRAINING_SCORES_SEED = 0x7A11


class RepeatPlan(NamedTuple):
    """Plan of a repeat: its fold, and the number of rows of each label in each part."""

    fold: Fold
    trained: tuple[int, int]
    scored: tuple[int, int]

    def problem(self) -> str:
        """Describe why the repeat cannot succeed; '' if it can."""
        for label in (0, 1):
            if self.trained[1 - label] == 0:
                return f"all {sum(self.trained):,} rows trained on have label {label}"
        return "" if sum(self.scored) else "no row is left to score"


@dataclass(frozen=True)
class RepeatReceipt:
    """Receipt of a written repeat: `path` is relative to the output; `lowest` and `highest` are scores."""

    repeat: int
    path: str
    trained_rows: int
    rows: int
    positives: int
    lowest: float
    highest: float
    seconds: float
    warnings: dict[str, int]


@dataclass(frozen=True)
class RepeatFailure:
    """Failed repeat and the cause."""

    repeat: int
    seed: int
    cause: str

    def __str__(self) -> str:
        subject = "the classifier trained on all rows" if self.repeat == SHIPPED else f"repeat {self.repeat}"
        return f"{subject} (seed {self.seed}): {self.cause}"


@dataclass(frozen=True)
class ShippedReceipt:
    """Receipt of the written shipped classifier."""

    sha256: str
    score: str
    seconds: float
    warnings: dict[str, int]


@dataclass(frozen=True)
class TaskSettings:
    """Settings shared by all tasks."""

    training: Training
    filesystem: Any
    folder: str
    skip: bool


@dataclass
class GeneratedLog:
    """Result of `generate`: the receipts of the log and of the classifier."""

    repeats: list[RepeatReceipt] = field(default_factory=list)
    failures: list[RepeatFailure] = field(default_factory=list)
    shipped: ShippedReceipt | None = None

    @property
    def rows(self) -> int:
        """Number of rows of the log."""
        return sum(receipt.rows for receipt in self.repeats)

    @property
    def positives(self) -> int:
        """Number of rows with label 1."""
        return sum(receipt.positives for receipt in self.repeats)

    def warnings(self) -> dict[str, int]:
        """Count the warnings of estimators by text."""
        counts: Counter[str] = Counter()
        for repeat in self.repeats:
            counts.update(repeat.warnings)
        counts.update(self.shipped.warnings if self.shipped else {})
        return dict(counts)


def log_schema(table: FeatureTable) -> pa.Schema:
    """Return the schema of the log that is generated from labelled data.

    Raises
    ------
    ConfigError
        A column to keep has the name of a column that the log adds.
    """
    roles = table.roles
    fields = [
        pa.field(SCORE, pa.float64(), nullable=False),
        pa.field(LABEL, pa.int8(), nullable=False),
        pa.field(REPEAT, pa.int32(), nullable=False),
        pa.field(
            ROW_ID, pa.int64() if roles.row_id is None else values_type(table.schema.field(roles.row_id).type)
        ),
    ]
    clashes = [name for name in roles.keep if name in (SCORE, LABEL, REPEAT, ROW_ID)]
    if clashes:
        raise ConfigError(
            f"$[keep]: expected no column named {', '.join(clashes)}, which the generated log adds: rename "
            "it in the data"
        )
    return pa.schema([*fields, *(table.schema.field(name) for name in roles.keep)])


def plan_repeats(
    folds: Folds, facts: DataFacts, target_rows: int, repeats: int | None, *, first: int = 0
) -> list[RepeatPlan]:
    """Plan the repeats to try, from number `first` on.

    There are `repeats` of them, or, with None, as many as score at least `target_rows` rows. By time there are at most
    `repeats` blocks, by default `TIME_REPEATS`. O(rows) per repeat.

    Raises
    ------
    InputRejectedError
        By time, no rows precede the first block; or `MOST_REPEATS` repeats do not score enough rows.
    """
    if folds.split == "time":
        assert facts.keys.time is not None
        time_folds = folds.by_time(TIME_REPEATS if repeats is None else repeats, facts.keys.time)
        return [_plan(fold, facts) for fold in time_folds]
    plans: list[RepeatPlan] = []
    collected = 0
    while len(plans) < repeats if repeats is not None else collected < target_rows:
        plans.append(_plan(folds.fold(first + len(plans), facts.keys), facts))
        collected += 0 if plans[-1].problem() else sum(plans[-1].scored)
        if len(plans) >= MOST_REPEATS and repeats is None:
            raise InputRejectedError(
                f"$[target_rows]={target_rows:,}: {MOST_REPEATS:,} repeats score only {collected:,} rows of this "
                "data: lower it, or set $[repeats]"
            )
    return plans


def _plan(fold: Fold, facts: DataFacts) -> RepeatPlan:
    parts, label = fold.parts(facts.keys), facts.keys.label

    def count(part: int) -> tuple[int, int]:
        positive = int(np.count_nonzero(label & (parts == part)))
        return int(np.count_nonzero(parts == part)) - positive, positive

    return RepeatPlan(fold, count(TRAINED), count(SCORED))


def generate(
    task: TaskSettings,
    folds: Folds,
    plans: list[RepeatPlan],
    facts: DataFacts,
    executor: Executor,
    staging: Staging,
    *,
    target_rows: int | None,
) -> GeneratedLog:
    """Write the log and the shipped classifier's model.

    Parameters
    ----------
    task : settings of the tasks; with `skip` and `target_rows`, further repeats replace failed ones (not by time)
    plans : the repeats to begin with
    staging : receives the files; their names are appended to `staging.files`

    Raises
    ------
    InputRejectedError
        A repeat fails and `skip` is not set; all of them fail; the shipped classifier fails; the scored rows have one
        label or one score.
    """
    generated = GeneratedLog()
    all_rows = facts.rows
    tried, most = 0, MOST_TRIES * len(plans)
    while plans and tried < most:
        hopeless = [RepeatFailure(p.fold.repeat, folds.seed, p.problem()) for p in plans if p.problem()]
        if hopeless and not task.skip:
            raise _rejection(hopeless)
        calls: list[tuple[Any, ...]] = [(task, plan) for plan in plans if not plan.problem()]
        if generated.shipped is None:
            calls.insert(0, (task, all_rows))
        tried += len(plans)
        results = executor.run("repeat", run_task, calls)
        shipped = [result for result in results if isinstance(result, ShippedReceipt)]
        generated.shipped = shipped[0] if shipped else generated.shipped
        generated.repeats += [result for result in results if isinstance(result, RepeatReceipt)]
        generated.failures += [result for result in results if isinstance(result, RepeatFailure)] + hopeless
        if target_rows is None or folds.split == "time" or generated.rows >= target_rows:
            break
        if not generated.repeats:
            break
        plans = plan_repeats(folds, facts, target_rows - generated.rows, None, first=tried)
    _check_usable(generated, task)
    generated.failures.sort(key=lambda failure: failure.repeat)
    staging.files += [receipt.path for receipt in generated.repeats]
    staging.files += [f"{FOLDER}/{MODEL}", f"{FOLDER}/{TRAINING_SCORES}"]
    return generated


def _check_usable(generated: GeneratedLog, task: TaskSettings) -> None:
    """Check that a calibrator can be fitted to the log."""
    if not generated.repeats:
        raise _rejection(generated.failures)
    if generated.positives in (0, generated.rows):
        label = 0 if generated.positives == 0 else 1
        raise InputRejectedError(
            f"expected scored rows of both labels, found {generated.rows:,} that all have label {label}: set "
            "$[stratified]=true, or score more rows ($[target_rows])"
        )
    lowest = min(receipt.lowest for receipt in generated.repeats)
    if all(receipt.lowest == receipt.highest == lowest for receipt in generated.repeats):
        raise InputRejectedError(
            f"expected different scores, found {generated.rows:,} equal to {lowest:g}: {task.training.recipe.path} "
            "learns nothing from these features; choose another estimator, or other features"
        )


def _rejection(failures: list[RepeatFailure]) -> InputRejectedError:
    return InputRejectedError(
        f"{len(failures)} of the repeats cannot be used: change the estimator or its parameters, give it more or "
        "stratified data ($[stratified]=true), or continue without them ($[on_failure]=skip).\n"
        f"{listing([str(failure) for failure in failures])}"
    )


def run_task(task: TaskSettings, plan: RepeatPlan | int) -> RepeatReceipt | RepeatFailure | ShippedReceipt:
    """Run one repeat; or, if `plan` is the number of all rows, train the shipped classifier on them.

    Raises
    ------
    InputRejectedError
        The shipped classifier fails; or a repeat fails and `task.skip` is not set.
    """
    seed = task.training.seed
    repeat = SHIPPED if isinstance(plan, int) else plan.fold.repeat
    try:
        return _ship(task, plan) if isinstance(plan, int) else _run_repeat(task, plan)
    except TrainingFailedError as error:
        failure = RepeatFailure(repeat, seed, str(error))
        if not task.skip or repeat == SHIPPED:
            raise _rejection([failure]) from None
        return failure


def part_path(repeat: int) -> str:
    """Return the path of a repeat's rows, relative to the output."""
    return f"log/part-{repeat:05d}.parquet"


def _run_repeat(task: TaskSettings, plan: RepeatPlan) -> RepeatReceipt:
    started = time.perf_counter()
    counts: dict[str, int] = {}
    repeat, trained = plan.fold.repeat, sum(plan.trained)
    _, pieces = train_and_score(task.training, plan.fold, trained, counts)
    schema = log_schema(task.training.table)
    path = part_path(repeat)
    rows = positives = 0
    lowest, highest = np.inf, -np.inf
    with (
        open_target(task.filesystem, f"{task.folder}/{path}") as target,
        pq.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        for piece in pieces:
            writer.write_table(_as_log(piece, repeat, schema))
            rows += piece.score.size
            positives += int(np.count_nonzero(piece.label))
            lowest, highest = min(lowest, piece.score.min()), max(highest, piece.score.max())
    extremes, seconds = (float(lowest), float(highest)), time.perf_counter() - started
    return RepeatReceipt(repeat, path, trained, rows, positives, *extremes, seconds, counts)


def _as_log(piece: Scored, repeat: int, schema: pa.Schema) -> pa.Table:
    columns = [
        pa.array(piece.score),
        pa.array(piece.label.astype(np.int8)),
        pa.array(np.full(piece.score.size, repeat, np.int32)),
        piece.row_id,
    ]
    return pa.Table.from_arrays([*columns, *piece.kept.columns], schema=schema)


def _ship(task: TaskSettings, rows: int) -> ShippedReceipt:
    started = time.perf_counter()
    counts: dict[str, int] = {}
    training = task.training
    model, pieces = train_and_score(training, None, rows, counts)
    content = dump_model(model, training.recipe.packages)
    scores, labels = [], []
    bound = min(TRAINING_SCORES_ROWS * (1 << 64) // rows, (1 << 64) - 1)
    position = 0
    for piece in pieces:
        keys = np.arange(position, position + piece.score.size, dtype=np.uint64)
        position += piece.score.size
        chosen = random_bits(training.seed, _TRAINING_SCORES_SEED, keys) <= np.uint64(bound)
        scores.append(piece.score[chosen])
        labels.append(piece.label[chosen])
    points = collapse(np.concatenate(scores), np.concatenate(labels))
    for name, data in ((MODEL, content), (TRAINING_SCORES, training_scores_bytes(points))):
        with open_target(task.filesystem, f"{task.folder}/{FOLDER}/{name}") as target:
            target.write(data)
    return ShippedReceipt(sha256(content), score_method(model), time.perf_counter() - started, counts)
