"""History of a table's test for drift: its days over all versions, its alarms, and which of them a person has closed.

    <store>/<table>/monitor/history.json    days, state of the test, alarms
    <store>/<table>/monitor/days.json       persons' decisions to close alarms

A day is compared with the version that was live before any fit used the day. The test goes on when another version goes
live; after an alarm it begins anew with the next version, or when a person closes the alarm.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from calibrators.measures.drift import DriftState, Evidence, alarms
from logcal.errors import InputRejectedError, counted
from logcal.schema import FORMAT_VERSION, check_format
from logcal.storage import with_checksum
from pipeline.files.folders import Folder
from pipeline.files.records import jsonable
from pipeline.pages.day_pages import excess_sentence
from pipeline.table.journal import Decision, read_decisions

FOLDER = "monitor"
"""Name of the folder of the history, beside a table's versions."""

ACKNOWLEDGE = "acknowledge"
"""Decision of a person that closes the alarm of a day."""

_REMEDY = "move it away to begin anew"

OPEN_DAYS = 30
"""Days after which an alarm that nobody closed is closed."""

_LIVE = "history"

Key = tuple[Any, ...]


@dataclass(frozen=True)
class WatchedDay:
    """Evidence of one day.

    Attributes
    ----------
    day : day as text
    version : version that the day was compared with
    rows, observed, expected : number of rows, number of positives, and sum of the probabilities
    log_e : logarithm of the e-value after the day
    psi, ks : distances of the day's scores from the scores that the version was fitted to; None with segments
    segments_alarmed : number of segments with an alarm after the day
    set_aside : whether a later fit left the day out
    """

    day: str
    version: str
    rows: float
    observed: float
    expected: float
    log_e: float
    psi: float | None
    ks: float | None
    segments_alarmed: int = 0
    set_aside: bool = False


@dataclass(frozen=True)
class Alarm:
    """Alarm: days whose tests, one after the other, left the evidence about a version at the limit or above.

    Attributes
    ----------
    days : these days, in the order of their tests
    version : the version
    message : what was found up to the last of them
    """

    days: tuple[str, ...]
    version: str
    message: str

    @property
    def day(self) -> str:
        """The day that raised the alarm."""
        return self.days[0]


@dataclass(frozen=True)
class History:
    """History of a table's test.

    Attributes
    ----------
    settings : settings that the evidence depends on; if they change, the test begins anew
    days : tested days, in the order of their tests
    columns : segment columns of the last day's version
    state : state of the test of all rows
    segments : key of each segment and the state of its test
    alarms : all alarms, in order
    """

    settings: dict[str, Any]
    days: tuple[WatchedDay, ...] = ()
    columns: tuple[str, ...] = ()
    state: DriftState = field(default_factory=DriftState)
    segments: tuple[tuple[Key, DriftState], ...] = ()
    alarms: tuple[Alarm, ...] = ()

    @property
    def last(self) -> str | None:
        """The latest tested day."""
        return max((day.day for day in self.days), default=None)

    def renewed(
        self, version: str, columns: tuple[str, ...], alpha: float, closed: Collection[str]
    ) -> History:
        """Return the history before a test with a version: what has an alarm begins anew where the alarm has ended.

        columns : the version's segment columns
        closed : days of the alarms that a person has closed
        """
        history = replace(self, columns=columns, segments=self.segments if columns == self.columns else ())
        if not self.days or (version == self.days[-1].version and not self._closed(closed)):
            return history
        alarmed = {key for key, _ in history.alarmed_segments(alpha)}
        segments = tuple((key, DriftState() if key in alarmed else state) for key, state in history.segments)
        return replace(
            history, segments=segments, state=DriftState() if self.alarmed(alpha) else history.state
        )

    def _closed(self, closed: Collection[str]) -> bool:
        last = self._last_alarm
        return last is not None and last.day in closed

    @property
    def _last_alarm(self) -> Alarm | None:
        """The alarm that was on after the last test."""
        last = self.alarms[-1] if self.alarms else None
        return last if last is not None and last.days[-1] == self.days[-1].day else None

    def after(
        self,
        day: str,
        version: str,
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
            version,
            evidence.rows,
            evidence.observed,
            evidence.expected,
            state.log_e,
            *shift,
            segments_alarmed=len(following.alarmed_segments(alpha)),
        )
        following = replace(following, days=(*self.days, row))
        message = " ".join(following.sentences(alpha))
        if not message:
            return following
        last = self._last_alarm if any(self.sentences(alpha)) else None
        if last is None:
            return replace(following, alarms=(*self.alarms, Alarm((day,), version, message)))
        return replace(
            following, alarms=(*self.alarms[:-1], replace(last, days=(*last.days, day), message=message))
        )

    def drift(self) -> tuple[str, float, float]:
        """Estimate when the drift began: the day after the evidence was last at its lowest.

        Returns
        -------
        since, observed, expected : first day of the drift, and positives from that day on
        """
        days = self.days[-self.state.days :]
        before = [0.0, *(day.log_e for day in days[:-1])]
        lowest = min(before)
        start = max(i for i, value in enumerate(before) if value == lowest)
        later = days[start:]
        return (
            min(day.day for day in later),
            math.fsum(day.observed for day in later),
            math.fsum(day.expected for day in later),
        )

    def alarmed(self, alpha: float) -> bool:
        """Tell whether the test of all rows raises an alarm after the last day."""
        return self.state.days > 0 and bool(alarms([self.state.log_e], alpha)[0])

    def alarmed_segments(self, alpha: float) -> list[tuple[Key, DriftState]]:
        """Return the segments with an alarm, largest e-value first; the false discovery rate is at most alpha."""
        if not self.segments:
            return []
        log_e = np.array([state.log_e for _, state in self.segments])
        alarmed = alarms(log_e, alpha)
        order = np.argsort(-log_e, kind="stable")
        return [self.segments[i] for i in order.tolist() if alarmed[i]]

    def sentences(self, alpha: float) -> Iterator[str]:
        """Yield what raises an alarm after the last day: all rows, then segments."""
        if self.alarmed(alpha):
            since, observed, expected = self.drift()
            way = "underestimates" if observed > expected else "overestimates"
            yield f"Since {since} the table {way}: {excess_sentence(observed, expected)}."
        segments = self.alarmed_segments(alpha)
        if segments:
            first = ", ".join(
                f"{'/'.join('null' if v is None else str(v) for v in key)} "
                f"({'more' if state.direction > 0 else 'fewer'})"
                for key, state in segments[:5]
            )
            count = f"{len(segments):,} of {counted(len(self.segments), 'segment')}"
            yield f"In {count} the positives differ from the prediction, most clearly in {first}."

    def present_alarm(self, version: str, alpha: float, closed: Collection[str]) -> Alarm | None:
        """Return the alarm that is on for the live version, and that nobody has closed.

        closed : days of the alarms that a person has closed
        """
        last = self._last_alarm
        if last is None or last.version != version or last.day in closed or not any(self.sentences(alpha)):
            return None
        return last

    def open_alarms(self, closed: Collection[str]) -> list[Alarm]:
        """Return the alarms that nobody has closed and that ended less than `OPEN_DAYS` before the latest day."""
        if self.last is None:
            return []
        first = (dt.date.fromisoformat(self.last) - dt.timedelta(OPEN_DAYS)).isoformat()
        return [alarm for alarm in self.alarms if max(alarm.days) > first and alarm.day not in closed]

    def with_days_aside(self, window: Mapping[str, Any]) -> History:
        """Return the history with what a fit did with its days. window : window in the manifest of its version."""
        out = {day["day"] for key in ("days_set_aside", "days_excluded") for day in window.get(key, ())}
        used = {day["day"] for day in window.get("days", ()) if day["rows_used"]}
        days = tuple(
            replace(day, set_aside=day.day in out) if day.day in out | used else day for day in self.days
        )
        return replace(self, days=days)

    def as_json(self) -> bytes:
        """Encode the history as JSON, with infinite numbers as text."""
        document = {
            "format_version": FORMAT_VERSION,
            "settings": self.settings,
            "days": self.days,
            "columns": self.columns,
            "state": self.state,
            "segments": [{"segment": key, **vars(state)} for key, state in self.segments],
            "alarms": self.alarms,
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
        check_format(path, document.get("format_version"), _REMEDY)
        try:
            days = [WatchedDay(**{k: _decoded(k, v) for k, v in day.items()}) for day in document["days"]]
            segments = [(tuple(entry["segment"]), _read_state(entry)) for entry in document["segments"]]
            return cls(
                dict(document["settings"]),
                tuple(days),
                tuple(document["columns"]),
                _read_state(document["state"]),
                tuple(segments),
                tuple(Alarm(tuple(a["days"]), a["version"], a["message"]) for a in document["alarms"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputRejectedError(
                f"{path}: expected the history that monitor writes, found something else ({error}): {_REMEDY}"
            ) from None


def history_name(version: str | None) -> str:
    """Return the name of the file of a history. version : version that is watched by name; None: the live one."""
    return f"{version or _LIVE}.json"


def read_history(table: Folder, version: str | None = None) -> History | None:
    """Read a table's history; None before its first test.

    table : the table's folder
    version : see `history_name`

    Raises
    ------
    InputRejectedError, TemporaryError
        The history is damaged or cannot be read.
    """
    folder, name = table / FOLDER, history_name(version)
    document = folder.read_json(name)
    return None if document is None else History.from_json(document, f"{folder.root}/{name}")


def watched_days(history: History | None) -> list[dict[str, Any]]:
    """List the tested days, by day."""
    return [] if history is None else sorted(map(asdict, history.days), key=lambda day: str(day["day"]))


def closed_alarms(table: Folder) -> dict[str, Decision]:
    """Return persons' decisions to close alarms, by the alarm's day. table : the table's folder."""
    return read_decisions(table / FOLDER)


def _order(item: tuple[Key, DriftState]) -> list[tuple[bool, str]]:
    return [(value is None, str(value)) for value in item[0]]


def _decoded(name: str, value: Any) -> Any:
    return value if name in ("day", "version") or value is None or isinstance(value, int) else float(value)


def _read_state(entry: dict[str, Any]) -> DriftState:
    return DriftState(int(entry["days"]), tuple(float(log) for log in entry["log_e_values"]))
