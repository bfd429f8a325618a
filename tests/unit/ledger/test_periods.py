"""Calendar periods: half-open, gapless, right where clocks are put forward and back."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts.catalogue import Period
from sluicegate.ledger.periods import HOUR_US, period_of

PERIODS: list[Period] = ["hour", "day", "week", "month", "quarter", "year"]
ZONES = [
    "UTC",
    "Europe/London",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Cairo",  # at midnight
    "Asia/Kathmandu",  # +05:45
    "America/St_Johns",  # until 2011 at one minute past midnight
    "Pacific/Apia",  # had no 30 December 2011
]


def us(text: str) -> int:
    """Return µs since the epoch of an ISO time with its offset."""
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def days_of(zone: str, first: str, last: str) -> list[tuple[int, int]]:
    """Return the day periods from the moment `first` to the moment `last`, each begun where the one before ended."""
    periods = [period_of("day", zone, 0, us(first))]
    while periods[-1][1] < us(last):
        periods.append(period_of("day", zone, 0, periods[-1][1]))
    return periods


@pytest.mark.parametrize(
    ("zone", "noon", "starts", "ends"),
    [
        ("Europe/London", "2026-03-29T12:00+01:00", "2026-03-29T00:00+00:00", "2026-03-30T00:00+01:00"),
        ("Europe/London", "2026-10-25T12:00+00:00", "2026-10-25T00:00+01:00", "2026-10-26T00:00+00:00"),
        ("America/New_York", "2026-03-08T12:00-04:00", "2026-03-08T00:00-05:00", "2026-03-09T00:00-04:00"),
        ("America/New_York", "2026-11-01T12:00-05:00", "2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00"),
        ("Australia/Lord_Howe", "2026-10-04T12:00+11:00", "2026-10-04T00:00+10:30", "2026-10-05T00:00+11:00"),
        ("Australia/Lord_Howe", "2026-04-05T12:00+10:30", "2026-04-05T00:00+11:00", "2026-04-06T00:00+10:30"),
        # Midnight is skipped: the day begins at 01:00. And put back at midnight: the day before has 25 hours.
        ("Africa/Cairo", "2026-04-24T12:00+03:00", "2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"),
        ("Africa/Cairo", "2026-10-29T12:00+03:00", "2026-10-29T00:00+03:00", "2026-10-30T00:00+02:00"),
    ],
)
def test_day_follows_the_zone_when_its_clock_changes(zone: str, noon: str, starts: str, ends: str) -> None:
    assert period_of("day", zone, 0, us(noon)) == (us(starts), us(ends))


@pytest.mark.parametrize(
    ("zone", "first", "last", "hours"),
    [
        ("Europe/London", "2026-03-28T12:00+00:00", "2026-03-31T00:00+01:00", [24, 23, 24]),
        ("America/New_York", "2026-10-31T12:00-04:00", "2026-11-03T00:00-05:00", [24, 25, 24]),
        ("Australia/Lord_Howe", "2026-10-03T12:00+10:30", "2026-10-06T00:00+11:00", [24, 23.5, 24]),
        ("Africa/Cairo", "2026-04-23T12:00+02:00", "2026-04-26T00:00+03:00", [24, 23, 24]),
        ("Africa/Cairo", "2026-10-28T12:00+03:00", "2026-10-31T00:00+02:00", [24, 25, 24]),
        ("Pacific/Apia", "2011-12-29T12:00-10:00", "2012-01-01T00:00+14:00", [24, 24]),
    ],
)
def test_days_have_the_hours_of_the_zone(zone: str, first: str, last: str, hours: list[float]) -> None:
    assert [(end - start) / HOUR_US for start, end in days_of(zone, first, last)] == hours


def test_day_begins_once_when_clock_goes_back_over_midnight() -> None:
    """At 00:01 on 7 November 2010 St John's went back to 23:01 of the 6th."""
    start = us("2010-11-07T00:00-02:30")
    for at in ("2010-11-07T00:00:30-02:30", "2010-11-06T23:30-03:30", "2010-11-07T12:00-03:30"):
        assert period_of("day", "America/St_Johns", 0, us(at)) == (start, us("2010-11-08T00:00-03:30"))
    assert period_of("day", "America/St_Johns", 0, start - 1)[1] == start


@pytest.mark.parametrize(
    ("first_weekday", "starts", "ends"),
    [
        (0, "2026-03-23T00:00+00:00", "2026-03-30T00:00+01:00"),
        (5, "2026-03-28T00:00+00:00", "2026-04-04T00:00+01:00"),
        (6, "2026-03-29T00:00+00:00", "2026-04-05T00:00+01:00"),
    ],
)
def test_week_begins_on_its_first_weekday(first_weekday: int, starts: str, ends: str) -> None:
    sunday = us("2026-03-29T15:00+01:00")
    assert period_of("week", "Europe/London", first_weekday, sunday) == (us(starts), us(ends))


@pytest.mark.parametrize(
    ("period", "at", "starts", "ends"),
    [
        ("month", "2028-02-29T23:59:59+00:00", "2028-02-01T00:00+00:00", "2028-03-01T00:00+00:00"),
        ("month", "2026-12-31T23:59:59+00:00", "2026-12-01T00:00+00:00", "2027-01-01T00:00+00:00"),
        ("quarter", "2026-03-31T23:59:59+00:00", "2026-01-01T00:00+00:00", "2026-04-01T00:00+00:00"),
        ("quarter", "2026-04-01T00:00:00+00:00", "2026-04-01T00:00+00:00", "2026-07-01T00:00+00:00"),
        ("quarter", "2026-11-30T08:00:00+00:00", "2026-10-01T00:00+00:00", "2027-01-01T00:00+00:00"),
        ("year", "2026-12-31T23:59:59+00:00", "2026-01-01T00:00+00:00", "2027-01-01T00:00+00:00"),
    ],
)
def test_months_quarters_and_years_are_of_the_calendar(period: Period, at: str, starts: str, ends: str) -> None:
    assert period_of(period, "UTC", 0, us(at)) == (us(starts), us(ends))


def test_quarter_spans_a_clock_change() -> None:
    start, end = period_of("quarter", "Europe/London", 0, us("2026-03-01T00:00+00:00"))
    assert (start, end) == (us("2026-01-01T00:00+00:00"), us("2026-04-01T00:00+01:00"))


def test_hour_is_aligned_to_utc_when_the_zone_is_not() -> None:
    start, end = period_of("hour", "Asia/Kathmandu", 0, us("2026-05-01T10:50+05:45"))
    assert (start, end) == (us("2026-05-01T05:00+00:00"), us("2026-05-01T06:00+00:00"))


@given(
    at_us=st.integers(us("2005-01-01T00:00+00:00"), us("2037-01-01T00:00+00:00")),
    zone=st.sampled_from(ZONES),
    period=st.sampled_from(PERIODS),
    first_weekday=st.integers(0, 6),
)
def test_periods_hold_their_times_and_leave_no_gap(at_us: int, zone: str, period: Period, first_weekday: int) -> None:
    start, end = period_of(period, zone, first_weekday, at_us)
    assert start <= at_us < end
    assert period_of(period, zone, first_weekday, start) == (start, end)
    assert period_of(period, zone, first_weekday, end - 1) == (start, end)
    assert period_of(period, zone, first_weekday, end)[0] == end
    assert period_of(period, zone, first_weekday, start - 1)[1] == start
    assert start % (15 * 60 * 1_000_000) == 0 or zone == "America/St_Johns"


@pytest.mark.parametrize("zone", ZONES)
def test_zone_is_read_from_the_pinned_package_and_agrees_with_the_calendar(zone: str) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    start, end = period_of("day", zone, 0, int(now.timestamp() * 1e6))
    local = now.astimezone(ZoneInfo(zone)).replace(hour=0, minute=0)
    assert datetime.fromtimestamp(start / 1e6, UTC) == local
    assert end - start == timedelta(days=1) // timedelta(microseconds=1)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "Europe", "../zoneinfo/UTC", "Europe/../UTC"])
def test_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(KeyError):
        period_of("day", zone, 0, 0)
