"""The auditor over a real store, a real bus and a real usage-writer: repairs, what it leaves alone, what it tells."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.budget_alert.auditor import Auditor, Finding, Spent
from sluicegate.budget_alert.meters import PresentMeters, audited_meters
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.budget_alert.repository import enabled_budgets
from sluicegate.budget_alert.spending import Spending
from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.contracts.catalogue import Scope
from sluicegate.contracts.facts import BudgetThresholdReached, SpentQuestion
from sluicegate.contracts.subjects import ALERTS, USAGE_WRITER
from sluicegate.devstack.servers import NatsServer, ValkeyServer
from sluicegate.devstack.usage_events import messages, usage_event
from sluicegate.devstack.waiting import until
from sluicegate.ledger.meters import ONE_TAG
from sluicegate.ledger.store import RedisMeterStore, Seed, alive_key
from sluicegate.store.pool import Pool
from sluicegate.usage_writer.config import WriterSettings
from sluicegate.usage_writer.wiring import run as run_writer

USD = 1_000_000_000
AddBudget = Callable[..., Awaitable[str]]
Spend = Callable[..., Awaitable[None]]


class Silent:
    """A usage-writer that had stored all, and does not answer now."""

    async def spent(self, question: SpentQuestion) -> int | None:
        return None

    async def has_caught_up(self) -> bool:
        return True


class Audited:
    """An auditor, its store and what it counts."""

    def __init__(self, pool: Pool, bus: Connection, url: str) -> None:
        self.store = RedisMeterStore(url)
        self.redis = Redis.from_url(url, decode_responses=True)
        self.metrics = Metrics()
        self.present = PresentMeters(url)
        self._pool = pool
        self._bus = bus
        self._auditor = self.auditor(Spending(bus))

    def auditor(self, spending: Spent) -> Auditor:
        return Auditor(
            self._pool, self.store, self.present, spending, AckedPublisher(self._bus), self.metrics, wait_s=0.0
        )

    async def audit(self) -> list[Finding]:
        return await self._auditor.audit()

    async def name_of(self, budget: str) -> str:
        """The name of a budget's present meter."""
        async with self._pool.acquire() as connection:
            budgets = await enabled_budgets(connection)
        meters = audited_meters(budgets, time.time_ns() // 1000)
        return [meter.name for meter in meters if meter.budget.id == budget][-1]

    async def seed(self, budget: str, spent: int) -> str:
        """Make the budget's present meter."""
        name = await self.name_of(budget)
        await self.store.seed(ONE_TAG, [Seed(name, spent, 2_000_000_000_000)])
        return name

    async def join(self, name: str, process: str, settled: int, held: int, *, seen_s_ago: float = 0.0) -> None:
        """Leave on the meter what a process leaves."""
        seen_ms = await self.store.now_ms(ONE_TAG) - int(seen_s_ago * 1000)
        await self.redis.hset(name, process, f"{settled} {held}")
        await self.redis.hset(alive_key(ONE_TAG), process, f"1 {seen_ms} {seen_ms}")

    async def base(self, name: str) -> int:
        return int(await self.redis.hget(name, "b") or 0)

    async def count(self, sample: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"sluicegate_budget_alert_{sample}", labels) or 0.0

    async def close(self) -> None:
        await self.store.close()
        await self.redis.aclose()
        await self.present.close()


@pytest.fixture
def valkey(own_valkey: Callable[[], ValkeyServer]) -> ValkeyServer:
    return own_valkey()


@pytest.fixture
async def audited(pool: Pool, bus: Connection, valkey: ValkeyServer) -> AsyncIterator[Audited]:
    audited = Audited(pool, bus, valkey.url)
    yield audited
    await audited.close()


@pytest.fixture
async def writer(nats: NatsServer, dsn: str, bus: Connection) -> AsyncIterator[None]:
    """A usage-writer at work."""
    stop = asyncio.Event()
    settings: dict[str, Any] = {"nats_url": nats.url, "postgres_dsn": dsn, "internal_port": 0, "fill_ms": 20}
    task = asyncio.create_task(run_writer(WriterSettings(**settings), stop))
    yield
    stop.set()
    await task


@pytest.fixture
def spend(bus: Connection) -> Spend:
    """Publishes what a request cost, and waits until it is stored."""

    async def put(cost_nano_usd: int, *, is_awaited: bool = True, **changes: Any) -> None:
        ((subject, body),) = messages([usage_event(cost_nano_usd=cost_nano_usd, **changes)])
        sequence = (await bus.jetstream().publish(subject, body)).seq

        async def is_stored() -> bool:
            info = await bus.jetstream().consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
            return info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= sequence

        if is_awaited:
            await until(is_stored, "stored")

    return put


@pytest.fixture
def add_budget(database: Any, add_tenant: Any) -> AddBudget:
    """Makes a budget; returns its id."""

    async def add(
        budget: str,
        *,
        limit: int = 10 * USD,
        scope: Scope = "team",
        scope_id: str = "tea_0",
        is_soft: bool = False,
        thresholds: tuple[int, ...] = (50, 80, 100),
    ) -> str:
        await add_tenant("ten_0")
        await database.execute(
            """
            INSERT INTO budgets (
                id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone,
                thresholds_percent, is_soft, enabled
            ) VALUES ($1, 'ten_0', $1, $2, $3, $4, 'year', 0, 'UTC', $5, $6, true)
            """,
            budget,
            scope,
            scope_id,
            limit,
            list(thresholds),
            is_soft,
        )
        return budget

    return add


async def told(bus: Connection) -> list[BudgetThresholdReached]:
    js = bus.jetstream()
    found: list[BudgetThresholdReached] = []
    for sequence in range(1, (await js.stream_info(ALERTS.name)).state.last_seq + 1):
        message = await js.get_msg(ALERTS.name, sequence)
        found += msgspec.json.decode(message.data or b"", type=list[BudgetThresholdReached])
    return found


async def test_meter_is_raised_to_what_was_really_spent(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget
) -> None:
    name = await audited.seed(await add_budget("bud_1"), 1 * USD)
    await spend(3 * USD)
    await spend(9 * USD, team="tea_other")
    (finding,) = await audited.audit()
    assert (finding.recorded, finding.total) == (3 * USD, 3 * USD)
    assert await audited.base(name) == 3 * USD
    assert await audited.count("repaired_nano_usd_total", direction="up") == 2 * USD
    await audited.audit()
    assert await audited.count("repaired_nano_usd_total", direction="up") == 2 * USD


async def test_lease_and_spend_of_a_killed_process_are_folded(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget
) -> None:
    """It had told of 2 USD, held 5 and had spent 4 in all: its journal brought them by way of another process."""
    name = await audited.seed(await add_budget("bud_1"), 0)
    await audited.join(name, "killed", 2 * USD, 5 * USD, seen_s_ago=61)
    await spend(4 * USD)
    (finding,) = await audited.audit()
    assert finding.total == 4 * USD
    assert await audited.redis.hkeys(name) == ["b"]
    assert await audited.base(name) == 4 * USD


async def test_meter_is_left_alone_and_counted_when_a_live_process_has_not_reported(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget
) -> None:
    name = await audited.seed(await add_budget("bud_1"), 0)
    await audited.join(name, "alive", 1 * USD, 5 * USD)
    await spend(4 * USD)
    (finding,) = await audited.audit()
    assert finding.total is None
    assert await audited.redis.hgetall(name) == {"b": "0", "alive": f"{1 * USD} {5 * USD}"}
    assert await audited.count("meters_busy_total") == 1
    assert await audited.count("busy_meters") == 1


async def test_meter_is_lowered_when_nothing_moves_and_all_is_stored_since_a_run_ago(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget
) -> None:
    name = await audited.seed(await add_budget("bud_1"), 7 * USD)
    await spend(3 * USD)
    await audited.audit()
    assert await audited.base(name) == 7 * USD, "the first run cannot know that all is stored"
    assert await audited.count("drift_nano_usd") == 4 * USD
    await audited.audit()
    assert await audited.base(name) == 3 * USD
    assert await audited.count("repaired_nano_usd_total", direction="down") == 4 * USD
    assert await audited.count("drift_nano_usd") == 0


async def test_dead_records_are_folded_and_no_more_when_usage_writer_does_not_answer(
    audited: Audited, spend: Spend, add_budget: AddBudget
) -> None:
    name = await audited.seed(await add_budget("bud_1"), 7 * USD)
    await audited.join(name, "killed", 1 * USD, 5 * USD, seen_s_ago=61)
    await spend(3 * USD, is_awaited=False)
    for _ in range(2):
        (finding,) = await audited.audit()
        assert (finding.recorded, finding.total) == (None, 8 * USD)
    assert await audited.redis.hgetall(name) == {"b": str(8 * USD)}
    assert await audited.count("spent_unknown_total") == 2


async def test_meter_is_not_lowered_when_what_was_spent_is_not_known(audited: Audited, add_budget: AddBudget) -> None:
    name = await audited.seed(await add_budget("bud_1"), 7 * USD)
    await audited.auditor(Silent()).audit()
    assert await audited.base(name) == 7 * USD


async def test_nothing_is_made_when_nobody_has_used_a_meter(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget
) -> None:
    await add_budget("bud_1")
    await spend(3 * USD)
    assert await audited.audit() == []
    assert await audited.redis.keys("*") == []


async def test_thresholds_are_told_once_each_until_they_are_stored(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget, bus: Connection, start_room: Any, database: Any
) -> None:
    await audited.seed(await add_budget("bud_hard", thresholds=(50, 80)), 0)
    await audited.seed(await add_budget("bud_soft", limit=8 * USD, is_soft=True, thresholds=(90,)), 0)
    await spend(8 * USD)
    await audited.audit()
    events = await told(bus)
    assert sorted((event.budget, event.threshold_percent, event.is_soft) for event in events) == [
        ("bud_hard", 50, False),
        ("bud_hard", 80, False),
        ("bud_soft", 90, True),
        ("bud_soft", 100, True),
    ]
    assert all(event.tenant == "ten_0" and event.spent_nano_usd == 8 * USD for event in events)
    await start_room(audit_every_s=300)
    await until(lambda: database.fetchval("SELECT count(*) = 4 FROM alerts"), "stored")
    await audited.audit()
    assert await audited.count("thresholds_found_total") == len(await told(bus)) == 4


async def test_thresholds_are_found_from_the_records_when_the_store_is_away(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget, bus: Connection, valkey: ValkeyServer
) -> None:
    await add_budget("bud_1")
    await spend(6 * USD)
    valkey.stop()
    await audited.audit()
    assert [event.threshold_percent for event in await told(bus)] == [50]


async def test_room_audits_by_itself(
    audited: Audited, writer: None, spend: Spend, add_budget: AddBudget, start_room: Any, valkey: ValkeyServer
) -> None:
    name = await audited.seed(await add_budget("bud_1"), 0)
    await spend(2 * USD)
    await start_room(redis_url=valkey.url, audit_every_s=0.1, audit_wait_s=0)

    async def is_repaired() -> bool:
        return await audited.base(name) == 2 * USD

    await until(is_repaired, "repaired")
