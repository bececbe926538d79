"""The configuration of a published table: where it is, and what is fitted."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.config.section import Section
from jobs.config.types import Name, Text


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
        "the multiprobabilities of Venn-Abers prediction, of isotonic alone; no confidence interval. With segments "
        "those of each map are of the rows that it is fitted to (segments.shrinkage: none).",
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
