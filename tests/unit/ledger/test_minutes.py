"""Rates are sliding minutes: what was admitted comes back 60 s later, rounded up to half a second."""

import asyncio
from collections.abc import Callable

import pytest

from sluicegate.devstack.ledger_stand_in import LoopClock, in_virtual_time
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet

MakeLedger = Callable[..., Ledger]


async def joined(ledger: Ledger, limit: int = 100_000) -> tuple[MeterSet, Meter, Meter]:
    """Return meters with leases that suffice for all that follows."""
    await ledger.start()
    requests = ledger.cap_meter("requests", "key", "k", limit=limit)
    tokens = ledger.cap_meter("tokens", "key", "k", limit=limit)
    meters = MeterSet([requests, tokens])
    for _ in range(3):
        reservation = ledger.take(meters, 1_000, 0) or await ledger.wait(meters, 1_000, 0)
        ledger.release(reservation)  # type: ignore[arg-type]
    assert (requests.taken, tokens.taken) == (0, 0)
    return meters, requests, tokens


@pytest.mark.parametrize(("at_s", "back_at_s"), [(0.0, 60.5), (0.001, 60.5), (0.499, 60.5), (0.5, 61.0), (0.75, 61.0)])
def test_use_comes_back_a_minute_later_at_the_next_half_second(
    at_s: float, back_at_s: float, make_ledger: MakeLedger, clock: LoopClock
) -> None:
    @in_virtual_time
    async def run() -> None:
        ledger = make_ledger()
        meters, requests, tokens = await joined(ledger)
        assert asyncio.get_running_loop().time() == 0
        clock.ahead_s = 102 + at_s
        reservation = ledger.take(meters, 10, 0)
        assert reservation is not None
        ledger.settle(reservation, 7, 0)
        clock.ahead_s = 102 + back_at_s - 0.001
        ledger.turn()
        assert (requests.taken, tokens.taken) == (1, 7)
        clock.ahead_s = 102 + back_at_s
        ledger.turn()
        assert (requests.taken, tokens.taken) == (0, 0)

    run()


@in_virtual_time
async def test_settling_after_the_minute_changes_nothing(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    meters, requests, tokens = await joined(ledger)
    reservation = ledger.take(meters, 10, 0)
    assert reservation is not None
    await asyncio.sleep(61)
    spare = tokens.spare
    assert (requests.taken, tokens.taken) == (0, 0)
    ledger.settle(reservation, 500, 0)
    assert (tokens.taken, tokens.spare) == (0, spare)


@in_virtual_time
async def test_release_after_the_minute_gives_nothing_twice(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    meters, requests, _ = await joined(ledger)
    reservation = ledger.take(meters, 10, 0)
    assert reservation is not None
    await asyncio.sleep(61)
    held = requests.held
    ledger.release(reservation)
    assert (requests.taken, requests.held) == (0, held)


@in_virtual_time
async def test_all_comes_back_when_the_process_slept_for_long(make_ledger: MakeLedger, clock: LoopClock) -> None:
    ledger = make_ledger()
    meters, requests, tokens = await joined(ledger)
    for _ in range(5):
        assert ledger.take(meters, 3, 0) is not None
        await asyncio.sleep(0.7)
    assert (requests.taken, tokens.taken) == (5, 15)
    clock.ahead_s += 10_000
    ledger.turn()
    assert (requests.taken, tokens.taken) == (0, 0)


@in_virtual_time
async def test_shared_meter_counts_the_use_of_every_set(make_ledger: MakeLedger) -> None:
    ledger = make_ledger()
    first, requests, tokens = await joined(ledger)
    second = MeterSet([requests])
    third = MeterSet([tokens])
    for meters, amount in ((first, 5), (second, 0), (third, 3), (second, 0)):
        assert ledger.take(meters, amount, 0) is not None
    assert (requests.taken, tokens.taken) == (3, 8)
    await asyncio.sleep(61)
    assert (requests.taken, tokens.taken) == (0, 0)
    assert requests.slots == {}
