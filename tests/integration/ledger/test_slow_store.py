"""Valkey is slow, hangs or refuses: order and outcome of what requests see, in real time."""

import asyncio
from collections.abc import Awaitable, Callable

from sluicegate.devstack.faults import faulty_link
from sluicegate.devstack.waiting import until
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import MeterSet, Reservation, Short

MakeLedger = Callable[..., Awaitable[Ledger]]


async def test_request_is_decided_before_the_answer_when_the_server_is_slow(
    make_ledger: MakeLedger, redis_url: str
) -> None:
    async with faulty_link(redis_url) as link:
        ledger = await make_ledger(link.url(redis_url))
        warm = MeterSet([ledger.cap_meter("open", "key", "warm", limit=10)])
        assert isinstance(await ledger.wait(warm, 0, 0), Reservation)
        meters = MeterSet([ledger.cap_meter("open", "key", "slow", limit=10)])
        link.delay_s = 0.1  # in each direction
        outcomes = [await ledger.wait(meters, 0, 0) for _ in range(2)]
        # Both came before the first answer could.
        assert [isinstance(outcome, Reservation) and outcome.is_covered for outcome in outcomes] == [False, False]
        assert not meters.all[0].is_joined
        assert ledger.counts.failures == 0
        assert ledger.state == "ok"
        # The calls live on: a lease comes, and the two are held in it.
        await until(lambda: meters.all[0].is_ok and meters.all[0].spare, "the slow answer")
        assert meters.all[0].taken == 2
        covered = ledger.take(meters, 0, 0)
        assert covered is not None
        for reservation in (*outcomes, covered):
            assert isinstance(reservation, Reservation)
            ledger.settle(reservation, 0, 0)
        assert meters.all[0].taken == 0
        link.delay_s = 0


async def test_hanging_server_opens_the_breaker_and_is_found_again(make_ledger: MakeLedger, redis_url: str) -> None:
    async with faulty_link(redis_url) as link:
        ledger = await make_ledger(link.url(redis_url), when_store_away="closed")
        meters = MeterSet([ledger.cap_meter("open", "key", "hanging", limit=100)])
        first = await ledger.wait(meters, 0, 0)
        assert isinstance(first, Reservation)
        link.hold()
        meters.all[0].pump.mark_dirty(meters.all[0])
        await until(lambda: ledger.state == "degraded", "the breaker")
        # The lease is good for a while; what it does not hold is decided at once.
        assert ledger.take(meters, 0, 0) is not None
        task = asyncio.ensure_future(ledger.wait(MeterSet([ledger.cap_meter("open", "key", "other", limit=9)]), 0, 0))
        await asyncio.sleep(0)
        assert task.done()
        short = task.result()
        assert isinstance(short, Short)
        assert short.reason == "store_away"
        link.release()
        await until(lambda: ledger.state == "ok", "an answered probe")
        ledger.settle(first, 0, 0)
        second = await ledger.wait(MeterSet([ledger.cap_meter("open", "key", "other", limit=9)]), 0, 0)
        assert isinstance(second, Reservation)
        assert second.is_covered


async def test_cut_connection_is_made_anew(make_ledger: MakeLedger, redis_url: str) -> None:
    async with faulty_link(redis_url) as link:
        ledger = await make_ledger(link.url(redis_url))
        meters = MeterSet([ledger.cap_meter("open", "key", "cut", limit=1_000)])
        running = []
        for _ in range(5):
            outcome = await ledger.wait(meters, 0, 0)
            assert isinstance(outcome, Reservation)
            running.append(outcome)
            link.cut()
        await until(lambda: ledger.state == "ok" and meters.all[0].is_ok, "a new connection")
        for reservation in running:
            ledger.settle(reservation, 0, 0)
        assert meters.all[0].taken == 0


async def test_server_that_refuses_and_comes_back_costs_no_slot(make_ledger: MakeLedger, redis_url: str) -> None:
    async with faulty_link(redis_url) as link:
        ledger = await make_ledger(link.url(redis_url), when_store_away="open")
        slots = ledger.cap_meter("open", "key", "refusing", limit=20)
        meters = MeterSet([slots])
        covered = await ledger.wait(meters, 0, 0)
        link.refuse()
        slots.pump.mark_dirty(slots)
        await until(lambda: ledger.state == "degraded", "the breaker")
        uncovered = [await ledger.wait(meters, 0, 0) for _ in range(50)]
        assert ledger.counts.policy_served >= 50
        link.accept()
        await until(lambda: ledger.state == "ok", "an answered probe")
        for outcome in (covered, *uncovered):
            assert isinstance(outcome, Reservation)
            ledger.settle(outcome, 0, 0)
        assert slots.taken == 0
        await until(lambda: slots.left is not None and slots.left + slots.spare == 20, "all slots free in the store")
