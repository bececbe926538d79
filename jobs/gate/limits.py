"""What a scoring refuses: logs that do not fit the table that they are scored with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import ScoreConfig
from jobs.config.sections import ScoreSection
from logcal.errors import CheckFailedError, ConfigError
from pipeline.score.scored import ScoredLog
from pipeline.table.published import Version

if TYPE_CHECKING:
    from pipeline.classifier.shipped_classifier import ShippedClassifier

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


class Limits:
    """The largest shares of rows that do not fit which a scoring accepts."""

    def __init__(self, config: ScoreConfig) -> None:
        self.max_outside = config.score.max_outside_range
        self.max_unseen = config.score.max_unseen

    def settings(self) -> dict[str, Any]:
        """For the run's identity: those that are not the default."""
        found = {"max_outside_range": self.max_outside, "max_unseen": self.max_unseen}
        return {
            name: value for name, value in found.items() if value != ScoreSection.model_fields[name].default
        }

    def accept(self, scored: ScoredLog) -> None:
        """Look at what is to be published; say from `WARNED` on what does not fit.

        Raises
        ------
        CheckFailedError
            More of it than is accepted.
        """
        problems = []
        for key, share, limit, text in (
            (
                "max_outside_range",
                _share(scored.outside.outside, scored.rows),
                self.max_outside,
                outside_text(scored),
            ),
            ("max_unseen", _share(scored.unseen_rows, scored.rows), self.max_unseen, unseen_text(scored)),
        ):
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
    return scored.outside.text(scored.rows)


def unseen_text(scored: ScoredLog) -> str:
    """The rows of unknown segments, in words; empty where there are none."""
    if not scored.unseen_rows:
        return ""
    share = 100 * _share(scored.unseen_rows, scored.rows)
    return (
        f"{scored.unseen_rows:,} rows ({share:.3g} %) of segments that the table does not know: fallback maps"
    )


def _share(count: int, rows: int) -> float:
    return count / rows if rows else 0.0
