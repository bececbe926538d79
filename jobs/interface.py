"""Jobs for Python programs: what `logcal.run` and `logcal.graph` do, beyond the names that applications import."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.loading import Values, load_values, read_values
from jobs.graphs import graph
from jobs.outcome import Outcome
from jobs.records import Attempt
from jobs.registry import JOBS
from jobs.run import BUG, carry_out
from logcal.errors import ConfigError, LogcalError
from pipeline.files.faults import as_fault
from pipeline.files.storage import without_secrets

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["graph", "run"]

_INTERRUPTED = 130


def run(job: str, config: Mapping[str, Any] | str | Path, client: Client | None = None) -> Outcome:
    """Run a job as its command does, record included: see `logcal.run`."""
    if job not in JOBS:
        raise ConfigError(f"job: expected one of {', '.join(JOBS)}, found {job!r}")
    values = (
        read_values([config], []) if isinstance(config, (str, Path)) else Values(copy.deepcopy(dict(config)))
    )
    loaded = load_values(JOBS[job].config_class(), values)
    attempt, code = Attempt(job), BUG
    try:
        outcome = carry_out(JOBS[job], loaded, attempt, client)
        code = 0
        return outcome
    except LogcalError as error:
        code, attempt.message = error.exit_code, without_secrets(str(error))
        raise
    except KeyboardInterrupt:
        code = _INTERRUPTED
        raise
    except Exception as error:
        fault = as_fault(error)
        if fault is None:
            raise
        code, attempt.message = fault.exit_code, without_secrets(str(fault))
        raise fault from error
    finally:
        attempt.end(code)
