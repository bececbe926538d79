"""Predictors: what gives rows their probabilities, as `score` gives them: a published table, or the score itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.passes import Array
from pipeline.table.lookup_table import cached_lookup_table
from pipeline.table.segment_lookup import cached_segmented_lookup

Places = npt.NDArray[np.int32]
"""Of each segment the number of the map that its rows go through."""


@dataclass(frozen=True)
class Predictor:
    """Predicts on any worker: tasks carry a path, not a map, and a process reads the table once.

    Attributes
    ----------
    path : of a lookup table; None: the score is the probability
    columns : the table's segment columns; none: all rows have one map
    sampling_rate : share of the rows with label 0 that the log has; what is predicted is the probability among the rows
        that there are
    """

    path: str | None = None
    columns: tuple[str, ...] = ()
    sampling_rate: float = 1.0

    def __call__(self, scores: Array) -> Array:
        """Probabilities of ascending scores, where there are no segments."""
        if self.path is None:
            return scores
        return self._of_sample(cached_lookup_table(self.path).map.predict_ascending(scores))

    def places(self, names: Sequence[str], values: Sequence[pa.Array]) -> Places | None:
        """The maps of segments. names, values : of the columns that tell them apart; the table's are among them."""
        if self.path is None or not self.columns:
            return None
        own = [values[list(names).index(name)] for name in self.columns]
        return cached_segmented_lookup(self.path).index.find(own)[0]

    def of_segments(self, scores: Array, places: Places | None) -> Array:
        """Probabilities of scores in any order. places : of each, as `places` finds them."""
        if self.path is None:
            return scores
        if places is None:
            return self._of_sample(cached_lookup_table(self.path).map.predict(scores))
        return self._of_sample(cached_segmented_lookup(self.path).apply(scores, places))

    def _of_sample(self, p: Array) -> Array:
        if self.sampling_rate == 1:
            return p
        return np.asarray(p / (p + (1 - p) * self.sampling_rate))
