"""The configuration of the gate: what a new table must pass before it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.config.section import Section


def _as_text(value: Any) -> Any:
    # YAML reads 0.1 as a number.
    return str(value) if isinstance(value, float) else value


def _check_holdout(text: str) -> str:
    if re.fullmatch(r"[1-9]\d{0,4}d", text):
        return text
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(
            f"expected a share of the rows such as 0.2, or a number of days such as 1d, found {text!r}"
        )
    return text


class GateConfig(Section):
    """What a new table must pass before it becomes the current one; what fails is kept as a candidate, exit 4."""

    min_rows: int = Field(
        1000,
        ge=0,
        description="Rows that the table must have been fitted to, at least; with weights, as many as "
        "they count for (log.weights).",
    )
    min_positives: int = Field(
        10,
        ge=0,
        description="Rows with label 1 that it must have been fitted to, at least, and as many with label 0; with "
        "weights as gate.min_rows.",
    )
    max_rows_drop: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The largest share by which it may have fewer rows, and less weight, than the current version. 1: "
        "any.",
    )
    ranking: bool = Field(
        True,
        description="Whether scores must rank: refused if the AUC is below 0.5 beyond chance (2.33 standard errors), "
        "as with inverted labels, or if all scores get one probability.",
    )
    max_change: float | None = Field(
        None,
        gt=0,
        description="The largest mean change of the probability against the current version's, over the log's rows and "
        "relative to the mean probability. null: any, with a warning from 0.5 on.",
    )
    holdout: Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_holdout)] | None = Field(
        None,
        description="Rows to judge the table on, which it is not fitted to: a share of them such as 0.2, chosen by "
        "their content, or with window.column the last days, such as 1d. null: none.",
    )
    refit: bool = Field(
        True,
        description="With gate.holdout: whether what passes is fitted to all rows before it is published.",
    )
    on_fail: Literal["refuse", "warn"] = Field(
        "refuse",
        description="refuse: what fails is kept as a candidate, the current version stays, and the exit code is 4. "
        "warn: it is published with a warning.",
    )

    @property
    def share(self) -> float | None:
        """The share of rows that are held out, where it is one."""
        return None if self.holdout is None or self.holdout.endswith("d") else float(self.holdout)

    @property
    def days(self) -> int:
        """The number of last days that are held out."""
        return int(self.holdout.removesuffix("d")) if self.holdout and self.holdout.endswith("d") else 0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The other keys only mean something with a holdout."""
        if not self.refit and self.holdout is None:
            yield "refit", "only goes with gate.holdout, found gate.holdout=null"


class RetentionConfig(Section):
    """What is kept of what came before."""

    versions: int | None = Field(
        None,
        ge=1,
        description="How many of the newest versions stay when a new one is published; the current one, and the one "
        "that a rollback would go back to, stay in any case. null: all.",
    )
