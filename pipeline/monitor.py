"""A watched table: the evidence of its days, and their history beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.measures.drift import DriftState, Evidence, alarms, evidence_of, evidence_pass, evidence_sums
from logcal.errors import InputRejectedError
from logcal.storage import with_checksum
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.files.records import jsonable
from pipeline.sort.score_table import ScoreTable, SortedRows, merge_rows
from pipeline.sort.segment_predictions import sums_of_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.table.lookup_table import Predictor, cached_lookup_table

FORMAT = 1

FOLDER = "monitor"
"""Folder of histories, beside a table's versions."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class WatchedDay:
    """One day.

    Attributes
    ----------
    day : as text. rows, observed, expected : of the rows, the positives and the sum of the probabilities
    log_e : the logarithm of the e-value after it. psi, ks : of the scores against those that the table was fitted to;
        None with segments. segments_alarmed : how many segments are alarms after it
    """

    day: str
    rows: float
    observed: float
    expected: float
    log_e: float
    psi: float | None
    ks: float | None
    segments_alarmed: int = 0


@dataclass(frozen=True)
class History:
    """The history of a version.

    Attributes
    ----------
    version : name. settings : what the evidence depends on; another history begins where they change
    days : in order. state : of all rows, eleven numbers. segments : the same of each segment
    """

    version: str
    settings: dict[str, Any]
    days: tuple[WatchedDay, ...] = ()
    state: DriftState = field(default_factory=DriftState)
    segments: tuple[tuple[Key, DriftState], ...] = ()

    @property
    def last(self) -> str | None:
        """The last day that was looked at."""
        return self.days[-1].day if self.days else None

    def after(
        self,
        day: str,
        evidence: Evidence,
        segments: dict[Key, Evidence],
        moved: tuple[float | None, float | None],
        alpha: float,
    ) -> History:
        """The history with one day more. A segment without rows on a day stays as it is."""
        states = dict(self.segments)
        for key, own in segments.items():
            states[key] = states.get(key, DriftState()).after(own)
        state = self.state.after(evidence)
        following = replace(self, state=state, segments=tuple(sorted(states.items(), key=_order)))
        row = WatchedDay(
            day,
            evidence.rows,
            evidence.observed,
            evidence.expected,
            state.log_e,
            *moved,
            segments_alarmed=len(following.alarmed_segments(alpha)),
        )
        return replace(following, days=(*self.days, row))

    def drift(self) -> tuple[str, float, float]:
        """Estimate when the drift began: the day after the evidence was last at its lowest.

        Returns
        -------
        since, observed, expected : the first day, and the positives from that day on
        """
        before = [0.0, *(day.log_e for day in self.days[:-1])]
        lowest = min(before)
        start = max(i for i, value in enumerate(before) if value == lowest)
        later = self.days[start:]
        return later[0].day, math.fsum(d.observed for d in later), math.fsum(d.expected for d in later)

    def alarmed(self, alpha: float) -> bool:
        """Tell whether all rows together are an alarm now."""
        return bool(self.days) and bool(alarms([self.state.log_e], alpha)[0])

    def alarmed_segments(self, alpha: float) -> list[tuple[Key, DriftState]]:
        """The segments that are alarms now, the most certain first; of a share alpha of false ones at most."""
        if not self.segments:
            return []
        log_e = np.array([state.log_e for _, state in self.segments])
        found = alarms(log_e, alpha)
        order = np.argsort(-log_e, kind="stable")
        return [self.segments[i] for i in order.tolist() if found[i]]

    def as_json(self) -> bytes:
        """Write it as a file: infinite numbers as text."""
        document = {
            "format": FORMAT,
            "version": self.version,
            "settings": self.settings,
            "days": self.days,
            "state": self.state,
            "segments": [{"segment": key, **vars(state)} for key, state in self.segments],
        }
        return f"{json.dumps(with_checksum(jsonable(document)), allow_nan=False, indent=1)}\n".encode()

    @classmethod
    def from_json(cls, document: dict[str, Any], place: str) -> History:
        """From what `as_json` wrote.

        Raises
        ------
        InputRejectedError
            It is something else.
        """
        try:
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            days = [WatchedDay(**{k: _heard(k, v) for k, v in day.items()}) for day in document["days"]]
            segments = [(tuple(own["segment"]), _read_state(own)) for own in document["segments"]]
            return cls(
                str(document["version"]),
                dict(document["settings"]),
                tuple(days),
                _read_state(document["state"]),
                tuple(segments),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputRejectedError(
                f"{place}: expected the history that monitor writes, found something else ({error}): move it away to "
                "begin anew"
            ) from None


def watched_days(table: Folder, versions: Sequence[str]) -> list[dict[str, Any]]:
    """The days that any version of a table was watched on, in order: each with the newest version that was.

    Raises
    ------
    InputRejectedError, TemporaryError
        A history is damaged.
    """
    found: dict[str, dict[str, Any]] = {}
    there = (table / FOLDER).names()
    for version in versions:
        name = f"{version}.json"
        if name not in there:
            continue
        place = f"{table.root}/{FOLDER}/{name}"
        document = (table / FOLDER).read_json(name)
        if document is not None:
            history = History.from_json(document, place)
            found |= {day.day: {"version": version, **asdict(day)} for day in history.days}
    return [found[day] for day in sorted(found)]


def _order(item: tuple[Key, DriftState]) -> list[tuple[bool, str]]:
    return [(value is None, str(value)) for value in item[0]]


def _heard(name: str, value: Any) -> Any:
    return value if name == "day" or value is None or isinstance(value, int) else float(value)


def _read_state(found: dict[str, Any]) -> DriftState:
    return DriftState(int(found["days"]), tuple(float(log) for log in found["logs"]))


@dataclass(frozen=True)
class Watch:
    """Table under watch, and its settings.

    lookup : path of the lookup table
    tolerance : factor up to which odds may be wrong. sampling_rate : see `calibrators.arithmetic.sampling`.
    """

    lookup: str
    tolerance: float
    sampling_rate: float = 1.0

    def predictor(self, columns: tuple[str, ...] = ()) -> Predictor:
        """Predict with it. columns : of its segments."""
        return Predictor(self.lookup, columns, self.sampling_rate)


class DayEvidence(NamedTuple):
    """Evidence of a day.

    table : its score table. whole : of all rows. scores : rows in each row of the lookup table, or None with segments.
    segments : keys to evidence
    """

    table: ScoreTable
    whole: Evidence
    scores: npt.NDArray[np.float64] | None
    segments: dict[tuple[Any, ...], Evidence]


def day_evidence(day: SortedRows, executor: Executor, watch: Watch) -> DayEvidence:
    """The evidence of a day whose rows are sorted by their scores; with segments each row goes through its own map."""
    columns = day.log.columns.segments
    if not columns:
        table, (whole, scores) = merge_rows(day, executor, _with_scores(watch))
        return DayEvidence(table, whole, scores, {})
    rows = SegmentRows.of(day, executor, columns)
    function = partial(evidence_sums, tolerance=watch.tolerance)
    sums = sums_of_predictions(rows, watch.predictor(columns), executor, function)
    whole = evidence_of([state for own in sums.values() for state in own])
    found = {rows.level.keys[place]: evidence_of(own) for place, own in sorted(sums.items())}
    return DayEvidence(rows.table, whole, None, found)


def _with_scores(watch: Watch) -> Pass:
    request = evidence_pass(watch.predictor(), watch.tolerance)
    return Pass(partial(_evidence_and_scores, request.chunk, watch.lookup), partial(_both, request.combine))


def _evidence_and_scores(chunk: Any, lookup: str, points: Points) -> tuple[Any, Array]:
    edges = cached_lookup_table(lookup).map.score_hi
    rows = np.searchsorted(edges[:-1], points.score, side="right")
    counts: Array = np.bincount(rows, points.weight, edges.size).astype(np.float64)
    return chunk(points), counts


def _both(combine: Any, parts: Sequence[tuple[Any, Array]]) -> tuple[Evidence, Array]:
    scores: Array = np.sum([rows for _, rows in parts], axis=0, dtype=np.float64)
    return combine([evidence for evidence, _ in parts]), scores
