"""What a log's scores go through before they are calibrated, and again before a lookup table is applied."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logcal.errors import ConfigError

Array = npt.NDArray[np.float64]

TRANSFORMS = ("none", "sigmoid")


def apply_transform(scores: npt.ArrayLike, name: str) -> Array:
    """Scores as the calibrator sees them.

    Parameters
    ----------
    scores : array-like of numbers, any shape; NaN stays NaN
    name : 'none', or 'sigmoid' for margins (log-odds): 1 / (1 + exp(-score)), in [0, 1]

    Returns
    -------
    float64 array of the same shape
        With 'sigmoid', within two units in the last place, without overflow, and the same on every machine.

    Raises
    ------
    ConfigError
        For another name.
    """
    array = np.asarray(scores, dtype=np.float64)
    if name == "none":
        return array
    if name != "sigmoid":
        raise ConfigError(f"log.score_transform: expected one of {', '.join(TRANSFORMS)}, found {name!r}")
    # Compiled: tables that transform nothing are read without.
    from calibrators._kernels import log_odds

    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(flat.size)
    log_odds.logistic(flat, out)
    return out.reshape(array.shape)
