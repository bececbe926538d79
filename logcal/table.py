"""A published table in an application: scores in, probabilities out, as the job `score` computes them."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap
from logcal import storage
from logcal.arrow_columns import as_column, column_of, kind_of, segment_problems
from logcal.errors import ConfigError, InputRejectedError, counted
from logcal.lookup_table import Array, LookupFacts, LookupTable, SegmentedLookup
from logcal.manifest import full_name, read_manifest
from logcal.reading import MANIFEST_FILE, cached_table, storage_error
from logcal.schema import apply_transform

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LARGEST = 2**63 - 1
_PLAIN_TYPES: dict[str, type] = {
    "text": str,
    "whole numbers": int,
    "booleans": bool,
    "date32[day]": dt.date,
}
"""Python type of each kind of segment values that needs no conversion."""
_MOST_COLUMNS = 8
_SCALARS = (str, int, float, bool, type(None), np.generic, dt.date)


def load(store: str, table: str, version: str | None = None) -> Table:
    """Load a published table.

    Parameters
    ----------
    store : local folder or fsspec URL
    table : name of the table
    version : name of a version, or the beginning of it that no other has; None: the current one

    Returns
    -------
    Table

    Raises
    ------
    ConfigError
        A name is not a plain one.
    InputRejectedError
        There is no such table or version, or it is damaged.
    TemporaryError
        Its storage does not give it now.
    """
    for key, name in (("table", table), ("version", version)):
        if name is not None and not _NAME.fullmatch(name):
            raise ConfigError(
                f"{key}: expected letters, digits, '.', '_' and '-', found {name!r}: choose a plain name"
            )
    root = f"{str(store).rstrip('/')}/{table}"
    wanted = version or _current(root)
    folder = f"{root}/versions/{wanted}"
    try:
        try:
            # Which is written last: without it there is no version.
            content = storage.read(f"{folder}/{MANIFEST_FILE}")
        except FileNotFoundError:
            folder = f"{root}/versions/{full_name(table, wanted, storage.names(f'{root}/versions'))}"
            content = storage.read(f"{folder}/{MANIFEST_FILE}")
    except FileNotFoundError:
        raise InputRejectedError(
            f"{root}: expected a version '{wanted}', found none: see `logcal tables list`"
        ) from None
    except OSError as error:
        raise storage_error(f"{folder}/{MANIFEST_FILE}", "manifest", error) from None
    read_manifest(f"{folder}/{MANIFEST_FILE}", content)
    return Table(cached_table(f"{folder}/lookup.parquet"), table)


def _current(root: str) -> str:
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
        From this probability on, acting costs less than not acting.
    score : float
        The lowest score that reaches it; NaN if none does.
    """

    probability: float
    score: float


class Table:
    """A published table, ready to score with; threads may share it.

    Attributes
    ----------
    name : name of the table; None if it was not loaded from a store.
    facts : the table's metadata: version, method, data and so on.
    segments : names of its segment columns; empty without segments.
    """

    def __init__(self, lookup: LookupTable | SegmentedLookup, name: str | None = None) -> None:
        self.name = name
        self.facts: LookupFacts = lookup.facts
        self.segments: tuple[str, ...] = lookup.facts.segments
        self._names = frozenset(self.segments)
        self._fitted: dict[str, str] = {}
        self._quick: frozenset[tuple[type, ...]] = frozenset()
        if isinstance(lookup, SegmentedLookup):
            pairs = zip(self.segments, lookup.owners, strict=True)
            self._fitted = {name: str(column.type) for name, column in pairs}
            kinds = [kind_of(type_) for type_ in self._fitted.values()]
            if len(kinds) <= _MOST_COLUMNS and all(kind in _PLAIN_TYPES for kind in kinds):
                self._quick = frozenset(product(*((_PLAIN_TYPES[kind], type(None)) for kind in kinds)))
        self._lookup = lookup
        self._plain = lookup.map.predict if isinstance(lookup, LookupTable) else None
        self._as_it_is = lookup.facts.score_transform == "none"

    @property
    def version(self) -> str:
        """The version's name."""
        return self.facts.version

    @property
    def map(self) -> CalibrationMap:
        """The map from scores, after `facts.score_transform`, to probabilities; with segments that of all rows."""
        return self._lookup.map if isinstance(self._lookup, LookupTable) else self._lookup.global_map

    def predict(self, scores: Any, segments: Any = None) -> Any:
        """Calibrated probabilities of scores, to the last bit those of the job `score`.

        Parameters
        ----------
        scores : a number, or an array-like of numbers of any shape; NaN has the probability NaN
        segments : of a table with segments, a mapping (or an Arrow table, or a data frame) from each segment column's
            name to one value for all scores, or to an array-like with one value per score. None is a value. Segments
            that the table does not know use the map of their parent, or of all rows.

        Returns
        -------
        float64: a number for a number; otherwise an array of the scores' shape. O(log rows) a score.

        Raises
        ------
        ConfigError
            A segment column is missing, of another length or of another kind (text instead of whole numbers), or the
            table has none.
        """
        if self._plain is not None and segments is None:
            return self._plain(scores if self._as_it_is else self._transformed(scores))
        if type(segments) is dict and isinstance(scores, float) and self._as_it_is:
            key = tuple(map(segments.get, self.segments))
            # The fast way for one score; a missing column is None here, like a null one.
            if tuple(map(type, key)) in self._quick and segments.keys() >= self._names:
                return self._at(float(scores), key)
        if self._plain is not None:
            self._refuse(segments)
        columns = self._columns(segments)
        if np.ndim(scores) == 0 and all(isinstance(column, _SCALARS) for column in columns):
            self._arrays(columns)
            return self._at(float(self._transformed(scores)), tuple(columns))
        array = np.asarray(self._transformed(scores), dtype=np.float64)
        return self._of_arrays(np.ascontiguousarray(array).reshape(-1), columns).reshape(array.shape)

    def inverse(self, probability: float, segments: Mapping[str, Any] | None = None) -> float:
        """Lowest score whose calibrated probability reaches a probability.

        Parameters
        ----------
        probability : float in [0, 1]
        segments : of a table with segments, a mapping from each segment column's name to one value

        Returns
        -------
        float
            The lowest double: of a table that never decreases, all scores from there on reach the probability and none
            below does. -inf where every score reaches it, NaN where none does. O(rows).

        Raises
        ------
        ConfigError
            `probability` is outside [0, 1]; a segment column is missing, or the table has none.

        Examples
        --------
        >>> import logcal
        >>> table = logcal.load("store", "ads")                  # doctest: +SKIP
        >>> table.inverse(0.2)                                   # doctest: +SKIP
        0.6125
        """
        if not 0 <= probability <= 1:
            raise ConfigError(f"probability: expected a number in [0, 1], found {probability}")
        edges, at = self._rows_for(segments)
        ends = np.append(np.nextafter(edges[1:], -np.inf), np.inf)
        reached = np.array(
            [max(at(low), at(high)) >= probability for low, high in zip(edges, ends, strict=True)]
        )
        if not reached.any():
            return float("nan")
        row = int(np.argmax(reached))
        first = _lowest(lambda score: at(score) >= probability, float(edges[row]), float(ends[row]))
        if self._as_it_is or first == -np.inf:
            return first
        # Back through the transform, which never decreases.
        return _lowest(lambda score: float(self._transformed(score)) >= first, -np.inf, np.inf)

    def threshold(
        self,
        cost_false_positive: float,
        cost_false_negative: float,
        segments: Mapping[str, Any] | None = None,
    ) -> Threshold:
        """Decision threshold that costs least, for given costs of the two errors.

        Acting on a case costs `cost_false_positive` if its label turns out 0, not acting `cost_false_negative` if it
        turns out 1. With calibrated probabilities it is best to act from the probability
        cost_false_positive / (cost_false_positive + cost_false_negative) on (Elkan 2001, IJCAI).

        Parameters
        ----------
        cost_false_positive, cost_false_negative : float > 0
        segments : as in `inverse`

        Returns
        -------
        Threshold
            The probability, and the lowest score that reaches it.

        Raises
        ------
        ConfigError
            A cost is not a positive number; as `inverse`.
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
        said = "" if self.name is None else f"{self.name!r}, "
        said += f"version {facts.version!r}, method {facts.method!r}, {facts.rows:,} rows"
        if isinstance(self._lookup, SegmentedLookup):
            said += (
                f", {counted(self._lookup.finest_segments.num_rows, 'segment')} of {', '.join(self.segments)}"
            )
        return f"<Table {said}>"

    def _rows_for(self, segments: Mapping[str, Any] | None) -> tuple[Array, Callable[[float], float]]:
        """Lower edges of the rows of one segment's map, and its probability of a transformed score."""
        if isinstance(self._lookup, LookupTable):
            self._refuse(segments)
            found = self._lookup.map
            return found.score_lo, lambda score: float(found.predict(score))
        columns = self._columns(segments)
        if not all(isinstance(column, _SCALARS) for column in columns):
            raise ConfigError("segments: expected one value of each segment column, found several")
        self.predict(0.0, segments)  # which refuses what is no value of a segment
        key = tuple(columns)
        start, stop = self._lookup.rows_of(key)
        edges = self._lookup.maps["score_lo"][start:stop]
        return edges, lambda score: float(self._at(score, key))

    def interval(self, scores: Any, segments: Any = None) -> tuple[Any, Any]:
        """The interval of each score: that of the table's row that it lies in.

        Parameters
        ----------
        scores, segments : as in `predict`

        Returns
        -------
        lower, upper : float64 arrays of the scores' shape, in [0, 1]; NaN for NaN
            `facts.interval` names their kind: 'band', a band that holds the true probabilities of all scores at once
            with 95 % confidence, if these never decrease with the score; 'posterior', a 95 % posterior interval for
            each score by itself; or 'venn_abers', a multiprobability of Venn-Abers prediction, which is
            no confidence interval. With segments it describes the rows that the map was fitted to: the parent's rows,
            where a segment has no map of its own.

        Raises
        ------
        ConfigError
            The table has no intervals; a segment column is missing or of another length, or the table has none.
        """
        table = self._lookup
        if table.interval is None:
            raise ConfigError(
                "expected a table with intervals, found one without: fit it with calibrator.interval=auto"
            )
        array = np.asarray(self._transformed(scores), dtype=np.float64)
        if isinstance(table, LookupTable):
            self._refuse(segments)
            return table.interval.at(table.map.score_hi, array)
        flat = np.ascontiguousarray(array).reshape(-1)
        lower, upper = table.intervals(flat, self._places(flat.size, self._columns(segments)))
        return lower.reshape(array.shape), upper.reshape(array.shape)

    @staticmethod
    def _refuse(segments: Any) -> None:
        if segments is not None:
            raise ConfigError("segments: expected none, since the table has none, found some: leave them out")

    def _transformed(self, scores: Any) -> Any:
        return scores if self._as_it_is else apply_transform(scores, self.facts.score_transform)

    def _columns(self, segments: Any) -> list[Any]:
        """The segment columns' values, in the table's order."""
        names = self._names_in(segments)
        missing = [name for name in self.segments if name not in names]
        if missing:
            raise ConfigError(
                f"segments: the table needs {', '.join(self.segments)}, found none of {', '.join(missing)}: "
                f"predict(scores, segments={{'{missing[0]}': ...}})"
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
    def _lines(self) -> tuple[memoryview, ...]:
        assert isinstance(self._lookup, SegmentedLookup)
        maps = self._lookup.maps
        columns: list[Any] = [
            np.ascontiguousarray(maps[n]) for n in ("score_hi", "prob_lo", "slope", "anchor")
        ]
        return tuple(memoryview(column) for column in columns)

    def _at(self, score: float, key: tuple[Any, ...]) -> np.float64:
        """The probability of one score of one segment, without arrays."""
        assert isinstance(self._lookup, SegmentedLookup)
        if score != score:
            return np.float64(score)
        start, stop = self._lookup.rows_of(key)
        score_hi, prob_lo, slope, anchor = self._lines
        j = bisect_right(score_hi, score, start, stop - 1)
        p: float = prob_lo[j]
        if slope[j] != 0.0:
            p += slope[j] * (score - anchor[j])
        if self._lookup.adjustments is not None and (entry := self._lookup.entry_of(key)) is not None:
            p = self._lookup.adjustments.apply_one(p, entry, score)
        return np.float64(p)

    def _of_arrays(self, scores: Array, columns: list[Any]) -> Array:
        assert isinstance(self._lookup, SegmentedLookup)
        return self._lookup.apply(scores, self._places(scores.size, columns))

    def _places(self, scores: int, columns: list[Any]) -> npt.NDArray[np.int32]:
        """Find the map of each of so many scores. columns : the segment columns' values."""
        assert isinstance(self._lookup, SegmentedLookup)
        arrays = self._arrays(columns)
        for name, array in zip(self.segments, arrays, strict=True):
            if len(array) not in (1, scores):
                raise ConfigError(
                    f"segments: expected {scores:,} values of '{name}', one a score, found {len(array):,}"
                )
        if all(len(array) == 1 for array in arrays):
            return np.repeat(self._lookup.index.find(arrays)[0], scores)
        whole = [a if len(a) == scores else _repeated(a, scores) for a in arrays]
        return self._lookup.index.find(whole)[0]

    def _arrays(self, columns: list[Any]) -> list[pa.Array | pa.ChunkedArray]:
        """The segment columns' values as Arrow's, of the kinds that the table was fitted to."""
        arrays = [_as_arrow(*pair) for pair in zip(self.segments, columns, strict=True)]
        known = zip(self.segments, arrays, strict=True)
        found = {name: str(array.type) for name, array in known if array.null_count < len(array)}
        if problems := segment_problems(self._fitted, found):
            raise ConfigError(f"segments: {'; '.join(problems)}")
        return arrays


def _lowest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Lowest double between two for which a condition holds that, once true, stays true up to `high`.

    By bisection of the doubles, which are whole numbers in their order.
    """
    if holds(low):
        return low
    below, above = _ordinal(low), _ordinal(high)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(_of_ordinal(middle)) else (middle, above)
    return _of_ordinal(above)


def _ordinal(score: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", score + 0.0))
    return int(bits) if bits >= 0 else -(int(bits) & _LARGEST)


def _of_ordinal(number: int) -> float:
    (magnitude,) = struct.unpack("<d", struct.pack("<q", abs(number)))
    return float(magnitude if number >= 0 else -magnitude)


def _as_arrow(name: str, column: Any) -> pa.Array | pa.ChunkedArray:
    """Values as an Arrow column: one value as a column of length 1. Arrow's own ways would import pandas."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    if isinstance(column, _SCALARS) or not hasattr(column, "__len__"):
        column = [column]
    if isinstance(column, np.ndarray) and column.dtype.kind in "iub":
        return as_column(column)
    if isinstance(column, list | tuple | np.ndarray):
        return _of_values(name, column.tolist() if isinstance(column, np.ndarray) else column)
    values = pa.array(column, from_pandas=True)
    if pa.types.is_floating(values.type):
        with contextlib.suppress(pa.ArrowInvalid):
            # Integers with missing values, which data frames hold as floats.
            return values.cast(pa.int64())
    return values


def _of_values(name: str, values: Sequence[Any]) -> pa.Array:
    """Python's text, whole numbers, booleans or dates as a column, null where they are None or NaN."""
    own = [None if value is None or value != value else value for value in values]
    kinds = {_kind(value) for value in own if value is not None} or {str}
    try:
        (kind,) = kinds
        if kind is int:
            numbers = [None if value is None else int(value) for value in own]
            return column_of(
                numbers, pa.uint64() if max(filter(None, numbers), default=0) > _LARGEST else pa.int64()
            )
        return column_of(own, {str: pa.string(), bool: pa.bool_(), dt.date: pa.date32()}[kind])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(
            f"segments: expected text, whole numbers, booleans or dates of '{name}', all of one kind, found "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
        ) from None


def _kind(value: Any) -> type:
    """The kind that values of several types are of; floats that are whole are whole numbers."""
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer()):
        return int
    return str if isinstance(value, str) else type(value)


def _repeated(column: pa.Array | pa.ChunkedArray, times: int) -> pa.Array:
    indices: npt.NDArray[np.int32] = np.zeros(times, np.int32)
    values = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return pa.DictionaryArray.from_arrays(pa.array(indices), values)
