"""What a process says to the store, when, and what it makes of the answers."""

import asyncio
import time
from collections.abc import Callable

from sluicegate.devstack.ledger_stand_in import LoopClock, StandInStore, in_virtual_time
from sluicegate.devstack.waiting import until
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Resource, Short
from sluicegate.ledger.store import Reply, StoreError

MakeLedger = Callable[..., Ledger]
YEAR_US = 365 * 86_400_000_000


def budget(ledger: Ledger, name: str = "bud_1", limit: int = 10_000) -> Meter:
    return ledger.sum_meter(name, "key_1", scope="key", start_us=0, end_us=YEAR_US, limit=limit, zero_from_us=0)


def cap(ledger: Ledger, resource: Resource = "open", limit: int = 100, scope_id: str = "key_1") -> Meter:
    return ledger.cap_meter(resource, "key", scope_id, limit=limit)


async def started(make_ledger: MakeLedger, **options: object) -> Ledger:
    ledger = make_ledger(**options)
    await ledger.start()
    return ledger


async def taken(ledger: Ledger, *meters: Meter, tokens: int = 0, cost: int = 0) -> Reservation:
    outcome = ledger.take(MeterSet(meters), tokens, cost) or await ledger.wait(MeterSet(meters), tokens, cost)
    assert isinstance(outcome, Reservation)
    return outcome


@in_virtual_time
async def test_leased_and_unchanged_meter_is_not_sent_again_when_the_process_lives_on(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    await taken(ledger, cap(ledger))
    sent = len(store.calls)
    await asyncio.sleep(30)
    heartbeats = store.calls[sent:]
    assert [call.lines for call in heartbeats] == [[]] * len(heartbeats)
    assert 5 <= len(heartbeats) <= 6


@in_virtual_time
async def test_settlement_is_sent_within_a_heartbeat(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    money = budget(ledger)
    ledger.settle(await taken(ledger, money, cost=10), 0, 7)
    sent = len(store.lines_of(money.name))
    await asyncio.sleep(4.9)
    assert len(store.lines_of(money.name)) == sent
    await asyncio.sleep(0.7)
    assert store.lines_of(money.name)[-1].settled == 7
    assert money.unsent_since is None


@in_virtual_time
async def test_idle_meter_gives_back_and_leaves(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    money, slots = budget(ledger), cap(ledger)
    ledger.settle(await taken(ledger, money, slots, cost=10), 0, 7)
    await asyncio.sleep(75)
    for meter in (money, slots):
        assert store.lines_of(meter.name)[-1].leaves
        assert (meter.is_joined, meter.settled, meter.held) == (False, 0, 0)
    assert store.lines_of(money.name)[-1].settled == 7


@in_virtual_time
async def test_idle_meter_with_an_open_request_gives_back_what_is_spare_only(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    money = budget(ledger)
    reservation = await taken(ledger, money, cost=10)
    await asyncio.sleep(75)
    line = store.lines_of(money.name)[-1]
    assert (line.leaves, line.hold) == (False, 10)
    ledger.settle(reservation, 0, 10)
    await asyncio.sleep(10)
    assert store.lines_of(money.name)[-1].leaves


@in_virtual_time
async def test_meter_used_again_after_it_was_forgotten_is_the_same_object(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger)
    ledger.settle(await taken(ledger, slots), 0, 0)
    await asyncio.sleep(200)
    assert not slots.is_active
    calls = len(store.calls)
    await asyncio.sleep(60)
    assert len(store.calls) == calls  # nothing is left that would have to be kept alive
    assert cap(ledger) is slots
    await taken(ledger, slots)
    assert slots.is_joined
    assert store.calls[-1].acked == 0


@in_virtual_time
async def test_refreshed_when_not_sent_for_five_minutes(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger, limit=1_000)
    kept = [await taken(ledger, slots)]
    await asyncio.sleep(70)  # idle: it has given back
    sent = len(store.lines_of(slots.name))
    await asyncio.sleep(290)
    assert len(store.lines_of(slots.name)) == sent
    await asyncio.sleep(20)
    assert len(store.lines_of(slots.name)) == sent + 1
    assert len(kept) == slots.taken


@in_virtual_time
async def test_low_lease_is_filled_up_before_a_request_has_to_wait(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    rate = cap(ledger, "requests", limit=100_000)
    meters = MeterSet([rate])
    waited = 0
    for _ in range(2_000):
        if ledger.take(meters, 0, 0) is None:
            assert isinstance(await ledger.wait(meters, 0, 0), Reservation)
            waited += 1
        await asyncio.sleep(0.01)
    assert waited <= 20
    assert len(store.lines_of(rate.name)) <= 60


@in_virtual_time
async def test_slots_are_leased_by_how_many_are_open_and_not_by_how_often_they_are_taken(
    make_ledger: MakeLedger,
) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger, "open", limit=10_000)
    for _ in range(1_000):
        ledger.settle(await taken(ledger, slots), 0, 0)
        await asyncio.sleep(0.01)
    assert slots.spare <= 10
    kept = [await taken(ledger, slots) for _ in range(100)]
    await asyncio.sleep(1)
    assert len(kept) <= slots.held <= 2 * len(kept) + 10


@in_virtual_time
async def test_call_holds_32_meters_and_the_next_one_follows(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    meters = [cap(ledger, scope_id=f"k{number}") for number in range(70)]
    await asyncio.gather(*(taken(ledger, meter) for meter in meters))
    assert [len(call.lines) for call in store.calls] == [32, 32, 6]


@in_virtual_time
async def test_backlog_of_settlements_is_gone_in_about_a_second(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    meters = [budget(ledger, f"b{number}") for number in range(300)]
    for reservation in await asyncio.gather(*(taken(ledger, meter, cost=1) for meter in meters)):
        ledger.settle(reservation, 0, 1)
    await asyncio.sleep(7.5)
    assert all(meter.unsent_since is None for meter in meters)


@in_virtual_time
async def test_one_call_is_in_flight_at_a_time(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    in_flight: list[int] = []

    async def slowly() -> None:
        in_flight.append(1)
        assert len(in_flight) == 1
        await asyncio.sleep(0.02)
        in_flight.pop()

    store.before_reply = slowly
    slots = cap(ledger, limit=1_000)
    await asyncio.gather(*(taken(ledger, slots) for _ in range(50)))
    assert [call.number for call in store.calls] == list(range(1, len(store.calls) + 1))


@in_virtual_time
async def test_request_is_refused_only_by_a_call_sent_after_it_came(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger, limit=10)
    store.elsewhere[slots.name] = 9

    async def slowly() -> None:
        await asyncio.sleep(0.01)

    store.before_reply = slowly
    loop = asyncio.get_running_loop()
    first = loop.create_task(ledger.wait(MeterSet([slots]), 0, 0))
    await asyncio.sleep(0.005)
    store.elsewhere[slots.name] = 8  # something came back while the first call was on its way
    second = loop.create_task(ledger.wait(MeterSet([slots]), 0, 0))
    third = loop.create_task(ledger.wait(MeterSet([slots]), 0, 0))
    outcomes = [await first, await second, await third]
    assert [isinstance(outcome, Reservation) for outcome in outcomes] == [True, True, False]
    assert [line.need for line in store.lines_of(slots.name)] == [1, 2]


@in_virtual_time
async def test_what_comes_back_to_a_scarce_meter_is_given_back_at_once(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger, limit=3)
    running = [await taken(ledger, slots) for _ in range(3)]
    assert isinstance(await ledger.wait(MeterSet([slots]), 0, 0), Short)
    calls = len(store.calls)
    for reservation in running:
        ledger.settle(reservation, 0, 0)
    await asyncio.sleep(0.011)
    assert len(store.calls) == calls + 1
    assert store.lines_of(slots.name)[-1].hold == 0


@in_virtual_time
async def test_spare_of_a_scarce_meter_is_given_back_when_unused(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    tokens = cap(ledger, "tokens", limit=100)
    outcomes = await asyncio.gather(*(ledger.wait(MeterSet([tokens]), need, 0) for need in (60, 60)))
    assert [isinstance(outcome, Reservation) for outcome in outcomes] == [True, False]
    assert (tokens.spare, tokens.is_scarce) == (40, True)
    await asyncio.sleep(2)
    assert tokens.spare == 0
    assert store.lines_of(tokens.name)[-1].hold == 60


@in_virtual_time
async def test_surplus_is_given_back_when_a_little_is_still_used(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    slots = cap(ledger, limit=100)
    running = [await taken(ledger, slots) for _ in range(60)]
    for reservation in running:
        ledger.settle(reservation, 0, 0)
    assert slots.spare >= 60
    for _ in range(15):
        ledger.settle(await taken(ledger, slots), 0, 0)
        await asyncio.sleep(1)
    assert slots.spare <= 8
    assert store.lines_of(slots.name)[-1].hold <= 8


@in_virtual_time
async def test_one_large_request_does_not_keep_a_large_lease(make_ledger: MakeLedger, store: StandInStore) -> None:
    """One of 900 000 tokens, then small ones: others were refused at a hundredth of the limit."""
    ledger = await started(make_ledger)
    tokens = ledger.cap_meter("tokens", "key", "key_1", limit=1_000_000)
    meters = MeterSet([tokens])
    large = await ledger.wait(meters, 900_000, 0)
    assert isinstance(large, Reservation)
    ledger.settle(large, 10, 0)
    for _ in range(180):
        small = ledger.take(meters, 100, 0) or await ledger.wait(meters, 100, 0)
        assert isinstance(small, Reservation)
        ledger.settle(small, 10, 0)
        await asyncio.sleep(1)
    assert tokens.spare < 100_000
    assert store.lines_of(tokens.name)[-1].hold < 100_000


@in_virtual_time
async def test_request_larger_than_a_whole_limit_is_refused_without_a_call(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    """Asking for it leased all that was left, and others were refused for as long."""
    ledger = await started(make_ledger)
    tokens = ledger.cap_meter("tokens", "key", "key_1", limit=1_000)
    purse = ledger.sum_meter(
        "bud_1", "key_1", scope="key", start_us=0, end_us=YEAR_US, limit=1_000, zero_from_us=0, is_soft=False
    )
    soft = ledger.sum_meter(
        "bud_2", "key_1", scope="key", start_us=0, end_us=YEAR_US, limit=1_000, zero_from_us=0, is_soft=True
    )
    await taken(ledger, cap(ledger))  # the store answers
    for meter, needs, is_final in ((tokens, (1_001, 0), False), (purse, (0, 1_001), True)):
        short = await ledger.wait(MeterSet([meter]), *needs)
        assert isinstance(short, Short)
        assert (short.meter, short.is_final, short.reason) == (meter, is_final, "limit")
        assert not meter.is_active
    assert store.lines_of(tokens.name) == store.lines_of(purse.name) == []
    assert isinstance(await ledger.wait(MeterSet([soft]), 0, 1_001), Reservation)


@in_virtual_time
async def test_meter_forgotten_while_its_call_was_under_way_gives_its_lease_back(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger, when_store_away="closed")
    slots = cap(ledger)

    async def forget() -> None:
        store.before_reply = None
        await asyncio.sleep(0.2)  # the request has given up by then
        slots.pump._forget(slots)

    store.before_reply = forget
    await ledger.wait(MeterSet([slots]), 0, 0)
    await asyncio.sleep(0.3)
    assert slots.is_joined
    await asyncio.sleep(75)
    assert store.lines_of(slots.name)[-1].leaves
    assert not slots.is_joined


@in_virtual_time
async def test_failed_call_is_said_again_with_fresh_values(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    money = budget(ledger)
    running = [await taken(ledger, money, cost=10) for _ in range(2)]
    ledger.settle(running[0], 0, 10)
    settled_at = money.unsent_since
    seen: list[float | None] = []

    async def settle_meanwhile() -> None:
        if money.is_joined and running[1].is_open and store.calls[-1].lines:
            ledger.settle(running[1], 0, 5)
            store.replies.append(StoreError("lost"))
            await asyncio.sleep(0)
            seen.append(money.unsent_since)

    store.before_reply = settle_meanwhile
    await asyncio.sleep(6)
    lines = store.lines_of(money.name)[-2:]
    assert [(line.settled, line.is_joined) for line in lines] == [(10, True), (15, True)]
    assert settled_at is not None
    assert seen[0] is not None
    assert seen[0] > settled_at
    numbers = [call.number for call in store.calls]
    assert numbers == sorted(set(numbers))
    assert ledger.state == "ok"


@in_virtual_time
async def test_rejoin_keeps_what_is_reserved_and_drops_what_was_settled(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    money = budget(ledger)
    running = [await taken(ledger, money, cost=10) for _ in range(2)]
    ledger.settle(running[0], 0, 10)
    answer = store._answer
    store._answer = lambda line: answer(line)._replace(code="REJOIN" if line.is_joined else "OK")  # type: ignore[method-assign]
    await asyncio.sleep(5.6)
    said, again = store.lines_of(money.name)[-2:]
    assert (said.is_joined, said.settled) == (True, 10)
    assert (again.is_joined, again.settled, again.hold) == (False, 0, 10)
    assert money.is_joined
    ledger.settle(running[1], 0, 10)
    assert (money.settled, money.taken) == (10, 0)


@in_virtual_time
async def test_loss_puts_all_leases_in_doubt_and_joins_anew_what_had_joined_since(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    old, new = budget(ledger, "old"), budget(ledger, "new")
    await taken(ledger, old, cost=10)
    await taken(ledger, new, cost=10)
    assert store.calls[-1].watermark_ms > 0
    store.replies.append(Reply("LOST", 1))
    await asyncio.sleep(5.1)  # the heartbeat
    lost, again = store.calls[2], store.calls[3]
    assert (lost.lines, lost.acked) == ([], 2)
    assert again.acked == 1
    # What was lost may have kept the older lease alive, too.
    assert [(line.name, line.is_joined) for line in again.lines] == [(old.name, True), (new.name, False)]
    assert [line.hold for line in again.lines] == [10, 10]  # nothing spare
    assert ledger.counts.losses == 1


@in_virtual_time
async def test_watermark_stands_still_while_a_doubtful_meter_is_not_in_the_call(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    meters = [budget(ledger, f"b{number}") for number in range(40)]
    await asyncio.gather(*(taken(ledger, meter, cost=1) for meter in meters))
    joined = len(store.calls)
    for meter in meters:
        meter.pump.mark_dirty(meter)
    await asyncio.sleep(0.01)
    store.replies.append(Reply("LOST", joined))
    sent = len(store.calls)
    await asyncio.sleep(5.5)
    after = store.calls[sent + 1 :]
    assert [len(call.lines) for call in after[:2]] == [32, 8]
    assert after[0].watermark_ms == 0
    assert after[1].watermark_ms > 0
    assert all(meter.unsent_since is None for meter in meters)


@in_virtual_time
async def test_watermark_names_the_oldest_settlement_that_is_not_in_the_call(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    early, late = budget(ledger, "early"), budget(ledger, "late")
    kept = await taken(ledger, early, late, cost=10)
    server_ms = store.clock_ms()
    await asyncio.sleep(1)
    ledger.settle(kept, 0, 10)
    early.pump.mark_dirty(late)
    await asyncio.sleep(0.001)
    assert [line.name for line in store.calls[-1].lines] == [late.name]
    assert store.calls[-1].watermark_ms == server_ms + 1_000
    await asyncio.sleep(5.5)
    assert store.calls[-1].watermark_ms >= server_ms + 5_000


@in_virtual_time
async def test_lease_is_doubted_when_the_process_was_silent_for_its_time_to_live(
    make_ledger: MakeLedger, store: StandInStore, clock: LoopClock
) -> None:
    ledger = await started(make_ledger)
    slots, money = cap(ledger), budget(ledger)
    await taken(ledger, slots, money, cost=10)
    behind = store.clock_ms
    clock.ahead_s += 19
    store.clock_ms = lambda: behind() + 19_000
    await taken(ledger, money, cost=10_000 // 3)  # a call without the other one
    assert not any(line.name == slots.name for line in store.calls[1].lines)
    assert money.is_ok
    await asyncio.sleep(0.001)
    assert store.lines_of(slots.name)[-1].hold == 1  # sent again, with nothing spare
    assert slots.is_ok


async def test_pump_starts_over_when_a_fault_of_ours_interrupts_it(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    loop = asyncio.get_running_loop()
    reported: list[str] = []
    loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    ledger = await started(make_ledger)
    money = budget(ledger)
    ledger.settle(await taken(ledger, money, cost=10), 0, 7)
    store.replies.append(Reply("OK", store.clock_ms(), []))  # an answer too few
    money.pump.mark_dirty(money)
    await until(lambda: len(store.lines_of(money.name)) >= 3 and money.is_ok, "another call")
    assert len(reported) == 1
    assert "ValueError" in reported[0]
    assert store.lines_of(money.name)[-1].settled == 7
    assert ledger.state == "ok"
    await ledger.close()


@in_virtual_time
async def test_clock_skew_is_that_of_the_last_answer(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    assert ledger.clock_skew_s == 0
    store.clock_ms = lambda: int((time.time() - 3) * 1000)
    await taken(ledger, cap(ledger))
    assert -60 < ledger.clock_skew_s <= -3


@in_virtual_time
async def test_close_gives_everything_back(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    money, slots, rate = budget(ledger), cap(ledger), cap(ledger, "requests")
    ledger.settle(await taken(ledger, money, slots, rate, cost=10), 0, 8)
    await ledger.close()
    last = {line.name: line for line in store.calls[-1].lines}
    assert (last[money.name].leaves, last[money.name].settled) == (True, 8)
    assert last[slots.name].leaves
    assert (last[rate.name].leaves, last[rate.name].hold) == (False, 1)  # its minute is not over
    assert ledger.take(MeterSet([slots]), 0, 0) is None


@in_virtual_time
async def test_close_ends_in_time_when_the_store_does_not_answer(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    await taken(ledger, cap(ledger))

    async def never() -> None:
        await asyncio.sleep(3_600)

    store.before_reply = never
    await ledger.close(2)
    assert asyncio.get_running_loop().time() < 3


@in_virtual_time
async def test_late_request_of_a_closing_process_gets_an_answer(make_ledger: MakeLedger) -> None:
    ledger = await started(make_ledger, when_store_away="closed")
    slots = cap(ledger)
    await taken(ledger, slots)
    await ledger.close()
    outcome = await ledger.wait(MeterSet([slots]), 0, 0)
    assert isinstance(outcome, Short)
    assert outcome.reason == "store_away"


@in_virtual_time
async def test_meters_of_two_tags_are_served_by_two_pumps(make_ledger: MakeLedger, store: StandInStore) -> None:
    ledger = await started(make_ledger)
    ours = ledger.cap_meter("open", "key", "k", limit=5, tag="ten_1")
    theirs = ledger.cap_meter("open", "provider", "p", limit=1, tag="p:prv_1")
    meters = MeterSet([ours, theirs])
    assert len(meters.pumps) == 2
    await taken(ledger, ours, theirs)
    assert [[line.name for line in call.lines] for call in store.calls] == [[ours.name], [theirs.name]]
    short = await ledger.wait(meters, 0, 0)
    assert isinstance(short, Short)
    assert short.meter is theirs
    assert (ours.taken, ours.wanted) == (1, 0)


@in_virtual_time
async def test_request_waits_on_when_what_was_spare_went_to_others_and_there_is_more(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    ledger = await started(make_ledger)
    slots, money = cap(ledger), budget(ledger)
    alone = MeterSet([slots])
    await taken(ledger, slots)
    assert slots.spare > 0

    async def others_take_all() -> None:
        while ledger.take(alone, 0, 0):
            pass

    store.before_reply = others_take_all
    slots.pump.mark_dirty(slots)  # so that the call that is waited for says something of it, but asks for nothing
    outcome = await ledger.wait(MeterSet([slots, money]), 0, 10)
    first = store.calls[1].lines
    assert {line.name: line.need for line in first} == {slots.name: 0, money.name: 10}
    assert isinstance(outcome, Reservation)
    assert outcome.is_covered
