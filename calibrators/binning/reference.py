"""BBQ as published, row by row, for readers and as the oracle of tests: slow and plain.

Notation of Pakdaman Naeini, Cooper & Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian
binning", AAAI: y are scores, z labels; bin b of B has N_b rows, m_b of them positive, n_b negative, and the prior
Beta(alpha_b, beta_b) with mean p_b. The product computes the same numbers from cumulative counts: `family`, `kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaln

from calibrators.binning.bbq import BBQ
from calibrators.core.arrays import Array


class BinningModel(NamedTuple):
    """Equal-frequency binning M = {B, Pa, Theta}.

    B : number of bins that was asked for
    Pa : float64 array, shape (bins - 1,): edges between bins, closed below
    theta : float64 array, shape (bins,): probability in each bin
    log_score : log Score(M), equation 1, with a uniform P(M)
    """

    B: int
    Pa: Array
    theta: Array
    log_score: float


class Ensemble(NamedTuple):
    """Models that BBQ averages, best first, and their shares of the mean."""

    models: list[BinningModel]
    shares: Array

    def predict(self, y: Array) -> Array:
        """Compute P(z = 1 | y), the mean over the models."""
        levels = [model.theta[np.searchsorted(model.Pa, y, side="right")] for model in self.models]
        return np.asarray(self.shares @ np.array(levels))


def bbq(scores: npt.ArrayLike, labels: npt.ArrayLike, settings: BBQ) -> Ensemble:
    """Fit BBQ with the parameters of a `BBQ`; the paper has cuts="frequency". O(N**(4/3)) for N rows."""
    order = np.argsort(scores, kind="stable")
    y, z = (np.asarray(column, np.float64)[order] for column in (scores, labels))
    authors, root, C = settings.reference == "authors", np.cbrt(y.size), settings.C
    fewest, most = max(1, int(root / C)), min(-(-y.size // 5), int(np.ceil(C * root)))
    models = []
    for B in range(fewest, most + 1):
        if authors:
            ranks = [j * (y.size // B) for j in range(1, B)]
        elif settings.cuts == "frequency":
            ranks = [-(-y.size * j // B) for j in range(1, B)]
        else:
            rarer = z if 2 * z.sum() <= y.size else 1 - z
            share = (np.arange(1, y.size + 1) / y.size + np.cumsum(rarer) / rarer.sum()) / 2 * y.size
            ranks = [int(np.argmax(share >= y.size * j / B)) + 1 for j in range(1, B)]
        models.append(
            _binning_model(y, z, B, past_ties(y, ranks), authors, authors or settings.prior == "per_bin")
        )
    return _select(models, settings.rho, authors)


def past_ties(y: Array, ranks: list[int]) -> list[int]:
    """Move ends of bins that would divide a tie to its end."""
    ends = np.searchsorted(y, y[[rank - 1 for rank in ranks if 0 < rank < y.size]], side="right")
    return sorted({int(end) for end in ends if end < y.size})


def _binning_model(y: Array, z: Array, B: int, ends: list[int], authors: bool, per_bin: bool) -> BinningModel:
    starts, stops = [0, *ends], [*ends, y.size]
    edges = [0.0, *(y[end - 1] + (y[end] - y[end - 1]) / 2 for end in ends), 1.0]
    strength = 2.0 if per_bin else 2.0 / len(starts)  # N' / B
    theta, log_score = [], 0.0
    for b, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        N_b, m_b = stop - start, z[start:stop].sum()
        middle = (edges[b] + edges[b + 1]) / 2
        p_b = min(max(middle, 0.005), 0.995)
        alpha_b, beta_b = strength * p_b, strength * (1 - p_b)
        # The bin's factor of P(D | M): its gamma functions are a quotient of two beta functions.
        log_score += betaln(m_b + alpha_b, N_b - m_b + beta_b) - betaln(alpha_b, beta_b)
        if authors:
            p0 = ((y[start:stop] * z[start:stop]).sum() + middle) / (m_b + 1)
            theta.append((m_b + p0) / (N_b + 1))
        else:
            theta.append((m_b + alpha_b) / (N_b + strength))  # footnote 3
    return BinningModel(B, np.array(edges[1:-1]), np.array(theta), float(log_score))


def _select(models: list[BinningModel], rho: float | None, authors: bool) -> Ensemble:
    """Keep the first k models, k = min{k : (S_k - S_{k+1}) / sigma^2 <= rho}; the scores S relative to the best."""
    best = max(model.log_score for model in models)
    models = sorted(models, key=lambda model: (-np.exp(model.log_score - best), model.B))
    S = np.exp([model.log_score - best for model in models])
    k = len(models)
    if rho is not None:
        first = int(np.sum(S[0] == S)) if authors else 1
        k = next((i for i in range(first, k) if S[i - 1] - S[i] <= rho * np.var(S)), k)
        k = max(k - 1, 1) if authors else k
    return Ensemble(models[:k], S[:k] / S[:k].sum())
