"""ENIR: an ensemble of near-isotonic regressions, weighted by an information criterion (Naeini & Cooper 2016).

The method as published is in this file; Algorithm 1 (mPAVA, equations 5 to 9), which finds the models, is
`reference.modified_pava`. `NearIsotonicPath` has the same models in less than quadratic time, `part_blocks` begins it
late, and `model_search` skips models without weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator, Needs
from calibrators.core.arrays import Array, Integers
from calibrators.core.passes import Passes, check_choice
from calibrators.core.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.near_isotonic.authors import authors_models, smoothed_levels
from calibrators.near_isotonic.model_search import DROP, Penalty, ScoredModels, late_models
from calibrators.near_isotonic.path import NearIsotonicPath, Solution


class Models(NamedTuple):
    """Models of an ensemble, by ascending lambda.

    Attributes
    ----------
    lam : float64 array, shape (models,): the breakpoint of the near-isotonic path
    degrees_of_freedom : int64 array, shape (models,): number of blocks
    log_likelihood : float64 array, shape (models,): natural logarithm, of all observations, <= 0
    criterion : float64 array, shape (models,): BIC, or the one of the parameter `criterion`; smaller is better
    weight : float64 array, shape (models,), > 0, adding up to 1
    """

    lam: Array
    degrees_of_freedom: Integers
    log_likelihood: Array
    criterion: Array
    weight: Array


class ENIR(Calibrator):
    """ENIR: the weighted mean of near-isotonic regressions along their path.

    The models are the solutions at the breakpoints lambda > 0 of the near-isotonic path, the last of them isotonic
    regression. (lambda = 0 would reproduce the labels; if there is no breakpoint, because no level decreases, the
    isotonic solution is the only model.) A model with log likelihood L and d blocks has the criterion -2 L + d log N
    (N is the sum of the weights) and a weight proportional to exp(-criterion / 2). Models with less than 1e-12 of
    the best one's weight are dropped. The map is the weighted mean of the models' maps: constant on each block of
    the finest model, linear in the gaps between blocks. It need not be monotone. Weights count as repeated rows,
    ties as one point; scores may be any finite numbers (except with `reference="authors"`).

    Best if the truth falls somewhere and there are many positives. In simulations its excess loss is 2.8 times the best
    method's in the median (docs/methods.md).

    Parameters
    ----------
    criterion : {"bic", "aic", "aicc"}, default "bic"
        BIC: -2 L + d log N. AIC: -2 L + 2 d. AICc: AIC + 2 d (d + 1) / (N - d - 1); models with d >= N - 1, where
        it is not defined, are excluded.
    reference : {"paper", "authors"}, default "paper"
        "authors" reproduces the authors' released research code: of the T breakpoints (including lambda = 0) it uses
        only those of rank round(k (T - 1) / 99), k = 0, ..., 99; it rounds levels to 6 decimals, clips them to [0, 1]
        and joins neighbours of equal level; it drops models with an infinite criterion, and lambda = 0 (unless it is
        the only one); BIC = -2 L + d (log N + log 2 pi). After scoring, a block of level p with n observations gets the
        level (p n + e (1 - c)) / (n + 1 - c), where e is their mean score, o their frequency of positives, and
        c = |o - e|. All models are averaged. Scores must lie in [0, 1].
    shrink : float >= 0, default 1
        Probabilities are shrunk into [shrink / (2 N), 1 - shrink / (2 N)], so that none is 0 or 1: p becomes
        shrink / (2 N) + (1 - shrink / N) p. 0 leaves them unchanged; so does reference="authors".

    Attributes
    ----------
    models_ : Models
        lambda, degrees of freedom, log likelihood, criterion and weight of each averaged model.
    calibration_map_, n_observations_
        As for every calibrator.

    Notes
    -----
    One pass merges in each part the blocks that have certainly merged at some lambda, and gathers some thousand per
    part; the path begins there, close to O(blocks), and each model that is scored takes O(blocks). If the models below
    this lambda may have weight, the pass is repeated with more blocks: see `calibrators.near_isotonic.model_search`.
    With other criteria, and for "authors", the path begins at 0, with all runs of points with equal y (for labels of
    frequency p in random order about 2 p (1 - p) per point, 32 bytes each; 40 for "authors").

    References
    ----------
    Naeini & Cooper (2016), "Binary classifier calibration using an ensemble of near isotonic regression models",
    ICDM.

    Examples
    --------
    >>> from calibrators.near_isotonic.enir import ENIR
    >>> enir = ENIR(shrink=0).fit([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 1, 0, 1, 1])
    >>> enir.models_.lam
    array([0.5])
    >>> enir.predict([0.2, 0.3, 0.35, 0.5])
    array([0. , 0.5, 0.5, 1. ])
    """

    needs = Needs(one_pass=True, constant_rows=True)

    models_: Models
    _start: tuple[float, int, float | None]

    def __init__(self, criterion: str = "bic", reference: str = "paper", shrink: float = 1) -> None:
        self.criterion = criterion
        self.reference = reference
        self.shrink = shrink

    def facts(self) -> dict[str, Any]:
        """Return the number of models that the map averages."""
        return {"models_averaged": int(self.models_.weight.size)}

    def path_facts(self) -> dict[str, Any]:
        """Return the start of the path, its number of blocks, and a bound for the models below the start.

        The bound is the log of how many times less likely these are than the best model; None if the path began at 0.
        """
        lam, blocks, factor = self._start
        return {"path_begins_at": lam, "blocks": blocks, "log_likelihood_ratio_before": factor}

    def check_parameters(self) -> None:
        """Raise ValueError if `criterion` or `reference` is not one of the names allowed."""
        check_choice("criterion", self.criterion, "bic", "aic", "aicc")
        check_choice("reference", self.reference, "paper", "authors")
        check_shrink(self.shrink)

    def _passes(self) -> Passes:
        penalty, shrink = partial(penalty_of, self.criterion), float(self.shrink)
        if self.reference == "authors":
            path, scored = yield from authors_models(partial(penalty, extra=float(np.log(2 * np.pi))))
            self._start, shrink = (0.0, path.runs.weight.size, None), 0.0
            self.models_ = weighted(scored)
            finest, level = average(path, self.models_, partial(smoothed_levels, path))
        else:
            # The other criteria may choose models at the beginning of the path.
            path, scored, ratio = yield from late_models(penalty, late=self.criterion == "bic")
            self._start = (path.start, path.runs.weight.size, ratio)
            self.models_ = weighted(scored, DROP)
            finest, level = average(path, self.models_, path.solution)
        fitted = finest._replace(level=level).calibration_map()
        return shrunk_map(fitted, floor_of(shrink, float(fitted.weight.sum())))


def penalty_of(criterion: str, n: float, extra: float = 0.0) -> Penalty:
    """Return the penalty that a criterion adds to -2 log likelihood, as a function of the degrees of freedom.

    n : sum of the weights. extra : added to log(n) in BIC. The function is monotone.
    """

    def penalty(df: Integers) -> Array:
        d: Array = df.astype(np.float64)
        if criterion == "bic":
            return d * float(np.log(n) + extra)
        if criterion == "aic":
            return d * 2.0
        spare: Array = n - 1.0 - d
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(spare > 0, 2.0 * d + 2.0 * d * (d + 1.0) / np.abs(spare), np.inf))

    return penalty


def weighted(scored: ScoredModels, drop: float = 0.0) -> Models:
    """Weight models by Score(M) = exp(-criterion / 2), the share of section III's average that is M's.

    drop : models with less than this share of the best one's weight are dropped, and those without any weight

    If every criterion is infinite, as when rounding moves a level to 0 or 1 against the labels, the isotonic model is
    the only one.
    """
    lam, df, likelihood, value = scored
    finite = np.isfinite(value)
    finite[-1] |= not finite.any()
    with np.errstate(under="ignore"):
        relative = (
            np.exp((value[finite].min() - value) / 2.0) if finite.sum() > 1 else finite.astype(np.float64)
        )
    selected = finite & (relative >= drop) & (relative > 0)
    share = relative[selected] / relative[selected].sum()
    return Models(lam[selected], df[selected], likelihood[selected], value[selected], share)


def average(
    path: NearIsotonicPath, models: Models, solve: Callable[[float], Solution]
) -> tuple[Solution, Array]:
    """Average the models' levels by weight, P(z = 1 | y), on the finest model's blocks; return it and the levels.

    Blocks only merge along the path, so each model's blocks are unions of the finest model's.
    """
    finest = path.solution(float(models.lam[0]))
    level = np.zeros(finest.level.size)
    for lam, weight in zip(models.lam, models.weight, strict=True):
        solution = solve(float(lam))
        level += weight * solution.level[np.searchsorted(solution.last_score, finest.last_score)]
    return finest, np.minimum(level, 1.0)
