"""Budgets that the store does not know are asked for once, and not believed when the answer is old."""

import asyncio
from collections.abc import Callable

from sluicegate.devstack.ledger_stand_in import StandInStore, in_virtual_time
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Short
from sluicegate.ledger.store import Reply

MakeLedger = Callable[..., Ledger]


def budget(ledger: Ledger, scope_id: str = "k", limit: int = 1_000) -> Meter:
    return ledger.sum_meter("b", scope_id, scope="key", start_us=0, end_us=10**12, limit=limit, zero_from_us=None)


@in_virtual_time
async def test_missing_budget_is_seeded_once_while_requests_wait(make_ledger: MakeLedger, store: StandInStore) -> None:
    asked: list[str] = []

    async def spent(meter: Meter) -> int:
        asked.append(meter.name)
        await asyncio.sleep(0.01)
        return 900

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    money = budget(ledger)
    store.missing.add(money.name)
    outcomes = await asyncio.gather(*(ledger.wait(MeterSet([money]), 0, 30) for _ in range(5)))
    assert asked == [money.name]
    assert [isinstance(outcome, Reservation) for outcome in outcomes] == [True, True, True, False, False]
    assert all(outcome.is_covered for outcome in outcomes if isinstance(outcome, Reservation))
    assert [(seed.name, seed.spent_nano_usd) for seed in store.seeds] == [(money.name, 900)]
    assert store.seeds[0].expire_at_ms == 10**9 + 48 * 3_600_000
    assert money.spent == 900


@in_virtual_time
async def test_policy_decides_without_waiting_when_the_writer_is_behind(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    answers: list[int | None] = [None, None, 100]

    async def spent(meter: Meter) -> int | None:
        await asyncio.sleep(1)
        return answers.pop(0)

    ledger = make_ledger(spent_so_far=spent, configured_edges=2)
    await ledger.start()
    money = budget(ledger)
    store.missing.add(money.name)
    loop = asyncio.get_running_loop()
    first = await ledger.wait(MeterSet([money]), 0, 300)
    assert isinstance(first, Reservation)
    assert not first.is_covered
    await asyncio.sleep(0.001)
    before = loop.time()
    second = await ledger.wait(MeterSet([money]), 0, 300)
    assert isinstance(second, Short)  # beyond 1 000 / 2 edges
    assert second.reason == "store_away"
    assert loop.time() == before
    calls = len(store.lines_of(money.name))
    await asyncio.sleep(3)
    assert len(store.lines_of(money.name)) == calls  # nothing to join yet
    await asyncio.sleep(3)
    assert answers == []
    assert money.is_joined
    assert store.lines_of(money.name)[-1].hold >= 300


@in_virtual_time
async def test_answer_older_than_two_seconds_is_thrown_away(make_ledger: MakeLedger, store: StandInStore) -> None:
    delays = [2.5, 0.1]
    asked: list[float] = []

    async def spent(meter: Meter) -> int:
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(delays.pop(0))
        return len(delays)

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    money = budget(ledger)
    store.missing.add(money.name)
    await ledger.wait(MeterSet([money]), 0, 10)
    await asyncio.sleep(5)
    assert len(asked) == 2
    assert [seed.spent_nano_usd for seed in store.seeds] == [0]


@in_virtual_time
async def test_slow_answer_for_one_budget_does_not_hold_up_another(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    async def spent(meter: Meter) -> int | None:
        if meter.scope_id == "behind":
            await asyncio.sleep(1)
            return None
        return 5

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    behind, quick = budget(ledger, "behind"), budget(ledger, "quick")
    store.missing |= {behind.name, quick.name}
    outcomes = await asyncio.gather(
        ledger.wait(MeterSet([behind]), 0, 10),
        ledger.wait(MeterSet([quick]), 0, 10),
    )
    assert isinstance(outcomes[1], Reservation)
    assert outcomes[1].is_covered


@in_virtual_time
async def test_seed_is_asked_for_anew_when_it_could_not_be_written(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    asked = 0

    async def spent(meter: Meter) -> int:
        nonlocal asked
        asked += 1
        store.is_away = asked == 1
        return 10 * asked

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    money = budget(ledger)
    store.missing.add(money.name)
    await ledger.wait(MeterSet([money]), 0, 10)
    await asyncio.sleep(3)
    assert [seed.spent_nano_usd for seed in store.seeds] == [20]
    assert money.is_joined


@in_virtual_time
async def test_many_missing_budgets_are_written_together(make_ledger: MakeLedger, store: StandInStore) -> None:
    together = 0
    most = 0

    async def spent(meter: Meter) -> int:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.001)
        together -= 1
        return 1

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    meters = [budget(ledger, f"k{number}") for number in range(100)]
    store.missing |= {meter.name for meter in meters}
    outcomes = await asyncio.gather(*(ledger.wait(MeterSet([meter]), 0, 10) for meter in meters))
    assert all(isinstance(outcome, Reservation) and outcome.is_covered for outcome in outcomes)
    assert len(store.seeds) == 100
    assert most <= 32


@in_virtual_time
async def test_error_of_the_question_counts_as_no_answer(make_ledger: MakeLedger, store: StandInStore) -> None:
    asked = 0

    async def spent(meter: Meter) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("no bus")
        return 7

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    money = budget(ledger)
    store.missing.add(money.name)
    await ledger.wait(MeterSet([money]), 0, 10)
    await asyncio.sleep(2)
    assert [seed.spent_nano_usd for seed in store.seeds] == [7]


@in_virtual_time
async def test_budget_in_use_is_seeded_before_its_next_request_when_the_store_forgot_it(
    make_ledger: MakeLedger, store: StandInStore
) -> None:
    async def spent(meter: Meter) -> int:
        await asyncio.sleep(0.5)
        return 400

    ledger = make_ledger(spent_so_far=spent)
    await ledger.start()
    money = budget(ledger)
    reservation = await ledger.wait(MeterSet([money]), 0, 100)
    assert isinstance(reservation, Reservation)
    ledger.settle(reservation, 0, 100)
    store.missing.add(money.name)
    store.replies.append(Reply("LOST", 0))
    await asyncio.sleep(6)  # the settlement is sent, and so the loss is heard of
    assert [seed.spent_nano_usd for seed in store.seeds] == [400]
    following = await asyncio.gather(*(ledger.wait(MeterSet([money]), 0, 100) for _ in range(10)))
    covered = [outcome for outcome in following if isinstance(outcome, Reservation) and outcome.is_covered]
    assert len(covered) == 6  # what is left of 1 000
    assert ledger.counts.policy_served == 0
