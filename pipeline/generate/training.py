"""Training a classifier on one part of labelled data and scoring another in one task, in memory or in pieces.

In memory, rows go to the classifier in the order of their ids, so that the result does not depend on files or batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from calibrators.core.arrays import Array
from pipeline.classifier.estimators import (
    EstimatorRecipe,
    assemble,
    make_classifier,
    make_model,
    make_preprocessing,
    one_thread,
    scores_of,
)
from pipeline.classifier.features import FeatureTable, as_frame, read_batches
from pipeline.generate.feature_facts import DataFacts, decoded, keys_of, labelled_rows, times_of
from pipeline.generate.folds import SCORED, TRAINED, UNUSED, Fold, Parts, RowKeys, random_bits, random_state
from pipeline.log.logs import BATCH_ROWS, LABEL_NULL, label_codes

SHIPPED = -1
"""Repeat number of the shipped classifier, which is trained on all rows."""

PREPARATION_ROWS = 100_000
"""With partial_fit: number of rows, chosen at random, that the preprocessing is fitted to."""

_PREPARATION_SEED = 0x5EED


@dataclass(frozen=True)
class Training:
    """Data and settings of the training.

    Parameters
    ----------
    table : the labelled data
    recipe : recipe of the classifier
    training : 'in_memory' or 'partial_fit'
    batch_rows : with 'partial_fit': rows per step
    seed : seed of all random numbers
    """

    table: FeatureTable
    recipe: EstimatorRecipe
    training: str = "in_memory"
    batch_rows: int = 10_000
    seed: int = 0


class TrainingFailedError(Exception):
    """A classifier could not be trained, or gave NaN or infinite scores."""


class Scored(NamedTuple):
    """Scored rows.

    label : uint8 array. row_id : ids. kept : columns that the log keeps. score : float64 array
    """

    label: npt.NDArray[np.uint8]
    row_id: pa.ChunkedArray
    kept: pa.Table
    score: Array


_ID = "\0id"
"""Column of the rows' ids, beside those of the data."""


def train_and_score(
    training: Training, fold: Fold | None, trained_rows: int, counts: dict[str, int]
) -> tuple[Any, Iterator[Scored]]:
    """Train a model on one part of a fold, and score the other part.

    Parameters
    ----------
    fold : the fold; None: train on all rows, and score the same rows
    trained_rows : number of rows trained on
    counts : counts of warnings by text, updated

    Returns
    -------
    model : fitted pipeline
    scored : one piece in the order of the rows' ids; with partial_fit, pieces of `batch_rows` in the order of the data

    Raises
    ------
    TrainingFailedError
    """
    repeat = SHIPPED if fold is None else fold.repeat
    state = random_state(training.seed, repeat)
    if training.training == "partial_fit":
        model = _train_in_pieces(training, fold, trained_rows, state, counts)
        pieces = _read_pieces(training, fold, TRAINED if fold is None else SCORED)
        return model, (_score(model, piece, training.table, counts) for piece in pieces)
    rows, parts = _read_all(training.table, fold)
    frame, label = as_frame(rows, training.table.features), _labels(training.table, rows)
    trained = parts == TRAINED
    model = make_model(training.recipe, training.table.features, state)
    with _estimator_guard(counts):
        model.fit(frame.loc[trained], label[trained])
    chosen = trained if fold is None else parts == SCORED
    score = _checked_scores(model, frame.loc[chosen], counts)
    return model, iter([_scored(training.table, rows.filter(pa.array(chosen)), score)])


def _score(model: Any, rows: pa.Table, table: FeatureTable, counts: dict[str, int]) -> Scored:
    return _scored(table, rows, _checked_scores(model, as_frame(rows, table.features), counts))


def _scored(table: FeatureTable, rows: pa.Table, score: Array) -> Scored:
    return Scored(_labels(table, rows), rows.column(_ID), rows.select(list(table.roles.keep)), score)


def _labels(table: FeatureTable, rows: pa.Table) -> npt.NDArray[np.uint8]:
    return label_codes(decoded(rows.column(table.roles.label)))


def _checked_scores(model: Any, frame: Any, counts: dict[str, int]) -> Array:
    with _estimator_guard(counts):
        score = scores_of(model, frame)
    invalid = int(np.count_nonzero(~np.isfinite(score)))
    if invalid:
        raise TrainingFailedError(f"{invalid:,} of its {score.size:,} scores are NaN or infinite")
    return score


@contextmanager
def _estimator_guard(counts: dict[str, int]) -> Iterator[None]:
    """Limit an estimator to one thread, count its warnings, and turn its errors into TrainingFailedError."""
    try:
        with one_thread(counts):
            yield
    except Exception as error:  # an estimator may raise anything
        raise TrainingFailedError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}"


def _read_all(table: FeatureTable, fold: Fold | None) -> tuple[pa.Table, Parts]:
    """Read all rows that a fold uses; return them with their parts, in the order of their ids."""
    batches, all_parts = [], []
    for batch, parts in _read_parts(table, fold):
        used = parts != UNUSED
        batches.append(batch if used.all() else batch.filter(pa.array(used)))
        all_parts.append(parts[used])
    rows, parts = pa.Table.from_batches(batches), np.concatenate(all_parts)
    if table.roles.row_id is not None:
        order = compute.sort_indices(rows.column(_ID))
        rows, parts = rows.take(order), parts[order.to_numpy()]
    return rows, parts


def _read_parts(table: FeatureTable, fold: Fold | None) -> Iterator[tuple[pa.RecordBatch, Parts]]:
    """Yield all labelled rows, with their ids, batch by batch in the order of the files, and their parts."""
    roles = table.roles
    for file in table.log.files:
        row = table.starts[file.path]
        for batch in read_batches(table, file.path):
            codes = label_codes(batch.column(roles.label))
            positions = row + np.flatnonzero(codes != LABEL_NULL)
            row += batch.num_rows
            batch = labelled_rows(batch, codes)
            if fold is None:
                parts = np.full(batch.num_rows, TRAINED, np.uint8)
            else:
                keys = keys_of(batch, roles.row_id)
                label = codes[codes != LABEL_NULL] == 1
                group, time = keys_of(batch, roles.group), times_of(batch, roles.time)
                parts = fold.parts(
                    RowKeys(positions.view(np.uint64) if keys is None else keys, label, group, time)
                )
            row_id = pa.array(positions) if roles.row_id is None else decoded(batch.column(roles.row_id))
            yield batch.append_column(_ID, row_id), parts


def _train_in_pieces(
    training: Training, fold: Fold | None, trained_rows: int, state: int, counts: dict[str, int]
) -> Any:
    """Train a model batch by batch in one pass, after a pass that fits the preprocessing to a sample."""
    features = training.table.features
    preprocessing = make_preprocessing(training.recipe, features)
    classifier = make_classifier(training.recipe, state)
    if preprocessing is not None:
        sample = _sample(training, fold, trained_rows)
        with _estimator_guard(counts):
            preprocessing.fit(as_frame(sample, features), _labels(training.table, sample))
    for rows in _read_pieces(training, fold, TRAINED):
        frame, label = as_frame(rows, features), _labels(training.table, rows)
        with _estimator_guard(counts):
            transformed = frame if preprocessing is None else preprocessing.transform(frame)
            classifier.partial_fit(transformed, label, classes=np.array([0, 1]))
    return assemble(preprocessing, classifier)


def _sample(training: Training, fold: Fold | None, trained_rows: int) -> pa.Table:
    """Sample about `PREPARATION_ROWS` of the rows trained on (all if there are fewer) by their random numbers."""
    bound = min(PREPARATION_ROWS * (1 << 64) // max(trained_rows, 1), (1 << 64) - 1)
    samples = []
    for rows, keys in _read(training.table, fold, TRAINED):
        bits = random_bits(training.seed, _PREPARATION_SEED, keys)
        samples.append(rows.filter(pa.array(bits <= np.uint64(bound))))
    return pa.concat_tables(samples)


def _read_pieces(training: Training, fold: Fold | None, part: int) -> Iterator[pa.Table]:
    """Yield a part's rows in pieces of `batch_rows`, whatever the files and batches; the last may be smaller."""
    pending, size = pa.table({}), training.batch_rows
    for rows, _ in _read(training.table, fold, part):
        pending = pa.concat_tables([pending, rows]) if pending.num_rows else rows
        whole = pending.num_rows - pending.num_rows % size
        for start in range(0, whole, size):
            yield pending.slice(start, size)
        pending = pending.slice(whole)
    if pending.num_rows:
        yield pending


def _read(
    table: FeatureTable, fold: Fold | None, part: int
) -> Iterator[tuple[pa.Table, npt.NDArray[np.uint64]]]:
    for batch, parts in _read_parts(table, fold):
        rows = pa.Table.from_batches([batch]).filter(pa.array(parts == part))
        keys = keys_of(rows, table.roles.row_id)
        yield rows, rows.column(_ID).to_numpy().view(np.uint64) if keys is None else keys


_PROCESS_BYTES = 350 << 20
"""Memory of a worker after importing scikit-learn and pandas."""


def memory_needed(training: Training, facts: DataFacts | None) -> int:
    """Estimate the most bytes that a task needs; without facts (categories not known yet), a lower bound.

    In memory: four times the size of the rows (as read, and as frames), and three times the size of the preprocessed
    rows, since blocks are joined and estimators copy. Naive Bayes on 1.2 million rows of 16 features took 0.85 of that.
    With partial_fit: the same for a batch and for the sample that the preprocessing is fitted to.
    """
    table = training.table
    rows = table.log.rows if facts is None else facts.rows
    numbers, categories = len(table.numbers), len(table.categories)
    width = numbers + categories
    if facts is not None:
        width = numbers + sum(len(facts.columns[name].categories) + 1 for name in table.categories)
    row_bytes = 8 * (4 * (numbers + categories) + 3 * width + len(table.roles.keep) + 3)
    if training.training == "in_memory":
        return _PROCESS_BYTES + row_bytes * rows
    return _PROCESS_BYTES + row_bytes * (training.batch_rows + BATCH_ROWS + min(PREPARATION_ROWS, rows))
