"""Training a classifier on a part of labelled data, and scoring another: what one task does, in memory or in pieces.

Rows go to the classifier in the order of their ids, so neither files nor batches can change what it learns.
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

from calibrators.arithmetic.passes import Array
from pipeline.classifier.estimators import (
    Recipe,
    assemble,
    make_classifier,
    make_model,
    make_preprocessing,
    one_thread,
    scores_of,
)
from pipeline.classifier.features import FeatureTable, as_frame, read_batches
from pipeline.generate.feature_facts import DataFacts, keys_of, labelled, plain, times_of
from pipeline.generate.folds import SCORED, TRAINED, UNUSED, Fold, Parts, RowKeys, random_bits, random_state
from pipeline.log.logs import BATCH_ROWS, LABEL_NULL, label_codes

SHIPPED = -1
"""Number in place of a repeat's: the classifier that is trained on all rows."""

PREPARATION_ROWS = 100_000
"""With partial_fit: rows, chosen at random, that the preprocessing is fitted to."""

_PREPARATION_SEED = 0x5EED


@dataclass(frozen=True)
class Training:
    """Plan of the training.

    Parameters
    ----------
    table : the data
    recipe : of the classifier
    training : 'in_memory' or 'partial_fit'
    batch_rows : with 'partial_fit': rows a step
    seed : of all random numbers
    """

    table: FeatureTable
    recipe: Recipe
    training: str = "in_memory"
    batch_rows: int = 10_000
    seed: int = 0


class TrainingFailedError(Exception):
    """A classifier could not be trained, or gave no usable scores; says why."""


class Rows(NamedTuple):
    """Some rows of the data, in the order of their ids."""

    table: pa.Table
    label: npt.NDArray[np.uint8]
    row_id: pa.Array

    def filter(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Some of them."""
        mask = pa.array(chosen)
        return Rows(self.table.filter(mask), self.label[chosen], self.row_id.filter(mask))

    def slice(self, start: int, count: int) -> Rows:
        """So many from a place on."""
        label = self.label[start : start + count]
        return Rows(self.table.slice(start, count), label, self.row_id.slice(start, count))


class Scored(NamedTuple):
    """Scored rows, with the columns that the log keeps."""

    rows: Rows
    score: Array


def train_and_score(
    training: Training, fold: Fold | None, trained_rows: int, said: dict[str, int]
) -> tuple[Any, Iterator[Scored]]:
    """A model trained on a fold's part, and the scores of the fold's other part.

    Parameters
    ----------
    fold : None: trained on all rows, and these are scored
    trained_rows : how many rows are trained on
    said : warnings are counted here

    Returns
    -------
    model : fitted pipeline
    scored : in the order of the rows' ids, in one piece or, with partial_fit, in pieces of `batch_rows`

    Raises
    ------
    TrainingFailedError
    """
    repeat = SHIPPED if fold is None else fold.repeat
    state = random_state(training.seed, repeat)
    if training.training == "partial_fit":
        model = _train_in_pieces(training, fold, trained_rows, state, said)
        pieces = _pieces(training, fold, TRAINED if fold is None else SCORED)
        return model, (_score(model, piece, training.table, said) for piece in pieces)
    rows, parts = _read_all(training.table, fold)
    frame = as_frame(rows.table, training.table.features)
    trained = parts == TRAINED
    model = make_model(training.recipe, training.table.features, state)
    with _failures(said):
        model.fit(frame.loc[trained], rows.label[trained])
    chosen = trained if fold is None else parts == SCORED
    score = _checked_scores(model, frame.loc[chosen], said)
    return model, iter([_scored(rows.filter(chosen), score, training.table)])


def _score(model: Any, rows: Rows, table: FeatureTable, said: dict[str, int]) -> Scored:
    return _scored(rows, _checked_scores(model, as_frame(rows.table, table.features), said), table)


def _scored(rows: Rows, score: Array, table: FeatureTable) -> Scored:
    return Scored(rows._replace(table=rows.table.select(list(table.roles.keep))), score)


def _checked_scores(model: Any, frame: Any, said: dict[str, int]) -> Array:
    with _failures(said):
        score = scores_of(model, frame)
    bad = int(np.count_nonzero(~np.isfinite(score)))
    if bad:
        raise TrainingFailedError(f"{bad:,} of its {score.size:,} scores are NaN or infinite")
    return score


@contextmanager
def _failures(said: dict[str, int]) -> Iterator[None]:
    """Hold an estimator to one thread; what it raises becomes a TrainingFailedError, its warnings are counted."""
    try:
        with one_thread(said):
            yield
    except Exception as error:  # an estimator may raise anything
        raise TrainingFailedError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}"


def _read_all(table: FeatureTable, fold: Fold | None) -> tuple[Rows, Parts]:
    """All rows that a fold uses, in the order of their ids, with their parts."""
    batches, all_parts, ids = [], [], []
    for batch, parts, row_id in _batches(table, fold):
        used = parts != UNUSED
        mask = pa.array(used)
        batches.append(batch if used.all() else batch.filter(mask))
        ids.append(row_id if used.all() else row_id.filter(mask))
        all_parts.append(parts[used])
    parts = np.concatenate(all_parts)
    whole = pa.Table.from_batches(batches)
    row_id = pa.chunked_array(ids).combine_chunks()
    if table.roles.row_id is not None:
        order = compute.sort_indices(row_id)
        whole, row_id, parts = whole.take(order), row_id.take(order), parts[order.to_numpy()]
    label = label_codes(whole.column(table.roles.label).combine_chunks())
    return Rows(whole, label, row_id), parts


def _batches(table: FeatureTable, fold: Fold | None) -> Iterator[tuple[pa.RecordBatch, Parts, pa.Array]]:
    """All rows that have a label, as they lie in the files, with their parts and their ids."""
    roles = table.roles
    for file in table.log.files:
        row = table.starts[file.path]
        for batch in read_batches(table, file.path):
            codes = label_codes(batch.column(roles.label))
            places = row + np.flatnonzero(codes != LABEL_NULL)
            row += batch.num_rows
            batch = labelled(batch, codes)
            if fold is None:
                parts = np.full(batch.num_rows, TRAINED, np.uint8)
            else:
                keys = keys_of(batch, roles.row_id)
                label = codes[codes != LABEL_NULL] == 1
                group, time = keys_of(batch, roles.group), times_of(batch, roles.time)
                parts = fold.parts(
                    RowKeys(places.view(np.uint64) if keys is None else keys, label, group, time)
                )
            row_id = pa.array(places) if roles.row_id is None else plain(batch.column(roles.row_id))
            yield batch, parts, row_id


def _train_in_pieces(
    training: Training, fold: Fold | None, trained_rows: int, state: int, said: dict[str, int]
) -> Any:
    """A model trained batch by batch, in one sweep; its preprocessing is fitted to a sample, in a sweep before."""
    features = training.table.features
    preprocessing = make_preprocessing(training.recipe, features)
    classifier = make_classifier(training.recipe, state)
    if preprocessing is not None:
        sample = _sample(training, fold, trained_rows)
        with _failures(said):
            preprocessing.fit(as_frame(sample.table, features), sample.label)
    for rows in _pieces(training, fold, TRAINED):
        frame = as_frame(rows.table, features)
        with _failures(said):
            ready = frame if preprocessing is None else preprocessing.transform(frame)
            classifier.partial_fit(ready, rows.label, classes=np.array([0, 1]))
    return assemble(preprocessing, classifier)


def _sample(training: Training, fold: Fold | None, trained_rows: int) -> Rows:
    """About `PREPARATION_ROWS` of the rows trained on, or all of them if they are fewer; each by its own number."""
    bound = min(PREPARATION_ROWS * (1 << 64) // max(trained_rows, 1), (1 << 64) - 1)
    kept = []
    for rows, keys in _part(training.table, fold, TRAINED):
        bits = random_bits(training.seed, _PREPARATION_SEED, keys)
        kept.append(rows.filter(bits <= np.uint64(bound)))
    return _joined(kept)


def _pieces(training: Training, fold: Fold | None, part: int) -> Iterator[Rows]:
    """A part's rows in pieces of `batch_rows`, the last shorter, wherever files and batches end."""
    held: list[Rows] = []
    count = 0
    size = training.batch_rows
    for rows, _ in _part(training.table, fold, part):
        held.append(rows)
        count += rows.label.size
        if count < size:
            continue
        whole = _joined(held)
        for start in range(0, count - size + 1, size):
            yield whole.slice(start, size)
        held, count = [whole.slice(count - count % size, size)], count % size
    if count:
        yield _joined(held)


def _part(table: FeatureTable, fold: Fold | None, part: int) -> Iterator[tuple[Rows, npt.NDArray[np.uint64]]]:
    for batch, parts, row_id in _batches(table, fold):
        rows = Rows(pa.Table.from_batches([batch]), label_codes(batch.column(table.roles.label)), row_id)
        found = rows.filter(parts == part)
        keys = keys_of(found.table, table.roles.row_id)
        yield found, found.row_id.to_numpy().view(np.uint64) if keys is None else keys


def _joined(parts: list[Rows]) -> Rows:
    ids = [part.row_id for part in parts]
    return Rows(
        pa.concat_tables([part.table for part in parts]),
        np.concatenate([part.label for part in parts]),
        ids[0] if len(ids) == 1 else pa.concat_arrays(ids),
    )


_PROCESS_BYTES = 350 << 20
"""Memory of a worker with scikit-learn and pandas, before it reads anything."""


def memory_needed(training: Training, facts: DataFacts | None) -> int:
    """Bytes that a task needs at most, roughly; without facts, before categories are known, at least.

    In memory: four times the rows, as they are read and as frames, and three times what the preprocessing makes of
    them, since it joins blocks and estimators copy; naive Bayes on 1.2 million rows of 16 features took 0.85 of that.
    With partial_fit: the same for a batch, and the rows the preprocessing is fitted to.
    """
    table = training.table
    rows = table.log.rows if facts is None else facts.rows
    numbers, categories = len(table.numbers), len(table.categories)
    width = numbers + categories
    if facts is not None:
        width = numbers + sum(len(facts.columns[name].categories) + 1 for name in table.categories)
    a_row = 8 * (4 * (numbers + categories) + 3 * width + len(table.roles.keep) + 3)
    if training.training == "in_memory":
        return _PROCESS_BYTES + a_row * rows
    return _PROCESS_BYTES + a_row * (training.batch_rows + BATCH_ROWS + min(PREPARATION_ROWS, rows))
