"""Days and names of partitions."""

import datetime as dt

import pytest

from sluicegate.store.partitions import US_PER_DAY, date_of, day_number, partition_name


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("1970-01-01T00:00:00+00:00", "usage_19700101"),
        ("2026-11-30T23:59:59.999999+00:00", "usage_20261130"),
        ("2026-12-01T00:00:00+00:00", "usage_20261201"),
        ("2028-02-29T12:00:00+00:00", "usage_20280229"),
    ],
)
def test_partition_is_named_by_its_utc_day(at: str, name: str) -> None:
    moment = dt.datetime.fromisoformat(at)
    at_us = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert partition_name("usage", day_number(at_us)) == name


def test_day_begins_at_midnight_and_ends_before_the_next() -> None:
    day = day_number(1_700_000_000_000_000)
    assert day_number(day * US_PER_DAY) == day
    assert day_number((day + 1) * US_PER_DAY - 1) == day
    assert date_of(day + 1) - date_of(day) == dt.timedelta(days=1)
