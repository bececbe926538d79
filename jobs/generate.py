"""The generate job: make a cross-validated prediction log, and a classifier trained on all rows, from labelled data."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from jobs.config.jobs import GenerateConfig
from jobs.outcome import Outcome, Plan, Startable
from jobs.rows import label_lines, outcomes_of, settings_of
from logcal.errors import InputRejectedError, counted
from logcal.schema import FORMAT_VERSION
from pipeline.classifier.estimators import EstimatorRecipe, check_columns, check_recipe
from pipeline.classifier.features import Roles, open_features
from pipeline.classifier.shipped_classifier import FOLDER, METADATA, MODEL, TRAINING_SCORES
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.generate.feature_facts import DataFacts, fact_tasks, gather_facts
from pipeline.generate.folds import Folds
from pipeline.generate.generated_log import (
    GeneratedLog,
    TaskSettings,
    generate,
    log_schema,
    part_path,
    plan_repeats,
)
from pipeline.generate.training import Training, memory_needed
from pipeline.table.published import run_id, software

log = logging.getLogger("logcal")


def prepare(config: GenerateConfig) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    chosen = config.estimator.model_dump()
    recipe = EstimatorRecipe(chosen.pop("class"), **chosen)
    check_recipe(recipe, config.generate.training)
    labels = outcomes_of(config.data)
    roles = Roles(**config.data.model_dump(exclude={"path": True, "key": True, "labels": True}))
    if labels is not None:
        roles = replace(roles, label=config.data.labels.label or "label")
    table = open_features(config.data.path, roles, labels=labels)
    log_schema(table)
    check_columns(recipe, table.features, ())
    identity = run_id("generate", table.log, settings_of(config))
    output = Output.at(config.output.path)
    output.check_apart(table.log.locations())
    output.check(identity)
    section = config.generate
    training = Training(table, recipe, section.training, section.batch_rows, section.seed)
    _check_memory(config, training, None)
    return Prepared(config, training, output, identity)


def _check_memory(config: GenerateConfig, training: Training, facts: DataFacts | None) -> None:
    """Refuse training that needs more memory than a worker has. facts : of the data; None: not known yet."""
    needed = memory_needed(training, facts)
    if needed <= config.cluster.memory_bytes:
        return
    advice = "set cluster.memory to that"
    if config.generate.training == "in_memory":
        advice += ", learn from fewer rows or columns, or set generate.training=partial_fit"
    else:
        advice += " or lower generate.batch_rows"
    rows = training.table.log.rows if facts is None else facts.rows
    raise InputRejectedError(
        f"a task needs about {needed / 2**30:.2f} GiB for {rows:,} rows of "
        f"{len(training.table.features)} features, found cluster.memory={config.cluster.memory} a worker: {advice}"
    )


@dataclass(frozen=True)
class Prepared(Startable):
    """A generation that can start."""

    config: GenerateConfig
    training: Training
    output: Output
    identity: str

    threads = False
    """Classifiers are trained, and the limit to one thread is a setting of the whole process."""

    @property
    def plan(self) -> Plan:
        """Plan of the generation."""
        table, config = self.training.table, self.config
        repeats = config.generate.repeats or _expected_repeats(config, table.log.rows)
        return Plan(
            "generate",
            (
                "check: read all rows once for labels, nulls and categories",
                f"repeat: train {self.training.recipe.path} and score the rest, about {repeats} times; once on all",
                "publish: rename the finished folder to its place",
            ),
            (f"{', '.join(config.data.path)}: {table.log.described()}",),
            (f"{self.output.url}/log/", f"{self.output.url}/{FOLDER}/"),
            {
                "files": len(table.log.files),
                "rows": table.log.rows,
                "features": [feature._asdict() for feature in table.features],
                "estimator": self.training.recipe.path,
                "run_id": self.identity,
            },
        )

    def graph(self) -> Graph:
        """Graph of the generation: a pass over all rows, then the repeats and the shipped classifier."""
        graph = Graph()
        facts = graph.task("facts", list, graph.layer("check", list, fact_tasks(self.training.table)))
        # Without generate.repeats the number depends on the rows: draw one.
        repeats = self.config.generate.repeats or 1
        graph.task("commit", list, graph.layer("repeat", list, [(facts, i) for i in range(1 + repeats)]))
        return graph

    def execute(self, executor: Executor) -> Outcome:
        """Generate the log and the classifier, and publish them."""
        started = time.perf_counter()
        config, section = self.config, self.config.generate
        table = self.training.table
        facts = gather_facts(table, executor)
        check_columns(self.training.recipe, table.features, facts.has_nulls(table.numbers))
        _check_memory(config, self.training, facts)
        folds = Folds(section.split, section.train_fraction, section.seed, section.stratified)
        planned = plan_repeats(folds, facts, section.target_rows, section.repeats)
        # Twice as many names, since failed repeats may be replaced.
        names = [part_path(repeat) for repeat in range(2 * len(planned))]
        names += [f"{FOLDER}/{name}" for name in (MODEL, METADATA, TRAINING_SCORES)]
        with self.output.writing(self.identity, names) as staging:
            folder = staging.folder
            task = TaskSettings(self.training, folder.filesystem, folder.root, section.on_failure == "skip")
            target = None if section.repeats is not None else section.target_rows
            generated = generate(task, folds, planned, facts, executor, staging, target_rows=target)
            for failure in generated.failures:
                log.warning("%s", failure)
            for text, count in generated.warnings().items():
                log.warning("the estimator warned %d times: %s", count, text)
            metadata = self._metadata(generated, facts)
            content = json.dumps(metadata, indent=2, allow_nan=False)
            staging.folder.write(f"{FOLDER}/{METADATA}", f"{content}\n".encode())
            staging.files.append(f"{FOLDER}/{METADATA}")
            staging.facts = self._facts(generated, metadata, facts)
            staging.facts["seconds"] = round(time.perf_counter() - started, 3)
        outcome = _outcome(self.output.url, staging.facts)
        outcome.lines[2:2] = label_lines(config.data, staging.facts)
        return outcome

    def _metadata(self, generated: GeneratedLog, facts: DataFacts) -> dict[str, Any]:
        """Return the content of classifier.json."""
        assert generated.shipped is not None
        table = self.training.table
        return {
            "format_version": FORMAT_VERSION,
            "run_id": self.identity,
            "sha256": generated.shipped.sha256,
            "score": generated.shipped.score,
            "label": table.roles.label,
            "features": [feature._asdict() for feature in table.features],
            "rows": facts.rows,
            "positives": facts.positives,
            "estimator": self.config.model_dump(mode="json")["estimator"],
            "seed": self.training.seed,
            "training": self.training.training,
            "software": software(),
        }

    def _facts(self, generated: GeneratedLog, metadata: dict[str, Any], facts: DataFacts) -> dict[str, Any]:
        """Return the facts for the manifest."""
        table = self.training.table
        return {
            "rows": generated.rows,
            "positives": generated.positives,
            "repeats": len(generated.repeats),
            "repeats_failed": len(generated.failures),
            "failures": [asdict(failure) for failure in generated.failures],
            "warnings": generated.warnings(),
            "columns": log_schema(table).names,
            "data": {
                "path": list(self.config.data.path),
                "rows": table.log.rows,
                **({"rows_waiting": facts.waiting} if facts.waiting else {}),
                "positives": facts.positives,
                **table.log.sources(),
            },
            **({} if facts.labels is None else {"labels": facts.labels.facts()}),
            "files": [asdict(receipt) for receipt in generated.repeats],
            "classifier": metadata,
            "classifier_seconds": generated.shipped.seconds if generated.shipped else None,
            "config": self.config.model_dump(mode="json"),
        }


def _expected_repeats(config: GenerateConfig, rows: int) -> int:
    if config.generate.split == "time":
        return 5
    each = max(1.0, rows * (1 - config.generate.train_fraction))
    return int(-(-config.generate.target_rows // each))


_SHOWN = ("labels", "rows", "positives", "repeats", "repeats_failed", "failures", "warnings")
"""Facts of the manifest that the outcome repeats."""


def _outcome(path: str, facts: dict[str, Any]) -> Outcome:
    classifier, waiting = facts["classifier"], facts["data"].get("rows_waiting")
    summary = {
        "path": path,
        **({"rows_waiting": waiting} if waiting else {}),
        "log": f"{path}/log",
        "classifier": f"{path}/{FOLDER}",
        **{key: facts[key] for key in _SHOWN if key in facts},
        "score": classifier["score"],
        "run_id": classifier["run_id"],
    }
    failed = f", {facts['repeats_failed']} more failed" if facts["repeats_failed"] else ""
    repeats = counted(facts["repeats"], "repeat")
    have = f" that have a label; {waiting:,} wait for theirs" if waiting else ""
    lines = [
        f"generated {facts['rows']:,} rows ({facts['positives']:,} positive) in {repeats}{failed}",
        f"  {summary['log']}",
        f"trained {classifier['estimator']['class']} on all {classifier['rows']:,} rows{have}",
        f"  {summary['classifier']}",
    ]
    return Outcome(summary=summary, lines=lines)
