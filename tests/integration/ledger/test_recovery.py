"""Lost data, lost answers and dead processes, on the real script in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from sluicegate.devstack.ledger_simulation.network import Weather
from sluicegate.devstack.ledger_simulation.server import EPOCH_S, Server
from sluicegate.devstack.ledger_simulation.store import SimulatedStore
from sluicegate.devstack.ledger_simulation.virtual_loop import Owner, VirtualLoop
from sluicegate.devstack.ledger_stand_in import LoopClock, in_virtual_time
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import ONE_TAG, Meter, MeterSet, Reservation, Short
from sluicegate.ledger.store import Reply

PERIOD_START_US = (EPOCH_S - 3_600) * 1_000_000
PERIOD_END_US = (EPOCH_S + 82_800) * 1_000_000


class Process:
    """One edge process of a test."""

    def __init__(self, store: SimulatedStore, heard: Any, **options: Any) -> None:
        self.store = store
        self.heard = heard
        self.asked: list[str] = []
        self.recorded: int | None = 0
        self.ledger = Ledger(store, spent_so_far=self._spent, clock=LoopClock(), when_store_away="closed", **options)
        self.money = self.ledger.sum_meter(
            "b", "k", scope="key", start_us=PERIOD_START_US, end_us=PERIOD_END_US, limit=1_000, zero_from_us=None
        )
        self.slots = self.ledger.cap_meter("open", "key", "k", limit=10)
        self.meters = MeterSet([self.money, self.slots])

    async def _spent(self, meter: Meter) -> int | None:
        self.asked.append(meter.name)
        await asyncio.sleep(0.005)
        return self.recorded

    async def taken(self, cost: int, meters: MeterSet | None = None) -> Reservation:
        meters = meters or self.meters
        outcome = self.ledger.take(meters, 0, cost) or await self.ledger.wait(meters, 0, cost)
        assert isinstance(outcome, Reservation), outcome
        assert outcome.is_covered
        return outcome

    def replies(self, status: str) -> list[Reply]:
        return [reply for _, reply in self.heard.replies if reply.status == status]

    def codes(self, code: str) -> int:
        return sum(answer.code == code for _, reply in self.heard.replies for answer in reply.answers)


MakeProcess = Callable[..., Awaitable[Process]]


@pytest.fixture
def make_process(make_store: Callable[[VirtualLoop], tuple[SimulatedStore, Any]]) -> MakeProcess:
    """Starts processes on the loop of the test."""

    async def make(**options: Any) -> Process:
        process = Process(*make_store(cast(VirtualLoop, asyncio.get_running_loop())), **options)
        await process.ledger.start()
        return process

    return make


@in_virtual_time
async def test_flushed_budget_is_seeded_once_by_all_and_goes_on(make_process: MakeProcess, server: Server) -> None:
    first, second = await make_process(), await make_process()
    spent = 0
    for process in (first, second):
        for _ in range(5):
            process.ledger.settle(await process.taken(30), 0, 25)
            spent += 25
    reserved = await first.taken(100)
    await asyncio.sleep(6)
    assert server.hashes([first.money.name])[0].keys() >= {"b", "t"}
    for process in (first, second):
        process.recorded = spent
        process.asked.clear()
    server.flush()
    await asyncio.sleep(6)
    assert [len(process.replies("LOST")) for process in (first, second)] == [1, 1]
    await second.taken(30)
    assert len(first.asked) == 1  # it holds a reservation
    assert len(second.asked) <= 1
    assert first.money.is_joined
    # Nobody's lease is lost, and nothing is counted twice.
    fields = server.hashes([first.money.name])[0]
    assert fields["b"] == str(spent)
    assert fields[first.ledger.process].split()[0] == "0"
    assert int(fields[first.ledger.process].split()[1]) >= 100
    first.ledger.settle(reserved, 0, 90)
    short = await first.ledger.wait(first.meters, 0, 900)
    assert isinstance(short, Short)


@in_virtual_time
async def test_capacity_is_held_again_after_a_flush(make_process: MakeProcess, server: Server) -> None:
    process = await make_process()
    running = [await process.taken(1) for _ in range(6)]
    server.flush()
    await asyncio.sleep(6)
    assert process.slots.taken == 6
    _, hold = server.hashes([process.slots.name])[0][process.ledger.process].split()
    assert int(hold) >= 6
    other = await make_process()
    passed = [await other.ledger.wait(MeterSet([other.slots]), 0, 0) for _ in range(10)]
    assert sum(isinstance(outcome, Reservation) for outcome in passed) <= 4
    for reservation in running:
        process.ledger.settle(reservation, 0, 1)
    assert process.slots.taken == 0


@in_virtual_time
async def test_failover_that_loses_a_second_is_noticed_and_repaired(make_process: MakeProcess, server: Server) -> None:
    process = await make_process()
    process.ledger.settle(await process.taken(10), 0, 10)
    await asyncio.sleep(6)
    replica = server.snapshot()
    process.ledger.settle(await process.taken(400), 0, 400)
    await asyncio.sleep(5.6)
    assert (
        sum(int(value.split()[0]) for name, value in server.hashes([process.money.name])[0].items() if len(name) > 2)
        >= 400
    )
    server.fail_over(replica)
    await asyncio.sleep(6)
    assert len(process.replies("LOST")) == 1
    fields = server.hashes([process.money.name])[0]
    # The record of the replica was ours: absolute values make it right again.
    assert int(fields["b"]) + int(fields[process.ledger.process].split()[0]) == 410
    assert process.codes("REJOIN") == 0


@in_virtual_time
async def test_failover_that_loses_leaving_and_joining_again_loses_no_spend(
    make_process: MakeProcess, server: Server
) -> None:
    process = await make_process()
    process.ledger.settle(await process.taken(400), 0, 400)
    await asyncio.sleep(30)
    replica = server.snapshot()
    assert process.ledger.process in server.hashes([process.money.name])[0]
    await asyncio.sleep(60)
    assert process.ledger.process not in server.hashes([process.money.name])[0]
    await process.taken(10)
    server.fail_over(replica)
    await asyncio.sleep(6)
    assert len(process.replies("LOST")) == 1
    # The replica's record is of the earlier joining. Taken for the present one, it would be overwritten.
    fields = server.hashes([process.money.name])[0]
    assert int(fields["b"]) + int(fields[process.ledger.process].split()[0]) == 400
    assert int(fields[process.ledger.process].split()[1]) >= 10


@in_virtual_time
async def test_process_forgotten_in_a_long_silence_still_brings_what_it_has_settled(
    make_process: MakeProcess, server: Server, weather: Weather
) -> None:
    process = await make_process()
    process.ledger.settle(await process.taken(400), 0, 400)
    running = await process.taken(100)
    await asyncio.sleep(6)
    weather.is_down = True
    process.ledger.settle(running, 0, 90)
    await asyncio.sleep(85)
    weather.is_down = False
    await (await make_process()).taken(1)  # its call finds the silent one dead
    await asyncio.sleep(6)
    assert [reply.number for reply in process.replies("LOST")] == [0]
    fields = server.hashes([process.money.name])[0]
    assert sum(int(value.split()[0]) for name, value in fields.items() if name != "t") == 490


@in_virtual_time
async def test_delayed_call_is_stale_and_changes_nothing(
    make_process: MakeProcess, server: Server, weather: Weather
) -> None:
    process = await make_process()
    reservation = await process.taken(100)
    weather.leg_s = (1.5, 1.6)  # sent, given up, and yet on its way
    process.ledger.settle(reservation, 0, 60)
    process.money.pump.mark_dirty(process.money)
    await asyncio.sleep(0.01)
    weather.leg_s = (0.0001, 0.0002)
    await asyncio.sleep(1.2)  # the next one was quicker
    fields = server.hashes([process.money.name])[0]
    assert process.replies("STALE") == []
    await asyncio.sleep(1)
    assert len(process.replies("STALE")) == 1
    assert server.hashes([process.money.name])[0] == fields
    assert fields[process.ledger.process].split()[0] == "60"
    assert process.ledger.counts.stale == 0  # nobody waited for it any more


@in_virtual_time
async def test_lost_join_answer_is_folded_when_joining_again(
    make_process: MakeProcess, server: Server, weather: Weather
) -> None:
    process = await make_process()
    weather.lost_replies = 1.0
    assert isinstance(await process.ledger.wait(process.meters, 0, 100), Short)  # the policy: closed
    await asyncio.sleep(3)
    weather.lost_replies = 0.0
    await asyncio.sleep(1)
    process.ledger.settle(await process.taken(100), 0, 100)
    await process.ledger.close()
    fields = server.hashes([process.money.name])[0]
    assert set(fields) == {"b", "t"}
    assert fields["b"] == "100"


@in_virtual_time
async def test_process_that_slept_joins_again_and_keeps_what_is_reserved(
    make_process: MakeProcess, server: Server
) -> None:
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    other = await make_process()
    sleeper = await make_process()
    slots = await sleeper.taken(100)
    await asyncio.sleep(0.1)
    # It stands still for longer than an open slot's lease lives, and the other one takes what is free meanwhile.
    pump = sleeper.slots.pump
    owner = Owner(loop)
    assert pump._task is not None
    pump._task.cancel()
    assert pump._tick_timer is not None
    pump._tick_timer.cancel()
    await asyncio.sleep(25)
    running = [await other.ledger.wait(MeterSet([other.slots]), 0, 0) for _ in range(10)]
    assert sum(isinstance(outcome, Reservation) for outcome in running) == 10
    assert sleeper.ledger.take(sleeper.meters, 0, 1) is None  # its validity has ended
    pump._task = owner.start(pump._run())
    pump._tick()
    await asyncio.sleep(1)
    assert sleeper.codes("REJOIN") == 1
    assert (sleeper.slots.taken, sleeper.slots.spare) == (1, 0)
    assert isinstance(await sleeper.ledger.wait(MeterSet([sleeper.slots]), 0, 0), Short)
    sleeper.ledger.settle(slots, 0, 80)
    assert sleeper.slots.taken == 0


@in_virtual_time
async def test_auditor_ends_what_a_killed_process_left(make_process: MakeProcess, server: Server) -> None:
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    owner = Owner(loop)
    victim: list[Process] = []

    async def live() -> None:
        process = await make_process()
        victim.append(process)
        process.ledger.settle(await process.taken(300), 0, 300)
        await asyncio.sleep(6)
        process.ledger.settle(await process.taken(200), 0, 150)  # known to the journal alone
        await process.taken(100)

    owner.start(live())
    await asyncio.sleep(7)
    owner.kill()
    survivor = await make_process()
    # The dead process's lease counts until the auditor ends it.
    assert isinstance(await survivor.ledger.wait(survivor.meters, 0, 700), Short)
    store, name = survivor.store, survivor.money.name
    states = []
    for _ in range(4):
        read_at_ms = await store.now_ms(ONE_TAG)
        await asyncio.sleep(10)
        audit = await store.audit(ONE_TAG, name, 450, read_at_ms, is_complete=True)
        states.append(audit.state)
        await asyncio.sleep(20)
    assert states[0] == "BUSY"
    assert states[-1] == "OK"
    fields = server.hashes([name])[0]
    assert victim[0].ledger.process not in fields
    assert int(fields["b"]) == 450
    await asyncio.sleep(2)
    await survivor.taken(550)
    assert isinstance(await survivor.ledger.wait(survivor.meters, 0, 1), Short)


@in_virtual_time
async def test_dead_process_holds_no_slot_after_its_time(make_process: MakeProcess, server: Server) -> None:
    owner = Owner(cast(VirtualLoop, asyncio.get_running_loop()))
    started: list[Process] = []

    async def live() -> None:
        process = await make_process()
        started.append(process)
        for _ in range(10):
            await process.taken(1)

    owner.start(live())
    await asyncio.sleep(1)
    owner.kill()
    survivor = await make_process()
    slots = MeterSet([survivor.slots])
    assert isinstance(await survivor.ledger.wait(slots, 0, 0), Short)
    await asyncio.sleep(20)
    passed = [await survivor.ledger.wait(slots, 0, 0) for _ in range(10)]
    assert all(isinstance(outcome, Reservation) for outcome in passed)
    await asyncio.sleep(80)
    assert started[0].ledger.process not in server.hashes(["sg:{all}:alive"])[0]


@in_virtual_time
async def test_new_period_begins_at_zero_without_asking(make_process: MakeProcess, server: Server) -> None:
    process = await make_process()
    process.ledger.settle(await process.taken(1_000), 0, 1_000)
    process.asked.clear()
    await asyncio.sleep(100)
    start_us = (EPOCH_S + 100) * 1_000_000
    tomorrow = process.ledger.sum_meter(
        "b", "k", scope="key", start_us=start_us, end_us=start_us + 10**9, limit=1_000, zero_from_us=start_us
    )
    await process.taken(1_000, MeterSet([tomorrow]))
    assert process.asked == []
    assert isinstance(await process.ledger.wait(process.meters, 0, 1), Short)


@in_virtual_time
async def test_budget_is_asked_for_when_the_store_is_younger_than_its_period(make_process: MakeProcess) -> None:
    process = await make_process()
    await asyncio.sleep(30)
    start_us = (EPOCH_S + 30) * 1_000_000
    young = process.ledger.sum_meter(
        "b", "k", scope="key", start_us=start_us, end_us=start_us + 10**9, limit=1_000, zero_from_us=start_us
    )
    process.recorded = 990
    await process.taken(10, MeterSet([young]))
    assert process.asked == [young.name]
