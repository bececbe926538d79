"""Sections that several jobs share: the log, its days, the table, the gate, and the outputs."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import zoneinfo
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, get_args, overload

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.config.base import Name, Names, Packages, Paths, PathText, Section, Text, accepted_by, as_tuple
from logcal.errors import counted

_PATH = (
    "Where the log is: a folder (its hive partitions too), a Parquet file, a glob or an fsspec URL such as "
    "s3://bucket/log/; or a list of these."
)


_SCORE = "Column of the score: floats or integers, finite; a higher score means more likely positive."


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@overload
def parse_duration(text: str) -> float: ...
@overload
def parse_duration(text: str | None) -> float | None: ...
def parse_duration(text: str | None) -> float | None:
    """Parse a duration such as '500ms', '30s', '5m', '24h' or '3d' to seconds; None for None. Raises ValueError.

    >>> parse_duration("1.5m")
    90.0
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise ValueError(f"expected a duration such as 500ms, 30s, 5m, 24h or 3d, found {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def needs_unit(kind: str) -> BeforeValidator:
    """Return a validator that refuses a number without unit. kind : description of the expected text."""

    def check(value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError(f"expected {kind}, found the number {value}: write {value}d")
        return value

    return BeforeValidator(check)


Duration = Annotated[Text, needs_unit("a duration such as 3d or 12h"), accepted_by(parse_duration)]


class LabelsConfig(Section):
    """Labels that lie in other files than the predictions, and are joined by key."""

    path: Paths | None = None
    """Paths of the outcomes: files, folders, globs, URLs, Delta or Iceberg tables, as log.path. log.label is then
    not read. null: labels are in the log.
    """
    key: Names = ()
    """Columns of the outcomes that must equal those of log.key, in their order. []: those of log.key."""
    label: Text | None = None
    """Column of the outcomes with the label: booleans, or the numbers 0 and 1; a null is no outcome. null: an
    outcome means 1.
    """
    time: Text | None = None
    """Column of the outcomes with their time: timestamps or dates. An outcome then counts from a day before the
    prediction (clocks may differ) to the end of wait. Later fits then sort only days that new outcomes can belong to.
    The prediction's time is log.time or window.column. null: an outcome counts whenever it came.
    """
    wait: Duration | None = None
    """Time after a prediction, such as 3d, in which its outcome may come. It starts at the end of the prediction's
    day, if only the day is known. Until then the row waits for its label. With missing=negative it waits even if its
    outcome is known: early outcomes are mostly positive, so using them first would count too many positives. The
    clock is the newest outcome's time or, without labels.time, the end of the log's newest day. With labels in the log
    and window.column: time after a day's end, by the clock in window.timezone, until which its labels are complete;
    later days are left out. null: no row waits.
    """
    missing: Literal["negative", "drop"] = "negative"
    """Meaning of a row without an outcome: label 0 (negative), or left out (drop)."""
    duplicates: Literal["any", "last", "first", "error"] = "any"
    """Label of a prediction with several outcomes. any: 1 if one of them is 1. last, first: by labels.time. error: such
    a prediction is refused.
    """

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that other keys have a path, and that an order has times."""
        set_keys = sorted(self.model_fields_set - {"path", "wait"})
        if self.path is None and set_keys and self != type(self)(wait=self.wait):
            yield set_keys[0], "only goes with log.labels.path, found log.labels.path=null"
        if self.duplicates in ("last", "first") and self.time is None:
            yield "duplicates", f"expected log.labels.time with {self.duplicates}, found log.labels.time=null"


def wait_conflicts(
    labels: LabelsConfig, window: WindowConfig | None, above: str = ""
) -> Iterator[tuple[str, str]]:
    """Check that labels that wait are those of days, or in other files."""
    if labels.wait is not None and labels.path is None and (window is None or window.column is None):
        yield (
            f"{above}labels.wait",
            "expected labels.path, or window.column for labels in the log, found neither",
        )


def label_conflicts(key: tuple[str, ...], label: str, labels: LabelsConfig) -> Iterator[tuple[str, str]]:
    """Check that a join has keys on both sides, and labels on one."""
    if labels.path is None:
        return
    if not key:
        yield "key", "expected columns such as request_id with labels.path, found none"
    elif labels.key and len(labels.key) != len(key):
        counts = f"{counted(len(labels.key), 'column')} for {len(key)}"
        yield "labels.key", f"expected as many columns as key has, found {counts}"
    if label != "label":
        yield "label", f"expected no column of its own with labels.path, found '{label}': set labels.label"


DEFAULT_GIVE_UP = "5m"


class LogConfig(Section):
    """The prediction log to read, with labels."""

    path: Paths = Field(description=_PATH)
    score: Text = Field("score", description=_SCORE)
    label: Text = "label"
    """Column of the label: booleans, or the numbers 0 and 1; null: not known yet, the row waits."""
    key: Names = ()
    """With log.labels: columns that identify a prediction, such as request_id: integers, strings, bytes or dates;
    a null matches nothing.
    """
    time: Text | None = None
    """With log.labels: column with the time of the prediction, of any type that window.column may have. null:
    window.column.
    """
    labels: LabelsConfig
    """Labels that come later, in other files (docs/labels.md)."""
    weight: Text | None = None
    """Column of the row's weight: a number from 1e-100 to 1e100. null: every row weighs 1."""
    weights: Literal["counts", "sampling"] = "counts"
    """Meaning of a weight. counts: how often the row counts; 2 is the row twice. sampling: how many rows it stands
    for, where rows were drawn with probabilities that do not depend on the label. All rows then count as Kish's
    effective sample size, (sum w)^2 / sum w^2; only the weights' ratios matter.
    """
    negative_sampling_rate: float = Field(1.0, gt=0, le=1)
    """Share of the rows with label 0 that were kept in the log, chosen at random, such as 0.01: probabilities are
    corrected for it. Do not give the rows weights for this.
    """
    positive_sampling_rate: float = Field(1.0, gt=0, le=1)
    """The same share for the rows with label 1."""
    segment: Names = ()
    """Columns whose values define segments, such as [model_id, country]: strings, integers, booleans or dates;
    null is a segment too. fit makes one map per segment; score and evaluate use the maps of the table. []: one map
    for all rows.
    """
    score_transform: Literal["none", "sigmoid"] = "none"
    """none: the score as it is. sigmoid: 1 / (1 + exp(-score)), for scores that are margins (log odds)."""
    on_bad_rows: Literal["fail", "quarantine"] = "fail"
    """Treatment of rows whose score, label or weight cannot be used. fail: stop and say which. quarantine: leave
    them out, and count them by reason.
    """
    max_bad_fraction: float = Field(0.01, ge=0, le=1)
    """With quarantine: the largest fraction of bad rows, in [0, 1], that is still accepted."""
    quarantine_path: PathText | None = None
    """With quarantine: folder to write the bad rows to, as Parquet. null: they are only counted."""
    give_up: Duration = DEFAULT_GIVE_UP
    """Time after a file's last modification during which it is taken to be half-written if it has no readable footer:
    the job ends with exit code 75. After it, the file is damaged (3).
    """

    @property
    def sampling(self) -> bool:
        """True if weights say how many other rows a row stands for."""
        return self.weights == "sampling"

    @property
    def waits_by_age(self) -> bool:
        """True if recent rows wait for their label even if their outcome is known."""
        return self.labels.path is not None and self.labels.missing == "negative"

    @property
    def sampling_rate(self) -> float:
        """Sampling rate of negatives over that of positives, by which odds are multiplied."""
        return self.negative_sampling_rate / self.positive_sampling_rate

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that each column has one role, and that keys of weights and of quarantine go together."""
        roles = [("score", self.score), ("label", self.label), ("weight", self.weight)]
        roles_of: dict[str, str] = {}
        for role, column in [*roles, *(("segment", column) for column in self.segment)]:
            if column in roles_of:
                yield role, f"expected another column than log.{roles_of[column]}, found '{column}' for both"
            elif column is not None:
                roles_of[column] = role
        yield from label_conflicts(self.key, self.label, self.labels)
        if self.sampling and self.weight is None:
            yield "weights", "expected log.weight with log.weights=sampling, found log.weight=null"
        if self.quarantine_path is not None and self.on_bad_rows != "quarantine":
            yield (
                "quarantine_path",
                "is only written with log.on_bad_rows=quarantine, found log.on_bad_rows=fail",
            )


_SAME_TRANSFORM = Field(
    None,
    description="The table's own transform is used. none or sigmoid: an error if the table has another. null: "
    "no check.",
)


class MeasuredLogConfig(LogConfig):
    """A log with labels, to measure a table on."""

    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM  # type: ignore[assignment]


class MonitoredLogConfig(MeasuredLogConfig):
    """A log with labels, whose days are tested."""

    unused = ("quarantine_path",)


class ScoreLogConfig(Section):
    """The prediction log to score; its labels and weights are not read."""

    path: Paths = Field(description=_PATH)
    score: Text = "score"
    """Column of the score: floats or integers. A score that is null or NaN gets a null probability. With a classifier:
    the name of the column to add.
    """
    score_transform: Literal["none", "sigmoid"] | None = _SAME_TRANSFORM
    give_up: Duration = DEFAULT_GIVE_UP
    """Time after a file's last modification during which it is taken to be half-written if it has no readable footer:
    the job ends with exit code 75. After it, the file is damaged (3).
    """


def _date_as_text(value: Any) -> Any:
    # YAML reads 2026-01-31 as a date.
    return value.isoformat() if isinstance(value, dt.date) else value


def _parse_date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else "")
    except ValueError:
        raise ValueError(f"expected a date such as 2026-01-31, found {text!r}") from None


Date = Annotated[str, BeforeValidator(_date_as_text), accepted_by(_parse_date)]


def check_days(text: str) -> None:
    """Raise ValueError unless the text is a number of days such as 30d."""
    if not re.fullmatch(r"[1-9]\d{0,4}d", text):
        hint = f": write {text}d" if re.fullmatch(r"[1-9]\d{0,4}", text) else ""
        raise ValueError(f"expected a number of days such as 30d, found {text!r}{hint}")


Days = Annotated[Text, needs_unit("a number of days such as 30d"), accepted_by(check_days)]


@overload
def whole_days(text: str) -> int: ...
@overload
def whole_days(text: str | None) -> int | None: ...
def whole_days(text: str | None) -> int | None:
    """Return the number of days of text such as 30d; None for None."""
    return None if text is None else int(text.removesuffix("d"))


def check_timezone(name: str) -> None:
    """Raise ValueError unless the text is an IANA name of a time zone."""
    # localtime and Factory are of the machine.
    if name != "UTC" and name not in zoneinfo.available_timezones() - {"localtime", "Factory"}:
        similar = difflib.get_close_matches(name, zoneinfo.available_timezones(), 1)
        hint = f": did you mean {similar[0]}?" if similar else ""
        raise ValueError(f"expected an IANA name such as Europe/Berlin, found {name!r}{hint}")


TOMORROW, ANY_DAY = "tomorrow", "any"


def _check_newest(text: str) -> None:
    if text not in (TOMORROW, ANY_DAY):
        _parse_date(text)


class WindowConfig(Section):
    """Days of the log to use: all, or the last ones."""

    column: Text | None = None
    """Column that dates the rows: dates, timestamps, integers such as 20260131, text such as 2026-01-31; or the key
    of hive folders such as date=2026-01-31. fit keeps each day's rows sorted in the store, and later fits sort only
    days that are new or changed. null: all of the log.
    """
    last: Days = "30d"
    """With window.column: the number of days, such as 30d."""
    until: Date | None = None
    """With window.column: the last day, such as 2026-01-31. null: the latest day in the log."""
    timezone: Annotated[Text, accepted_by(check_timezone)] = "UTC"
    """With window.column: IANA name of the time zone, such as Europe/Berlin, that divides timestamps with a time zone
    into days, and of the clock by which days end. Timestamps without one, dates, text and folders have their days as
    written: they need UTC here.
    """
    newest: Annotated[Text, BeforeValidator(_date_as_text), accepted_by(_check_newest)] = TOMORROW
    """With window.column: the last day that a row may have: tomorrow by the clock (in window.timezone), a date, or any,
    for simulated logs. Rows of later days, or before 1990, are bad rows (day_out_of_range), and move no window.
    """
    bad_days: Literal["refuse", "set_aside"] = "refuse"
    """With window.column: treatment of a day with a file that cannot be read, lacks a column, or has one of another
    type. refuse: exit 3. set_aside: the day is left out, named with the reason, and the other days go on.
    """
    min_labelled: float = Field(0.0, ge=0, le=1)
    """With window.column: share of a day's rows that must have their label for the day to be used, in [0, 1].
    Positives and negatives become known at different speeds, so the labels known early are biased.
    """
    suspect_days: Literal["set_aside", "refuse", "use"] = "set_aside"
    """With window.column: treatment of a day that differs from the others more than usual (rows, labels, share of
    positives, scores, ranking, calibration, copies). set_aside: the fit goes on without it, with a warning; two
    similar suspect days in a row are drift and are used. refuse: exit 3. use: no day is compared. `logcal days`
    excludes and includes days by hand.
    """
    half_life: Days | None = None
    """With window.column: the number of days, such as 14d, after which a row counts half as much as one of the last
    day. null: all rows count alike.
    """

    @property
    def last_day(self) -> dt.date | None:
        """The last day if it is configured, otherwise None."""
        return None if self.until is None else _parse_date(self.until)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that other keys have a column."""
        for key in ("until", "half_life", "timezone"):
            if getattr(self, key) not in (None, "UTC") and self.column is None:
                yield key, "only goes with window.column, found window.column=null"

        if self.half_life is not None and whole_days(self.last) > 300 * whole_days(self.half_life):
            yield (
                "half_life",
                f"expected at least a 300th of window.last ({self.last}), found {self.half_life}",
            )


class MeasuredWindowConfig(WindowConfig):
    """Days of a log with labels to measure: all, or the last ones."""

    unused = ("suspect_days", "half_life")


class ReadWindowConfig(WindowConfig):
    """Days of the log to read: all, or the last ones."""

    unused = ("min_labelled", "suspect_days", "half_life")


class DailyWindowConfig(WindowConfig):
    """Days to fit to, and what dates the rows."""

    bad_days: Literal["refuse", "set_aside"] = "set_aside"
    """Treatment of a day with a file that cannot be read, lacks a column, or has one of another type. set_aside: the
    day is left out, named with the reason; the other days go on, and the exit code is 4 until a person decides on the
    day. refuse: exit 3.
    """


class StoreConfig(Section):
    """Store to publish the lookup table in."""

    path: PathText
    """Folder of the published tables; created if it does not exist."""
    table: Name
    """Name of the table: letters, digits, '-', '_' and '.'."""
    publish: Literal["current", "candidate"] = "current"
    """current: the new version goes live. candidate: it is only saved, until `logcal tables promote` makes it live.
    """
    force: bool = False
    """true (option --force): the new version goes live even if its data end earlier than the live version's. false:
    such a version is refused if window.until is set or another version went live during the fit. If the log itself
    ends earlier now, it goes live.
    """


class PublishedConfig(Section):
    """A published table."""

    path: PathText
    """Folder of the published tables."""
    table: Name
    """Name of the table."""
    version: Name | None = None
    """Version of the table. null: the live one."""


class CalibratorConfig(Section):
    """Method of calibration."""

    method: Text = "auto"
    """auto: for each range of scores a smooth curve, or isotonic regression with that curve as its prior; tests on
    halves of the rows decide. With calibrator.params={candidates: [platt, isotonic, enir, bbq, abb]} auto is instead
    the simplest of these that is not clearly worse than the best one by cross-validation. smooth: the curve alone, an
    average of smooth curves. isotonic: isotonic regression. enir: an ensemble of near-isotonic regressions.
    near_isotonic: one of them. bbq: an average of equal-frequency binnings. sbb, abb: the best of all binnings, and
    their average. histogram: equal-frequency bins. platt: a sigmoid fitted to the scores. beta: beta calibration, of
    scores in [0, 1]. dg, dgg: isotonic regression on a log that `logcal generate` made: dg on its rows, dgg on groups
    of rows. docs/methods.md helps to choose.
    """
    params: dict[str, Any] = Field({})
    """The method's parameters, such as {bins: 20} for histogram or {group_size: 100} for dgg."""
    monotone: Literal["require", "allow", "repair"] = "allow"
    """Treatment of a fitted map that decreases somewhere, as enir, near_isotonic, bbq, sbb, abb and histogram may.
    allow: publish it. repair: publish its isotonic projection. require: publish nothing.
    """
    interval: Literal["none", "auto", "posterior", "band", "venn_abers"] = "none"
    """An interval for each row of the table, in prob_lower and prob_upper. posterior: a 95 % interval for the true
    probability at each score by itself, with auto and smooth. band: the true probability lies within it, at all
    scores at once with 95 % confidence, if the true probability never decreases with the score. venn_abers:
    from the lowest to the highest multiprobability of the row's scores, which is no confidence interval; only with
    the method isotonic. auto: posterior,
    or band where there is none. With segments, set segments.shrinkage=none; each map's intervals then describe its
    own rows.
    """


class SegmentsConfig(Section):
    """Segments with a map of their own, and the treatment of the others."""

    shrinkage: Literal["auto", "none"] = "auto"
    """auto: partial pooling, with the methods auto and isotonic (without the parameter strict). A segment adjusts its
    parent's map by two numbers, as far as its rows show. The parent is the segment without the last column. A segment
    with enough rows has its own map, pooled with its parent's (docs/segments.md). none (and always with other
    methods): a segment has its own map or its parent's, unchanged.
    """
    min_rows: int = Field(1000, ge=1)
    """Rows that a segment needs for its own map, without partial pooling."""
    min_positives: int | None = Field(None, ge=1)
    """Rows with label 1 that a segment needs for its own map (with partial pooling, also as many with label 0). null:
    100 with partial pooling, otherwise 10. Without partial pooling, a segment with fewer uses its parent's map; if
    there is none, the map of all rows; if there is none, the score as it is.
    """

    def positives(self, pooling: bool) -> int:
        """Return the resolved min_positives. pooling : whether segments are partially pooled."""
        return self.min_positives or (100 if pooling else 10)


def _as_grid(value: Any) -> Any:
    # YAML reads 0.001 as a number, and 1.0e-6.
    if not isinstance(value, float):
        return value
    return next((f"1e-{k}" for k in range(1, 10) if value == float(f"1e-{k}")), str(value))


def _check_grid(text: str) -> None:
    if not re.fullmatch(r"none|float32|1e-[1-9]", text):
        raise ValueError(f"expected none, float32, or a power of ten from 1e-1 to 1e-9, found {text!r}")


class ScoreTableConfig(Section):
    """The sorted log, with one row per distinct score."""

    keep: bool = False
    """true: keep it with the published version, as Parquet."""
    grid: Annotated[Text, BeforeValidator(_as_grid), accepted_by(_check_grid)] = "none"
    """Rounding of scores when they are read. none: they stay as they are. float32: the nearest 32-bit float. A power
    of ten from 1e-1 to 1e-9, such as 1e-6: its nearest multiple. The largest change is reported. With a power of ten
    and without weights, a day's rows take a bounded space in the store.
    """


def _share_as_text(value: Any) -> Any:
    # YAML reads 0.1 and 20 as numbers.
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


AUTO_HOLDOUT, NO_HOLDOUT = "auto", "none"


def _check_holdout(text: str) -> str:
    if text in (AUTO_HOLDOUT, NO_HOLDOUT) or re.fullmatch(r"[1-9]\d{0,4}d", text):
        return text
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        hint = f": write {text}% or {text}d" if re.fullmatch(r"[1-9]\d?", text) else ""
        raise ValueError(
            "expected a share of the rows such as 0.2 or 20%, a number of days such as 1d, auto or none, found "
            f"{text!r}{hint}"
        )
    return str(share)


class GateConfig(Section):
    """Requirements for a new table before it goes live; a table that fails stays a candidate, exit 4."""

    min_rows: int = Field(1000, ge=0)
    """Least number of rows that the table is fitted to; with weights, as log.weights counts them."""
    min_positives: int = Field(10, ge=0)
    """Least number of rows with label 1, and of rows with label 0; with weights as gate.min_rows."""
    max_rows_drop: float = Field(0.5, ge=0, le=1)
    """The largest relative decrease of its rows, and of their weight, against the current version's. 1: any."""
    ranking: bool = True
    """true: scores must rank; refused if the AUC is below 0.5 beyond chance (2.33 standard errors), as with
    inverted labels, or if all scores get one probability.
    """
    agreement: bool = True
    """true: the table must agree with the rows that it is fitted to; refused if in a range of scores, or in a segment,
    it expects more or fewer positives than were observed, beyond chance. false: a warning.
    """
    max_change: float | None = Field(None, gt=0)
    """The largest mean change of the probability against the current version's, over the log's rows and relative to
    the mean probability. null: any, with a warning from 0.5 on.
    """
    holdout: Annotated[str, BeforeValidator(_share_as_text), AfterValidator(_check_holdout)] | None = (
        AUTO_HOLDOUT
    )
    """Held-out rows to judge the table on: a share of the rows such as 0.2 or 20%, chosen by their content, or with
    window.column the last days, such as 1d. auto: the last day, or without a window a tenth of the rows, if there is
    a live version to compare with; otherwise none. none: no rows.
    """
    refit: bool = True
    """With gate.holdout: whether a table that passes is fitted again to all rows before it is published."""
    on_fail: Literal["refuse", "warn"] = "refuse"
    """refuse: a table that fails is saved as a candidate, the live version is unchanged, and the exit code is 4. warn:
    it is published with a warning.
    """

    @property
    def share(self) -> float | None:
        """Share of rows that are held out; None if days or no rows are."""
        return None if self.holdout is None or self.holdout[-1] not in "0123456789" else float(self.holdout)

    @property
    def days(self) -> int:
        """Number of last days that are held out."""
        return int(self.holdout[:-1]) if self.holdout and self.holdout.endswith("d") else 0

    @property
    def holds_out(self) -> bool:
        """True if a share or days are held out; False for auto and none."""
        return self.share is not None or self.days > 0

    def resolved(self, *, window: WindowConfig, live: bool) -> GateConfig:
        """Return a copy with `auto` resolved. live : whether there is a current version."""
        if self.holdout != AUTO_HOLDOUT:
            return self
        by_days = window.column is not None and whole_days(window.last) > 1
        holdout = NO_HOLDOUT if not live else "1d" if by_days else "0.1"
        return self.model_copy(update={"holdout": holdout})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that refit=false has a holdout."""
        if not self.refit and not self.holds_out:
            yield "refit", f"only goes with gate.holdout, found gate.holdout={self.holdout}"


class RetentionConfig(Section):
    """Retention of earlier versions."""

    versions: int | None = Field(None, ge=1)
    """Number of the newest versions that stay when a new one is published; the current one, and the one that a
    rollback would go back to, stay in any case. null: all.
    """


class EvaluateSection(Section):
    """Rules of the evaluation."""

    bins: int = Field(10, ge=1, le=1000)
    """Number of bins of ECE, MCE and the reliability table."""
    last: Days | None = None
    """With window.column: the number of last days to measure, such as 1d; with log.labels.wait, of the last days whose
    labels are complete. null: window.last.
    """
    against: Text | None = None
    """Other side of a comparison, on the same rows: another version's name, previous (the version before it),
    or raw (the scores themselves). The difference of the losses is given with its standard error.
    """
    require: dict[str, float] = Field({})
    """Limits of measures, such as {ece_frequency: 0.01, calibration_in_the_large: 0.02, auc: 0.7}: the largest
    absolute value, or for auc and accuracy the smallest. If a limit is violated, the report is written and the exit
    code is 4. Other names: calibration_in_the_large (mean prediction less the share of label 1), log_ratio (the
    logarithm of observed over expected), ratio_z and spiegelhalter_z (standard normal by chance).
    """
    allow_in_sample: bool = True
    """true: the log may hold rows that the table was fitted to, which make the table look better than it is; the report
    says so. false: such rows give exit code 4.
    """

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check the names of the measures."""
        for name in self.require:
            if name not in REQUIRABLE:
                yield "require", f"expected names among {', '.join(REQUIRABLE)}, found {name!r}"


class DailyEvaluateSection(EvaluateSection):
    """Rules of the evaluation of a day."""

    unused = ("last",)


REQUIRABLE = (
    "auc", "accuracy", "brier", "rmse", "log_loss", "ece_frequency", "mce_frequency", "ece_width", "mce_width",
    "calibration_in_the_large", "log_ratio", "ratio_z", "spiegelhalter_z",
)  # fmt: skip
"""Measures that evaluate.require takes."""


class ScoredConfig(Section):
    """Target of the scored log."""

    path: PathText
    """Folder to write the scored log to, in the layout of the log; outside the log. {day} in the path becomes the
    window's last day.
    """
    mode: Literal["new", "replace"] = "new"
    """Treatment of an earlier result in output.path. new: refuse. replace: the complete new output replaces it."""
    column: Text = "probability"
    """Name of the column with the calibrated probability."""
    version_column: Text = "table_version"
    """Name of the column with the version of the table that was used."""
    interval: bool = False
    """true: add the columns prob_lower and prob_upper too, from a table with intervals (calibrator.interval of
    fit).
    """
    decision_column: Text = "decision"
    """With a classifier: name of the column with the decision, true where the probability reaches the threshold
    that maximises the classification rate on the rows the classifier was trained on.
    """


class ClassifierConfig(Section):
    """A classifier that `logcal generate` trained."""

    path: PathText | None = None
    """Folder of the classifier, or of the generated log. The log then has features: their score is added as
    log.score, with the probability and the decision. null: the log has scores.
    """
    packages: Packages = ("sklearn",)
    """Packages whose types may be loaded with it: sklearn, xgboost, lightgbm, catboost."""
    allow_other: bool = False
    """true: score with a table that was fitted on another classifier's generated log."""


AUTO_SHIFT, NO_SHIFT = "auto", "none"


def _check_shift(text: str) -> None:
    try:
        valid = text in (AUTO_SHIFT, NO_SHIFT) or 0 <= float(text) <= 1
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"expected auto, none or a distance in [0, 1], found {text!r}")


class RangeSection(Section):
    """Limits of scores that differ from those the table was fitted to."""

    max_outside_range: float = Field(0.5, ge=0, le=1)
    """The largest share of rows, in [0, 1], whose score may lie below or above all scores that the table was fitted
    to. Above it nothing is written (exit code 4; follow refuses the file): such scores often come from another model,
    or are in percent. From 0.01 on there is a warning. These rows get the probability at the end of the range, or of
    a smooth curve that continues beyond it (docs/methods.md).
    """
    max_shift: Annotated[Text, BeforeValidator(_share_as_text), accepted_by(_check_shift)] = AUTO_SHIFT
    """The largest distance between the scores and those that the table was fitted to, in [0, 1] (Kolmogorov-Smirnov):
    larger ones come from another model. auto: more than twice the largest distance of the table's own days; with fewer
    than five such days, with weights or sampling rates, or if many rows have no label, there is only a warning, from
    0.35 on. none: not measured. Fewer than 1,000 rows are never refused.
    """
    on_shift: Literal["refuse", "write"] = "refuse"
    """Treatment of scores beyond max_shift. refuse: nothing is written, exit code 4; follow refuses the files. write:
    the rows are scored, and the exit code is 4.
    """


class ScoreSection(RangeSection):
    """Rows to score."""

    last: Days | None = None
    """With window.column: the number of last days to score, such as 1d. null: window.last."""
    max_unseen: float = Field(1.0, ge=0, le=1)
    """With a table of segments: the largest share of rows, in [0, 1], that may be of segments that it does not
    have. Above it nothing is written (exit code 4). From 0.01 on there is a warning.
    """
    verify: bool = False
    """true: decode the columns that are only copied, too, so that damage in them is found. false: it is copied, and
    the manifest names the columns that were not read.
    """


class DailyScoreSection(ScoreSection):
    """Limits of the rows of a day."""

    unused = ("last",)


class ReportConfig(Section):
    """Target of the report."""

    path: PathText
    """Folder to write report.html, run.json and the reliability table to. {day} in the path becomes the window's last
    day, {job} the command's name.
    """
    mode: Literal["new", "replace"] = "new"
    """Treatment of another report in report.path. new: refuse. replace: the complete new report replaces it."""


class PageConfig(Section):
    """Target of a page that is not of one day."""

    path: PathText | None = None
    """Folder to write report.html and run.json to. {job} in the path becomes the command's name; here also {day}, as
    the page covers all days. null: no page.
    """


class DemoOutputConfig(Section):
    """Target of the demo."""

    path: PathText = "demo-output"
    """Folder to write the log, the tables and the report to."""


Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS = get_args(Weekday)
"""Names of the days of the week, from Monday."""


class DaysSection(Section):
    """Rules of the daily job: which days are complete, and in which order they are done."""

    command_options: ClassVar[tuple[str, ...]] = ("new",)

    begin: Date | None = None
    """First day that is scored, such as 2026-01-31; earlier days are only fitted to. null: the last complete day of the
    first run.
    """
    complete_after: Duration = "3h"
    """Time after a day's end, by the clock and in UTC, from which on all of its files have arrived."""
    complete_marker: Text | None = None
    """Name of a file, such as _SUCCESS, that marks the folder of a day as complete, instead of the clock. The log then
    has a folder for each day (window.column is their key).
    """
    lookback: Days = "3d"
    """Days back from the newest complete day whose files are compared with those that were scored. A day that changed
    is sorted and scored again, whole. Older days are compared once a week.
    """
    most_days: int = Field(31, ge=1)
    """Days that a run does at most, the oldest first; the next run does the others."""
    fit_each_day: bool = False
    """Order of the steps where several days are to be done. false: all are evaluated and monitored with the version
    that is live, then there is one fit, then all are scored. true: these steps day by day.
    """
    weekdays: Annotated[tuple[Weekday, ...], BeforeValidator(as_tuple)] = ()
    """Days of the week with rows, such as [mon, tue, wed, thu, fri]: other days are not missing. []: all days."""
    new: bool = False
    """Permission to make the table anew: the first run needs it, and later runs refuse it."""
