"""Checks that a log and a published table suit each other, before scoring, evaluation and monitoring."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import EvaluateConfig, MonitorConfig
from jobs.config.sections import LogConfig, ScoreSection
from logcal.errors import CheckFailedError, ConfigError, NothingToDoError
from logcal.lookup_table import LookupTable
from logcal.reading import read_facts as read_lookup_facts
from logcal.reading import read_table
from pipeline.files.output import Output
from pipeline.score.scored import ScoredLog
from pipeline.table.lookup_table import Predictor
from pipeline.table.published import PublishedTable, Version, segments_of

if TYPE_CHECKING:
    from pipeline.classifier.shipped_classifier import ShippedClassifier
    from pipeline.evaluate.kept_table import InSample
    from pipeline.evaluate.measurement import Against

log = logging.getLogger("logcal")

WARNED = 0.01
"""Share of rows outside a table's range, or of unknown segments, from which there is a warning."""


def check_transform(configured: str | None, transform: str) -> None:
    """Check that log.score_transform is not set, or equals the table's, which is used.

    Raises
    ------
    ConfigError
        They differ.
    """
    if configured not in (None, transform):
        raise ConfigError(
            f"log.score_transform: the table was fitted with '{transform}', found '{configured}': leave it out, since "
            "the table's own is used, or use a table that was fitted to such scores"
        )


def load_measured_table(
    config: EvaluateConfig | MonitorConfig,
) -> tuple[PublishedTable, Version, LookupTable]:
    """Load the version to measure on a log: store, version, table.

    Raises
    ------
    ConfigError, InputRejectedError
        The version is missing or damaged, or the configuration has other segments or another transform.
    """
    store = PublishedTable(config.store.path, config.store.table)
    version = store.version_to_watch(config.store.version)
    store.verify(version)
    table_segments(config.log, version)  # refuses other columns
    lookup = read_table(version.lookup_path)
    check_transform(config.log.score_transform, lookup.facts.score_transform)
    return store, version, lookup


def table_segments(log: LogConfig, version: Version) -> tuple[str, ...]:
    """Return a table's segment columns, which are read from the log.

    Raises
    ------
    ConfigError
        log.segment names other columns.
    """
    columns = segments_of(version)
    if log.segment and log.segment != columns:
        expected = (
            f"those of the table, {', '.join(columns)}"
            if columns
            else "none, since the table has no segments"
        )
        raise ConfigError(f"log.segment: expected {expected}, found {', '.join(log.segment)}: leave it out")
    return columns


def check_classifier(classifier: ShippedClassifier, version: Version, *, allow: bool) -> None:
    """Check that a table was fitted on this classifier's generated log, or on no generated log.

    Raises
    ------
    CheckFailedError
        The table was fitted on another classifier's log, and `allow` is false.
    """
    fitted = version.manifest["log"]["generated_by"]
    if fitted not in (None, classifier.run_id) and not allow:
        raise CheckFailedError(
            f"classifier.path: expected the classifier of the generated log that version {version.name} was fitted on "
            f"({fitted}), found another ({classifier.run_id}): use its own table, or set classifier.allow_other=true"
        )


def check_scored(section: ScoreSection, scored: ScoredLog) -> None:
    """Check the shares of rows outside the table's range and of unknown segments; warn from `WARNED` on.

    section : has the largest accepted shares

    Raises
    ------
    CheckFailedError
        A share is larger.
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
    shift = scored.shift
    if shift is not None and shift.beyond and section.on_shift == "refuse":
        problems.append(f"score.max_shift: {shift.text()}")
    elif shift is not None and shift.warned:
        log.warning("%s", shift.text())
    if problems:
        raise CheckFailedError(
            f"{'; '.join(problems)}: nothing was written; score with the table of this log's model, or raise the "
            "limit"
        )


def check_shift(beyond: bool, text: str, path: str, outcome: Any = None) -> None:
    """Report that rows with another model's scores were scored.

    outcome : the job's outcome, which the error carries

    Raises
    ------
    CheckFailedError
        The scores are beyond score.max_shift. Its `written` is true.
    """
    if beyond:
        text = f"score.max_shift: {text} The rows were scored all the same (score.on_shift=write): {path}"
        error = CheckFailedError(text, outcome=outcome)
        error.written = True
        raise error


def check_earlier_shift(output: Output, identity: str) -> None:
    """Raise the error of a finished run of the same scoring again. Raises: see `check_shift`."""
    manifest = output.manifest() or {}
    shift = manifest.get("shift")
    if manifest.get("run_id") == identity and shift is not None:
        text = f"the scores are at a distance of {shift['distance']:.2f} from those that the table was fitted to."
        check_shift(shift["beyond"], text, output.root)


def outside_text(scored: ScoredLog) -> str:
    """Describe the rows outside the calibration range; '' if there are none."""
    return scored.outside.text(scored.counts.rows)


def unseen_text(scored: ScoredLog) -> str:
    """Describe the rows of unknown segments; '' if there are none."""
    unseen = scored.counts.unseen_rows
    if not unseen:
        return ""
    share = 100 * _share(unseen, scored.counts.rows)
    return f"{unseen:,} rows ({share:.3g} %) of segments that the table does not know: fallback maps"


def _share(count: int, rows: int) -> float:
    return count / rows if rows else 0.0


# Comparisons and requirements of an evaluation.

PREVIOUS, RAW = "previous", "raw"


def find_against(config: EvaluateConfig, store: PublishedTable, version: Version) -> Against | None:
    """Find the version that evaluate.against names; None if it is null, or if there is no previous version.

    Raises
    ------
    ConfigError
        The version has another score transform.
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
            log.info("evaluate.against: version %s has no previous one to compare with", version.name)
            return None
    other = store.version(name)
    store.verify(other)
    transform, other_transform = (read_lookup_facts(v.lookup_path).score_transform for v in (version, other))
    if transform != other_transform:
        raise ConfigError(
            f"evaluate.against: expected a version with the transform '{transform}', as {version.name} has, found "
            f"{other.name} with '{other_transform}'"
        )
    return Against(f"version {other.name}", Predictor(other.lookup_path, segments_of(other)))


def check_measured(output: Output, days: dict[str, Any] | None, version: Version) -> None:
    """End an evaluation that is repeated after the fit to its days.

    Raises
    ------
    NothingToDoError
        An earlier version's report of these days exists, or there is no earlier version.
    """
    if days is None:
        return
    if version.manifest["previous_version"] is None:
        raise NothingToDoError(
            f"the first version, {version.name}, was fitted to these days: evaluations begin with the next day"
        )
    earlier = output.manifest() or {}
    if earlier.get("window") == days and earlier.get("table_version") != version.name:
        raise NothingToDoError(
            f"nothing to do: these days were evaluated with version {earlier.get('table_version')} (report: "
            f"{output.root}), before version {version.name} was fitted to them"
        )


def check_in_sample(overlap: InSample, version: Version) -> None:
    """Refuse a log with rows that the version was fitted to.

    Raises
    ------
    CheckFailedError
        The log has such rows.
    """
    if overlap:
        raise CheckFailedError(
            f"evaluate.allow_in_sample=false: {overlap.sentence(version.name)} Or evaluate before the fit"
        )


def check_earlier(output: Output, identity: str) -> None:
    """Raise the error of a finished run of the same evaluation again.

    Raises
    ------
    CheckFailedError
        That run found unmet requirements.
    """
    manifest = output.manifest() or {}
    if manifest.get("run_id") == identity:
        check_required(manifest.get("failed") or [], output.root)


def check_required(problems: list[str], root: str) -> None:
    """Refuse a table that does not meet evaluate.require.

    Raises
    ------
    CheckFailedError
        There are problems.
    """
    if problems:
        raise CheckFailedError(f"evaluate.require: {'; '.join(problems)}. The report is in {root}")
