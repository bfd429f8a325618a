"""Several processes share limits over a real Valkey, in real time."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from sluicegate.devstack.waiting import until
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Resource, Short
from sluicegate.ledger.store import RedisMeterStore, StoreError

MakeLedger = Callable[..., Awaitable[Ledger]]
YEAR_US = 365 * 86_400_000_000


@pytest.fixture
def scope_id() -> str:
    return uuid.uuid4().hex


def budget(ledger: Ledger, scope_id: str, limit: int) -> Meter:
    end_us = 60 * YEAR_US  # in 2029
    return ledger.sum_meter("b", scope_id, scope="key", start_us=0, end_us=end_us, limit=limit, zero_from_us=None)


def cap(ledger: Ledger, resource: Resource, scope_id: str, limit: int) -> Meter:
    return ledger.cap_meter(resource, "key", scope_id, limit=limit)


async def asked(ledger: Ledger, meters: MeterSet, tokens: int = 0, cost: int = 0) -> Reservation | Short:
    reservation = ledger.take(meters, tokens, cost)
    return reservation or ledger.refused(meters, tokens, cost) or await ledger.wait(meters, tokens, cost)


async def stored(url: str, key: str) -> dict[str, str]:
    async with Redis.from_url(url, decode_responses=True) as client:
        return {str(name): str(value) for name, value in (await client.hgetall(key)).items()}


@pytest.mark.parametrize(("resource", "limit"), [("requests", 60), ("open", 25), ("tokens", 700), ("budget", 3_000)])
async def test_processes_together_serve_the_limit_exactly(
    resource: Resource, limit: int, make_ledger: MakeLedger, scope_id: str
) -> None:
    need = {"requests": 1, "open": 1, "tokens": 7, "budget": 30}[resource]
    ledgers = [await make_ledger(), await make_ledger()]
    sets = [
        MeterSet([budget(ledger, scope_id, limit) if resource == "budget" else cap(ledger, resource, scope_id, limit)])
        for ledger in ledgers
    ]
    passed: list[Reservation] = []

    async def client(number: int) -> None:
        """Ask until nothing is left: a lease that the other one does not use comes back after half a second."""
        refused_in_a_row = 0
        while refused_in_a_row < 12:
            outcome = await asked(ledgers[number % 2], sets[number % 2], 7, 30)
            if isinstance(outcome, Short):
                assert outcome.reason == "limit"
                refused_in_a_row += 1
                await asyncio.sleep(0.15)
                continue
            refused_in_a_row = 0
            passed.append(outcome)
            assert sum(meters.all[0].taken for meters in sets) <= limit
            await asyncio.sleep(0)

    await asyncio.gather(*(client(number) for number in range(6)))
    assert len(passed) * need == limit
    assert all(reservation.is_covered for reservation in passed)


async def test_budget_ends_at_its_limit_when_costs_differ_from_reservations(
    make_ledger: MakeLedger, scope_id: str, redis_url: str
) -> None:
    limit = 1_000_000
    ledgers = [await make_ledger(), await make_ledger(), await make_ledger()]
    sets = [MeterSet([budget(ledger, scope_id, limit), cap(ledger, "open", scope_id, 40)]) for ledger in ledgers]
    spent = 0

    async def client(number: int) -> None:
        nonlocal spent
        ledger, meters = ledgers[number % 3], sets[number % 3]
        while True:
            outcome = await asked(ledger, meters, 0, 2_000)
            if isinstance(outcome, Short):
                if outcome.resource == "budget" and outcome.is_final:
                    return
                await asyncio.sleep(0.02)
                continue
            await asyncio.sleep(0)
            cost = 100 + number * 90 % 1_900
            spent += cost
            ledger.settle(outcome, 0, cost)
            await asyncio.sleep(0)

    async with asyncio.timeout(40):
        await asyncio.gather(*(client(number) for number in range(30)))
    assert limit - 2_000 < spent <= limit
    name = sets[0].budgets[0].name
    for ledger in ledgers:
        await ledger.close()
    assert await stored(redis_url, name) == {"b": str(spent), "t": (await stored(redis_url, name))["t"]}
    assert await stored(redis_url, sets[0].open[0].name) == {}


async def test_spend_of_others_is_told(make_ledger: MakeLedger, scope_id: str) -> None:
    seen: list[tuple[str, int]] = []
    spender = await make_ledger()
    watcher = await make_ledger(on_spent=lambda meter, spent: seen.append((meter.scope_id, spent)))
    outcome = await asked(spender, MeterSet([budget(spender, scope_id, 1_000)]), 0, 900)
    assert isinstance(outcome, Reservation)
    spender.settle(outcome, 0, 850)
    await spender.close()
    assert isinstance(await asked(watcher, MeterSet([budget(watcher, scope_id, 1_000)]), 0, 10), Reservation)
    await until(lambda: seen, "the callback")
    assert seen == [(scope_id, 850)]


async def test_amounts_stay_exact_at_the_largest_limit(make_ledger: MakeLedger, scope_id: str, redis_url: str) -> None:
    limit = 9_000_000 * 10**9
    ledger = await make_ledger()
    meters = MeterSet([budget(ledger, scope_id, limit)])
    odd = 4_123_456_789_012_345
    for _ in range(2):
        outcome = await asked(ledger, meters, 0, odd)
        assert isinstance(outcome, Reservation)
        ledger.settle(outcome, 0, odd)
    await ledger.close()
    assert (await stored(redis_url, meters.all[0].name))["b"] == str(2 * odd)


async def test_calls_go_on_when_the_server_forgets_its_scripts(
    make_ledger: MakeLedger, scope_id: str, redis_url: str
) -> None:
    ledger = await make_ledger()
    meters = MeterSet([cap(ledger, "open", scope_id, 5)])
    assert isinstance(await asked(ledger, meters), Reservation)
    async with Redis.from_url(redis_url) as client:
        await client.script_flush()
    outcomes = [await asked(ledger, meters) for _ in range(5)]
    assert [isinstance(outcome, Reservation) for outcome in outcomes] == [True] * 4 + [False]
    assert ledger.counts.failures == 0


async def test_server_that_may_forget_is_reported(redis_url: str) -> None:
    store = RedisMeterStore(redis_url)
    assert await store.problems() == []
    async with Redis.from_url(redis_url) as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert [problem.partition(":")[0] for problem in await store.problems()] == [
                "maxmemory-policy is allkeys-lru, not noeviction"
            ]
        finally:
            await client.config_set("maxmemory-policy", "noeviction")
    await store.close()


async def test_unreadable_settings_are_reported_and_not_an_error(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as client:
        await client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"])
    store = RedisMeterStore(f"redis://limited:any@{redis_url.rpartition('@')[2]}")
    assert [problem.partition(":")[0] for problem in await store.problems()] == ["its settings cannot be read"]
    await store.close()
    async with Redis.from_url(redis_url) as client:
        await client.acl_deluser("limited")


async def test_store_error_is_raised_when_nobody_listens() -> None:
    store = RedisMeterStore("redis://127.0.0.1:1/0")
    with pytest.raises(StoreError):
        await store.now_ms("all")
    with pytest.raises(StoreError):
        await store.problems()
    await store.close()
