"""Folds: the division of labelled rows into those that a classifier is trained on and those that it scores.

A counter-based generator makes a row's random number from (seed, repeat, row id) alone. So folds do not depend on the
files that hold the rows, on their order, or on the process that reads them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Mask
from calibrators.core.hashing import mixed
from logcal.errors import InputRejectedError

Keys = npt.NDArray[np.uint64]
Parts = npt.NDArray[np.uint8]

TRAINED, SCORED, UNUSED = 0, 1, 2
"""Parts of a fold. Rows are unused only in folds by time."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
_ALL = 1 << 64


def random_bits(seed: int, repeat: int, keys: Keys) -> Keys:
    """Return a random 64-bit number for each key; for one (seed, repeat), different keys get different numbers.

    Parameters
    ----------
    seed, repeat : int in [0, 2**64)
    keys : uint64 array
    """
    stream = _stream(seed, repeat)
    with np.errstate(over="ignore"):
        return mixed(mixed(keys + _GOLDEN) ^ stream)


def random_state(seed: int, repeat: int) -> int:
    """Return a seed in [0, 2**31) for the random numbers of an estimator."""
    return int(_stream(seed, repeat)) >> 33


def _stream(seed: int, repeat: int) -> np.uint64:
    with np.errstate(over="ignore"):
        stream = mixed(np.array([seed & _MASK], np.uint64) + _GOLDEN)
        stream = mixed((stream ^ np.uint64(0xD1B54A32D192ED03)) + np.uint64((repeat + 1) & _MASK) * _GOLDEN)
    return np.uint64(stream[0])


def text_key(text: str) -> int:
    """Return a 64-bit key of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class RowKeys(NamedTuple):
    """Keys of rows: all that a fold depends on.

    Attributes
    ----------
    row : uint64 array, shape (n,): keys of the row ids
    label : bool array, shape (n,)
    group : uint64 array of keys of the groups, or None
    time : int64 or float64 array, or None
    """

    row: Keys
    label: Mask
    group: Keys | None = None
    time: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Fold:
    """Division of the rows for one repeat, in constant size.

    Attributes
    ----------
    kind : 'row', 'group' or 'time'
    seed, repeat : seed and stream of the random numbers
    below : bounds in [0, 2**64] for label 0 and label 1; rows with random numbers below them are trained on
    start, stop : with kind 'time': rows before `start` are trained on, and rows from `start` to `stop` (None: to the
        end) are scored
    """

    kind: str
    seed: int
    repeat: int
    below: tuple[int, int] = (0, 0)
    start: Any = None
    stop: Any = None

    def parts(self, rows: RowKeys) -> Parts:
        """Return the part of each row: TRAINED, SCORED or UNUSED."""
        if self.kind == "time":
            assert rows.time is not None
            parts = np.where(rows.time < self.start, TRAINED, SCORED).astype(np.uint8)
            if self.stop is not None:
                parts[rows.time >= self.stop] = UNUSED
            return parts
        keys = rows.row if self.kind == "row" else rows.group
        assert keys is not None
        bits = random_bits(self.seed, self.repeat, keys)
        negative, positive = (_below(bits, bound) for bound in self.below)
        trained = np.where(rows.label, positive, negative)
        return np.where(trained, TRAINED, SCORED).astype(np.uint8)


def _below(bits: Keys, bound: int) -> Mask:
    return bits < np.uint64(bound) if bound < _ALL else np.ones(bits.size, np.bool_)


@dataclass(frozen=True)
class Folds:
    """Rule that divides the rows into a fold for each repeat.

    Parameters
    ----------
    split : 'row'; 'group': no group is in both parts; 'time': train on the past
    train_fraction : in (0, 1)
    seed : int in [0, 2**64)
    stratified : with 'row': both parts get the same proportion of positives
    """

    split: str = "row"
    train_fraction: float = 0.7
    seed: int = 0
    stratified: bool = False

    def fold(self, repeat: int, rows: RowKeys) -> Fold:
        """Return the fold of one repeat, by 'row' or by 'group'; `rows` are all rows, in any order.

        By row, each row is trained on with probability `train_fraction`, independently. Stratified, the
        round(train_fraction * n) rows of each label with the smallest random numbers are trained on; by group, the
        round(train_fraction * groups) groups with the smallest. Two or more of them leave neither part empty. O(n).
        """
        if self.split == "group":
            assert rows.group is not None
            bound = self._smallest(random_bits(self.seed, repeat, np.unique(rows.group)))
            return Fold("group", self.seed, repeat, (bound, bound))
        if not self.stratified:
            bound = int(Fraction(self.train_fraction) * _ALL)
            return Fold("row", self.seed, repeat, (bound, bound))
        bits = random_bits(self.seed, repeat, rows.row)
        bounds = self._smallest(bits[~rows.label]), self._smallest(bits[rows.label])
        return Fold("row", self.seed, repeat, bounds)

    def _smallest(self, bits: Keys) -> int:
        """Return the bound below which the fraction `train_fraction` of distinct random numbers lies."""
        if bits.size < 2:
            return _ALL
        count = int(self.train_fraction * bits.size + 0.5)
        count = min(max(count, 1), bits.size - 1)
        return int(np.partition(bits, count)[count])

    def by_time(self, repeats: int, time: npt.NDArray[Any]) -> list[Fold]:
        """Return folds by time: the last (1 - train_fraction) of the rows, cut into `repeats` consecutive blocks.

        Each block is scored by a classifier trained on all rows before it, so each of these rows is scored once. Rows
        with equal times are never separated: a boundary among them moves before them, so there may be fewer blocks.
        O(n log n).

        Raises
        ------
        InputRejectedError
            All rows have the same time, or no rows precede the first block.
        """
        ascending = np.sort(time)
        n = ascending.size
        first_scored = self.train_fraction * n
        positions = [int(first_scored + (n - first_scored) * i / repeats) for i in range(repeats)]
        starts = list(dict.fromkeys(ascending[min(position, n - 1)] for position in positions))
        starts = [start for start in starts if start > ascending[0]]
        if not starts:
            raise InputRejectedError(
                "$[split]=time: expected rows before the scored ones, found none: the times are all "
                f"{ascending[0]}, or too few of them differ; choose another column ($[time]) or split"
            )
        stops = [*starts[1:], None]
        return [
            Fold("time", self.seed, i, start=start.item(), stop=None if stop is None else stop.item())
            for i, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ]
