"""What an evaluation compares a table with, and what it requires of it."""

from __future__ import annotations

import logging
from typing import Any

from jobs.config.jobs import EvaluateConfig
from logcal.errors import CheckFailedError, ConfigError, NothingToDoError
from logcal.reading import read_facts as read_lookup_facts
from pipeline.evaluate.evaluation import Evaluation
from pipeline.evaluate.in_sample import InSample
from pipeline.evaluate.judgement import failed, required_values
from pipeline.evaluate.measurement import Against
from pipeline.files.output import Output
from pipeline.table.lookup_table import Predictor
from pipeline.table.published import PublishedTable, Version, segments_of

log = logging.getLogger("logcal")

PREVIOUS, RAW = "previous", "raw"


def find_against(config: EvaluateConfig, store: PublishedTable, version: Version) -> Against | None:
    """What evaluate.against names; None for nothing, and for the version before the first.

    Raises
    ------
    ConfigError
        It cannot be compared with.
    InputRejectedError
        There is no such version.
    """
    name = config.evaluate.against
    if name is None:
        return None
    if name == RAW:
        return Against("the raw score", Predictor())
    if name == PREVIOUS:
        name = version.manifest["previous_version"]
        if name is None:
            log.warning("evaluate.against: version %s has no previous one to compare with", version.name)
            return None
    other = store.version(name)
    store.verify(other)
    mine, theirs = (read_lookup_facts(v.lookup_path).score_transform for v in (version, other))
    if mine != theirs:
        raise ConfigError(
            f"evaluate.against: expected a version with the transform '{mine}', as {version.name} has, found "
            f"{other.name} with '{theirs}'"
        )
    return Against(f"version {other.name}", Predictor(other.lookup_path, segments_of(other)))


def check_measured(output: Output, days: dict[str, Any] | None, version: Version) -> None:
    """End where a day's commands run again after its fit.

    Raises
    ------
    NothingToDoError
        An earlier version's report of these days is there, or there is no earlier version.
    """
    if days is None:
        return
    if version.manifest["previous_version"] is None:
        raise NothingToDoError(
            f"version {version.name}, the first, was fitted to these days: it is evaluated on the next"
        )
    found = output.manifest() or {}
    if found.get("window") == days and found.get("table_version") != version.name:
        raise NothingToDoError(
            f"version {version.name} was fitted to these days, and the report that {found.get('table_version')} got on "
            f"them before is in {output.root}: nothing to do"
        )


def check_in_sample(config: EvaluateConfig, found: InSample, version: Version) -> None:
    """Refuse rows that the version was fitted to, where they are not allowed.

    Raises
    ------
    CheckFailedError
        There are some.
    """
    if found and not config.evaluate.allow_in_sample:
        raise CheckFailedError(
            f"evaluate.allow_in_sample=false: {found.sentence(version.name)} Evaluate before the fit, or on other rows"
        )


def check_earlier(output: Output, identity: str) -> None:
    """Say again what a finished run of the same evaluation said, if it was not what is required.

    Raises
    ------
    CheckFailedError
        It was not.
    """
    manifest = output.manifest()
    if manifest is not None and manifest.get("run_id") == identity and manifest.get("failed"):
        raise CheckFailedError(_message(manifest["failed"], output.root))


def unmet(config: EvaluateConfig, evaluation: Evaluation) -> list[str]:
    """What evaluate.require asks for and is not so."""
    return failed(config.evaluate.require, required_values(evaluation.after, evaluation.bars_after))


def check_required(problems: list[str], root: str) -> None:
    """Refuse a table that is not as it is required.

    Raises
    ------
    CheckFailedError
        Something is not.
    """
    if problems:
        raise CheckFailedError(_message(problems, root))


def _message(problems: list[str], root: str) -> str:
    return f"evaluate.require: {'; '.join(problems)}. The report is in {root}"
