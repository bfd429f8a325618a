"""Calendar periods of budgets: hours, days, weeks, months, quarters and years of an IANA time zone.

Pure. A period is half-open, [start, end), in µs since the epoch; each ends where the next begins, also where the clock
is put forward or back. Hours are aligned to UTC. The zones come from the pinned `tzdata` package, so that every process
that names the same release divides time alike, whatever its machine has installed.
"""

from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from sluicegate.contracts.catalogue import Period

HOUR_US: Final = 3_600_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}


def period_of(period: Period, time_zone: str, first_weekday: int, at_us: int) -> tuple[int, int]:
    """Return [start, end) of the period that `at_us` is in. `first_weekday` (0: Monday) matters to weeks only.

    Not for every request: keep the answer and ask again when a time is outside it.
    """
    if period == "hour":
        start_us = at_us // HOUR_US * HOUR_US
        return start_us, start_us + HOUR_US
    local = (_EPOCH + timedelta(microseconds=at_us)).astimezone(_zone(time_zone)).date()
    start, end = _dates(period, local, first_weekday)
    if at_us >= _midnight_us(time_zone, end):
        # The clock was put back over midnight and shows the old date once more, but the new day has begun.
        start, end = _dates(period, end, first_weekday)
    return _midnight_us(time_zone, start), _midnight_us(time_zone, end)


def _dates(period: Period, day: date, first_weekday: int) -> tuple[date, date]:
    if period == "day":
        return day, day + timedelta(days=1)
    if period == "week":
        start = day - timedelta(days=(day.weekday() - first_weekday) % 7)
        return start, start + timedelta(days=7)
    months = _MONTHS[period]
    start = day.replace(month=(day.month - 1) // months * months + 1, day=1)
    end_month = start.month - 1 + months
    return start, start.replace(year=start.year + end_month // 12, month=end_month % 12 + 1)


@lru_cache(maxsize=4096)
def _midnight_us(time_zone: str, day: date) -> int:
    """Return when a day begins: the first moment at which the zone's clock shows that date, or has passed it."""
    zone = _zone(time_zone)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    first, second = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    # Midnight that comes twice begins the day the first time. One that is skipped lies between the two readings.
    while first - second >= _SECOND:
        middle = second + (first - second) // (2 * _SECOND) * _SECOND
        if middle.astimezone(zone).date() >= day:
            first = middle
        else:
            second = middle + _SECOND
    return (first - _EPOCH) // timedelta(microseconds=1)


@cache
def _zone(name: str) -> ZoneInfo:
    """Return a zone of the pinned package, never of the machine. Raises KeyError for a name that it does not have."""
    parts = name.split("/")
    resource = files("tzdata").joinpath("zoneinfo", *parts)
    if ".." in parts or not resource.is_file():
        raise KeyError(name)
    with resource.open("rb") as stream:
        return ZoneInfo.from_file(stream, key=name)
