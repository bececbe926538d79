"""Pooling adjacent violators: isotonic blocks of points, and of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrators._kernels import pava
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points, check_number

_PIECE = 1 << 18
"""Points that are pooled at once: what each may need beside them is 12 MB."""


def pooling_pass() -> Pass:
    """The pass that yields the isotonic `Blocks`."""
    return Pass(chunk=pool_points, combine=pool_blocks, classes=pool_classes)


def pool_points(points: Points) -> Blocks:
    """Isotonic blocks of points. O(m)."""
    pieces = [
        _pool_piece(Points(*(column[i : i + _PIECE] for column in points)))
        for i in range(0, points.score.size, _PIECE)
    ]
    return pieces[0] if len(pieces) == 1 else pool_blocks(pieces)


def pool_classes(negatives: Array, positives: Array) -> tuple[Blocks, int]:
    """Isotonic blocks of rows without weights, and the number of distinct scores; equal to pooling their points.

    negatives, positives : float64 arrays, ascending: the scores of either class, fewer than 2**26 together. O(rows).
    """
    blocks, both = pava.pool_classes(negatives, positives)
    first, last, weight, hits = np.ascontiguousarray(blocks.T)
    zero = np.zeros(first.size)
    return Blocks(first, last, weight, zero, hits, zero), count_distinct(negatives, positives, both)


def count_distinct(negatives: Array, positives: Array, both: int) -> int:
    """Count the different values of two ascending arrays that have `both` in common."""
    counts = (min(1, x.size) + int(np.count_nonzero(x[1:] != x[:-1])) for x in (negatives, positives))
    return sum(counts) - int(both)


def _pool_piece(points: Points) -> Blocks:
    none = np.empty(0)
    return Blocks(*pava.pool(points.score, points.score, points.weight, none, points.positives, none))


def pool_blocks(parts: list[Blocks]) -> Blocks:
    """Isotonic blocks of parts pooled one by one, in score order: equal to pooling everything at once.

    Pooling is associative: a block that violates within its part would violate within the whole.
    """
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Blocks(*pava.pool(*columns))


def pool_ends(blocks: Blocks, ends: float) -> tuple[Blocks, Array]:
    """Isotonic blocks and their levels, with `ends` positives added below the lowest score, as many negatives above.

    Equal to isotonic regression with these two observations more, but the blocks hold the others only. O(blocks).
    ends : float >= 0; 0 leaves the blocks as they are.
    """
    if ends == 0:
        return blocks, blocks.level
    pooled, levels, _ = pava.pool_ends(np.stack(blocks), np.array([blocks.first.size]), float(ends))
    return Blocks(*pooled), levels


def check_ends(ends: Any) -> None:
    """Raise ValueError if `ends` is not a finite number >= 0."""
    check_number("ends", ends, "a finite number >= 0", 0)
