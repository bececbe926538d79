"""Configuration classes of the jobs: keys, types, defaults and meanings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo

from calibrators import COMPARED
from jobs.config import sections
from jobs.config.base import Names, Packages, Paths, PathText, Section, Text, accepted_by, as_tuple
from jobs.config.cluster import ClusterConfig, parse_bytes


class StorageConfig(Section):
    """Options for object stores. Never written to manifests, records or reports."""

    options: dict[str, dict[str, Any]] = Field({})
    """By protocol, the arguments of fsspec's file system, for all paths of the job, such as {s3: {endpoint_url:
    https://minio:9000, key: someone, secret: '${MINIO_SECRET}'}}. Text that is ${NAME} is the environment variable
    NAME. Workers of a running cluster need the same variables in their own environment.
    """


class RecordConfig(Section):
    """Records of every attempt, also one that fails."""

    path: PathText | None = None
    """Folder of the run records, one JSON file per attempt: job, time, exit code, message, inputs, outputs, rows,
    measures, software, host. null: <store.path>/<store.table>/runs, if there is a store; otherwise
    the hidden folder .<name>.logcal beside the output. none: no records. A record that cannot be written gives a
    warning.
    """
    prometheus: PathText | None = None
    """File such as /var/lib/node_exporter/logcal.prom for Prometheus' textfile collector: last success, duration,
    rows and measures, by job and table. Several jobs share one file.
    """
    openlineage: PathText | None = None
    """URL of an OpenLineage server, or a file: a START event, and COMPLETE, FAIL or ABORT. Needs `pip install
    'logcal[lineage]'`.
    """


class JobConfig(Section):
    """Shared part of every job's configuration: these keys are shown last."""

    record: RecordConfig
    storage: StorageConfig = Field(exclude=True)
    scratch: PathText | None = None
    """Folder for temporary files, which all workers must see, or a URL of an object store. null: the system's temporary
    folder.
    """
    cluster: ClusterConfig

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that labels that wait have a time, and that held-out days leave others to fit to."""
        log, window, gate = (getattr(self, name, None) for name in ("log", "window", "gate"))
        if window is None:
            return
        if isinstance(log, sections.LogConfig):
            yield from sections.wait_conflicts(log.labels, window, "log.")
        if gate is not None and gate.days:
            found = f"found {gate.holdout}"
            if window.column is None:
                text = f"expected window.column with a number of days, {found} without it"
                yield (
                    "gate.holdout",
                    f"{text}: it tells which rows are the last; or hold out a share such as 0.2",
                )
            elif gate.days >= sections.whole_days(window.last):
                text = f"expected fewer days than window.last ({window.last}), {found}"
                yield "gate.holdout", f"{text}: no day would be left to fit to"


def fields_of(model: type[Section]) -> list[tuple[str, FieldInfo]]:
    """Return the keys of a section that its job uses, in display order: keys that all jobs share come last."""
    used = [item for item in model.model_fields.items() if item[0] not in model.unused]
    return sorted(used, key=lambda item: item[0] in JobConfig.model_fields)


class TableConfig(JobConfig):
    """Configuration of the commands for published tables."""

    store: sections.PublishedConfig


class FitConfig(JobConfig):
    """Configuration of fit."""

    log: sections.LogConfig
    store: sections.StoreConfig
    calibrator: sections.CalibratorConfig
    segments: sections.SegmentsConfig
    """With log.segment: which segments get a map of their own."""
    window: sections.WindowConfig
    score_table: sections.ScoreTableConfig
    """The sorted log, with one row per distinct score, which the calibrator is fitted to."""
    gate: sections.GateConfig
    retention: sections.RetentionConfig


class ScoreConfig(JobConfig):
    """Configuration of score."""

    log: sections.ScoreLogConfig
    store: sections.PublishedConfig
    """The published table to score with."""
    classifier: sections.ClassifierConfig
    """A classifier to score with, for logs of features."""
    window: sections.ReadWindowConfig
    """Days of the log to score: all, or the last ones. The files that may hold rows of these days are scored
    whole.
    """
    score: sections.ScoreSection
    output: sections.ScoredConfig


class EvaluateConfig(JobConfig):
    """Configuration of evaluate."""

    log: sections.MeasuredLogConfig
    """The prediction log to read. log.path may also be the folder score_table of a version (fit with
    score_table.keep=true): the log that it was fitted to, already sorted. The other keys are then ignored.
    """
    store: sections.PublishedConfig
    """The published table to measure."""
    window: sections.MeasuredWindowConfig
    """Days of the log to measure: all, or the last ones."""
    report: sections.ReportConfig
    evaluate: sections.EvaluateSection


DEMO_TABLE = "adult-income"


class DemoConfig(JobConfig):
    """Configuration of demo."""

    output: sections.DemoOutputConfig

    @property
    def store(self) -> sections.PublishedConfig:
        """Store of the demo's tables."""
        return sections.PublishedConfig(path=f"{self.output.path.rstrip('/')}/store", table=DEMO_TABLE)


class MonitorSection(Section):
    """Rule for alarms."""

    alpha: float = Field(0.01, gt=0, lt=1)
    """Largest probability of an alarm although the odds are right within the tolerance, however long the table is
    watched. For segments it limits the share of false alarms.
    """
    tolerance: float = Field(1.05, ge=1)
    """Factor by which odds may be wrong, either way, without being an alarm."""


class MonitorConfig(JobConfig):
    """Configuration of monitor."""

    log: sections.MonitoredLogConfig
    """The log with the days that have arrived, their labels complete. It must have no weights (log.weight)."""
    store: sections.PublishedConfig
    """The published table to watch."""
    window: sections.ReadWindowConfig
    """Days to test, each once; window.column is required. A day is compared with the version that was live before any
    fit read it; days without such a version are skipped.
    """
    monitor: MonitorSection
    report: sections.PageConfig
    """Page of all days that were tested, rewritten in each run."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that there is a column of dates, and no weights."""
        yield from super().conflicts()
        if self.window.column is None:
            yield "window.column", "expected the column that dates the rows, found null"
        if self.log.weight is not None:
            message = f"expected null, found '{self.log.weight}'"
            yield "log.weight", f"{message}: drift is tested on independent rows, without weights"


Methods = Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1)]


class CompareSection(Section):
    """Methods to compare, and how."""

    methods: Methods = COMPARED
    """The methods, by their names in calibrator.method. bbq and beta are left out for scores outside [0, 1]. Scores in
    [0, 1] are also compared as they are (no calibration).
    """
    params: dict[str, Any] = Field({})
    """Parameters of methods, such as {histogram: {bins: 20}, abb: {max_cuts: 500}}."""
    folds: int = Field(5, ge=2, le=100)
    """Parts of the log: each is predicted by calibrators that were fitted to the others."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed that divides the rows into folds."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield methods that are named twice, and parameters of methods that are not compared."""
        if len(set(self.methods)) < len(self.methods):
            yield "methods", f"expected each method once, found {', '.join(self.methods)}"
        for name in self.params:
            if name not in self.methods:
                yield "params", f"expected names of compare.methods, found {name}"


class CompareConfig(JobConfig):
    """Configuration of compare."""

    log: sections.LogConfig
    """The prediction log to read. log.segment is ignored: all rows are compared together."""
    compare: CompareSection
    report: sections.PageConfig
    """The comparison as a page; it is printed in any case."""


Size = Annotated[Text, accepted_by(parse_bytes)]


class FollowSection(Section):
    """Rules for following the log's files."""

    command_options: ClassVar[tuple[str, ...]] = ("once", "status", "retry", "rebuild")

    once: bool = False
    """Score the files that are there at the start, then exit: 0, 99 if nothing was new, 3 if files were refused. For
    cron and Airflow. false: run until stopped.
    """
    poll: sections.Duration = "1s"
    """Time between listings."""
    relist: sections.Duration = "1h"
    """Time between listings of all days; the listings in between cover only `lookback`."""
    partition: Text = "date"
    """Key of hive folders that give the day of a file, such as date=2026-01-31."""
    lookback: sections.Days = "3d"
    """Days before today whose folders are listed each time. Files outside dated folders, and folders of days to come,
    are listed each time, too.
    """
    max_files: int = Field(1000, ge=1)
    """Files of a batch at most."""
    max_bytes: Size = "4GiB"
    """Bytes of a batch's files at most; it has one file at least."""
    changed: Literal["rescore", "ignore", "fail"] = "rescore"
    """Treatment of a scored file whose source has another size or modification time now. rescore: write the scored
    file again. ignore: keep it. fail: stop with exit code 4.
    """
    deleted: Literal["keep", "remove"] = "keep"
    """Treatment of the scored file of a file that is gone from the log."""
    lifetime: sections.Duration = "24h"
    """Time after which the command ends with 0, to be started again by its supervisor."""
    status: bool = False
    """Print the stream's status and exit."""
    retry: Text | None = None
    """Name of a refused file, below the log's folder, to try again after a repair."""
    rebuild: bool = False
    """Rebuild a lost ledger from the log and the output before following: an existing scored file with as many rows
    as its source, and not older, is kept.
    """


class LabelledConfig(Section):
    """Place of rows with labels."""

    path: Paths | None = None
    """Another log, in which outcomes are joined to predictions already. null: log.path, with its labels or
    log.labels; rows without a label wait.
    """


class RefitSection(Section):
    """Rule for refits, which run the fit job with its sections of this configuration."""

    every: sections.Duration | None = None
    """Time after which to refit again, such as 24h. null: not by the clock."""
    rows: int | None = Field(None, ge=1)
    """Number of scored rows after which to refit. null: not by their number."""
    alarm: sections.Duration | None = None
    """Time between tests of the table as `logcal monitor` does them (with window.column, and the section monitor); an
    alarm starts a refit. null: no tests.
    """

    @property
    def enabled(self) -> bool:
        """True if there are refits."""
        return not (self.every is None and self.rows is None and self.alarm is None)


class RetentionSection(sections.RetentionConfig):
    """Retention of versions and of the ledger."""

    ledger: sections.Days | None = None
    """Days after which dated folders of the log are neither listed nor known any more, such as 90d. null: nothing
    is forgotten.
    """


class FollowConfig(JobConfig):
    """Configuration of follow."""

    log: sections.LogConfig
    """The prediction log to follow: one folder that files arrive in."""
    store: sections.PublishedConfig
    """The published table to score with. version null: the one that is current as each batch begins."""
    classifier: sections.ClassifierConfig
    """A classifier to score with, for logs of features."""
    output: sections.ScoredConfig
    """Folder of the scored files, each under its own name. The ledger lies beside it, in .<name>.logcal/."""
    score: sections.RangeSection
    follow: FollowSection
    labelled: LabelledConfig
    """With refits: where rows with labels are."""
    refit: RefitSection
    """When the table is refitted."""
    calibrator: sections.CalibratorConfig
    """With refits: how to calibrate."""
    segments: sections.SegmentsConfig
    """With refits and log.segment: which segments get a map of their own."""
    window: sections.WindowConfig
    """With refits: which days of the log to use: all, or the last ones."""
    score_table: sections.ScoreTableConfig
    """With refits: the sorted log."""
    gate: sections.GateConfig
    """With refits: the checks that the table must pass before it is used."""
    monitor: MonitorSection
    """With refit.alarm: when an alarm is given."""
    retention: RetentionSection
    report: sections.PageConfig
    """The page of the stream, in a local folder, rewritten each minute and at the end: its status, its last batches,
    refused files, and observed over expected positives of the last days (if the table is monitored: refit.alarm, or
    `logcal monitor`).
    """

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that refits can be published, and that keys of days have a column of dates."""
        yield from super().conflicts()
        if self.refit.enabled and self.store.version is not None:
            yield "store.version", "expected null with refits, which publish new versions, found one"
        if self.refit.alarm is not None and self.window.column is None:
            yield "refit.alarm", "only goes with window.column, found window.column=null"
        if self.refit.alarm is not None and self.log.weight is not None:
            message = "only goes with rows without weights, found log.weight: set refit.every instead"
            yield "refit.alarm", message


class DataConfig(Section):
    """Labelled data."""

    path: Paths
    """Path of the data: a folder, a Parquet file, a glob or an fsspec URL such as s3://bucket/data/; or a list of
    these. One row an example; numbers, booleans and text, nulls where values are missing.
    """
    label: Text = "label"
    """Column of the label: booleans, or the numbers 0 and 1."""
    key: Names = ()
    """With data.labels: columns that identify an example; they are no features."""
    labels: sections.LabelsConfig
    """Labels that lie in other files; data.time is when the examples were made."""
    features: Names | None = None
    """Columns to learn from. null: all but those that are named here for something else."""
    exclude: Names = ()
    """With features null: columns not to learn from."""
    categories: Names = ()
    """Features that are categories although they are whole numbers. Text always is."""
    keep: Names = ()
    """Columns to copy to the log, such as segments. They are features only if features names them."""
    row_id: Text | None = None
    """Column that identifies a row: whole numbers or text. Folds then do not depend on a row's position in the data.
    null: the position identifies a row, in the order of the files' names.
    """
    group: Text | None = None
    """With generate.split=group: column of the group."""
    time: Text | None = None
    """With generate.split=time: column of the time, or of any number that grows with it."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that each column has one role."""
        roles = {"label": self.label, "row_id": self.row_id, "group": self.group}
        for role, name in roles.items():
            if name is not None and name in (self.features or ()):
                message = f"expected no column of another meaning, found '{name}', which is data.{role}"
                yield "features", message
        yield from sections.label_conflicts(self.key, self.label, self.labels)
        yield from sections.wait_conflicts(self.labels, None)
        for role in ("time", "row_id", "group"):
            if getattr(self, role) == self.label:
                yield role, f"expected another column than data.label, found '{self.label}' for both"
        if self.features is not None:
            repeated = [name for i, name in enumerate(self.features) if name in self.features[:i]]
            if repeated:
                yield "features", f"expected different columns, found '{repeated[0]}' twice"
            if self.exclude:
                yield "exclude", "only goes with data.features=null"


# Not declared in the class body below, since `class` is a keyword of Python.
_CLASS: Any = Field(
    "sklearn.naive_bayes.GaussianNB",
    description="Dotted path of a classifier's class in one of the packages below; it needs predict_proba or "
    "decision_function.",
)
_KEYS: dict[str, Any] = {"class": (Text, _CLASS)}
_Classifier: Any = create_model("_Classifier", __base__=Section, **_KEYS)


class EstimatorConfig(_Classifier):
    """The classifier, and the preprocessing before it."""

    params: dict[str, Any] = Field({})
    """Its parameters, such as {max_iter: 500}. A random_state that is not given here comes from generate.seed; each
    task uses one thread.
    """
    packages: Packages = ("sklearn",)
    """Packages that the class may come from: sklearn, xgboost, lightgbm, catboost. Nothing else is ever imported."""
    categories: Literal["one_hot", "none"] = "one_hot"
    """one_hot: a column a category, and one for null where there are nulls. none: the features must be numbers."""
    imputation: Literal["median", "mean", "most_frequent", "none"] = "median"
    """Stand-in for a missing number, computed from the rows trained on. none: the estimator takes missing values
    itself.
    """
    scaling: Literal["standard", "min_max", "none"] = "none"
    """standard: numbers to mean 0 and variance 1. min_max: to [0, 1]. none: as they are."""


class GenerateSection(Section):
    """Rules for generating the log."""

    target_rows: int = Field(5000, ge=1)
    """Repeat until at least so many rows are scored; the last repeat is kept whole."""
    train_fraction: float = Field(0.7, gt=0, lt=1)
    """Share of the rows that a repeat is trained on; it scores the others."""
    repeats: int | None = Field(None, ge=1, le=10_000)
    """Number of repeats; target_rows is then ignored. null: as many as target_rows needs."""
    seed: int = Field(0, ge=0, lt=1 << 64)
    """Seed of all random numbers: a row's part in a repeat depends on the seed, the repeat and the row's id."""
    split: Literal["row", "group", "time"] = "row"
    """row: each row on its own. group: all rows of a group in the same part. time: train on the past: the last (1 -
    train_fraction) of the rows in `repeats` blocks (null: 5), each scored by a classifier trained on all rows
    before it.
    """
    stratified: bool = False
    """With row: give both parts the same share of positives, as nearly as can be."""
    training: Literal["in_memory", "partial_fit"] = "in_memory"
    """in_memory: each task holds all rows. partial_fit: batch by batch, for estimators that have it and data that a
    worker cannot hold.
    """
    batch_rows: int = Field(10_000, ge=1)
    """With partial_fit: rows a step."""
    on_failure: Literal["stop", "skip"] = "stop"
    """Treatment of a repeat that fails, as when the estimator does not converge or a part has one class. stop: write
    nothing. skip: go on without it; with target_rows another repeat replaces it (not by time).
    """


class GeneratedConfig(Section):
    """Target of the log and the classifier."""

    path: PathText
    """Folder to write to: log/, a prediction log for the other jobs; classifier/, the classifier trained on all
    rows, which `logcal score` takes.
    """


class GenerateConfig(JobConfig):
    """Configuration of generate."""

    data: DataConfig
    """The labelled data to learn from."""
    estimator: EstimatorConfig
    generate: GenerateSection
    output: GeneratedConfig

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that data.group and data.time are given exactly with their kind of split."""
        for role in ("group", "time"):
            is_set = getattr(self.data, role) is not None
            if self.generate.split == role and not is_set:
                yield f"data.{role}", f"REQUIRED with generate.split={role}"
            elif is_set and self.generate.split != role:
                yield f"data.{role}", f"only goes with generate.split={role}, found {self.generate.split}"
        if self.generate.stratified and self.generate.split != "row":
            yield "generate.stratified", f"only goes with generate.split=row, found {self.generate.split}"
        if self.generate.training == "partial_fit" and self.data.row_id is not None:
            message = "does not go with generate.training=partial_fit, which takes the rows as they lie"
            yield "data.row_id", f"{message}: leave it out"


DAY = "{day}"
"""Placeholder for a day in the path of an output."""


class DaysConfig(JobConfig):
    """Configuration of days run."""

    log: sections.LogConfig
    store: sections.StoreConfig
    window: sections.DailyWindowConfig
    """Days to fit to; window.column is required. window.until: this day and all earlier ones are complete, and no later
    day is done (backfills).
    """
    days: sections.DaysSection
    calibrator: sections.CalibratorConfig
    segments: sections.SegmentsConfig
    """With log.segment: which segments get a map of their own."""
    score_table: sections.ScoreTableConfig
    """The sorted log."""
    gate: sections.GateConfig
    evaluate: sections.DailyEvaluateSection
    """Measurement of each day, before any fit has used it."""
    monitor: MonitorSection
    report: sections.ReportConfig
    """Report of each day; the path must contain {day}."""
    score: sections.DailyScoreSection
    """Scoring of each day."""
    output: sections.ScoredConfig
    """Scored log of each day; the path must contain {day}."""
    retention: sections.RetentionConfig

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that rows have days, and that each day has its own outputs."""
        yield from super().conflicts()
        if self.window.column is None:
            yield "window.column", "expected the column that dates the rows, found null"
        for key, path in (("report.path", self.report.path), ("output.path", self.output.path)):
            if DAY not in path:
                yield key, f"expected a path with {DAY}, such as {path.rstrip('/')}/{DAY}, found {path}"


JOB_CONFIGS: Mapping[str, type[JobConfig]] = {
    "generate": GenerateConfig,
    "fit": FitConfig,
    "score": ScoreConfig,
    "follow": FollowConfig,
    "evaluate": EvaluateConfig,
    "monitor": MonitorConfig,
    "compare": CompareConfig,
    "days": DaysConfig,
    "demo": DemoConfig,
}
"""Configuration classes by job, in the order of --help."""
