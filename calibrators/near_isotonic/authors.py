"""Variant of ENIR in its authors' released code: see `ENIR`, parameter `reference`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from calibrators.core.arrays import Integers
from calibrators.core.kernels import sums
from calibrators.core.passes import Pass
from calibrators.near_isotonic.label_runs import Runs, runs_pass
from calibrators.near_isotonic.model_search import Penalty, ScoredModels, score_each
from calibrators.near_isotonic.path import NearIsotonicPath, Solution

_MODELS = 100


def authors_models(
    penalty_of: Callable[[float], Penalty],
) -> Generator[Pass, Any, tuple[NearIsotonicPath, ScoredModels]]:
    """Score the `_rounded_models`, in one pass. penalty_of : see `model_search.late_models`."""
    runs = yield runs_pass(moments=True)
    _check_unit_interval(runs)
    path = NearIsotonicPath.of_runs(runs)
    return path, score_each(_rounded_models(path), penalty_of(sums.exact_sum(runs.weight)))


def _rounded_models(path: NearIsotonicPath) -> list[tuple[float, Solution]]:
    """Return lambda and rounded solution of at most 99 breakpoints, without lambda = 0 unless it is the only one."""
    lam = np.concatenate([[0.0], path.breakpoints])
    ranks = np.rint(np.arange(_MODELS) * (lam.size - 1) / (_MODELS - 1))
    lam = lam[np.unique(ranks).astype(np.int64)][1 if lam.size > 1 else 0 :]
    return [(float(x), _rounded(path, float(x))[0]) for x in lam]


def smoothed_levels(path: NearIsotonicPath, lam: float) -> Solution:
    """Smooth `_rounded` levels towards the blocks' mean scores, by the agreement of the two."""
    solution, first_run = _rounded(path, lam)
    n = solution.weight
    expected = np.add.reduceat(path.runs.moment, first_run) / n
    agreement = 1.0 - np.abs(solution.positives / n - expected)
    level = (solution.level * n + expected * agreement) / (n + agreement)
    return solution._replace(level=np.clip(level, 0.0, 1.0))


def _rounded(path: NearIsotonicPath, lam: float) -> tuple[Solution, Integers]:
    """Round a solution's levels to 6 decimals and join equal neighbours; return also the first run of each block."""
    last, weight, positives, level = path.blocks(lam)
    level = np.clip(np.round(level, 6), 0.0, 1.0)
    start = np.concatenate([[0], np.flatnonzero(level[1:] != level[:-1]) + 1])
    end = np.append(start[1:], level.size) - 1
    first_run = np.where(start == 0, 0, last[start - 1] + 1)
    weight, positives = np.add.reduceat(weight, start), np.add.reduceat(positives, start)
    solution = Solution(
        path.runs.first[first_run], path.runs.last[last[end]], weight, positives, level[start]
    )
    return solution, first_run


def _check_unit_interval(runs: Runs) -> None:
    """Raise ValueError for scores outside [0, 1]."""
    if runs.first[0] < 0 or runs.last[-1] > 1:
        raise ValueError(
            'scores: expected numbers in [0, 1] for reference="authors", which averages levels with scores, found '
            f"{runs.first[0]} to {runs.last[-1]}; apply the sigmoid 1 / (1 + exp(-score)) to scores first"
        )
