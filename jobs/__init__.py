"""What a person runs: command line, configuration, cluster, exit codes, logging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dask.delayed import Delayed


def graph(job: str, config: Mapping[str, Any] | str | Path) -> Delayed:
    """A job as a `dask.delayed.Delayed`: see `jobs.graphs.graph`."""
    from jobs import graphs

    return graphs.graph(job, config)
