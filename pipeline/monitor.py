"""Monitoring of a published table: evidence of miscalibration on each day, and the history of a version's days."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.passes import Pass, Points
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
"""Name of the folder of histories, beside a table's versions."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class WatchedDay:
    """Evidence of one day in a history.

    Attributes
    ----------
    day : day as text
    rows, observed, expected : number of rows, number of positives, and sum of the probabilities
    log_e : logarithm of the e-value after the day
    psi, ks : distances of the day's scores from the scores that the table was fitted to; None with segments
    segments_alarmed : number of segments with an alarm after the day
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
    """History of a version.

    Attributes
    ----------
    version : name of the version
    settings : settings that the evidence depends on; if they change, a new history begins
    days : days in order
    state : state of the test of all rows
    segments : key of each segment and the state of its test
    """

    version: str
    settings: dict[str, Any]
    days: tuple[WatchedDay, ...] = ()
    state: DriftState = field(default_factory=DriftState)
    segments: tuple[tuple[Key, DriftState], ...] = ()

    @property
    def last(self) -> str | None:
        """The last day in the history."""
        return self.days[-1].day if self.days else None

    def after(
        self,
        day: str,
        evidence: Evidence,
        segments: dict[Key, Evidence],
        shift: tuple[float | None, float | None],
        alpha: float,
    ) -> History:
        """Return the history with one more day. Segments without rows on the day keep their states.

        shift : the day's `psi` and `ks`
        alpha : level of the alarms
        """
        states = dict(self.segments)
        for key, of_segment in segments.items():
            states[key] = states.get(key, DriftState()).after(of_segment)
        state = self.state.after(evidence)
        following = replace(self, state=state, segments=tuple(sorted(states.items(), key=_order)))
        row = WatchedDay(
            day,
            evidence.rows,
            evidence.observed,
            evidence.expected,
            state.log_e,
            *shift,
            segments_alarmed=len(following.alarmed_segments(alpha)),
        )
        return replace(following, days=(*self.days, row))

    def drift(self) -> tuple[str, float, float]:
        """Estimate when the drift began: the day after the evidence was last at its lowest.

        Returns
        -------
        since, observed, expected : first day of the drift, and positives from that day on
        """
        before = [0.0, *(day.log_e for day in self.days[:-1])]
        lowest = min(before)
        start = max(i for i, value in enumerate(before) if value == lowest)
        later = self.days[start:]
        return later[0].day, math.fsum(d.observed for d in later), math.fsum(d.expected for d in later)

    def alarmed(self, alpha: float) -> bool:
        """Tell whether the test of all rows raises an alarm after the last day."""
        return bool(self.days) and bool(alarms([self.state.log_e], alpha)[0])

    def alarmed_segments(self, alpha: float) -> list[tuple[Key, DriftState]]:
        """Return the segments with an alarm, largest e-value first; the false discovery rate is at most alpha."""
        if not self.segments:
            return []
        log_e = np.array([state.log_e for _, state in self.segments])
        alarmed = alarms(log_e, alpha)
        order = np.argsort(-log_e, kind="stable")
        return [self.segments[i] for i in order.tolist() if alarmed[i]]

    def as_json(self) -> bytes:
        """Encode the history as JSON, with infinite numbers as text."""
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
    def from_json(cls, document: dict[str, Any], path: str) -> History:
        """Decode a history that `as_json` encoded.

        path : of the file, for messages

        Raises
        ------
        InputRejectedError
            The document is something else.
        """
        try:
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            days = [WatchedDay(**{k: _decoded(k, v) for k, v in day.items()}) for day in document["days"]]
            segments = [(tuple(entry["segment"]), _read_state(entry)) for entry in document["segments"]]
            return cls(
                str(document["version"]),
                dict(document["settings"]),
                tuple(days),
                _read_state(document["state"]),
                tuple(segments),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputRejectedError(
                f"{path}: expected the history that monitor writes, found something else ({error}): move it away to "
                "begin anew"
            ) from None


def watched_days(table: Folder, versions: Sequence[str]) -> list[dict[str, Any]]:
    """List the monitored days of a table, in order, each from the history of the newest version that has it.

    Raises
    ------
    InputRejectedError, TemporaryError
        A history is damaged.
    """
    days: dict[str, dict[str, Any]] = {}
    names = (table / FOLDER).names()
    for version in versions:
        name = f"{version}.json"
        if name not in names:
            continue
        document = (table / FOLDER).read_json(name)
        if document is not None:
            history = History.from_json(document, f"{table.root}/{FOLDER}/{name}")
            days |= {day.day: {"version": version, **asdict(day)} for day in history.days}
    return [days[day] for day in sorted(days)]


def _order(item: tuple[Key, DriftState]) -> list[tuple[bool, str]]:
    return [(value is None, str(value)) for value in item[0]]


def _decoded(name: str, value: Any) -> Any:
    return value if name == "day" or value is None or isinstance(value, int) else float(value)


def _read_state(entry: dict[str, Any]) -> DriftState:
    return DriftState(int(entry["days"]), tuple(float(log) for log in entry["logs"]))


@dataclass(frozen=True)
class Watch:
    """Table to monitor, and settings of the test.

    lookup : path of the lookup table
    tolerance : factor up to which odds may be wrong
    sampling_rate : see `calibrators.core.sampling`
    """

    lookup: str
    tolerance: float
    sampling_rate: float = 1.0

    def predictor(self, columns: tuple[str, ...] = ()) -> Predictor:
        """Return a predictor with the table. columns : its segment columns."""
        return Predictor(self.lookup, columns, self.sampling_rate)


class DayEvidence(NamedTuple):
    """Evidence of a day.

    table : score table of the day
    total : evidence of all rows
    scores : number of the day's rows in each row of the lookup table; None with segments
    segments : evidence by key of the segment
    """

    table: ScoreTable
    total: Evidence
    scores: npt.NDArray[np.float64] | None
    segments: dict[tuple[Any, ...], Evidence]


def day_evidence(day: SortedRows, executor: Executor, watch: Watch) -> DayEvidence:
    """Compute the evidence of a day from its sorted rows; with segments each row is predicted by its segment's map."""
    columns = day.log.columns.segments
    if not columns:
        table, (total, scores) = merge_rows(day, executor, _with_scores(watch))
        return DayEvidence(table, total, scores, {})
    rows = SegmentRows.of(day, executor, columns)
    function = partial(evidence_sums, tolerance=watch.tolerance)
    sums = sums_of_predictions(rows, watch.predictor(columns), executor, function)
    total = evidence_of([state for states in sums.values() for state in states])
    segments = {rows.level.keys[i]: evidence_of(states) for i, states in sorted(sums.items())}
    return DayEvidence(rows.table, total, None, segments)


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
