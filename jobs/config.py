"""The configuration of every job: its keys, their types, defaults and meanings."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from jobs.config_gate import GateConfig, RetentionConfig
from jobs.config_section import Section

AUTO, INLINE, THREADS, LOCAL = "auto", "inline", "threads", "local"
ADDRESS, SCHEDULER_FILE = "address", "scheduler_file"
CLUSTER_KINDS = (AUTO, INLINE, THREADS, LOCAL, ADDRESS, SCHEDULER_FILE)

_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
}
MIN_MEMORY = 256 * 1024**2
"""A worker with its libraries imported holds about 155 MB; one that exceeds 95 % of its limit is killed."""


def parse_bytes(text: str) -> int:
    """Bytes of a size such as '2GiB' or '1500 MB'. Raises ValueError.

    >>> parse_bytes("1.5KiB")
    1536
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = {name.lower(): size for name, size in _UNITS.items()}.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected a size with its unit, such as 2GiB or 1500MB, found {text!r}")
    return int(float(match[1]) * unit)


def _check_memory(text: Any) -> str:
    if parse_bytes(str(text)) < MIN_MEMORY:
        raise ValueError(f"expected at least 256MiB, which a worker needs to start, found {text!r}")
    return text


def _check_kind(kind: str) -> str:
    if kind in CLUSTER_KINDS or re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", kind):
        return kind
    raise PydanticCustomError(
        "choice",
        "",
        {
            "choices": CLUSTER_KINDS,
            "or": "the dotted path of a cluster class, such as dask_jobqueue.SLURMCluster",
        },
    )


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"expected a plain name of letters, digits, '-', '_' and '.' that begins with a letter or digit, "
            f"found {name!r}"
        )
    return name


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_check_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)]
Packages = Annotated[
    tuple[Literal["sklearn", "xgboost", "lightgbm", "catboost"], ...], BeforeValidator(_as_tuple)
]
Paths = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


_PATH = (
    "Where the log is: a folder (its hive partitions too), a Parquet file, a glob or an fsspec URL such as "
    "s3://bucket/log/; or a list of these."
)
_SCORE = "Column of the score: floats or integers, finite; a higher score means more likely positive."


class LogConfig(Section):
    """A log with labels."""

    path: Paths = Field(description=_PATH)
    score: Text = Field("score", description=_SCORE)
    label: Text = Field(
        "label",
        description="Column of the label: booleans, or the numbers 0 and 1; null: not known yet, the row waits.",
    )
    weight: Text | None = Field(
        None,
        description="Column of the row's weight: a number from 1e-100 to 1e100. null: every row weighs 1.",
    )
    negative_sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the rows with label 0 that the log holds, chosen by chance, such as 0.01: probabilities "
        "are then those of all rows. Do not give sampled rows weights for it.",
    )
    positive_sampling_rate: float = Field(1.0, gt=0, le=1, description="The same of the rows with label 1.")
    segment: Names = Field(
        (),
        description="Columns whose values tell segments apart, such as [model_id, country]: strings, integers, "
        "booleans or dates; null is a segment too. fit makes a map for each; score and evaluate use those of the "
        "table. []: one map for all rows.",
    )
    score_transform: Literal["none", "sigmoid"] = Field(
        "none",
        description="none: the score as it is. sigmoid: 1 / (1 + exp(-score)), for scores that are margins "
        "(log odds).",
    )
    on_bad_rows: Literal["fail", "quarantine"] = Field(
        "fail",
        description="What to do with rows whose score, label or weight cannot be used. fail: stop and say which. "
        "quarantine: leave them out, and count them by reason.",
    )
    max_bad_fraction: float = Field(
        0.01,
        ge=0,
        le=1,
        description="With quarantine: the largest fraction of bad rows, in [0, 1], that is still accepted.",
    )
    quarantine_path: Text | None = Field(
        None,
        description="With quarantine: folder to write the bad rows to, as Parquet. null: they are only counted.",
    )

    @property
    def sampling_rate(self) -> float:
        """The share of negatives that were kept over that of positives: what odds are multiplied by."""
        return self.negative_sampling_rate / self.positive_sampling_rate

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """One column cannot be two things; what is not quarantined is not written."""
        roles = [("score", self.score), ("label", self.label), ("weight", self.weight)]
        seen: dict[str, str] = {}
        for role, column in [*roles, *(("segment", column) for column in self.segment)]:
            if column in seen:
                yield role, f"expected another column than log.{seen[column]}, found '{column}' for both"
            elif column is not None:
                seen[column] = role
        if self.quarantine_path is not None and self.on_bad_rows != "quarantine":
            yield (
                "quarantine_path",
                "is only written with log.on_bad_rows=quarantine, found log.on_bad_rows=fail",
            )


_SAME_TRANSFORM = Field(
    None,
    description="What the scores go through first: the table's own transform, whatever is given here. none or sigmoid: "
    "an error if it is not the table's. null: not compared.",
)


class MeasuredLogConfig(LogConfig):
    """A log with labels, to measure a table on."""

    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM  # type: ignore[assignment]


class ScoreLogConfig(Section):
    """A log to be scored: labels and weights are not read."""

    path: Paths = Field(description=_PATH)
    score: Text = Field(
        "score",
        description="Column of the score: floats or integers. A score that is null or NaN gets a null probability. "
        "With a classifier: the column to write it to.",
    )
    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM


class StoreConfig(Section):
    """Where a job publishes its table."""

    path: Text = Field(description="Folder of the published tables; made if it is not there.")
    table: Name = Field(description="Name of the table: letters, digits, '-', '_' and '.'.")
    publish: Literal["current", "candidate"] = Field(
        "current",
        description="current: make the new version the one that is used. candidate: only keep it, until `logcal tables "
        "promote` makes it current.",
    )
    force: bool = Field(
        False,
        description="Whether to make it current also where its data end earlier than those of the version that is: "
        "the option --force. Otherwise that is refused if window.until is given, or if that version was published "
        "while this fit ran.",
    )


class PublishedConfig(Section):
    """A published table."""

    path: Text = Field(description="Folder of the published tables.")
    table: Name = Field(description="Name of the table.")
    version: Name | None = Field(None, description="Version of the table. null: the one that CURRENT names.")


class SecurityConfig(Section):
    """Certificates for a scheduler at a tls address."""

    ca_file: Text | None = Field(
        None,
        description="Of the authority that signed the scheduler's. null: as Dask's own configuration has it.",
    )
    cert_file: Text | None = Field(None, description="Of this command.")
    key_file: Text | None = Field(None, description="Of cert_file.")

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.ca_file is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """All three go together."""
        keys = ("ca_file", "cert_file", "key_file")
        given = [key for key in keys if getattr(self, key) is not None]
        for key in keys:
            if given and key not in given:
                yield key, f"REQUIRED with cluster.security.{given[0]}"


class ClusterConfig(Section):
    """Where the work runs."""

    kind: Annotated[Text, AfterValidator(_check_kind)] = Field(
        AUTO,
        description="auto: local where classifiers are trained or applied, otherwise threads. inline: in this process, "
        "one task after the other, for debugging. threads: on threads of this process. local: on worker processes of "
        "this machine, as a Dask cluster. address, scheduler_file: a Dask cluster that is running. Or the dotted path "
        "of a cluster class, such as dask_jobqueue.SLURMCluster, dask_kubernetes.operator.KubeCluster or "
        "coiled.Cluster.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="Number of workers. null: with auto, threads and local, one per core as far as the memory goes; "
        "with a class, as many as the class starts by itself. Not used with the other kinds.",
    )
    memory: Annotated[Text, BeforeValidator(_check_memory)] = Field(
        "2GiB",
        description="Memory of each worker, such as 2GiB or 1500MB. Tasks are sized for it, and a worker process of "
        "this machine never gets more. Workers from elsewhere must have at least as much for each of their threads.",
    )
    address: Text | None = Field(
        None, description="With kind address: the scheduler's, such as tcp://10.0.0.5:8786."
    )
    scheduler_file: Text | None = Field(
        None,
        description="With kind scheduler_file: the file that the scheduler wrote (dask scheduler --scheduler-file).",
    )
    arguments: dict[str, Any] = Field({}, description="With a class: its keyword arguments.")
    security: SecurityConfig = Field(
        default_factory=SecurityConfig,
        description="With kind address or scheduler_file: certificates (TLS).",
    )
    timeout: float = Field(
        300.0,
        gt=0,
        description="Seconds to wait for the cluster and its first worker, and later, where all workers have gone, for "
        "another.",
    )

    @property
    def memory_bytes(self) -> int:
        """Of each worker."""
        return parse_bytes(self.memory)

    @property
    def on_this_machine(self) -> bool:
        """Whether workers would be processes of this machine."""
        return self.kind in (AUTO, LOCAL)

    @property
    def by_class(self) -> bool:
        """Whether `kind` is the dotted path of a class."""
        return self.kind not in CLUSTER_KINDS

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A key of one kind is given exactly with that kind."""
        for key in (ADDRESS, SCHEDULER_FILE):
            given = getattr(self, key) is not None
            if self.kind == key and not given:
                yield key, f"REQUIRED with cluster.kind={key}"
            elif given and self.kind != key:
                yield key, f"only goes with cluster.kind={key}, found cluster.kind={self.kind}"
        if self.arguments and not self.by_class:
            yield "arguments", f"only go with a cluster class, found cluster.kind={self.kind}"
        if self.security.given and self.kind not in (ADDRESS, SCHEDULER_FILE):
            yield (
                "security",
                f"only goes with cluster.kind={ADDRESS} or {SCHEDULER_FILE}, found cluster.kind={self.kind}",
            )


class CalibratorConfig(Section):
    """How to calibrate."""

    method: Text = Field(
        "isotonic",
        description="isotonic: isotonic regression. enir: an ensemble of near-isotonic regressions. near_isotonic: one "
        "of them. bbq: an average of equal-frequency binnings. sbb, abb: the best of all binnings, and their average. "
        "histogram: equal-frequency bins. platt: a sigmoid fitted to the scores. beta: beta calibration, of scores in "
        "[0, 1]. dg, dgg: isotonic regression on a log "
        "that `logcal generate` made, on its rows and on groups of them. auto: of platt, isotonic, enir, bbq and abb "
        "the simplest that is not clearly worse by cross-validation. docs/methods.md helps to choose.",
    )
    params: dict[str, Any] = Field(
        {},
        description="The method's parameters, such as {bins: 20} for histogram or {group_size: 100} for dgg.",
    )
    monotone: Literal["require", "allow", "repair"] = Field(
        "allow",
        description="What to do when the fitted map decreases somewhere, as enir, near_isotonic, bbq, sbb, abb and "
        "histogram may. allow: publish it. repair: publish its isotonic projection. require: publish nothing.",
    )
    interval: Literal["none", "band", "venn_abers"] = Field(
        "none",
        description="An interval for each row of the table, in prob_lower and prob_upper. band: the true probability "
        "lies within it, at all scores at once with 95 % confidence, if it never decreases with the score. venn_abers: "
        "the multiprobabilities of Venn-Abers prediction, of isotonic alone; no confidence interval. Both for logs "
        "without weights and segments.",
    )


class SegmentsConfig(Section):
    """Which segments get a map of their own, and what the others get."""

    shrinkage: Literal["auto", "none"] = Field(
        "auto",
        description="auto: segments borrow strength where the method is isotonic (not strict): every segment moves the "
        "map of the segment of one column less by two numbers, as far as its rows tell, and those with enough rows "
        "have a map of their own that leans on it (docs/segments.md). none, and other methods: a segment has its own "
        "map or that of the segment of one column less, as it is.",
    )
    min_rows: int = Field(
        1000,
        ge=1,
        description="Rows that a segment must have to be calibrated on its own, where segments do not borrow strength.",
    )
    min_positives: int | None = Field(
        None,
        ge=1,
        description="Rows with label 1 that it must have; and as many with label 0, where segments borrow strength. "
        "null: 100 where they do, otherwise 10. With less, and without borrowing, it uses the map of the segment of "
        "one column less, then that of all rows, then the score as it is.",
    )

    def positives(self, leaning: bool) -> int:
        """Rows with label 1 that a segment must have. leaning : whether segments borrow strength."""
        return self.min_positives or (100 if leaning else 10)


def _as_text(value: Any) -> Any:
    # YAML reads 2026-01-31 as a date.
    return value.isoformat() if isinstance(value, dt.date) else value


def _check_date(text: str) -> str:
    try:
        dt.date.fromisoformat(text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else "")
    except ValueError:
        raise ValueError(f"expected a date such as 2026-01-31, found {text!r}") from None
    return text


def _days_need_a_unit(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"expected a number of days such as 30d, found the number {value}: write {value}d")
    return value


def _check_days(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}d", text):
        hint = f": write {text}d" if re.fullmatch(r"[1-9]\d{0,4}", text) else ""
        raise ValueError(f"expected a number of days such as 30d, found {text!r}{hint}")
    return text


class WindowConfig(Section):
    """Which days of the log are used."""

    column: Text | None = Field(
        None,
        description="Column that dates the rows: dates, timestamps, integers such as 20260131, text such as "
        "2026-01-31; or the key of hive folders such as date=2026-01-31. fit keeps each day's rows sorted in the "
        "store, and later fits sort only days that are new or changed. null: all of the log.",
    )
    last: Annotated[Text, BeforeValidator(_days_need_a_unit), AfterValidator(_check_days)] = Field(
        "30d", description="With window.column: the number of days, such as 30d."
    )
    until: Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_date)] | None = Field(
        None,
        description="With window.column: the last day, such as 2026-01-31. null: the latest day in the log.",
    )
    min_labelled: float = Field(
        0.0,
        ge=0,
        le=1,
        description="With window.column: share of a day's rows that must have their label for the day to be used, in "
        "[0, 1]. Positives and negatives become known at different speeds: what is known of a day early is biased.",
    )
    half_life: Annotated[Text, AfterValidator(_check_days)] | None = Field(
        None,
        description="With window.column: the number of days, such as 14d, after which a row counts half as much as "
        "one of the last day. null: all rows count alike.",
    )

    @property
    def length(self) -> int:
        """Number of days."""
        return int(self.last.removesuffix("d"))

    @property
    def half_life_days(self) -> int | None:
        """Days after which a row counts half; None: rows count alike."""
        return None if self.half_life is None else int(self.half_life.removesuffix("d"))

    @property
    def last_day(self) -> dt.date | None:
        """The last day, where it is given."""
        return None if self.until is None else dt.date.fromisoformat(self.until)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The other keys only mean something with a column."""
        if self.until is not None and self.column is None:
            yield "until", "only goes with window.column, found window.column=null"
        if self.half_life is not None and self.column is None:
            yield "half_life", "only goes with window.column, found window.column=null"
        if self.half_life_days is not None and self.length > 300 * self.half_life_days:
            yield (
                "half_life",
                f"expected at least a 300th of window.last ({self.last}), found {self.half_life}",
            )


def _as_grid(value: Any) -> Any:
    # YAML reads 0.001 as a number, and 1.0e-6.
    if not isinstance(value, float):
        return value
    return next((f"1e-{k}" for k in range(1, 10) if value == float(f"1e-{k}")), str(value))


def _check_grid(text: str) -> str:
    if not re.fullmatch(r"none|float32|1e-[1-9]", text):
        raise ValueError(f"expected none, float32, or a power of ten from 1e-1 to 1e-9, found {text!r}")
    return text


class ScoreTableConfig(Section):
    """The sorted log, one row a distinct score."""

    keep: bool = Field(False, description="Whether to keep it with the published version, as Parquet.")
    grid: Annotated[Text, BeforeValidator(_as_grid), AfterValidator(_check_grid)] = Field(
        "none",
        description="What scores are rounded to when they are read. none: they stay as they are. float32: the nearest "
        "32-bit float. A power of ten from 1e-1 to 1e-9, such as 1e-6: its nearest multiple. The largest move is "
        "reported. With a power of ten and without weights a day table is counts, of bounded size.",
    )


_OwnDays = Annotated[Text, BeforeValidator(_days_need_a_unit), AfterValidator(_check_days)] | None


class EvaluateSection(Section):
    """How to evaluate."""

    bins: int = Field(10, ge=1, le=1000, description="Number of bins of ECE, MCE and the reliability table.")
    last: _OwnDays = Field(
        None,
        description="With window.column: the number of last days to measure, such as 1d. null: window.last.",
    )
    against: Text | None = Field(
        None,
        description="What to compare the table with, on the same rows: another version's name, previous (the version "
        "before it), or raw (the scores themselves). The difference of the losses is given with its standard error.",
    )
    require: dict[str, float] = Field(
        {},
        description="Limits of measures, such as {ece_frequency: 0.01, calibration_in_the_large: 0.02, auc: 0.7}: the "
        "largest absolute value; of auc and accuracy the smallest. Where one is not kept the report is written and the "
        "exit code is 4. Beside the measures: calibration_in_the_large (mean prediction less the share of label 1), "
        "log_ratio (the logarithm of observed over expected), ratio_z and spiegelhalter_z (standard normal by chance).",
    )
    allow_in_sample: bool = Field(
        True,
        description="Whether the log may hold rows that the table was fitted to, which make it look better than it is. "
        "false: that is exit code 4. Where it does, the report says so in any case.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Only what is measured can be required."""
        for name in self.require:
            if name not in REQUIRABLE:
                yield "require", f"expected names among {', '.join(REQUIRABLE)}, found {name!r}"


REQUIRABLE = (
    "auc", "accuracy", "brier", "rmse", "log_loss", "ece_frequency", "mce_frequency", "ece_width", "mce_width",
    "calibration_in_the_large", "log_ratio", "ratio_z", "spiegelhalter_z",
)  # fmt: skip
"""What evaluate.require takes."""


class ScoredConfig(Section):
    """Where the scored log goes."""

    path: Text = Field(
        description="Folder to write the scored log to, in the layout of the log; outside the log. With a window "
        "{day} in it is the window's last day."
    )
    mode: Literal["new", "replace"] = Field(
        "new",
        description="What to do where output.path holds an earlier result. new: refuse. replace: put the new output, "
        "whole, in its place.",
    )
    column: Text = Field("probability", description="Name of the column with the calibrated probability.")
    version_column: Text = Field(
        "table_version", description="Name of the column with the version of the table that was used."
    )
    interval: bool = Field(
        False,
        description="Whether to add the columns prob_lower and prob_upper too, from a table with intervals "
        "(calibrator.interval of fit).",
    )
    decision_column: Text = Field(
        "decision",
        description="With a classifier: name of the column with the decision, true where the probability reaches the "
        "threshold that maximises the classification rate on the rows the classifier was trained on.",
    )


class ClassifierConfig(Section):
    """A classifier that `logcal generate` trained."""

    path: Text | None = Field(
        None,
        description="Its folder, or that of the generated log. The log then has features: their score is added as "
        "log.score, with the probability and the decision. null: the log has scores.",
    )
    packages: Packages = Field(
        ("sklearn",),
        description="Packages whose types may be loaded with it: sklearn, xgboost, lightgbm, catboost.",
    )
    allow_other: bool = Field(
        False,
        description="Whether to score with a table that was fitted on another classifier's generated log.",
    )


class ScoreSection(Section):
    """What is scored, and what is not."""

    last: _OwnDays = Field(
        None,
        description="With window.column: the number of last days to score, such as 1d. null: window.last.",
    )
    max_outside_range: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The largest share of rows, in [0, 1], whose score may lie below or above all scores that the "
        "table was fitted to. Above it nothing is written (exit code 4): such scores are often of another model, or in "
        "percent. From 0.01 on there is a warning.",
    )
    max_unseen: float = Field(
        1.0,
        ge=0,
        le=1,
        description="With a table of segments: the largest share of rows, in [0, 1], that may be of segments that it "
        "does not know. Above it nothing is written (exit code 4). From 0.01 on there is a warning.",
    )


class ReportConfig(Section):
    """Where the report goes."""

    path: Text = Field(
        description="Folder to write report.html, run.json and the reliability table to. With a window {day} in it is "
        "the window's last day. Where it is not given, output.path is taken for it."
    )
    mode: Literal["new", "replace"] = Field(
        "new",
        description="What to do where report.path holds another report. new: refuse. replace: put the new one, "
        "whole, in its place.",
    )


class DemoOutputConfig(Section):
    """Where the demo goes."""

    path: Text = Field("demo-output", description="Folder to write the log, the tables and the report to.")


Scratch = Annotated[
    Text | None,
    Field(
        description="Folder for temporary files, which all workers must see. null: the system's temporary folder."
    ),
]
_LOG = Field(description="The prediction log to read.")
_CLUSTER = Field(ClusterConfig(), description="Where the work runs.")


class StorageConfig(Section):
    """How object stores are reached. Never written to manifests, records or reports."""

    options: dict[str, dict[str, Any]] = Field(
        {},
        description="By protocol, what fsspec's file system is made with, for all paths of the job, such as {s3: "
        "{endpoint_url: https://minio:9000, key: someone, secret: '${MINIO_SECRET}'}}. Text that is ${NAME} is the "
        "environment variable NAME. Workers of a cluster that is running need them in their own environment.",
    )


_STORAGE = Field(StorageConfig(), description="How object stores are reached.", exclude=True)


class RecordConfig(Section):
    """What every attempt leaves behind, also one that fails."""

    path: Text | None = Field(
        None,
        description="Folder of the run records, a JSON file an attempt: job, time, exit code, message, inputs, "
        "outputs, rows, measures, software, host. null: <store.path>/<store.table>/runs, where that store is; without "
        "a store, <output.path>.logcal. none: no records. Where one cannot be written there is a warning.",
    )
    prometheus: Text | None = Field(
        None,
        description="File such as /var/lib/node_exporter/logcal.prom for Prometheus' textfile collector: last success, "
        "duration, rows and measures, by job and table. Several jobs share one file.",
    )
    openlineage: Text | None = Field(
        None,
        description="URL of an OpenLineage server, or a file: a START event, and COMPLETE, FAIL or ABORT. Needs "
        "`pip install 'logcal[lineage]'`.",
    )


_RECORD = Field(RecordConfig(), description="What every attempt leaves behind, also one that fails.")


class JobConfig(Section):
    """What every job's configuration has; declared in each, so that these keys come last."""

    stand_ins: ClassVar[Mapping[tuple[str, ...], tuple[str, ...]]] = {}
    """Keys that stand for others where these are not given: the other's path to this one's."""

    if TYPE_CHECKING:
        scratch: str | None
        cluster: ClusterConfig
        storage: StorageConfig


_WINDOW: WindowConfig = Field(
    WindowConfig(), description="Which days of the log to use: all, or the last ones."
)


class FitConfig(JobConfig):
    """Configuration of fit."""

    log: LogConfig = _LOG
    store: StoreConfig = Field(description="Where to publish the lookup table.")
    calibrator: CalibratorConfig = Field(CalibratorConfig(), description="How to calibrate.")
    segments: SegmentsConfig = Field(
        SegmentsConfig(), description="With log.segment: which segments get a map of their own."
    )
    window: WindowConfig = _WINDOW
    score_table: ScoreTableConfig = Field(
        ScoreTableConfig(),
        description="The sorted log, one row a distinct score, which the calibrator is fitted to.",
    )
    gate: GateConfig = Field(GateConfig(), description="What the table must pass before it is used.")
    retention: RetentionConfig = Field(RetentionConfig(), description="What is kept of earlier versions.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


class ScoreConfig(JobConfig):
    """Configuration of score."""

    log: ScoreLogConfig = _LOG
    store: PublishedConfig = Field(description="The published table to score with.")
    classifier: ClassifierConfig = Field(
        ClassifierConfig(), description="A classifier to score with, for logs of features."
    )
    window: WindowConfig = Field(
        WindowConfig(),
        description="Which days of the log to score: all, or the last ones. The files that may hold rows of these "
        "days are scored whole.",
    )
    score: ScoreSection = Field(ScoreSection(), description="What is scored, and what is not.")
    output: ScoredConfig = Field(description="Where the scored log goes.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


class EvaluateConfig(JobConfig):
    """Configuration of evaluate."""

    stand_ins: ClassVar[Mapping[tuple[str, ...], tuple[str, ...]]] = {("report", "path"): ("output", "path")}

    log: MeasuredLogConfig = Field(
        description="The prediction log to read. Or path is the folder score_table that a version kept "
        "(score_table.keep of fit): the log it was fitted to, sorted already; the other keys then mean nothing."
    )
    store: PublishedConfig = Field(description="The published table to measure.")
    window: WindowConfig = Field(
        WindowConfig(), description="Which days of the log to measure: all, or the last ones."
    )
    report: ReportConfig = Field(description="Where the report goes.")
    evaluate: EvaluateSection = Field(EvaluateSection(), description="How to measure.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER


DEMO_TABLE = "adult-income"


class DemoConfig(JobConfig):
    """Configuration of demo."""

    output: DemoOutputConfig = Field(DemoOutputConfig(), description="Where the demo's files go.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER

    @property
    def store(self) -> PublishedConfig:
        """Where its tables go."""
        return PublishedConfig(path=f"{self.output.path.rstrip('/')}/store", table=DEMO_TABLE)
