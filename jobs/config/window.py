"""The configuration of windows: which days of a log are used."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.config.section import Section
from jobs.config.types import Text


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


def check_days(text: str) -> str:
    """A number of days such as 30d; ValueError where it is none."""
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
    last: Annotated[Text, BeforeValidator(_days_need_a_unit), AfterValidator(check_days)] = Field(
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
    half_life: Annotated[Text, AfterValidator(check_days)] | None = Field(
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


OwnDays = Annotated[Text, BeforeValidator(_days_need_a_unit), AfterValidator(check_days)] | None
