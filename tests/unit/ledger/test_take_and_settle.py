"""What requests take and give back, without any server: all or none, and S + R + A as the protocol says."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from sluicegate.devstack.ledger_stand_in import LoopClock, StandInStore, in_virtual_time
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Resource, Short

MakeLedger = Callable[..., Ledger]
HOUR_US = 3_600_000_000


def budget(ledger: Ledger, limit: int = 10_000, *, start_us: int = 0, is_soft: bool = False) -> Meter:
    return ledger.sum_meter(
        "bud_1",
        "key_1",
        scope="key",
        start_us=start_us,
        end_us=start_us + HOUR_US,
        limit=limit,
        zero_from_us=start_us,
        is_soft=is_soft,
    )


def cap(ledger: Ledger, resource: Resource, limit: int, scope: str = "key") -> Meter:
    return ledger.cap_meter(resource, scope, "id_1", limit=limit)


async def taken(ledger: Ledger, meters: MeterSet, tokens: int = 0, cost: int = 0) -> Reservation:
    outcome = ledger.take(meters, tokens, cost) or await ledger.wait(meters, tokens, cost)
    assert isinstance(outcome, Reservation)
    assert outcome.is_covered
    return outcome


@in_virtual_time
async def test_take_takes_nothing_when_one_meter_is_short(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    rate, money, slots = cap(ledger, "requests", 100), budget(ledger), cap(ledger, "open", 1)
    meters = MeterSet([rate, money, slots])
    await taken(ledger, meters, cost=10)
    before = [(meter.taken, meter.spare) for meter in meters.all]
    assert rate.spare
    assert money.spare >= 10
    assert ledger.take(meters, 0, 10) is None
    assert [(meter.taken, meter.spare) for meter in meters.all] == before


@in_virtual_time
async def test_take_needs_a_call_when_validity_has_ended(make_ledger: MakeLedger, clock: LoopClock) -> None:
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([cap(ledger, "open", 100)])
    await taken(ledger, meters)
    assert ledger.take(meters, 0, 0) is not None
    clock.ahead_s += 10
    assert ledger.take(meters, 0, 0) is None
    calls = ledger.counts.calls
    await taken(ledger, meters)
    assert ledger.counts.calls == calls + 1


@in_virtual_time
async def test_nothing_is_taken_from_a_meter_that_was_not_joined_when_the_need_is_zero(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    await taken(ledger, MeterSet([cap(ledger, "open", 5)]))
    money = budget(ledger)
    assert ledger.take(MeterSet([money]), 0, 0) is None
    await taken(ledger, MeterSet([money]))
    assert money.is_joined


@in_virtual_time
async def test_settle_moves_the_cost_and_frees_the_rest_when_less_was_used(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger)
    reservation = await taken(ledger, MeterSet([money]), cost=100)
    leased = money.settled + money.taken + money.spare
    spare = money.spare
    ledger.settle(reservation, 0, 30)
    assert (money.settled, money.taken, money.spare) == (30, 0, spare + 70)
    assert money.settled + money.taken + money.spare == leased


@in_virtual_time
async def test_settle_takes_from_what_is_spare_when_more_was_used(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger)
    reservation = await taken(ledger, MeterSet([money]), cost=100)
    spare, calls = money.spare, len(store.calls)
    assert spare > 50
    ledger.settle(reservation, 0, 150)
    assert (money.settled, money.taken, money.spare) == (150, 0, spare - 50)
    await asyncio.sleep(0.1)
    assert len(store.calls) == calls


@in_virtual_time
async def test_debt_is_sent_at_once_when_more_was_used_than_is_leased(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger, limit=1_000)
    reservation = await taken(ledger, MeterSet([money]), cost=100)
    ledger.settle(reservation, 0, 900)
    assert (money.settled, money.taken, money.spare) == (900, 0, 0)
    await asyncio.sleep(0.001)
    line = store.lines_of(money.name)[-1]
    assert (line.settled, line.hold) == (900, 0)


@in_virtual_time
async def test_token_debt_is_held_until_its_minute_is_over(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    rate = cap(ledger, "tokens", 1_000)
    reservation = await taken(ledger, MeterSet([rate]), tokens=400)
    store.elsewhere[rate.name] = 600 - rate.spare
    ledger.settle(reservation, 1_200, 0)
    assert (rate.taken, rate.spare) == (1_200, 0)
    await asyncio.sleep(0.001)
    assert store.lines_of(rate.name)[-1].hold == 1_200
    await asyncio.sleep(61)
    assert rate.taken == 0


@in_virtual_time
async def test_reservation_ends_once(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([budget(ledger), cap(ledger, "open", 5), cap(ledger, "tokens", 500), cap(ledger, "requests", 9)])
    reservation = await taken(ledger, meters, tokens=50, cost=100)
    ledger.settle(reservation, 20, 30)
    after = [(meter.settled, meter.held, meter.spare) for meter in meters.all]
    ledger.settle(reservation, 50, 100)
    ledger.release(reservation)
    assert [(meter.settled, meter.held, meter.spare) for meter in meters.all] == after


@in_virtual_time
async def test_release_gives_back_the_request_too(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([budget(ledger), cap(ledger, "open", 5), cap(ledger, "tokens", 500), cap(ledger, "requests", 9)])
    reservation = await taken(ledger, meters, tokens=50, cost=100)
    ledger.release(reservation)
    assert [(meter.taken, meter.settled) for meter in meters.all] == [(0, 0)] * 4
    await asyncio.sleep(61)
    assert [meter.taken for meter in meters.all] == [0] * 4


@in_virtual_time
async def test_open_slots_return_to_zero_after_any_mix_of_ends(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    random = Random(7)
    slots, rate = cap(ledger, "open", 20), cap(ledger, "tokens", 100_000)
    meters = MeterSet([slots, rate, budget(ledger, 10**9)])
    running: list[Reservation] = []
    for _ in range(500):
        if running and random.random() < 0.5:
            reservation = running.pop(random.randrange(len(running)))
            if random.random() < 0.2:
                ledger.release(reservation)
            else:
                ledger.settle(reservation, random.randrange(200), random.randrange(200))
        else:
            outcome = ledger.take(meters, 100, 100) or await ledger.wait(meters, 100, 100)
            if isinstance(outcome, Reservation):
                running.append(outcome)
        assert slots.taken == len(running) <= 20
        if random.random() < 0.1:
            await asyncio.sleep(random.random() * 5)
    for reservation in running:
        ledger.settle(reservation, 0, 0)
    assert slots.taken == 0


@in_virtual_time
async def test_cancelled_wait_keeps_nothing(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    slots = cap(ledger, "open", 5)
    meters = MeterSet([slots])
    for moment in ("on the way", "answered"):
        answered = asyncio.Event()

        async def hold(answered: asyncio.Event = answered) -> None:
            await answered.wait()

        store.before_reply = hold
        slots.is_ok = False
        task = asyncio.get_running_loop().create_task(ledger.wait(meters, 0, 0))
        await asyncio.sleep(0.01)
        answered.set()
        if moment == "answered":
            while not slots.taken:
                await asyncio.sleep(0)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        assert slots.taken == 0
        assert slots.wanted == 0


@in_virtual_time
async def test_request_settles_in_the_period_it_started_in(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    old = MeterSet([budget(ledger, start_us=0)])
    reservation = await taken(ledger, old, cost=100)
    assert (old.since_us, old.until_us) == (0, HOUR_US)
    new = MeterSet([budget(ledger, start_us=HOUR_US)])
    assert (new.since_us, new.until_us) == (HOUR_US, 2 * HOUR_US)
    await taken(ledger, new, cost=10)
    ledger.settle(reservation, 0, 70)
    assert old.budgets[0].settled == 70
    assert new.budgets[0].settled == 0
    # A clock that was moved back over the boundary finds the same meter.
    assert budget(ledger, start_us=0) is old.budgets[0]


@in_virtual_time
async def test_period_that_became_longer_goes_on_with_the_same_meter(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    hourly = MeterSet([budget(ledger)])
    ledger.settle(await taken(ledger, hourly, cost=100), 0, 100)
    daily = ledger.sum_meter(
        "bud_1", "key_1", scope="key", start_us=0, end_us=24 * HOUR_US, limit=10_000, zero_from_us=None
    )
    assert daily is hourly.budgets[0]
    assert daily.settled == 100
    assert MeterSet([daily]).until_us == 24 * HOUR_US


@in_virtual_time
async def test_lowered_limit_gives_back_what_is_spare(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    slots = cap(ledger, "open", 100)
    reservation = await taken(ledger, MeterSet([slots]))
    assert slots.spare
    assert cap(ledger, "open", 1) is slots
    assert (slots.limit, slots.spare, slots.taken) == (1, 0, 1)
    await asyncio.sleep(0.001)
    line = store.lines_of(slots.name)[-1]
    assert (line.limit, line.hold) == (1, 1)
    assert slots.spare == 0
    ledger.settle(reservation, 0, 0)
    await taken(ledger, MeterSet([slots]))


@in_virtual_time
async def test_soft_budget_serves_on_and_says_so_when_it_is_exceeded(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    seen: list[int] = []
    ledger = make_ledger(on_spent=lambda meter, spent: seen.append(spent))
    await ledger.start()
    money = budget(ledger, limit=100, is_soft=True)
    meters = MeterSet([money])
    for _ in range(3):
        ledger.settle(await taken(ledger, meters, cost=60), 0, 60)
        await asyncio.sleep(6)
    assert money.is_exceeded
    assert seen[-1] == 180
    assert store.calls[-1].lines == [] or store.lines_of(money.name)[-1].limit == 2**53 - 1


@in_virtual_time
async def test_headers_know_what_is_left(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    rate = cap(ledger, "requests", 100)
    meters = MeterSet([rate])
    assert rate.remaining() == 100
    for _ in range(3):
        await taken(ledger, meters)
    assert rate.remaining() == 97
    await asyncio.sleep(61)
    assert rate.remaining() == 100


def test_set_refuses_a_meter_twice(make_ledger: MakeLedger) -> None:
    @in_virtual_time
    async def run() -> None:
        slots = cap(make_ledger(), "open", 5)
        with pytest.raises(ValueError, match="twice"):
            MeterSet([slots, slots])

    run()


@in_virtual_time
async def test_empty_set_lets_everything_pass(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    reservation = ledger.take(MeterSet([]), 10, 10)
    assert reservation is not None
    ledger.settle(reservation, 20, 20)


@in_virtual_time
async def test_same_or_larger_needs_are_refused_from_memory_for_a_moment(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger, limit=100)
    meters = MeterSet([money])
    reservation = await taken(ledger, meters, cost=90)
    first = await ledger.wait(meters, 0, 50)
    assert isinstance(first, Short)
    assert (first.meter, first.is_final, first.reason) == (money, False, "limit")
    assert ledger.refused(meters, 0, 49) is None
    assert ledger.refused(meters, 0, 50) is not None
    await asyncio.sleep(0.11)
    assert ledger.refused(meters, 0, 50) is None
    assert isinstance(await ledger.wait(meters, 0, 50), Short)
    ledger.settle(reservation, 0, 20)  # something came back
    assert ledger.refused(meters, 0, 50) is None


@in_virtual_time
async def test_refusal_is_final_when_settled_money_alone_refuses(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    money = budget(ledger, limit=100)
    store.spent_elsewhere[money.name] = 80
    meters = MeterSet([money])
    short = await ledger.wait(meters, 0, 21)
    assert isinstance(short, Short)
    assert short.is_final
    await asyncio.sleep(0.9)
    assert ledger.refused(meters, 0, 21) is not None
    await taken(ledger, meters, cost=20)


@in_virtual_time
async def test_refused_rate_names_when_its_oldest_use_comes_back(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    await ledger.start()
    rate = cap(ledger, "requests", 2)
    meters = MeterSet([rate])
    await taken(ledger, meters)
    await asyncio.sleep(20)
    await taken(ledger, meters)
    short = await ledger.wait(meters, 0, 0)
    assert isinstance(short, Short)
    assert 40 <= short.retry_after_s <= 41


@in_virtual_time
async def test_refused_rate_never_names_more_than_a_minute(make_ledger: MakeLedger) -> None:
    """The OpenAI SDK used to ignore more, and then asked again at once."""
    ledger = make_ledger()
    await ledger.start()
    meters = MeterSet([cap(ledger, "requests", 1)])
    await taken(ledger, meters)
    short = await ledger.wait(meters, 0, 0)
    assert isinstance(short, Short)
    assert short.retry_after_s == 60


@in_virtual_time
async def test_refused_rate_names_five_seconds_when_others_use_it(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = make_ledger()
    await ledger.start()
    rate = cap(ledger, "requests", 2)
    store.elsewhere[rate.name] = 2
    short = await ledger.wait(MeterSet([rate]), 0, 0)
    assert isinstance(short, Short)
    assert short.retry_after_s == 5
