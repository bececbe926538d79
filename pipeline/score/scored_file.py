"""Scoring of one file.

Only the score column is decoded. The file is copied byte for byte, the pages of the new columns follow, and the footer
is extended (see `pipeline.score.parquet`). So the log's columns keep their types, encodings, codecs, statistics and row
groups, and scoring costs little more than copying.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from calibrators.core.arrays import Array
from logcal.arrow_columns import nullable_column
from logcal.errors import ConfigError, InputRejectedError, TemporaryError, examples
from logcal.reading import cached_table
from logcal.schema import apply_transform
from logcal.segment_types import segment_column, segment_problems
from pipeline.classifier.features import Roles, check_features
from pipeline.files.faults import out_of_memory
from pipeline.files.requests import StoreFile, in_turn
from pipeline.log.chunks import CheckedFooter
from pipeline.log.folder_tree import hive_keys, with_keys, with_values
from pipeline.log.log_files import (
    LogFile,
    open_bytes,
    open_parquet,
    open_small,
    read_batches,
    reason,
    row_groups_of,
)
from pipeline.log.logs import Columns, check_columns, numbers
from pipeline.log.nested import with_columns, with_fields
from pipeline.schema import TABLE_VERSION_COLUMN
from pipeline.score.parquet.append import Ending, append_columns, open_target, read_ending
from pipeline.score.parquet.chunks import MOST_ROWS, Chunk, codec_beside, constant_chunk, encode_chunk
from pipeline.score.parquet.footer import NotExtensibleError
from pipeline.score.parquet.read_back import Checksum, Expected, open_stored
from pipeline.score.ranges import RangeCount, RowCounts, range_of
from pipeline.score.shift import Counts, ShiftRule, bins_of

if TYPE_CHECKING:
    from pipeline.classifier.shipped_classifier import ShippedClassifier

INTERVAL_COLUMNS = ("prob_lower", "prob_upper")
"""Columns of a scored log, and of its lookup table."""

HELD_BYTES = 1 << 22
"""Size up to which a file is read into memory at once. Its rows are still decoded page by page."""

PAGE_ROWS = 1 << 17
"""Rows scored at a time."""


@dataclass(frozen=True)
class Classifying:
    """Classification of a log that has features and no score.

    Attributes
    ----------
    classifier : computes the score, which is added as a column
    threshold : lowest probability with a positive decision
    decision : name of the boolean column that is added
    """

    classifier: ShippedClassifier
    threshold: float
    decision: str = "decision"


@dataclass(frozen=True)
class Scoring:
    """Plan of the scoring of a log.

    Attributes
    ----------
    score : name of the log's score column; with `classifying`, name of the added score column
    lookup : path or URL of a lookup table, whose score transform is applied first
    probability, table_version : names of the added columns
    classifying : classification of a log without scores; None: the log has a score column
    segments : names of the segment columns; empty for a table without segments
    interval : whether to add the bounds of the table's intervals
    verify : whether to decode the columns that are only copied, too
    max_outside : largest accepted share of a file's rows with scores outside the table's calibration range
    shift : rule for the distance between scores and the table's; None: it is not measured
    each_file : whether the rule is applied to each file

    Raises
    ------
    ConfigError
        Two new columns have one name.
    """

    score: str
    lookup: str
    probability: str = "probability"
    table_version: str = TABLE_VERSION_COLUMN
    classifying: Classifying | None = None
    segments: tuple[str, ...] = ()
    interval: bool = False
    max_outside: float = 1.0
    verify: bool = False
    shift: ShiftRule | None = None
    each_file: bool = False

    def __post_init__(self) -> None:
        settings: dict[str, str] = {}
        for setting, name in self.new_columns():
            other = settings.setdefault(name.casefold(), setting)
            if other != setting:
                raise ConfigError(
                    f"{other}: expected another name than that of {setting}, found '{name}' for both"
                )

    def new_columns(self) -> list[tuple[str, str]]:
        """Return the setting and the name of each added column, in order."""
        calibrated = [("$[probability]", self.probability), ("$[version_column]", self.table_version)]
        if self.interval:
            calibrated[1:1] = [("$[scoring.interval]", name) for name in INTERVAL_COLUMNS]
        if self.classifying is None:
            return calibrated
        decision = ("$[decision_column]", self.classifying.decision)
        return [("$[score]", self.score), *calibrated[:-1], decision, calibrated[-1]]

    def schema(self) -> pa.Schema:
        """Return the names and types of the added columns."""
        kinds = {"$[decision_column]": pa.bool_(), "$[version_column]": pa.string()}
        return pa.schema([(name, kinds.get(setting, pa.float64())) for setting, name in self.new_columns()])

    def load(self) -> None:
        """Load the table, and the classifier's model, as this process keeps them: their errors are not a file's."""
        cached_table(self.lookup)
        if self.classifying is not None:
            self.classifying.classifier.model()


class FileCounts(NamedTuple):
    """Counts of one file.

    lowest, highest : its extreme scores after the transform. bins : see `pipeline.score.shift`
    unread : columns that were copied without being decoded
    """

    rows: RowCounts
    lowest: float
    highest: float
    bins: Counts = ()
    unread: tuple[str, ...] = ()


def score_file(
    filesystem: Any, log_file: LogFile, target_filesystem: Any, target: str, scoring: Scoring
) -> FileCounts:
    """Write one file with its probabilities, atomically. Repeating it is harmless.

    A small file of a store is read with one request, so it is not mixed from two versions; call `check_unchanged` to
    find out whether it is the version that was listed.

    Parameters
    ----------
    filesystem, log_file : the source, as it was when the log was opened
    target_filesystem, target : file system and path of the result
    scoring : plan of the scoring

    Raises
    ------
    InputRejectedError
        The file cannot be read, was changed, has a column with the name of a new one, or has too many scores outside
        the table's calibration range.
    """
    path, state = log_file.path, log_file.state
    results: list[tuple[FileCounts, Expected]] = []

    def check(written: str) -> None:
        [(counts, expected)] = results
        in_turn(partial(_read_back, target_filesystem, written, counts.rows.bytes, expected))
        if scoring.verify:
            in_turn(partial(_read_copied, target_filesystem, written, counts.rows.bytes, expected, path))

    try:
        # The target is closed last, so that it does not appear if the source has changed.
        with open_target(target_filesystem, target, check) as copy:
            if state.size <= HELD_BYTES:
                with open_small(filesystem, path, state, last=False) as content:
                    results.append(in_turn(partial(_write_from_memory, path, content, copy, scoring)))
            else:
                with (
                    open_bytes(filesystem, path, state) as source,
                    open_parquet(filesystem, path, state, scoring.segments) as parquet,
                ):
                    # The footer is read again, from the source that is copied.
                    results.append(_write(path, parquet, read_ending(source), source, copy, scoring))
        return results[0][0]
    except TemporaryError as error:
        raise TemporaryError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except (pa.ArrowException, NotExtensibleError, OSError) as error:
        # Arrow's errors for bytes that do not decode have no number.
        if out_of_memory(error) or getattr(error, "errno", None) is not None:
            raise
        raise InputRejectedError(
            f"{path}: cannot be scored ({reason(error)}): write the file again"
        ) from None


def _read_back(filesystem: Any, written: str, size: int, expected: Expected) -> None:
    """Read a written file's footer and added columns; see `Expected.check`."""
    local = isinstance(filesystem, LocalFileSystem)
    opened = (
        pa.OSFile(os.fsencode(written)) if local else open_stored(filesystem, written, size, expected.start)
    )
    with opened as source:
        expected.check(source)


def _read_copied(filesystem: Any, written: str, size: int, expected: Expected, path: str) -> None:
    """Decode all columns of a written file that were copied; name one that cannot be read."""
    local = isinstance(filesystem, LocalFileSystem)
    source = pa.OSFile(os.fsencode(written)) if local else StoreFile(filesystem, written, size)
    options = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
    with source, pq.ParquetFile(source, **options) as parquet:
        for name in dict.fromkeys(parquet.schema_arrow.names):
            if name in expected.names:
                continue
            try:
                deque(parquet.iter_batches(PAGE_ROWS, columns=[name], use_threads=False), 0)
            except (pa.ArrowException, OSError) as error:
                if out_of_memory(error) or getattr(error, "errno", None) is not None:
                    raise
                raise InputRejectedError(
                    f"{path}: expected columns that can be read ($[verify]), found '{name}', which cannot "
                    f"({reason(error)}): write the file again"
                ) from None


def _write_from_memory(
    path: str, content: bytes, copy: BinaryIO, scoring: Scoring
) -> tuple[FileCounts, Expected]:
    with open_parquet(None, path, None, scoring.segments, content=content) as parquet:
        source = io.BytesIO(content)
        return _write(path, parquet, read_ending(source, parquet.metadata), source, copy, scoring)


def _write(
    path: str, parquet: pq.ParquetFile, ending: Ending, source: BinaryIO, copy: BinaryIO, scoring: Scoring
) -> tuple[FileCounts, Expected]:
    """Copy the source and add the new columns; return counts of rows, and what the copy must contain."""
    _check_file(path, parquet, scoring)
    file = _File(path, parquet, ending, scoring)
    written = append_columns(source, copy, scoring.schema(), file.row_groups(), ending)
    rows = parquet.metadata.num_rows
    if file.range.outside > scoring.max_outside * rows:
        raise InputRejectedError(
            f"{path}: $[max_outside_range]: expected at most {scoring.max_outside:.4g} of all rows, "
            f"found {file.range.text(rows)}: score it with the table of its model, or raise the limit"
        )
    if scoring.shift is not None and scoring.each_file and scoring.shift.refuse:
        shift = scoring.shift.judge(file.bins, file.counts)
        if shift is not None and shift.beyond:
            raise InputRejectedError(f"{path}: $[max_shift]: {shift.text()}")
    out = file.range
    counts = RowCounts(rows, file.null_rows, file.unseen_rows, out.below, out.above, written)
    unread = () if scoring.verify else tuple(n for n in parquet.schema_arrow.names if n not in file.names)
    return FileCounts(counts, out.lowest, out.highest, file.counts, unread), file.expected


def _check_file(path: str, parquet: pq.ParquetFile, scoring: Scoring) -> None:
    most = max(row_groups_of(parquet.metadata, path), default=0)
    if most > MOST_ROWS:
        raise InputRejectedError(
            f"{path}: expected row groups of at most {MOST_ROWS:,} rows, found one of {most:,}: write the file with "
            "smaller row groups"
        )
    schema = parquet.schema_arrow
    names = [*schema.names, *hive_keys(path)]
    used = {name.casefold() for name in names}  # many readers ignore case
    for setting, name in scoring.new_columns():
        if name.casefold() in used:
            raise InputRejectedError(
                f"{path}: expected no column '{name}', found the columns {examples(names, 12)}: "
                f"set {setting} to another name"
            )
    if scoring.classifying is not None:
        features = scoring.classifying.classifier.features
        *_, problems = check_features([(path, schema)], Roles(None), features)
    else:
        schema = with_fields(schema, [scoring.score, *scoring.segments])
        schema = with_keys(schema, path, scoring.segments)
        types, problems = check_columns([(path, schema)], Columns(scoring.score, segments=scoring.segments))
    if scoring.segments and not problems:
        owners = cached_table(scoring.lookup).owners
        fitted = {name: str(column.type) for name, column in zip(scoring.segments, owners, strict=True)}
        problems = segment_problems(fitted, types)
    if problems:
        raise InputRejectedError(f"{path}: {'; '.join(problems)}")


class _File:
    """Computation of the new columns of one file.

    Attributes
    ----------
    names : columns that are read
    codecs : codec of the new columns for each row group: that of an existing column
    expected : what the copy must contain, which gets the checksums of the columns
    """

    def __init__(self, path: str, parquet: pq.ParquetFile, ending: Ending, scoring: Scoring) -> None:
        self.path, self.parquet, self.scoring = path, parquet, scoring
        self.lookup = cached_table(scoring.lookup)
        facts, classifying, segments = self.lookup.facts, scoring.classifying, scoring.segments
        read = [scoring.score] if classifying is None else [f.name for f in classifying.classifier.features]
        in_file = with_fields(parquet.schema_arrow, segments).names
        self.names = list(dict.fromkeys([*read, *(name for name in segments if name in in_file)]))
        footer = CheckedFooter(parquet.metadata, path, ending.footer.row_groups)
        self.codecs = [codec_beside(codec) for codec in footer.codecs(read[0])]
        self.indexed = ending.footer.has_offset_index()
        self.expected = Expected(ending.metadata, scoring.schema().names, facts.version, ending.start)
        self.range = RangeCount(range_of(facts))
        self.bins = None if scoring.shift is None else bins_of(self.lookup.map)
        self.null_rows = self.unseen_rows = 0
        self._in_bins: Array | None = None
        self._dictionaries = self.lookup.index.no_dictionaries()

    @property
    def counts(self) -> Counts:
        """Number of scores in each bin."""
        return () if self._in_bins is None else tuple(map(int, self._in_bins))

    def row_groups(self) -> Iterator[list[Chunk]]:
        """Yield the chunks of the new columns of each row group."""
        *fields, version = self.scoring.schema()
        for index, codec in enumerate(self.codecs):
            sums, columns = [Checksum() for _ in fields], [list[pa.Array]() for _ in fields]
            for page in self._pages(index):
                for checksum, column, values in zip(sums, columns, page, strict=True):
                    checksum.add(values)
                    column.append(values)
            self.expected.sums.append(sums)
            chunked = [pa.chunked_array(c, field.type) for c, field in zip(columns, fields, strict=True)]
            self.null_rows += chunked[0 if self.scoring.classifying is None else 1].null_count
            rows = self.parquet.metadata.row_group(index).num_rows
            yield [
                *(
                    encode_chunk(field.name, column, codec, indexed=self.indexed)
                    for field, column in zip(fields, chunked, strict=True)
                ),
                constant_chunk(version.name, self.expected.constant, rows, codec, indexed=self.indexed),
            ]

    def _pages(self, row_group: int) -> Iterator[list[pa.Array]]:
        """Compute the new columns page by page, without the table's version."""
        classifying, transform = self.scoring.classifying, self.lookup.facts.score_transform
        for batch in read_batches(self.parquet, self.path, self.names, [row_group], PAGE_ROWS):
            batch = with_columns(batch, self.names)
            if classifying is None:
                raw = numbers(batch.column(self.scoring.score))
            else:
                raw = classifying.classifier.scores(batch)
            scores = apply_transform(raw, transform)
            self.range.add(scores)
            if self.bins is not None:
                found = self.bins.tally(scores)
                self._in_bins = found if self._in_bins is None else self._in_bins + found
            p, *bounds = self._calibrated(scores, batch)
            columns = [nullable_column(values) for values in (p, *bounds)]
            if classifying is not None:
                decision = np.where(np.isnan(p), np.nan, p >= classifying.threshold)
                columns = [nullable_column(raw), *columns, nullable_column(decision).cast(pa.bool_())]
            yield columns

    def _calibrated(self, scores: Array, batch: pa.RecordBatch) -> tuple[Array, ...]:
        """Compute the probabilities of transformed scores, and the bounds of their intervals if these are added."""
        lookup, segments = self.lookup, self.scoring.segments
        interval = lookup.interval if self.scoring.interval else None
        if not segments:
            bounds = () if interval is None else interval.at(lookup.map.score_hi, scores)
            return (lookup.map.predict(scores), *bounds)
        keys = with_values(batch, self.path, segments)
        columns = [
            segment_column(keys.column(name), name, owner.type)
            for name, owner in zip(segments, lookup.owners, strict=True)
        ]
        index, fitted = lookup.index.find(columns, self._dictionaries)
        self.unseen_rows += fitted.size - int(np.count_nonzero(fitted))
        bounds = () if interval is None else lookup.intervals(scores, index)
        return (lookup.apply(scores, index), *bounds)
