"""Two processes on the real script against the simplest model: what was admitted, when, and what it came to."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sluicegate.devstack.ledger_simulation.server import EPOCH_S, Server
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import TTL_S, Meter, MeterSet, Reservation, Short
from sluicegate.ledger.store import SYNC_SCRIPT, Audit, Call, Reply, read_sync, sync_arguments

RATE, TOKENS, OPEN, MONEY = 12, 900, 5, 5_000
Result = TypeVar("Result")


class Admitted:
    """One request of the model. `tokens` and `cost`: what was reserved, then what was used."""

    def __init__(self, process: int, reservation: Reservation, at_s: float, tokens: int, cost: int) -> None:
        self.process = process
        self.reservation = reservation
        self.at_s = at_s
        self.tokens = tokens
        self.cost = cost
        self.is_open = True
        self.is_released = False


class HandStore:
    """The real script at the time of the test's clock, answered at once."""

    def __init__(self, server: Server, clock: "HandClock") -> None:
        self._server = server
        self._clock = clock

    async def sync(self, tag: str, call: Call) -> Reply:
        keys, arguments = sync_arguments(tag, call)
        return read_sync(self._server.run_script(SYNC_SCRIPT, keys, arguments, self._clock.now()))

    async def seed(self, tag: str, seeds: Any) -> None:
        raise NotImplementedError("only calls are compared with the model")

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        raise NotImplementedError("only calls are compared with the model")

    async def now_ms(self, tag: str) -> int:
        raise NotImplementedError("only calls are compared with the model")

    async def close(self) -> None:
        """There is nothing to close."""


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


async def never_asked(meter: Meter) -> int | None:
    raise AssertionError(meter)


class TwoProcesses(RuleBasedStateMachine):
    """What the ledgers let pass is compared with the limits, and what the store keeps with what they count."""

    server: Server
    admitted = Bundle("admitted")

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.loop = asyncio.new_event_loop()
        self.clock = HandClock()
        self.requests: list[Admitted] = []
        self.debts = {"tokens": 0, "money": 0}
        self.may_stand_still = False
        self.longest_silence_s = 0.0
        # The store is older than the period, so that it begins at zero.
        self.server.run_script(SYNC_SCRIPT, *sync_arguments("all", Call("older", 1, 0, 0, [])), 0.0)
        self.ledgers = [self.run(self.make_ledger()) for _ in range(2)]
        self.sets = [self.run(self.meters(ledger)) for ledger in self.ledgers]

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(coroutine)

    async def make_ledger(self) -> Ledger:
        ledger = Ledger(HandStore(self.server, self.clock), spent_so_far=never_asked, clock=self.clock)
        await ledger.start()
        return ledger

    @staticmethod
    async def meters(ledger: Ledger) -> MeterSet:
        start_us = (EPOCH_S + 100) * 1_000_000
        return MeterSet(
            [
                ledger.cap_meter("requests", "key", "k", limit=RATE),
                ledger.cap_meter("tokens", "key", "k", limit=TOKENS),
                ledger.cap_meter("open", "key", "k", limit=OPEN),
                ledger.sum_meter(
                    "b",
                    "k",
                    scope="key",
                    start_us=start_us,
                    end_us=start_us + 10**12,
                    limit=MONEY,
                    zero_from_us=start_us,
                ),
            ]
        )

    # --- what happens --------------------------------------------------------------------------------------------

    @rule(target=admitted, process=st.integers(0, 1), tokens=st.integers(0, 300), cost=st.integers(0, 1_200))
    def request(self, process: int, tokens: int, cost: int) -> Admitted | None:
        outcome = self.run(self.ask(self.ledgers[process], self.sets[process], tokens, cost))
        if isinstance(outcome, Short):
            assert outcome.reason == "limit"
            if outcome.is_final:
                assert self.spent() + cost > MONEY
            return None
        assert outcome.is_covered
        request = Admitted(process, outcome, self.clock.now(), tokens, cost)
        self.requests.append(request)
        return request

    @staticmethod
    async def ask(ledger: Ledger, meters: MeterSet, tokens: int, cost: int) -> Reservation | Short:
        reservation = ledger.take(meters, tokens, cost)
        return reservation or ledger.refused(meters, tokens, cost) or await ledger.wait(meters, tokens, cost)

    @rule(request=consumes(admitted), tokens=st.floats(0, 1.3), cost=st.floats(0, 1.3))
    def settle(self, request: Admitted | None, tokens: float, cost: float) -> None:
        if request is not None:
            self.run(self.end(request, int(request.tokens * tokens), int(request.cost * cost)))

    async def end(self, request: Admitted, used: int, spent: int) -> None:
        if self.clock.now() < request.at_s + 60.5:
            self.debts["tokens"] += max(0, used - request.tokens)
            request.tokens = used
        self.debts["money"] += max(0, spent - request.cost)
        request.cost = spent
        request.is_open = False
        self.ledgers[request.process].settle(request.reservation, used, spent)

    @rule(request=consumes(admitted))
    def release(self, request: Admitted | None) -> None:
        if request is not None:
            self.run(self.give_back(request))

    async def give_back(self, request: Admitted) -> None:
        request.is_open = False
        request.is_released = True
        self.ledgers[request.process].release(request.reservation)

    @initialize(may_stand_still=st.booleans())
    def choose_faults(self, may_stand_still: bool) -> None:
        self.may_stand_still = may_stand_still

    @rule(passed_s=st.sampled_from([0.01, 0.3, 1.0, 3.0, 7.0, 30.0, 70.0]))
    def wait(self, passed_s: float) -> None:
        ends_s = self.clock.now_s + passed_s
        while self.clock.now_s < ends_s:
            self.clock.now_s = min(ends_s, self.clock.now_s + 0.5)
            self.run(self.tick())

    @precondition(lambda self: self.may_stand_still)
    @rule(passed_s=st.sampled_from([9.0, 17.0, 45.0, 90.0]))
    def stand_still(self, passed_s: float) -> None:
        """Both processes stand still, as in a machine that sleeps."""
        self.longest_silence_s = max(self.longest_silence_s, passed_s)
        self.clock.now_s += passed_s
        self.run(self.tick())

    async def tick(self) -> None:
        """Let every process do what it would have done by now: background, heartbeat, urgent calls."""
        for ledger in self.ledgers:
            for pump in ledger._pumps.values():
                for _ in range(2):
                    if pump._tick_timer is not None:
                        pump._tick_timer.cancel()
                    pump._tick()
                    pump._give_back()
        await self.rest()

    async def rest(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    # --- what must be true ---------------------------------------------------------------------------------------

    def spent(self) -> int:
        return sum(request.cost for request in self.requests if not request.is_open and not request.is_released)

    @invariant()
    def no_minute_and_no_moment_holds_more_than_its_limit(self) -> None:
        now = self.clock.now()
        recent = [request for request in self.requests if request.at_s > now - 60 and not request.is_released]
        # The capacity of a process that was silent for longer than its time to live may have gone to the other one.
        if self.longest_silence_s < TTL_S["requests"]:
            assert len(recent) <= RATE
            assert sum(request.tokens for request in recent) <= TOKENS + self.debts["tokens"]
        if self.longest_silence_s < TTL_S["open"]:
            assert sum(request.is_open for request in self.requests) <= OPEN

    @invariant()
    def budget_holds_but_for_costs_above_their_reservation(self) -> None:
        reserved = sum(request.cost for request in self.requests if request.is_open)
        assert self.spent() + reserved <= MONEY + self.debts["money"]

    @invariant()
    def store_covers_what_each_process_counts(self) -> None:
        self.run(self.rest())  # debts are under way for a moment
        for ledger, meters in zip(self.ledgers, self.sets, strict=True):
            for meter in meters.all:
                assert meter.spare >= 0
                assert meter.taken >= 0
                if meter.is_ok and self.clock.now() < meter.pump.valid_until:
                    record = self.server.hashes([meter.name])[0][ledger.process]
                    settled, hold = map(int, record.split())
                    assert meter.settled + meter.held <= settled + hold

    @invariant()
    def each_process_counts_its_own(self) -> None:
        for process, meters in enumerate(self.sets):
            own = [request for request in self.requests if request.process == process and not request.is_released]
            running = [request for request in own if request.is_open]
            assert meters.open[0].taken == len(running)
            assert meters.budgets[0].taken == sum(request.cost for request in running)

    def teardown(self) -> None:
        for request in self.requests:
            if request.is_open:
                self.run(self.end(request, 0, request.cost))
        for ledger in self.ledgers:
            self.run(ledger.close())
        fields = self.server.hashes([self.sets[0].budgets[0].name])[0]
        if fields:
            assert set(fields) <= {"b", "t"}
            # What a process had not yet said when the store forgot it is the auditor's to add.
            assert (
                int(fields["b"]) <= self.spent() if self.longest_silence_s >= 80 else int(fields["b"]) == self.spent()
            )
        assert self.server.hashes([self.sets[0].open[0].name])[0] == {}
        self.loop.close()


def test_processes_agree_with_the_model(server: Server) -> None:
    machine = type("Machine", (TwoProcesses,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate],  # shrinking takes longer than a test may; the steps are printed as they are
            suppress_health_check=list(HealthCheck),
        ),
    )
