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


class TrainingRows(NamedTuple):
    """Rows of the data with their labels and ids."""

    table: pa.Table
    label: npt.NDArray[np.uint8]
    row_id: pa.Array

    def filter(self, chosen: npt.NDArray[np.bool_]) -> TrainingRows:
        """Return the rows where the mask is true."""
        mask = pa.array(chosen)
        return TrainingRows(self.table.filter(mask), self.label[chosen], self.row_id.filter(mask))

    def slice(self, start: int, count: int) -> TrainingRows:
        """Return `count` rows from position `start`."""
        label = self.label[start : start + count]
        return TrainingRows(self.table.slice(start, count), label, self.row_id.slice(start, count))


class Scored(NamedTuple):
    """Scored rows, with the columns that the log keeps."""

    rows: TrainingRows
    score: Array


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
    frame = as_frame(rows.table, training.table.features)
    trained = parts == TRAINED
    model = make_model(training.recipe, training.table.features, state)
    with _estimator_guard(counts):
        model.fit(frame.loc[trained], rows.label[trained])
    chosen = trained if fold is None else parts == SCORED
    score = _checked_scores(model, frame.loc[chosen], counts)
    return model, iter([_scored(rows.filter(chosen), score, training.table)])


def _score(model: Any, rows: TrainingRows, table: FeatureTable, counts: dict[str, int]) -> Scored:
    return _scored(rows, _checked_scores(model, as_frame(rows.table, table.features), counts), table)


def _scored(rows: TrainingRows, score: Array, table: FeatureTable) -> Scored:
    return Scored(rows._replace(table=rows.table.select(list(table.roles.keep))), score)


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


def _read_all(table: FeatureTable, fold: Fold | None) -> tuple[TrainingRows, Parts]:
    """Read all rows that a fold uses; return them with their parts, in the order of their ids."""
    batches, all_parts, ids = [], [], []
    for batch, parts, row_id in _read_parts(table, fold):
        used = parts != UNUSED
        mask = pa.array(used)
        batches.append(batch if used.all() else batch.filter(mask))
        ids.append(row_id if used.all() else row_id.filter(mask))
        all_parts.append(parts[used])
    parts = np.concatenate(all_parts)
    data = pa.Table.from_batches(batches)
    row_id = pa.chunked_array(ids).combine_chunks()
    if table.roles.row_id is not None:
        order = compute.sort_indices(row_id)
        data, row_id, parts = data.take(order), row_id.take(order), parts[order.to_numpy()]
    label = label_codes(data.column(table.roles.label).combine_chunks())
    return TrainingRows(data, label, row_id), parts


def _read_parts(table: FeatureTable, fold: Fold | None) -> Iterator[tuple[pa.RecordBatch, Parts, pa.Array]]:
    """Yield all labelled rows batch by batch in the order of the files, with their parts and ids."""
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
            yield batch, parts, row_id


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
            preprocessing.fit(as_frame(sample.table, features), sample.label)
    for rows in _read_pieces(training, fold, TRAINED):
        frame = as_frame(rows.table, features)
        with _estimator_guard(counts):
            transformed = frame if preprocessing is None else preprocessing.transform(frame)
            classifier.partial_fit(transformed, rows.label, classes=np.array([0, 1]))
    return assemble(preprocessing, classifier)


def _sample(training: Training, fold: Fold | None, trained_rows: int) -> TrainingRows:
    """Sample about `PREPARATION_ROWS` of the rows trained on (all if there are fewer) by their random numbers."""
    bound = min(PREPARATION_ROWS * (1 << 64) // max(trained_rows, 1), (1 << 64) - 1)
    samples = []
    for rows, keys in _read(training.table, fold, TRAINED):
        bits = random_bits(training.seed, _PREPARATION_SEED, keys)
        samples.append(rows.filter(bits <= np.uint64(bound)))
    return _concatenated(samples)


def _read_pieces(training: Training, fold: Fold | None, part: int) -> Iterator[TrainingRows]:
    """Yield a part's rows in pieces of `batch_rows`, whatever the files and batches; the last may be smaller."""
    pending: list[TrainingRows] = []
    count = 0
    size = training.batch_rows
    for rows, _ in _read(training.table, fold, part):
        pending.append(rows)
        count += rows.label.size
        if count < size:
            continue
        joined = _concatenated(pending)
        for start in range(0, count - size + 1, size):
            yield joined.slice(start, size)
        pending, count = [joined.slice(count - count % size, size)], count % size
    if count:
        yield _concatenated(pending)


def _read(
    table: FeatureTable, fold: Fold | None, part: int
) -> Iterator[tuple[TrainingRows, npt.NDArray[np.uint64]]]:
    for batch, parts, row_id in _read_parts(table, fold):
        rows = TrainingRows(
            pa.Table.from_batches([batch]), label_codes(batch.column(table.roles.label)), row_id
        )
        chosen = rows.filter(parts == part)
        keys = keys_of(chosen.table, table.roles.row_id)
        yield chosen, chosen.row_id.to_numpy().view(np.uint64) if keys is None else keys


def _concatenated(parts: list[TrainingRows]) -> TrainingRows:
    ids = [part.row_id for part in parts]
    return TrainingRows(
        pa.concat_tables([part.table for part in parts]),
        np.concatenate([part.label for part in parts]),
        ids[0] if len(ids) == 1 else pa.concat_arrays(ids),
    )


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
