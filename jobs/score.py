"""The score job: add the calibrated probability to each row of a log, from a published table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import ScoreConfig
from jobs.config.sections import ScoreSection, whole_days
from jobs.gate.limits import (
    check_classifier,
    check_earlier_shift,
    check_scored,
    check_shift,
    check_transform,
    outside_text,
    unseen_text,
)
from jobs.gate.shift import shift_rule
from jobs.outcome import Outcome, Plan
from jobs.rows import (
    ANY,
    ChosenRows,
    above_days,
    dated_path,
    facts_of,
    open_log_and_window,
    source_line,
    window_of,
)
from logcal.errors import ConfigError, counted
from logcal.reading import cached_table
from logcal.reading import read_facts as read_lookup_facts
from pipeline.classifier.features import Roles, open_features
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.log.logs import Columns, Log
from pipeline.log.windows import Window, window_days
from pipeline.score.scored import add_scoring, check_output, score_log, scored_output, tasks_of
from pipeline.score.scored_file import Classifying, Scoring
from pipeline.table.published import LOOKUP, PublishedTable, Version, run_id, segments_of, with_segments_of

if TYPE_CHECKING:
    from jobs.config.jobs import FollowConfig


def prepare(config: ScoreConfig, choice: ChosenRows = ANY) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store = PublishedTable(config.store.path, config.store.table)
    version = store.version(config.store.version)
    facts = read_lookup_facts(version.lookup_path, store.verify(version).get(LOOKUP))
    check_transform(config.log.score_transform, facts.score_transform)
    scoring = scoring_of(config, version)
    classifying = scoring.classifying
    if classifying is None:
        columns = Columns(config.log.score, segments=scoring.segments)
        days = whole_days(config.score.last)
        log, window = open_log_and_window(config, columns, choice, days)
        log = with_segments_of(version, log)
    else:
        features = classifying.classifier.features
        log = open_features(config.log.path, Roles(None), trained_features=features).log
        window = window_of(config.window, log, config.score.last)
    if window is not None:
        log = replace(log, files=window.log.files, columns=replace(log.columns, date=None))
    settings = {
        "score": config.log.score,
        "column": config.output.column,
        "version_column": config.output.version_column,
        "table": config.store.table,
        "version": version.name,
        "fingerprint": version.manifest["fingerprint"],
        **({"interval": True} if config.output.interval else {}),
    }
    if classifying is not None:
        settings["classifier"] = classifying.classifier.digest
        settings["decision"] = [classifying.decision, classifying.threshold]
    for name in ("max_outside_range", "max_unseen", "max_shift", "on_shift", "verify"):
        if (limit := getattr(config.score, name)) != ScoreSection.model_fields[name].default:
            settings[name] = limit
    identity = run_id("score", log, settings)
    output = scored_output(
        dated_path(config.output.path, "output.path", window),
        among=above_days(config.output.path),
        replace=config.output.mode == "replace",
    )
    check_earlier_shift(output, identity)
    check_output(log, output, identity)
    scoring = replace(scoring, shift=shift_rule(config.score, store, version), verify=config.score.verify)
    return Prepared(config, log, version, scoring, identity, output, window)


def scoring_of(config: ScoreConfig | FollowConfig, version: Version) -> Scoring:
    """Return the scoring that a configuration describes, with a certain version.

    Raises
    ------
    ConfigError, CheckFailedError
        Intervals are required and the table has none, or the classifier is not the table's.
    """
    output, classifying = config.output, classifying_of(config, version)
    interval = version.manifest.get("interval", "none")
    if output.interval and interval in ("none", "refuted"):
        raise ConfigError(
            f"output.interval: expected a table with intervals, found version {version.name} with "
            f"{'none' if interval == 'none' else 'none, since its observations refute a monotone truth'}: fit with "
            "calibrator.interval=auto, or leave output.interval out"
        )
    return Scoring(
        config.log.score,
        version.lookup_path,
        output.column,
        output.version_column,
        classifying,
        segments_of(version),
        output.interval,
    )


def classifying_of(config: ScoreConfig | FollowConfig, version: Version) -> Classifying | None:
    """Return the classifier and its decision threshold after calibration; None without a classifier."""
    if config.classifier.path is None:
        return None
    if segments_of(version):
        raise ConfigError(
            "classifier.path: expected a table without segments, found one with the segments "
            f"{', '.join(segments_of(version))}: score the log with the classifier first, and calibrate then"
        )
    from pipeline.classifier.shipped_classifier import find_classifier

    classifier = find_classifier(config.classifier.path, config.classifier.packages)
    check_classifier(classifier, version, allow=config.classifier.allow_other)
    lookup = cached_table(version.lookup_path)
    threshold = classifier.threshold(lookup.map, lookup.facts.score_transform)
    return Classifying(classifier, threshold.value, config.output.decision_column)


@dataclass(frozen=True)
class Prepared:
    """A scoring that can start."""

    config: ScoreConfig
    log: Log
    version: Version
    scoring: Scoring
    identity: str
    output: Output
    window: Window | None = None

    @property
    def threads(self) -> bool:
        """False if a classifier is applied, since the limit to one thread is a setting of the whole process."""
        return self.scoring.classifying is None

    @property
    def plan(self) -> Plan:
        """Plan of the scoring."""
        log = self.log
        return Plan(
            "score",
            (
                f"score: copy each file and add the probability ({counted(len(tasks_of(log)), 'task')})",
                "publish: rename the finished folder to its place",
            ),
            (source_line(self.config, log), self.version.lookup_path),
            (self.output.url, str(self.output.beside)),
            {**facts_of(log), **self._facts, "method": self.version.manifest["method"]},
        )

    @property
    def _facts(self) -> dict[str, Any]:
        window = {} if self.window is None else {"window": window_days(self.window)}
        table, version = self.config.store.table, self.version.name
        return {"table": table, "version": version, "run_id": self.identity, **window}

    def graph(self) -> Graph:
        """Graph of the scoring."""
        graph = Graph()
        add_scoring(graph, [(group[0].path,) for group in tasks_of(self.log)])
        return graph

    def execute(self, executor: Executor) -> Outcome:
        """Score the log and publish the output."""
        config, classifying = self.config, self.scoring.classifying
        scored = score_log(
            self.log,
            self.scoring,
            self.output,
            executor,
            run_id=self.identity,
            table=config.store.table,
            accept=partial(check_scored, config.score),
        )
        summary = {
            "path": scored.path,
            "column": config.output.column,
            "files": len(scored.files),
            **scored.counts._asdict(),
            **self._facts,
        }
        rows = scored.counts
        without = f", {rows.null_rows:,} of them without a score and so without a probability"
        lines = [
            f"scored {rows.rows:,} rows in {counted(len(scored.files), 'file')}{without if rows.null_rows else ''}",
            f"  with {scored.table} version {scored.version}",
            f"  {scored.path}",
        ]
        lines += [f"  {text}" for text in (outside_text(scored), unseen_text(scored)) if text]
        if classifying is not None:
            summary |= {"classifier": classifying.classifier.path, "threshold": classifying.threshold}
            lines.append(
                f"  classified by {classifying.classifier.path}, decided at {classifying.threshold:.4g}"
            )
        outcome = Outcome(summary=summary, lines=lines)
        if scored.shift is not None:
            summary["shift"] = scored.shift.facts()
            check_shift(scored.shift.beyond, scored.shift.text(), scored.path, outcome)
        return outcome
