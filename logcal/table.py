"""Published tables in applications: `load`, and `Table`, which computes the same probabilities as the job `score`."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Array, Codes
from calibrators.core.map import CalibrationMap
from logcal import storage
from logcal.arrow_columns import as_column, column_of, one_array
from logcal.errors import ConfigError, InputRejectedError, counted
from logcal.lookup_table import LookupFacts, LookupTable
from logcal.manifest import full_name, read_manifest
from logcal.reading import MANIFEST_FILE, cached_table, storage_error
from logcal.schema import apply_transform
from logcal.segment_types import kind_of, segment_column, segment_problems
from logcal.units import are_probabilities, plausible, unit_question

_INT64_MAX = 2**63 - 1
_PYTHON_TYPES: dict[str, type] = {
    "text": str,
    "whole numbers": int,
    "booleans": bool,
    "dates": dt.date,
}
"""Python type of the segment values that need no conversion, by kind."""
_MAX_FAST_COLUMNS = 8
_SCALARS = (str, int, float, bool, type(None), np.generic, dt.date)


def load(store: str, table: str, version: str | None = None) -> Table:
    """Load a published table.

    Parameters
    ----------
    store : local folder or fsspec URL
    table : name of the table
    version : name of a version, or a beginning that identifies it; None: the live version

    Returns
    -------
    Table

    Raises
    ------
    ConfigError
        A name has other characters than letters, digits, '.', '_' and '-'.
    InputRejectedError
        There is no such table or version, or it is damaged.
    TemporaryError
        The storage is unavailable.
    """
    for key, name in (("table", table), ("version", version)):
        try:
            if name is not None:
                storage.check_name(name)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from None
    root = f"{str(store).rstrip('/')}/{table}"
    prefix = version or _live_version(root)
    folder = f"{root}/versions/{prefix}"
    try:
        try:
            # The manifest is written last: without it there is no version.
            content = storage.read(f"{folder}/{MANIFEST_FILE}")
        except FileNotFoundError:
            folder = f"{root}/versions/{full_name(table, prefix, storage.names(f'{root}/versions'))}"
            content = storage.read(f"{folder}/{MANIFEST_FILE}")
    except FileNotFoundError:
        raise InputRejectedError(
            f"{root}: expected a version '{prefix}', found none: see `logcal tables list`"
        ) from None
    except OSError as error:
        raise storage_error(f"{folder}/{MANIFEST_FILE}", "manifest", error) from None
    read_manifest(f"{folder}/{MANIFEST_FILE}", content)
    return Table(cached_table(f"{folder}/lookup.parquet"), table)


def _live_version(root: str) -> str:
    try:
        return storage.read(f"{root}/CURRENT").decode().strip()
    except FileNotFoundError:
        raise InputRejectedError(
            f"expected a published table, found none in {root}: run `logcal fit` first"
        ) from None
    except OSError as error:
        raise storage_error(f"{root}/CURRENT", "version's name", error) from None
    except ValueError as error:
        raise InputRejectedError(f"{root}/CURRENT cannot be read ({error})") from None


class Threshold(NamedTuple):
    """Decision threshold.

    Parameters
    ----------
    probability : float in (0, 1)
        Above this probability, acting costs less than not acting.
    score : float
        The lowest score with at least this probability; NaN if there is none.
    """

    probability: float
    score: float


class Table:
    """A published table; threads may share it.

    Attributes
    ----------
    name : name of the table; None if it was not loaded from a store
    facts : the table's metadata: version, method, data and so on
    segments : names of its segment columns; empty without segments
    """

    def __init__(self, lookup: LookupTable, name: str | None = None) -> None:
        self.name = name
        self.facts: LookupFacts = lookup.facts
        self.segments: tuple[str, ...] = lookup.facts.segments
        self._names = frozenset(self.segments)
        pairs = zip(self.segments, lookup.owners, strict=True)
        self._fitted = {name: str(column.type) for name, column in pairs}
        self._fast_types: frozenset[tuple[type, ...]] = frozenset()
        kinds = [kind_of(type_) for type_ in self._fitted.values()]
        if len(kinds) <= _MAX_FAST_COLUMNS and all(kind in _PYTHON_TYPES for kind in kinds):
            self._fast_types = frozenset(product(*((_PYTHON_TYPES[kind], type(None)) for kind in kinds)))
        self._lookup = lookup
        self._map_predict = None if self.segments else lookup.map.predict
        self._untransformed = lookup.facts.score_transform == "none"
        self._warns = self._untransformed and _fitted_to_probabilities(lookup.facts)

    @property
    def version(self) -> str:
        """The version's name."""
        return self.facts.version

    @property
    def map(self) -> CalibrationMap:
        """The map from scores, after `facts.score_transform`, to probabilities; with segments, the map of all rows."""
        return self._lookup.map

    def predict(self, scores: Any, segments: Any = None) -> Any:
        """Return the calibrated probabilities of scores, equal to those of the job `score` to the last bit.

        Parameters
        ----------
        scores : a number, or an array-like of numbers of any shape; NaN has the probability NaN
        segments : for a table with segments, a mapping (or an Arrow table, or a data frame) from each segment column's
            name to one value for all scores, or to an array-like with one value per score. None is a value. Segments
            that the table was not fitted to use the map of their parent, or of all rows.

        Returns
        -------
        float64: a number for a number, otherwise an array of the scores' shape. O(log rows) per score.

        Raises
        ------
        ConfigError
            The scores are no numbers, but text, for example. A segment column is missing, or has another length or
            another kind of values (text instead of whole numbers); or the table has no segments.

        Warns
        -----
        UserWarning
            Once per table, if it was fitted to probabilities and the scores look like percent or log odds.
        """
        if not isinstance(scores, float) or (self._warns and not plausible(scores)):
            scores = self._checked(scores)
        if self._map_predict is not None and segments is None:
            return self._map_predict(scores if self._untransformed else self._transform(scores))
        if type(segments) is dict and isinstance(scores, float) and self._untransformed:
            key = tuple(map(segments.get, self.segments))
            # Fast path for one score. The second condition tells missing columns from nulls: both are None in the key.
            if tuple(map(type, key)) in self._fast_types and segments.keys() >= self._names:
                return self._predict_one(float(scores), key)
        if self._map_predict is not None:
            self._refuse_segments(segments)
        columns = self._columns(segments)
        if np.ndim(scores) == 0 and all(isinstance(column, _SCALARS) for column in columns):
            self._arrays(columns)  # checks the kinds of values
            return self._predict_one(float(self._transform(scores)), tuple(columns))
        array = np.asarray(self._transform(scores), dtype=np.float64)
        flat = np.ascontiguousarray(array).reshape(-1)
        return self._lookup.apply(flat, self._entries(flat.size, columns)).reshape(array.shape)

    def inverse(self, probability: float, segments: Mapping[str, Any] | None = None) -> float:
        """Return the lowest score with at least a given calibrated probability.

        Parameters
        ----------
        probability : float in [0, 1]
        segments : for a table with segments, a mapping from each segment column's name to one value

        Returns
        -------
        float
            -inf if every score has at least this probability, NaN if none has. If the map never decreases, all higher
            scores have at least this probability, and no lower score has. O(rows).

        Raises
        ------
        ConfigError
            `probability` is outside [0, 1], a segment column is missing, or the table has no segments.

        Examples
        --------
        >>> import logcal
        >>> table = logcal.load("store", "ads")                  # doctest: +SKIP
        >>> table.inverse(0.2)                                   # doctest: +SKIP
        0.6125
        """
        if not 0 <= probability <= 1:
            raise ConfigError(f"probability: expected a number in [0, 1], found {probability}")
        edges, probability_at = self._edges_and_map(segments)
        ends = np.append(np.nextafter(edges[1:], -np.inf), np.inf)
        reached = np.array(
            [max(map(probability_at, row)) >= probability for row in zip(edges, ends, strict=True)]
        )
        if not reached.any():
            return float("nan")
        row = int(np.argmax(reached))
        first = _lowest(lambda s: probability_at(s) >= probability, float(edges[row]), float(ends[row]))
        if self._untransformed or first == -np.inf:
            return first
        # Invert the transform, which never decreases.
        return _lowest(lambda score: float(self._transform(score)) >= first, -np.inf, np.inf)

    def threshold(
        self,
        cost_false_positive: float,
        cost_false_negative: float,
        segments: Mapping[str, Any] | None = None,
    ) -> Threshold:
        """Return the decision threshold with the lowest expected cost.

        Acting on a case costs `cost_false_positive` if its label turns out 0, not acting `cost_false_negative` if it
        turns out 1. With calibrated probabilities it is best to act if the probability is at least
        cost_false_positive / (cost_false_positive + cost_false_negative) (Elkan 2001, IJCAI).

        Parameters
        ----------
        cost_false_positive, cost_false_negative : float > 0
        segments : as in `inverse`

        Returns
        -------
        Threshold
            The probability, and the lowest score with at least this probability.

        Raises
        ------
        ConfigError
            A cost is not a positive number, or an error of `inverse`.
        """
        for name, cost in (
            ("cost_false_positive", cost_false_positive),
            ("cost_false_negative", cost_false_negative),
        ):
            if not (0 < cost < float("inf")):
                raise ConfigError(f"{name}: expected a positive number, found {cost}")
        probability = cost_false_positive / (cost_false_positive + cost_false_negative)
        return Threshold(probability, self.inverse(probability, segments))

    def __repr__(self) -> str:
        facts = self.facts
        text = "" if self.name is None else f"{self.name!r}, "
        text += f"version {facts.version!r}, method {facts.method!r}, {facts.rows:,} rows"
        if self.segments:
            text += (
                f", {counted(self._lookup.finest_segments.num_rows, 'segment')} of {', '.join(self.segments)}"
            )
        return f"<Table {text}>"

    def _edges_and_map(self, segments: Mapping[str, Any] | None) -> tuple[Array, Callable[[float], float]]:
        """Return a segment's map: the lower edges of its rows, and the function from transformed scores."""
        if not self.segments:
            self._refuse_segments(segments)
            map_ = self._lookup.map
            return map_.score_lo, lambda score: float(map_.predict(score))
        columns = self._columns(segments)
        if not all(isinstance(column, _SCALARS) for column in columns):
            raise ConfigError("segments: expected one value of each segment column, found several")
        self.predict(0.0, segments)  # raises ConfigError for values of another kind
        key = tuple(columns)
        start, stop = self._lookup.rows_of(key)
        edges = self._lookup.maps["score_lo"][start:stop]
        return edges, lambda score: float(self._predict_one(score, key))

    def interval(self, scores: Any, segments: Any = None) -> tuple[Any, Any]:
        """Return the interval of the table's row that contains each score.

        Parameters
        ----------
        scores, segments : as in `predict`

        Returns
        -------
        lower, upper : float64 arrays of the scores' shape, in [0, 1]; NaN for NaN
            `facts.interval` is their kind: 'band', a simultaneous 95 % confidence band for the true probabilities of
            all scores, if these never decrease with the score; 'posterior', a 95 % posterior interval for each single
            score; or 'venn_abers', of a Venn-Abers predictor, which is no confidence interval: from the lowest F0 to
            the highest F1 of the row's scores, which contains [F0, F1] at the score itself and is wider inside a row.
            With segments it describes the rows that the map was fitted to: the parent's rows, if a segment has no map
            of its own.

        Raises
        ------
        ConfigError
            The table has no intervals, the scores are no numbers, a segment column is missing or has another length, or
            the table has no segments.
        """
        table = self._lookup
        if table.interval is None:
            raise ConfigError(
                "expected a table with intervals, found one without: fit it with calibrator.interval=auto"
            )
        array = np.asarray(self._transform(self._checked(scores)), dtype=np.float64)
        if not self.segments:
            self._refuse_segments(segments)
            return table.interval.at(table.map.score_hi, array)
        flat = np.ascontiguousarray(array).reshape(-1)
        lower, upper = table.intervals(flat, self._entries(flat.size, self._columns(segments)))
        return lower.reshape(array.shape), upper.reshape(array.shape)

    def _checked(self, scores: Any) -> Any:
        """Return scores that are numbers; warn once if they are in another unit than the table's."""
        array = np.asarray(scores)
        kind = array.dtype.kind
        texts = (value for value in array.flat if isinstance(value, str | bytes)) if kind == "O" else ()
        if kind not in "fiubO" or any(True for _ in texts):
            found = "text" if kind in "USO" else array.dtype
            raise ConfigError(f"scores: expected numbers, found {found}: convert them")
        if self._warns and array.size:
            numbers = array.astype(np.float64, copy=False)
            lowest, highest = (float(end.reduce(numbers, axis=None)) for end in (np.fmin, np.fmax))
            if question := unit_question(lowest, highest):
                self._warns = False
                found = f"found scores from {lowest:.6g} to {highest:.6g}"
                warnings.warn(f"the table was fitted to probabilities, {found}; {question}", stacklevel=3)
        return array if array.ndim else scores

    @staticmethod
    def _refuse_segments(segments: Any) -> None:
        if segments is not None:
            raise ConfigError("segments: expected none, since the table has none, found some: leave them out")

    def _transform(self, scores: Any) -> Any:
        return scores if self._untransformed else apply_transform(scores, self.facts.score_transform)

    def _columns(self, segments: Any) -> list[Any]:
        """Return the values of the segment columns, in the table's order."""
        names = self._names_in(segments)
        missing = [name for name in self.segments if name not in names]
        if missing:
            raise ConfigError(
                f"segments: the table needs {', '.join(self.segments)}, found none of {', '.join(missing)}: "
                f"give segments={{'{missing[0]}': ...}}"
            )
        return [segments[name] for name in self.segments]

    @staticmethod
    def _names_in(segments: Any) -> Any:
        if segments is None:
            return ()
        if isinstance(segments, Mapping):
            return segments.keys()
        return getattr(segments, "column_names", None) or getattr(segments, "columns", ())

    @cached_property
    def _map_columns(self) -> tuple[memoryview, ...]:
        maps = self._lookup.maps
        columns: list[Any] = [
            np.ascontiguousarray(maps[n]) for n in ("score_hi", "prob_lo", "slope", "anchor")
        ]
        return tuple(memoryview(column) for column in columns)

    def _predict_one(self, score: float, key: tuple[Any, ...]) -> np.float64:
        """Return the probability of one transformed score, without arrays."""
        if score != score:
            return np.float64(score)
        lookup = self._lookup
        entry = None if lookup.adjustments is None else lookup.entry_of(key)
        start, stop = lookup.rows_of(key) if entry is None else lookup.rows_adjusted(entry)
        score_hi, prob_lo, slope, anchor = self._map_columns
        j = bisect_right(score_hi, score, start, stop - 1)
        p: float = prob_lo[j]
        if slope[j] != 0.0:
            p += slope[j] * (score - anchor[j])
        if lookup.adjustments is not None and entry is not None:
            p = lookup.adjustments.apply_one(p, entry, score)
        return np.float64(p)

    def _entries(self, scores: int, columns: list[Any]) -> Codes:
        """Find the map or entry of each score. scores : number of scores. columns : values of the segment columns."""
        arrays = self._arrays(columns)
        for name, array in zip(self.segments, arrays, strict=True):
            if len(array) not in (1, scores):
                raise ConfigError(
                    f"segments: expected {scores:,} values of '{name}', one a score, found {len(array):,}"
                )
        if all(len(array) == 1 for array in arrays):
            return np.repeat(self._lookup.index.find(arrays)[0], scores)
        equal_lengths = [a if len(a) == scores else _repeated(a, scores) for a in arrays]
        return self._lookup.index.find(equal_lengths)[0]

    def _arrays(self, columns: list[Any]) -> list[pa.Array | pa.ChunkedArray]:
        """Convert the segment columns' values to Arrow; ConfigError for values of another kind than the table's."""
        arrays = [_as_arrow(*pair) for pair in zip(self.segments, columns, strict=True)]
        pairs = zip(self.segments, arrays, strict=True)
        types = {name: str(array.type) for name, array in pairs if array.null_count < len(array)}
        if problems := segment_problems(self._fitted, types):
            raise ConfigError(f"segments: {'; '.join(problems)}")
        wanted = [column.type for column in self._lookup.owners]
        try:
            return [_converted(*parts) for parts in zip(arrays, self.segments, wanted, strict=True)]
        except InputRejectedError as error:
            raise ConfigError(f"segments: {error}") from None


def _fitted_to_probabilities(facts: LookupFacts) -> bool:
    lowest, highest = facts.data.get("lowest_score"), facts.data.get("highest_score")
    if not isinstance(lowest, int | float) or not isinstance(highest, int | float):
        return False
    return are_probabilities(lowest, highest)


def _lowest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the lowest double in [low, high] for which a condition holds; once true it must stay true up to `high`.

    The doubles are bisected by their ordinals.
    """
    if holds(low):
        return low
    below, above = _ordinal(low), _ordinal(high)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(_from_ordinal(middle)) else (middle, above)
    return _from_ordinal(above)


def _ordinal(score: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", score + 0.0))
    return int(bits) if bits >= 0 else -(int(bits) & _INT64_MAX)


def _from_ordinal(number: int) -> float:
    (magnitude,) = struct.unpack("<d", struct.pack("<q", abs(number)))
    return float(magnitude if number >= 0 else -magnitude)


def _as_arrow(name: str, column: Any) -> pa.Array | pa.ChunkedArray:
    """Convert values to an Arrow column, one value to a column of length 1. Arrow's conversions would import pandas."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    if isinstance(column, _SCALARS) or not hasattr(column, "__len__"):
        column = [column]
    if isinstance(column, np.ndarray) and column.dtype.kind in "iub":
        return as_column(column)
    if isinstance(column, list | tuple | np.ndarray):
        return _column_of_values(name, column.tolist() if isinstance(column, np.ndarray) else column)
    values = pa.array(column, from_pandas=True)
    if pa.types.is_floating(values.type):
        with contextlib.suppress(pa.ArrowInvalid):
            # Data frames store integers with missing values as floats.
            return values.cast(pa.int64())
    return values


def _converted(
    column: pa.Array | pa.ChunkedArray, name: str, wanted: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Convert an Arrow column of segment values; see `segment_column`."""
    if isinstance(column, pa.Array):
        return segment_column(column, name, wanted)
    chunks = [segment_column(chunk, name, wanted) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def _column_of_values(name: str, values: Sequence[Any]) -> pa.Array:
    """Convert Python texts, whole numbers, booleans or dates to a column; None and NaN become null."""
    nullable = [None if value is None or value != value else value for value in values]
    kinds = {_kind(value) for value in nullable if value is not None} or {str}
    try:
        (kind,) = kinds
        if kind is int:
            numbers = [None if value is None else int(value) for value in nullable]
            return column_of(
                numbers, pa.uint64() if max(filter(None, numbers), default=0) > _INT64_MAX else pa.int64()
            )
        return column_of(nullable, {str: pa.string(), bool: pa.bool_(), dt.date: pa.date32()}[kind])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(
            f"segments: expected text, whole numbers, booleans or dates of '{name}', all of one kind, found "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
        ) from None


def _kind(value: Any) -> type:
    """Return the Python type that stands for a value's kind; floats that are whole are whole numbers."""
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer()):
        return int
    return str if isinstance(value, str) else type(value)


def _repeated(column: pa.Array | pa.ChunkedArray, times: int) -> pa.Array:
    indices: Codes = np.zeros(times, np.int32)
    values = one_array(column) if isinstance(column, pa.ChunkedArray) else column
    return pa.DictionaryArray.from_arrays(pa.array(indices), values)
