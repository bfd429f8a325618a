"""The store is slow or away: who passes, who is refused, and that nothing waits longer than it may."""

import asyncio
import time
from collections.abc import Callable

import pytest

from sluicegate.devstack.ledger_stand_in import StandInStore, in_virtual_time
from sluicegate.ledger.clock import BootClock
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Resource, Short
from sluicegate.ledger.policy import WhenStoreAway, local_share
from sluicegate.ledger.store import StoreError

MakeLedger = Callable[..., Ledger]


def budget(ledger: Ledger, limit: int = 1_000, *, is_soft: bool = False) -> Meter:
    return ledger.sum_meter(
        "b", "k", scope="key", start_us=0, end_us=10**15, limit=limit, zero_from_us=0, is_soft=is_soft
    )


def cap(ledger: Ledger, resource: Resource = "open", limit: int = 10) -> Meter:
    return ledger.cap_meter(resource, "key", "k", limit=limit)


async def opened(ledger: Ledger, store: StandInStore) -> None:
    """Take the store away until the breaker is open and all leases are over."""
    store.is_away = True
    await asyncio.sleep(17)
    assert ledger.state == "degraded"


async def served(ledger: Ledger, meters: MeterSet, tokens: int = 0, cost: int = 0) -> list[Reservation]:
    """Return what passes, one after the other, until one is refused."""
    passed: list[Reservation] = []
    while True:
        outcome = ledger.take(meters, tokens, cost) or await ledger.wait(meters, tokens, cost)
        if isinstance(outcome, Short):
            assert outcome.reason == "store_away"
            return passed
        passed.append(outcome)


@in_virtual_time
async def test_leases_serve_on_for_ten_seconds_when_the_store_is_away(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger(when_store_away="closed")
    await ledger.start()
    meters = MeterSet([cap(ledger, limit=100)])
    ledger.settle(await ledger.wait(meters, 0, 0), 0, 0)  # type: ignore[arg-type]
    store.is_away = True
    await asyncio.sleep(9.9)
    reservation = ledger.take(meters, 0, 0)
    assert reservation is not None
    assert reservation.is_covered
    ledger.settle(reservation, 0, 0)
    await asyncio.sleep(0.2)
    assert ledger.take(meters, 0, 0) is None


@in_virtual_time
async def test_local_share_serves_a_share_of_what_was_left(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger(when_store_away="local-share", configured_edges=1)
    await ledger.start()
    money = budget(ledger)
    store.spent_elsewhere[money.name] = 400
    answer = store._answer
    store._answer = lambda line: answer(line)._replace(members=2)  # type: ignore[method-assign]
    meters = MeterSet([money])
    ledger.settle(await ledger.wait(meters, 0, 10), 0, 10)  # type: ignore[arg-type]
    await asyncio.sleep(6)  # the store has heard of the ten
    await opened(ledger, store)
    passed = await served(ledger, meters, cost=10)
    # (1 000 - 410 at the last answer) / 2 processes
    assert len(passed) == 29
    assert not any(reservation.is_covered for reservation in passed)
    for reservation in passed:
        ledger.settle(reservation, 0, 10)
    assert await served(ledger, meters, cost=10) == []


@in_virtual_time
async def test_local_share_is_of_the_configured_edges_when_the_store_never_answered(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger(configured_edges=4)
    await ledger.start()
    store.is_away = True
    assert len(await served(ledger, MeterSet([cap(ledger, limit=10)]))) == 2
    assert len(await served(ledger, MeterSet([budget(ledger)]), cost=100)) == 2


@in_virtual_time
async def test_rate_of_a_local_share_comes_back_after_a_minute(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    store.is_away = True
    rate = cap(ledger, "tokens", limit=100)
    meters = MeterSet([rate])
    passed = await served(ledger, meters, tokens=50)
    assert len(passed) == 2
    ledger.settle(passed[0], 20, 0)
    assert rate.taken == 70
    await asyncio.sleep(61)
    assert rate.taken == 0
    ledger.settle(passed[1], 50, 0)
    assert rate.taken == 0
    assert len(await served(ledger, meters, tokens=50)) == 2


@in_virtual_time
async def test_uncovered_request_is_told_to_the_store_when_it_is_back(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    store.is_away = True
    slots, money = cap(ledger), budget(ledger)
    meters = MeterSet([slots, money])
    first, second = (await served(ledger, meters, cost=400))[:2]
    store.is_away = False
    await asyncio.sleep(0.5)
    assert ledger.state == "ok"
    assert (slots.taken, money.taken) == (2, 800)
    assert store.lines_of(slots.name)[-1].hold >= 2
    spare = money.spare
    ledger.settle(first, 0, 100)
    assert (money.taken, money.spare, money.settled) == (400, spare, 100)  # adds nothing to what is spare
    ledger.release(second)
    await asyncio.sleep(0.1)
    assert (slots.taken, money.taken) == (0, 0)
    assert store.lines_of(money.name)[-1].settled == 100


@pytest.mark.parametrize(("when_store_away", "passes"), [("open", True), ("closed", False)])
def test_open_serves_and_closed_refuses_when_the_store_is_away(
    when_store_away: WhenStoreAway, passes: bool, make_ledger: MakeLedger, store: StandInStore
) -> None:
    @in_virtual_time
    async def run() -> None:
        ledger = make_ledger(when_store_away=when_store_away)
        await ledger.start()
        store.is_away = True
        meters = MeterSet([cap(ledger, limit=1), budget(ledger, limit=1)])
        outcomes = [await ledger.wait(meters, 0, 1_000) for _ in range(5)]
        if passes:
            assert all(isinstance(outcome, Reservation) and not outcome.is_covered for outcome in outcomes)
            assert ledger.counts.policy_served == 5
        else:
            assert all(isinstance(outcome, Short) and outcome.reason == "store_away" for outcome in outcomes)
            assert ledger.counts.policy_refused == 5

    run()


@in_virtual_time
async def test_known_exceeded_budget_refuses_for_its_limit_when_the_store_is_away(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger(when_store_away="closed")
    await ledger.start()
    money = budget(ledger)
    store.spent_elsewhere[money.name] = 1_000
    meters = MeterSet([money])
    assert isinstance(await ledger.wait(meters, 0, 1), Short)
    await opened(ledger, store)
    short = await ledger.wait(meters, 0, 1)
    assert isinstance(short, Short)
    assert (short.reason, short.is_final) == ("limit", True)


@in_virtual_time
async def test_soft_budget_never_refuses_when_the_store_is_away(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger(when_store_away="closed")
    await ledger.start()
    store.is_away = True
    outcome = await ledger.wait(MeterSet([budget(ledger, limit=1, is_soft=True)]), 0, 500)
    assert isinstance(outcome, Reservation)


@in_virtual_time
async def test_no_request_waits_when_the_breaker_is_open(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([cap(ledger, limit=1_000)])

    async def hang() -> None:
        await asyncio.sleep(1)
        raise StoreError("no answer")

    store.before_reply = hang
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert isinstance(await ledger.wait(meters, 0, 0), Reservation)
    assert loop.time() - started == pytest.approx(0.05)
    await asyncio.sleep(4)
    assert ledger.state == "degraded"
    started = loop.time()
    assert isinstance(await ledger.wait(meters, 0, 0), Reservation)
    assert loop.time() == started


@in_virtual_time
async def test_breaker_opens_at_the_third_failure_and_closes_at_the_first_answer(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    slots = cap(ledger)
    await ledger.wait(MeterSet([slots]), 0, 0)
    for failures, state in ((1, "ok"), (2, "ok"), (3, "degraded")):
        store.replies = [StoreError("lost")] * failures
        seen: set[str] = set()

        async def look(seen: set[str] = seen) -> None:
            seen.add(ledger.state)

        store.before_reply = look
        slots.pump.mark_dirty(slots)
        await asyncio.sleep(2)
        assert ("degraded" in seen) == (state == "degraded")
        assert ledger.state == "ok"


@in_virtual_time
async def test_waiters_get_the_policy_at_once_when_the_breaker_opens(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger(when_store_away="closed")
    await ledger.start()
    store.is_away = True
    loop = asyncio.get_running_loop()
    outcomes = await asyncio.gather(*(ledger.wait(MeterSet([cap(ledger)]), 0, 0) for _ in range(3)))
    assert all(isinstance(outcome, Short) for outcome in outcomes)
    assert loop.time() == 0


def test_share_counts_what_this_process_holds_and_has_not_told(make_ledger: MakeLedger) -> None:
    @in_virtual_time
    async def run() -> None:
        money = budget(make_ledger())
        money.spent, money.members = 400, 3
        assert local_share(money, 2) == 200
        money.held, money.spare = 50, 20  # 30 reserved
        money.settled, money.synced, money.lone = 70, 60, 5
        assert local_share(money, 2) == 200 - 30 - 10 - 5

    run()


def test_share_is_never_larger_than_among_the_configured_edges(make_ledger: MakeLedger) -> None:
    """A store that answered when only one had come to a budget yet does not make the others' shares go away."""

    @in_virtual_time
    async def run() -> None:
        money = budget(make_ledger())
        money.spent, money.members = 400, 1
        assert local_share(money, 4) == 150

    run()


@in_virtual_time
async def test_what_passes_without_a_lease_is_covered_by_the_lease_that_comes_later(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    """Else a slow answer would grant once more what was let through while it was on its way."""

    async def slowly() -> None:
        await asyncio.sleep(0.2)

    store.before_reply = slowly
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([budget(ledger, limit=1_000)])
    outcomes = await asyncio.gather(*(ledger.wait(meters, 0, 100) for _ in range(30)))
    passed = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
    assert len(passed) == 10
    assert not any(reservation.is_covered for reservation in passed)
    await asyncio.sleep(0.14)  # just before the first answer
    later = await asyncio.gather(*(ledger.wait(meters, 0, 100) for _ in range(5)))
    assert all(isinstance(outcome, Short) for outcome in later)
    assert meters.all[0].held == 1_000


@in_virtual_time
async def test_share_leaves_out_what_is_leased_when_the_lease_is_good(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger, limit=1_000)
    reservation = await ledger.wait(MeterSet([money]), 0, 100)
    assert isinstance(reservation, Reservation)
    assert money.spare == 400
    assert local_share(money, 1) == 900
    assert local_share(money, 1, has_lease=True) == 500


async def test_standstill_of_this_process_is_not_taken_for_a_slow_store(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    async def shortly() -> None:
        await asyncio.sleep(0.001)

    store.before_reply = shortly
    ledger = make_ledger(clock=BootClock())
    await ledger.start()
    meters = MeterSet([budget(ledger)])
    waiting = [asyncio.create_task(ledger.wait(meters, 0, 10)) for _ in range(5)]
    await asyncio.sleep(0)
    time.sleep(0.1)
    outcomes = await asyncio.gather(*waiting)
    assert all(isinstance(outcome, Reservation) and outcome.is_covered for outcome in outcomes)
    assert ledger.counts.policy_served == 0
    await ledger.close()


@in_virtual_time
async def test_share_is_of_what_nobody_had_leased_when_the_store_is_only_slow(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger, limit=1_000)
    meters = MeterSet([money])
    store.elsewhere[money.name] = 700
    first = await ledger.wait(meters, 0, 200)
    assert isinstance(first, Reservation)
    assert (money.left, money.spare) == (50, 50)

    async def slowly() -> None:
        await asyncio.sleep(0.2)

    store.before_reply = slowly
    outcomes = await asyncio.gather(*(ledger.wait(meters, 0, size) for size in (60, 51, 51)))
    assert all(isinstance(outcome, Short) and outcome.reason == "store_away" for outcome in outcomes)
    assert local_share(money, 1) > 60
