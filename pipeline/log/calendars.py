"""Calendars: which days rows may have, and the time zone that cuts the days of timestamps.

An instant's local time is its UTC time plus the zone's offset then. Offsets are constant between changes, which
`zoneinfo` tells; so days of 23 and 25 hours, and hours that occur twice, need no rule of their own.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from calibrators.core.arrays import Integers
from logcal.errors import ConfigError

UTC = "UTC"
DAY = 86_400_000_000
"""Microseconds."""
_SPAN = 400 * DAY
"""Time whose changes of the offset are searched at once."""
_STEP = 43_200
"""Seconds between looks at the offset: no zone changes it twice within them."""
_MANY = 200
_SECOND = 1_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Days of the years 1 to 9999, which the standard library can tell."""


class Calendar(NamedTuple):
    """Days of a log's rows.

    newest : last day that a row may have: a date, `tomorrow` by the clock in the zone, or `any`
    zone : IANA name of the zone that cuts the days of timestamps with a time zone. Another zone than UTC needs them
    latest : last day of a window, after which labels are not complete yet, as days since 1970-01-01; None: any
    """

    newest: str = "any"
    zone: str = UTC
    latest: int | None = None

    @property
    def facts(self) -> dict[str, str]:
        """The zone as a manifest and a digest name it: nothing for UTC."""
        return {} if self.zone == UTC else {"timezone": self.zone}


ANY_DAY = Calendar()
"""The calendar of rows that may have any day, in UTC."""


@lru_cache
def time_zone(name: str) -> dt.tzinfo:
    """Return a time zone by its IANA name.

    Raises
    ------
    ConfigError
        There is no such zone on this machine.
    """
    if name == UTC:
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"$[timezone]: expected an IANA name such as Europe/Berlin, found {name!r}, which this machine does "
            "not know: correct it, or install the package tzdata"
        ) from None


def local_times(times: Integers, zone: str) -> Integers:
    """Convert instants to local times.

    times : microseconds since 1970-01-01 in UTC. Times of years before 1 or after 9999 have the offset 0
    """
    if zone == UTC or not times.size:
        return times
    starts, offsets = _periods(times, zone)
    if len(starts) == 1:
        return times + offsets[0]
    return np.asarray(times + offsets[np.searchsorted(starts, times, side="right") - 1], np.int64)


def local_bounds(first: int, last: int, zone: str) -> tuple[int, int]:
    """Return the first and the last local time of the instants from `first` to `last`."""
    bounds = np.array([first, last])
    if zone == UTC or first == last:
        local = local_times(bounds, zone)
        return int(local[0]), int(local[1])
    spans = np.arange(first // _SPAN, last // _SPAN + 1) * _SPAN if last - first < _MANY * _SPAN else bounds
    starts, offsets = _periods(spans, zone)
    # Clocks that are set back repeat times: both ends of each period between two changes count.
    lows = np.maximum(starts, first)
    highs = np.minimum(np.append(starts[1:] - 1, last), last)
    inside = lows <= highs
    return int((lows + offsets)[inside].min()), int((highs + offsets)[inside].max())


def start_of(day: int, zone: str) -> int:
    """Return the instant at which a day begins, in microseconds since 1970-01-01 in UTC.

    day : days since 1970-01-01
    """
    if zone == UTC or not _FIRST_DAY < day < _LAST_DAY:
        return day * DAY
    date = dt.date(1970, 1, 1) + dt.timedelta(day)
    midnight = dt.datetime.combine(date, dt.time(), time_zone(zone))
    return round(midnight.timestamp()) * _SECOND


def last_ended(now: dt.datetime, after: dt.timedelta, zone: str) -> int:
    """Return the last day that ended some time before the present time, as days since 1970-01-01."""
    local = int(local_times(np.array([round((now - after).timestamp()) * _SECOND]), zone)[0])
    day = local // DAY
    while dt.datetime.fromtimestamp(start_of(day + 1, zone) // _SECOND, dt.UTC) + after > now:
        day -= 1
    return day


def _periods(times: Integers, zone: str) -> tuple[Integers, Integers]:
    """Return the instants from which on the zone has an offset, and these offsets, for a range of times."""
    first, last = int(times.min()) // _SPAN, int(times.max()) // _SPAN
    spans = range(first, last + 1) if last - first < _MANY else np.unique(times // _SPAN).tolist()
    found = [change for span in spans for change in _changes(zone, span)]
    kept = [found[i] for i in range(len(found)) if i == 0 or found[i][1] != found[i - 1][1]]
    return np.array([start for start, _ in kept]), np.array([offset for _, offset in kept])


@lru_cache(maxsize=1024)
def _changes(zone: str, span: int) -> tuple[tuple[int, int], ...]:
    """Return the beginning of a span and each change of the offset within it, with the offset from then on."""
    zone_info = time_zone(zone)

    def offset(second: int) -> int:
        try:
            found = dt.datetime.fromtimestamp(second, zone_info).utcoffset()
        except (ValueError, OverflowError, OSError):
            return 0
        return 0 if found is None else round(found.total_seconds())

    begin = span * _SPAN // _SECOND
    end = begin + _SPAN // _SECOND
    changes = [(begin, offset(begin))]
    for low in range(begin, end, _STEP):
        high = min(low + _STEP, end - 1)
        if offset(high) == changes[-1][1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == changes[-1][1] else (low, middle)
        changes.append((high, offset(high)))
    return tuple((second * _SECOND, seconds * _SECOND) for second, seconds in changes)
