"""Limits of a scoring: logs that do not fit the table are refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import EvaluateConfig, MonitorConfig
from jobs.config.sections import LogConfig, ScoreSection
from logcal.errors import CheckFailedError, ConfigError, NothingToDoError
from logcal.lookup_table import LookupTable, SegmentedLookup
from logcal.reading import read_facts as read_lookup_facts
from pipeline.files.output import Output
from pipeline.score.scored import ScoredLog
from pipeline.table.lookup_table import Predictor, read_lookup_table, read_segmented_lookup
from pipeline.table.published import PublishedTable, Version, segments_of

if TYPE_CHECKING:
    from pipeline.classifier.shipped_classifier import ShippedClassifier
    from pipeline.evaluate.kept_table import InSample
    from pipeline.evaluate.measurement import Against

log = logging.getLogger("logcal")

WARNED = 0.01
"""The share of rows outside a table's range, or of unknown segments, from which on it is said."""


def check_transform(given: str | None, transform: str) -> None:
    """Compare log.score_transform with the table's own, which is used.

    Raises
    ------
    ConfigError
        They differ.
    """
    if given not in (None, transform):
        raise ConfigError(
            f"log.score_transform: the table was fitted with '{transform}', found '{given}': leave it out, the table's "
            "own is used; or use a table that was fitted to such scores"
        )


def watched_table(
    config: EvaluateConfig | MonitorConfig,
) -> tuple[PublishedTable, Version, LookupTable, SegmentedLookup | None]:
    """The version that is measured on a log: its table, or of one with segments the map of all rows, and all maps.

    Raises
    ------
    ConfigError, InputRejectedError
        It is not there or damaged; the configuration has other segments, or another transform.
    """
    store = PublishedTable(config.store.path, config.store.table)
    version = store.version_to_watch(config.store.version)
    store.verify(version)
    segmented = None
    if table_segments(config.log, version):
        segmented = read_segmented_lookup(version.lookup_path)
        lookup = LookupTable(segmented.whole, segmented.facts, segmented.whole_interval)
    else:
        lookup = read_lookup_table(version.lookup_path)
    check_transform(config.log.score_transform, lookup.facts.score_transform)
    return store, version, lookup, segmented


def table_segments(log: LogConfig, version: Version) -> tuple[str, ...]:
    """Return a table's segment columns, which are the log's.

    Raises
    ------
    ConfigError
        log.segment names others.
    """
    columns = segments_of(version)
    if log.segment and log.segment != columns:
        wanted = (
            f"those of the table, {', '.join(columns)}"
            if columns
            else "none, since the table has no segments"
        )
        raise ConfigError(f"log.segment: expected {wanted}, found {', '.join(log.segment)}: leave it out")
    return columns


def check_classifier(classifier: ShippedClassifier, version: Version, *, allow: bool) -> None:
    """Compare a classifier with the one whose generated log a table was fitted on.

    Raises
    ------
    CheckFailedError
        It is another one's, and that is not allowed.
    """
    fitted = version.manifest["log"].get("generated_by")
    if fitted not in (None, classifier.run_id) and not allow:
        raise CheckFailedError(
            f"classifier.path: expected the classifier of the generated log that version {version.name} was fitted on "
            f"({fitted}), found another ({classifier.run_id}): use its own table, or set classifier.allow_other=true"
        )


def accept(section: ScoreSection, scored: ScoredLog) -> None:
    """Look at what is to be published; say from `WARNED` on what does not fit. section : with the largest shares.

    Raises
    ------
    CheckFailedError
        More of it than is accepted.
    """
    problems = []
    for key, rows, text in (
        ("max_outside_range", scored.outside.outside, outside_text(scored)),
        ("max_unseen", scored.counts.unseen_rows, unseen_text(scored)),
    ):
        share, limit = _share(rows, scored.counts.rows), getattr(section, key)
        if share > limit:
            problems.append(f"score.{key}: expected at most {limit:.4g} of all rows, found {text}")
        elif share >= WARNED:
            log.warning("%s", text)
    if problems:
        raise CheckFailedError(
            f"{'; '.join(problems)}: nothing was written; score with the table of this log's model, or raise the "
            "limit"
        )


def outside_text(scored: ScoredLog) -> str:
    """The rows outside the calibration range, in words; empty where there are none."""
    return scored.outside.text(scored.counts.rows)


def unseen_text(scored: ScoredLog) -> str:
    """The rows of unknown segments, in words; empty where there are none."""
    unseen = scored.counts.unseen_rows
    if not unseen:
        return ""
    share = 100 * _share(unseen, scored.counts.rows)
    return f"{unseen:,} rows ({share:.3g} %) of segments that the table does not know: fallback maps"


def _share(count: int, rows: int) -> float:
    return count / rows if rows else 0.0


# What an evaluation compares a table with, and what it requires of it.

PREVIOUS, RAW = "previous", "raw"


def find_against(config: EvaluateConfig, store: PublishedTable, version: Version) -> Against | None:
    """Find the version that evaluate.against names; None for nothing, and for the version before the first.

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
    from pipeline.evaluate.measurement import Against

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
            f"version {version.name}, the first, was fitted to these days: the next day is the first to evaluate it on"
        )
    found = output.manifest() or {}
    if found.get("window") == days and found.get("table_version") != version.name:
        raise NothingToDoError(
            f"version {version.name} was fitted to these days, and the report that {found.get('table_version')} got on "
            f"them before is in {output.root}: nothing to do"
        )


def check_in_sample(found: InSample, version: Version) -> None:
    """Refuse rows that the version was fitted to.

    Raises
    ------
    CheckFailedError
        There are some.
    """
    if found:
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
    manifest = output.manifest() or {}
    if manifest.get("run_id") == identity:
        check_required(manifest.get("failed") or [], output.root)


def check_required(problems: list[str], root: str) -> None:
    """Refuse a table that is not as it is required.

    Raises
    ------
    CheckFailedError
        Something is not.
    """
    if problems:
        raise CheckFailedError(f"evaluate.require: {'; '.join(problems)}. The report is in {root}")
