"""The columns of a log, as a configuration names them."""

from __future__ import annotations

from jobs.config.sections import LogConfig
from pipeline.log.logs import Columns


def columns_of(config: LogConfig, segments: tuple[str, ...]) -> Columns:
    """Those of the scores, labels and weights, and these segments."""
    return Columns(config.score, config.label, config.weight, segments, sampling=config.sampling)
