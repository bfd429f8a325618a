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
    """Return when a day begins: the first moment of which the zone's clock shows that date.

    Where clocks are put forward at midnight, that is 01:00; where midnight comes twice, the first.
    """
    zone = _zone(time_zone)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone, fold=0)
    at = midnight.astimezone(UTC)
    if at.astimezone(zone).date() < day or at.astimezone(zone).hour:
        # Midnight does not exist. Before the gap fold=0 counts with the offset that was in force until then, which
        # names the very moment at which the clock is put forward.
        at = (midnight - midnight.utcoffset()).replace(tzinfo=UTC)  # type: ignore[operator]
    return (at - _EPOCH) // timedelta(microseconds=1)


@cache
def _zone(name: str) -> ZoneInfo:
    """Return a zone of the pinned package, never of the machine. Raises KeyError for a name that it does not have."""
    resource = files("tzdata").joinpath("zoneinfo", *name.split("/"))
    if not resource.is_file():
        raise KeyError(name)
    with resource.open("rb") as stream:
        return ZoneInfo.from_file(stream, key=name)
