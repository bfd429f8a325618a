"""Budgets whose period ends while requests run: a request belongs to the period in which it started."""

import asyncio
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from sluicegate.devstack.edge_process import until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, LimitedEdge
from sluicegate.edge.phases import exchange
from sluicegate.ledger.periods import period_of

SMALL: dict[str, Any] = {"max_tokens": 10}
HOUR_US = 3_600_000_000
GATED = "gate_at=2&write=each"


class WallClock:
    """The edge's wall clock, which a test moves."""

    def __init__(self) -> None:
        self.at_us = time.time_ns() // 1000

    def move_to(self, at_us: int) -> None:
        self.at_us = at_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    moved = SimpleNamespace(time_ns=lambda: clock.at_us * 1000, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(exchange, "time", moved)
    return clock


async def settled_by_period(limited: LimitedEdge) -> dict[int, int]:
    """What Valkey holds of the budget, by the start of its periods."""
    await limited.edge.ledger.close()
    found = {}
    async with Redis.from_url(limited.edge.settings.redis_url.get_secret_value(), decode_responses=True) as redis:
        async for name in redis.scan_iter("sg:{all}:sum:*"):
            fields: dict[Any, Any] = await redis.hgetall(name)
            assert set(fields) <= {"b", "t"}
            found[int(name.rpartition(":")[2]) * 1_000_000] = int(fields["b"])
    return found


async def test_new_period_starts_from_nothing_and_the_old_one_keeps_its_requests(
    limited: LimitedEdge, provider: FakeProvider, clock: WallClock
) -> None:
    start_us, end_us = period_of("hour", "UTC", 0, clock.at_us)
    clock.move_to(end_us - 1)
    limited.budget("key", 135_000, period="hour")
    # It reserves in the old hour, and ends in the new one.
    held = asyncio.create_task(limited.ask(GATED, stream=True, **SMALL))
    await until(lambda: provider.calls.open == 1)
    assert await limited.statuses(2, **SMALL) == [200, 402]
    clock.move_to(end_us)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    provider.release()
    assert (await held).status == 200
    # Back again, as a clock that is corrected goes: the old hour is as full as it was.
    clock.move_to(end_us - 1)
    assert (await limited.ask(**SMALL)).status == 402
    assert await settled_by_period(limited) == {start_us: 2 * ANSWER_NANO_USD, end_us: 2 * ANSWER_NANO_USD}
    by_start: dict[int, int] = {}
    for record in limited.edge.records:
        begin_us, _ = period_of("hour", "UTC", 0, record.started_at_us)
        by_start[begin_us] = by_start.get(begin_us, 0) + (record.cost_nano_usd or 0)
    assert by_start == {start_us: 2 * ANSWER_NANO_USD, end_us: 2 * ANSWER_NANO_USD}


async def test_period_ends_on_provider_budgets_too(limited: LimitedEdge, clock: WallClock) -> None:
    _, end_us = period_of("hour", "UTC", 0, clock.at_us)
    clock.move_to(end_us - 1)
    for scope in ("provider", "model"):
        limited.budget(scope, 110_000, period="hour")
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    clock.move_to(end_us)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]


@pytest.mark.parametrize(
    ("zone", "change", "hours"),
    [
        # A day of 23 hours, one of 25, and one that changes by half an hour.
        ("Europe/Berlin", datetime(2027, 3, 28, tzinfo=UTC), 23),
        ("America/New_York", datetime(2027, 11, 7, tzinfo=UTC), 25),
        ("Australia/Lord_Howe", datetime(2027, 10, 3, tzinfo=UTC), 23.5),
        ("Asia/Kathmandu", datetime(2027, 10, 3, tzinfo=UTC), 24),
    ],
)
async def test_days_end_at_local_midnight_also_where_clocks_change(
    limited: LimitedEdge, clock: WallClock, zone: str, change: datetime, hours: float
) -> None:
    noon_us = int(change.timestamp()) * 1_000_000 + 12 * HOUR_US
    start_us, end_us = period_of("day", zone, 0, noon_us)
    assert (end_us - start_us) / HOUR_US == hours
    limited.budget("key", 110_000, period="day", time_zone=zone)
    for first, last in ((start_us, end_us - 1), (end_us, end_us + 1)):
        clock.move_to(first)
        assert await limited.statuses(2, **SMALL) == [200, 200]
        clock.move_to(last)
        refused = await limited.ask(**SMALL)
        assert refused.status == 402
    until_utc = datetime.fromtimestamp(period_of("day", zone, 0, end_us)[1] / 1e6, UTC)
    assert f"until {until_utc:%Y-%m-%dT%H:%MZ}" in refused.json["error"]["message"]


async def test_week_begins_on_the_chosen_day(limited: LimitedEdge, clock: WallClock) -> None:
    saturday_us = int(datetime(2027, 6, 5, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000
    limited.budget("key", 110_000, period="week", first_weekday=6)
    clock.move_to(saturday_us)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    clock.move_to(saturday_us + 1_000_000)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    clock.move_to(saturday_us + 2 * 24 * HOUR_US)
    assert (await limited.ask(**SMALL)).status == 402
