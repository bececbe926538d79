"""The generated log: cross-validated scores of labelled data, to calibrate a classifier without held-out data.

Repeat: train on one part of the rows, score the other, until enough scores are collected. The classifier that is
shipped is trained on all rows. One task a repeat; a task reads its rows itself.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.arithmetic.passes import collapse
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
from pipeline.score.parquet.append import open_target

SCORE, LABEL, REPEAT, ROW_ID = "score", "label", "repeat", "row_id"
"""Columns of a generated log, before those that are kept."""

TIME_REPEATS = 5
"""Repeats by time: every row is scored once, however many repeats there are."""

MOST_REPEATS = 10_000
MOST_TRIES = 10
"""Times the repeats that were planned at first: with failures, the log may end with fewer rows."""

TRAINING_SCORES_ROWS = 1_000_000
"""The shipped classifier's scores are kept of about so many rows at most, chosen at random."""

_TRAINING_SCORES_SEED = 0x7A11


class Planned(NamedTuple):
    """A repeat that will be tried: its fold, and how many rows of each label are in each part."""

    fold: Fold
    trained: tuple[int, int]
    scored: tuple[int, int]

    def problem(self) -> str:
        """Why it is bound to fail, or nothing."""
        for label in (0, 1):
            if self.trained[1 - label] == 0:
                return f"all {sum(self.trained):,} rows trained on have label {label}"
        return "" if sum(self.scored) else "no row is left to score"


@dataclass(frozen=True)
class RepeatReceipt:
    """A repeat that was written. `path` is relative to the output; `lowest` and `highest` are its extreme scores."""

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
    """A repeat that failed, and why."""

    repeat: int
    seed: int
    cause: str

    def __str__(self) -> str:
        what = "the classifier trained on all rows" if self.repeat == SHIPPED else f"repeat {self.repeat}"
        return f"{what} (seed {self.seed}): {self.cause}"


@dataclass(frozen=True)
class ShippedReceipt:
    """The shipped classifier, which was written."""

    sha256: str
    score: str
    seconds: float
    warnings: dict[str, int]


@dataclass(frozen=True)
class Task:
    """Input of a task: small, and the same for all tasks but for the plan."""

    training: Training
    filesystem: Any
    folder: str
    skip: bool


@dataclass
class GeneratedLog:
    """Generated log and classifier."""

    repeats: list[RepeatReceipt] = field(default_factory=list)
    failures: list[RepeatFailure] = field(default_factory=list)
    shipped: ShippedReceipt | None = None

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(receipt.rows for receipt in self.repeats)

    @property
    def positives(self) -> int:
        """Number of rows with label 1."""
        return sum(receipt.positives for receipt in self.repeats)

    def warnings(self) -> dict[str, int]:
        """Warnings of estimators, with counts."""
        said: Counter[str] = Counter()
        for repeat in self.repeats:
            said.update(repeat.warnings)
        said.update(self.shipped.warnings if self.shipped else {})
        return dict(said)


def log_schema(table: FeatureTable) -> pa.Schema:
    """The columns of the log that is generated from a data set.

    Raises
    ------
    ConfigError
        A kept column has the name of one of the log's own.
    """
    roles = table.roles
    own = [
        pa.field(SCORE, pa.float64(), nullable=False),
        pa.field(LABEL, pa.int8(), nullable=False),
        pa.field(REPEAT, pa.int32(), nullable=False),
        pa.field(
            ROW_ID, pa.int64() if roles.row_id is None else _plain_type(table.schema.field(roles.row_id).type)
        ),
    ]
    taken = [name for name in roles.keep if name in (SCORE, LABEL, REPEAT, ROW_ID)]
    if taken:
        raise ConfigError(
            f"data.keep: expected no column named {', '.join(taken)}, which the generated log has of its own: "
            "rename it in the data"
        )
    return pa.schema([*own, *(table.schema.field(name) for name in roles.keep)])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def plan_repeats(
    folds: Folds, facts: DataFacts, target_rows: int, repeats: int | None, *, first: int = 0
) -> list[Planned]:
    """The repeats to try, from number `first` on.

    As many as `repeats` says; otherwise until at least `target_rows` rows are scored, the last repeat kept whole. By
    time: `repeats` blocks, or `TIME_REPEATS`. O(rows) a repeat.

    Raises
    ------
    InputRejectedError
        By time, there is no past; no number of repeats scores enough rows.
    """
    if folds.split == "time":
        assert facts.keys.time is not None
        found = folds.by_time(TIME_REPEATS if repeats is None else repeats, facts.keys.time)
        return [_planned(fold, facts) for fold in found]
    planned: list[Planned] = []
    collected = 0
    while len(planned) < repeats if repeats is not None else collected < target_rows:
        planned.append(_planned(folds.fold(first + len(planned), facts.keys), facts))
        collected += 0 if planned[-1].problem() else sum(planned[-1].scored)
        if len(planned) >= MOST_REPEATS and repeats is None:
            raise InputRejectedError(
                f"generate.target_rows={target_rows:,}: {MOST_REPEATS:,} repeats score only {collected:,} rows of this "
                "data: lower it, or set generate.repeats"
            )
    return planned


def _planned(fold: Fold, facts: DataFacts) -> Planned:
    parts, label = fold.parts(facts.keys), facts.keys.label

    def count(part: int) -> tuple[int, int]:
        positive = int(np.count_nonzero(label & (parts == part)))
        return int(np.count_nonzero(parts == part)) - positive, positive

    return Planned(fold, count(TRAINED), count(SCORED))


def generate(
    task: Task,
    folds: Folds,
    planned: list[Planned],
    facts: DataFacts,
    executor: Executor,
    staging: Staging,
    *,
    target_rows: int | None,
) -> GeneratedLog:
    """Write the log and the shipped classifier's model.

    Parameters
    ----------
    task : with `skip`, failing repeats are replaced by further ones where there are `target_rows` (not by time)
    planned : the repeats to begin with
    staging : where the files go; their names are appended to its files

    Raises
    ------
    InputRejectedError
        A repeat fails and `skip` is not set; all of them fail; the classifier that is to be shipped fails; the scored
        rows are of one class, or have one score.
    """
    generated = GeneratedLog()
    all_rows = facts.rows
    tried, most = 0, MOST_TRIES * len(planned)
    while planned and tried < most:
        doomed = [RepeatFailure(p.fold.repeat, folds.seed, p.problem()) for p in planned if p.problem()]
        if doomed and not task.skip:
            raise _failed(doomed)
        work: list[tuple[Any, ...]] = [(task, plan) for plan in planned if not plan.problem()]
        if generated.shipped is None:
            work.insert(0, (task, all_rows))
        tried += len(planned)
        results = executor.run("repeat", run_task, work)
        shipped = [result for result in results if isinstance(result, ShippedReceipt)]
        generated.shipped = shipped[0] if shipped else generated.shipped
        generated.repeats += [result for result in results if isinstance(result, RepeatReceipt)]
        generated.failures += [result for result in results if isinstance(result, RepeatFailure)] + doomed
        if target_rows is None or folds.split == "time" or generated.rows >= target_rows:
            break
        if not generated.repeats:
            break
        planned = plan_repeats(folds, facts, target_rows - generated.rows, None, first=tried)
    _check_usable(generated, task)
    generated.failures.sort(key=lambda failure: failure.repeat)
    staging.files += [receipt.path for receipt in generated.repeats]
    staging.files += [f"{FOLDER}/{MODEL}", f"{FOLDER}/{TRAINING_SCORES}"]
    return generated


def _check_usable(generated: GeneratedLog, task: Task) -> None:
    """Check that a calibrator can be fitted to the log."""
    if not generated.repeats:
        raise _failed(generated.failures)
    if generated.positives in (0, generated.rows):
        label = 0 if generated.positives == 0 else 1
        raise InputRejectedError(
            f"expected scored rows of both labels, found {generated.rows:,} that all have label {label}: set "
            "generate.stratified=true, or score more rows (generate.target_rows)"
        )
    lowest = min(receipt.lowest for receipt in generated.repeats)
    if all(receipt.lowest == receipt.highest == lowest for receipt in generated.repeats):
        raise InputRejectedError(
            f"expected different scores, found {generated.rows:,} that are all {lowest:g}: {task.training.recipe.path} "
            "learns nothing from these features; choose another estimator, or other features"
        )


def _failed(failures: list[RepeatFailure]) -> InputRejectedError:
    return InputRejectedError(
        f"{len(failures)} of the repeats cannot be used: change the estimator or its parameters, give it more or "
        "stratified data (generate.stratified=true), or go on without them (generate.on_failure=skip).\n"
        f"{listing([str(failure) for failure in failures])}"
    )


def run_task(task: Task, plan: Planned | int) -> RepeatReceipt | RepeatFailure | ShippedReceipt:
    """One repeat, or, for a number of rows, the classifier trained on all of them.

    Raises
    ------
    InputRejectedError
        It fails, and repeats that fail are not skipped or it is the shipped classifier.
    """
    seed = task.training.seed
    repeat = SHIPPED if isinstance(plan, int) else plan.fold.repeat
    try:
        return _ship(task, plan) if isinstance(plan, int) else _run_repeat(task, plan)
    except TrainingFailedError as error:
        failure = RepeatFailure(repeat, seed, str(error))
        if not task.skip or repeat == SHIPPED:
            raise _failed([failure]) from None
        return failure


def part_path(repeat: int) -> str:
    """Return the path of a repeat's rows, relative to the output."""
    return f"log/part-{repeat:05d}.parquet"


def _run_repeat(task: Task, plan: Planned) -> RepeatReceipt:
    started = time.perf_counter()
    said: dict[str, int] = {}
    repeat, trained = plan.fold.repeat, sum(plan.trained)
    _, pieces = train_and_score(task.training, plan.fold, trained, said)
    kind = log_schema(task.training.table)
    path = part_path(repeat)
    rows = positives = 0
    lowest, highest = np.inf, -np.inf
    with (
        open_target(task.filesystem, f"{task.folder}/{path}") as target,
        pq.ParquetWriter(target, kind, compression="zstd") as writer,
    ):
        for piece in pieces:
            writer.write_table(_as_log(piece, repeat, kind))
            rows += piece.score.size
            positives += int(np.count_nonzero(piece.rows.label))
            lowest, highest = min(lowest, piece.score.min()), max(highest, piece.score.max())
    seconds = time.perf_counter() - started
    return RepeatReceipt(repeat, path, trained, rows, positives, float(lowest), float(highest), seconds, said)


def _as_log(piece: Scored, repeat: int, kind: pa.Schema) -> pa.Table:
    own = [
        pa.array(piece.score),
        pa.array(piece.rows.label.astype(np.int8)),
        pa.array(np.full(piece.score.size, repeat, np.int32)),
        piece.rows.row_id,
    ]
    return pa.Table.from_arrays([*own, *piece.rows.table.columns], schema=kind)


def _ship(task: Task, rows: int) -> ShippedReceipt:
    started = time.perf_counter()
    said: dict[str, int] = {}
    training = task.training
    model, pieces = train_and_score(training, None, rows, said)
    content = dump_model(model, training.recipe.packages)
    scores, labels = [], []
    bound = min(TRAINING_SCORES_ROWS * (1 << 64) // rows, (1 << 64) - 1)
    place = 0
    for piece in pieces:
        keys = np.arange(place, place + piece.score.size, dtype=np.uint64)
        place += piece.score.size
        chosen = random_bits(training.seed, _TRAINING_SCORES_SEED, keys) <= np.uint64(bound)
        scores.append(piece.score[chosen])
        labels.append(piece.rows.label[chosen])
    points = collapse(np.concatenate(scores), np.concatenate(labels))
    for name, data in ((MODEL, content), (TRAINING_SCORES, training_scores_bytes(points))):
        with open_target(task.filesystem, f"{task.folder}/{FOLDER}/{name}") as target:
            target.write(data)
    return ShippedReceipt(sha256(content), score_method(model), time.perf_counter() - started, said)
