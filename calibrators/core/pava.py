"""Pool adjacent violators: isotonic blocks of points and of blocks of parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.kernels import pava
from calibrators.core.passes import Blocks, Pass, Points, check_number

_PIECE = 1 << 18
"""Number of points that are pooled at a time; this needs up to 12 MB of memory."""


def pooling_pass() -> Pass:
    """Return the pass that yields the isotonic `Blocks`."""
    return Pass(chunk=pool_points, combine=pool_blocks, join=pool_blocks)


def pool_points(points: Points) -> Blocks:
    """Pool points to isotonic blocks. O(m)."""
    pieces = [
        _pool_piece(Points(*(column[i : i + _PIECE] for column in points)))
        for i in range(0, points.score.size, _PIECE)
    ]
    return pieces[0] if len(pieces) == 1 else pool_blocks(pieces)


def _pool_piece(points: Points) -> Blocks:
    first, last, weight, hits = np.ascontiguousarray(pava.pool_counts(*points).T)
    if first.size:
        zero = np.zeros(first.size)
        return Blocks(first, last, weight, zero, hits, zero)
    none = np.empty(0)
    return Blocks(*pava.pool(points.score, points.score, points.weight, none, points.positives, none))


def pool_blocks(parts: list[Blocks]) -> Blocks:
    """Pool the isotonic blocks of parts in score order; the result equals pooling all points at once.

    Pooling is associative: neighbours that violate the order within a part also violate it among all points.
    """
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Blocks(*pava.pool(*columns))


def pool_ends(blocks: Blocks, ends: float) -> tuple[Blocks, Array]:
    """Pool blocks with `ends` positives added below the lowest score and as many negatives above the highest.

    The levels are those of isotonic regression with these two observations; the blocks' sums exclude them. O(blocks).

    ends : float >= 0; with 0 the blocks are unchanged

    Returns
    -------
    blocks, and their levels, a float64 array
    """
    if ends == 0:
        return blocks, blocks.level
    pooled, levels, _ = pava.pool_ends(np.stack(blocks), np.array([blocks.first.size]), float(ends))
    return Blocks(*pooled), levels


def check_ends(ends: Any) -> None:
    """Raise ValueError if `ends` is not a finite number >= 0."""
    check_number("ends", ends, "a finite number >= 0", 0)
