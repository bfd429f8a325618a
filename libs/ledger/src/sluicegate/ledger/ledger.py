"""The ledger: admits requests against limits that all edges share, from memory, without asking anybody.

The idea. A meter is one limit on one scope, kept in Valkey or Redis. A process holds a *lease* on each meter it uses:
a part of the limit that nobody else can spend. A request takes from the leases of all its meters in one loop turn,
all or none, and settles what it really used when it ends. A pump (`pump.py`) keeps the leases in step with the store,
many meters a call. Because what is leased is nobody else's, no atomicity over several meters is needed in the store.

Two kinds. A *sum* (a budget, nano-USD) stays spent until its period ends; the period is part of the name. A *cap*
(requests or tokens per minute, open requests) is capacity: each unit taken comes back, at the end of the request, or
60 s after it was admitted. A rate's lease is capacity too, so each process keeps an exact sliding minute of its own
(half seconds, rounded up) and the store holds no windows.

What is counted, per meter, in this process:

    S  settled      settled since joining (sums only)          stored, per process, as the pair (S, H)
    R  taken        reserved by open requests; for rates, all that was admitted in the last minute
    A  spare        leased and free to take
       held         R + A, which is H once the store knows it

    take          A -= need                      R grows, held stays as it is
    settle        sum: S += cost, held -= cost, A += need - cost;   open: A += 1;   tokens: A += need - used
    a minute on   rates: A += what was admitted then

Neither changes S + R + A, and that is why a meter whose lease suffices needs no call. Only a cost above what was
reserved and above A does (a *debt*): it is held at once and sent at once.

The conversation. A call carries absolute values, never differences: of each meter S and H, and a number q. One call
is in flight at a time and none is sent again: after a failure the next one says everything anew under a higher
number, and the store refuses numbers that it has passed (STALE). Life belongs to the process: one field says when it
called last. A lease is good for 10 s after its last call was *sent*, in the store it lives 20 to 80 s, so a process
stops using it long before others may. Only the process itself ever lowers a lease, and lowers A before the call that
says so leaves.

- The store grants need in full if there is room, and up to half of what is left over beside it, shared by all that
  use the meter: leases shrink as a limit comes near, down to exactly one request's need. A meter without room is
  *scarce*: it gets nothing beside its need, and gives back at once what comes back.
- What is spare beyond some seconds' use goes back after a while, or one process would keep what was its part of a
  load that others have now.
- A process names the last call it knows to have run. If the store knows less it has lost data (flushed, failed over),
  and answers LOST with what it knows, writing nothing. All leases are in *doubt* then: nothing is taken from them
  before the store has answered for them again. So are those not in a call after a long silence. What had joined since
  joins anew: a record that is there now belongs to an earlier joining, and is folded into b.
- There is one way back, whatever happened: a process that believes to have joined a meter and has no record there is
  told REJOIN. It drops S (which is in Postgres, from where the auditor adds it), keeps R, and joins as a new process
  would.
- A sum meter that the store does not know is MISSING and is seeded with what Postgres says was spent; at the start of
  a period it begins at zero without asking if the store is older than that.
- W, the watermark: every settlement made before W (in the store's time) is in the store or will never get there. The
  auditor needs it to know when Postgres is the whole truth about a process.

Invariants, checked by the virtual-time simulation and the tests:

    I1  while a lease is valid and not in doubt: S + R + A ≤ stored S + H (but for debts under way)
    I2  b + ΣS ≤ what was truly spent: nothing is counted twice
    I3  b + ΣS + ΣH ≤ limit + debts, unless the limit was lowered or R was held again after REJOIN
    I4  caps: ΣH ≤ limit, so no sliding minute ever holds more than the limit
    I5  a sum that is no longer used is {b, t}, a cap is gone

The bound: a budget is exceeded by at most Σ (true cost - reserved)⁺ over requests that are open or not yet synced;
concurrency adds nothing. Only after a fault comes more: R of a process silent for longer than its TTL; leases that
were out when the store lost data, with about a second of spend around a new seed (a rate may double once); local
shares while the store is away; what a dead process spent if its journal never returns.

When the store is slow or away: a request waits 50 ms at most for a call, then the policy decides (`policy.py`). What
passes so is held without being covered, told to the store as soon as it can be, and adds nothing to A; a grant that
was under way meanwhile is lowered by it. A standstill of this process is not the store's: a timer that runs late
gives what has come a moment to be read.
"""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, Literal
from weakref import WeakValueDictionary

from sluicegate.ledger.clock import BootClock, Clock
from sluicegate.ledger.meters import (
    FOREVER_US,
    NO_SLOT,
    ONE_TAG,
    Meter,
    MeterSet,
    Refusal,
    Reservation,
    Resource,
    Short,
    Slot,
    cap_name,
    sum_name,
)
from sluicegate.ledger.policy import WhenStoreAway, decide
from sluicegate.ledger.pump import Pump, Waiter
from sluicegate.ledger.store import MeterStore

WAIT_S: Final = 0.05
# A timer that runs this late tells of a standstill of this process, not of the store: the answer may be here, unread.
LATE_S: Final = 0.005
GRACE_S: Final = 0.02
LONGEST_WAIT_S: Final = 4 * WAIT_S
SLOT_S: Final = 0.5
MINUTE_SLOTS: Final = 120
FINAL_MEMORY_S: Final = 1.0
MEMORY_S: Final = 0.1
RATE_RETRY_S: Final = 5
# SDKs ignore a longer `retry-after` and come back at once; who is half a second early is told to wait another second.
MOST_RETRY_S: Final = 60

SpentSoFar = Callable[[Meter], Awaitable[int | None]]
OnSpent = Callable[[Meter, int], None]


class Counts:
    """What happened since the start, for metrics."""

    __slots__ = (
        "calls",
        "failures",
        "losses",
        "policy_refused",
        "policy_served",
        "refused",
        "rejoins",
        "remembered",
        "seeds",
        "stale",
        "syncs",
        "waits",
    )

    def __init__(self) -> None:
        self.calls = 0  # calls of the store
        self.syncs = 0  # meters in them
        self.failures = 0  # calls without an answer
        self.losses = 0  # the store had lost what this process knew to be written
        self.stale = 0
        self.rejoins = 0  # leases that had ended without our doing
        self.seeds = 0  # budgets whose spend had to be asked for
        self.waits = 0  # requests that waited for a call
        self.refused = 0  # by an answer of the store
        self.remembered = 0  # by the memory of one
        self.policy_served = 0  # let through without a lease, the store being slow or away
        self.policy_refused = 0


class Ledger:
    """All meters of one process. Everything runs on one event loop; `take` and `settle` never wait.

        meters = MeterSet([ledger.cap_meter(…), …])       # once per principal, and again outside its period
        reservation = ledger.take(meters, tokens, cost)   # far from limits this is all
        if reservation is None:
            reservation = ledger.refused(meters, tokens, cost) or await ledger.wait(meters, tokens, cost)
        if isinstance(reservation, Short): …              # 402, 429 or 503
        ledger.settle(reservation, true_tokens, true_cost)

    `tokens` and `cost` are what the request can use at most: input estimate and output limit, at the dearest price. A
    request takes the caller's meters once, and those of a provider and model per attempt in a reservation of their own.
    """

    def __init__(
        self,
        store: MeterStore,
        *,
        spent_so_far: SpentSoFar,
        on_spent: OnSpent | None = None,
        when_store_away: WhenStoreAway = "local-share",
        configured_edges: int = 1,
        clock: Clock | None = None,
        process: str | None = None,
    ) -> None:
        self.store = store
        self.spent_so_far = spent_so_far
        self.on_spent = on_spent
        self.when_store_away: WhenStoreAway = when_store_away
        self.configured_edges = max(1, configured_edges)
        # Made anew at each start: a host, pid or worker number comes back, and with it another life's record.
        self.process = process or str(uuid.uuid4())
        self.now = (clock or BootClock()).now
        self.counts = Counts()
        self._meters: WeakValueDictionary[str, Meter] = WeakValueDictionary()
        self._pumps: dict[str, Pump] = {}
        self._is_running = False
        # Half seconds since the clock's zero, and what was taken in each of the last 120, oldest first.
        self._slot_number = int(self.now() / SLOT_S)
        self._slot_ends = (self._slot_number + 1) * SLOT_S
        self._present: list[Slot] = []
        self._past: dict[int, list[Slot]] = {}

    # --- what meters there are ---------------------------------------------------------------------------------

    def sum_meter(
        self,
        budget_id: str,
        scope_id: str,
        *,
        scope: str,
        start_us: int,
        end_us: int,
        limit: int,
        zero_from_us: int | None,
        is_soft: bool = False,
        tag: str = ONE_TAG,
    ) -> Meter:
        """Return the meter of a budget on one scope in one period; the same object for the same period.

        `zero_from_us`: the period's start if the budget counts since then, None if it was made or changed inside the
        period and what was spent before has to be asked for.
        """
        name = sum_name(tag, budget_id, scope_id, start_us)
        meter = self._meters.get(name)
        if meter is None:
            meter = Meter(
                self._pump(tag),
                name,
                "budget",
                scope,
                scope_id,
                limit,
                budget_id=budget_id,
                start_us=start_us,
                end_us=end_us,
                zero_from_us=zero_from_us or 0,
                is_soft=is_soft,
            )
            self._meters[name] = meter
            return meter
        # A period of another kind may begin at the same moment, and then goes on from the same spend.
        meter.end_us = end_us
        meter.zero_from_us = zero_from_us or 0
        if meter.limit != limit or meter.is_soft != is_soft:
            meter.is_soft = is_soft
            self.limit_changed(meter, limit)
        return meter

    def cap_meter(self, resource: Resource, scope: str, scope_id: str, *, limit: int, tag: str = ONE_TAG) -> Meter:
        """Return the meter of a capacity of one scope: requests or tokens per minute, or open requests."""
        name = cap_name(tag, resource, scope, scope_id)
        meter = self._meters.get(name)
        if meter is None:
            meter = Meter(self._pump(tag), name, resource, scope, scope_id, limit, end_us=FOREVER_US)
            self._meters[name] = meter
        elif meter.limit != limit:
            self.limit_changed(meter, limit)
        return meter

    def limit_changed(self, meter: Meter, limit: int) -> None:
        """Give back what is spare and ask for a lease of the new limit. Also done by asking for the meter again."""
        meter.limit = limit
        meter.held -= meter.spare
        meter.spare = 0
        meter.refusal = None
        meter.is_watched = meter.is_scarce
        if meter.is_active:
            meter.pump.mark_dirty(meter)

    # --- the hot path ------------------------------------------------------------------------------------------
    # Plain loops over a few integers. Per meter they cost about 0.1 µs; a method call in them would double that.

    def take(self, meters: MeterSet, tokens: int, cost_nano_usd: int) -> Reservation | None:
        """Take from all meters of the set or from none. None: a lease is too small, or its time is over."""
        now = self.now()
        if now >= self._slot_ends:
            self._turn(now)
        for pump in meters.pumps:
            if now >= pump.valid_until:
                return None
        for meter in meters.ones:
            if meter.spare < 1 or not meter.is_ok:
                return None
        for meter in meters.tokens:
            if meter.spare < tokens or not meter.is_ok:
                return None
        for meter in meters.budgets:
            if meter.spare < cost_nano_usd or not meter.is_ok:
                return None

        slot = meters.slot
        if slot.number != self._slot_number:
            slot = self._open_slot(meters)
        slot.requests += 1
        slot.tokens += tokens
        slot.tokens_taken += tokens
        slot.cost_taken += cost_nano_usd
        if tokens > slot.largest_tokens:  # noqa: PLR1730 - a call
            slot.largest_tokens = tokens
        if cost_nano_usd > slot.largest_cost:  # noqa: PLR1730 - a call
            slot.largest_cost = cost_nano_usd
        for meter in meters.ones:
            meter.spare -= 1
        for meter in meters.tokens:
            meter.spare -= tokens
        for meter in meters.budgets:
            meter.spare -= cost_nano_usd
        return Reservation(slot, tokens, cost_nano_usd)

    def settle(self, reservation: Reservation, tokens: int, cost_nano_usd: int) -> None:
        """Book what the request really used: once, from its one end state. A second call does nothing."""
        if not reservation.is_open:
            return
        reservation.is_open = False
        slot = reservation.slot
        if not slot.is_covered:
            self._settle_bare(reservation, tokens, cost_nano_usd)
            return
        meters = slot.meters
        for meter in meters.open:
            meter.spare += 1
            if meter.is_watched:
                meter.pump.came_back(meter)
        back = reservation.tokens - tokens
        if back and not slot.is_over:
            slot.tokens -= back
            for meter in meters.tokens:
                meter.spare += back
                if meter.spare < 0:
                    meter.pump.owe(meter)
                elif meter.is_watched:
                    meter.pump.came_back(meter)
        back = reservation.cost_nano_usd - cost_nano_usd
        for meter in meters.budgets:
            meter.held -= cost_nano_usd
            meter.spare += back
            if meter.is_joined:
                meter.settled += cost_nano_usd
                if meter.unsent_since is None:
                    meter.pump.note_unsent(meter)
            else:
                meter.lone += cost_nano_usd
            if meter.spare < 0:
                meter.pump.owe(meter)
            elif meter.is_watched and back:
                meter.pump.came_back(meter)

    def release(self, reservation: Reservation) -> None:
        """Give everything back, the requests as well: nothing was sent anywhere."""
        if not reservation.is_open:
            return
        slot = reservation.slot
        if not slot.is_over:
            slot.requests -= 1
            for meter in slot.meters.requests:
                if not slot.is_covered:
                    meter.held -= 1
                    meter.pump.mark_dirty(meter)
                    continue
                meter.spare += 1
                if meter.is_watched:
                    meter.pump.came_back(meter)
        self.settle(reservation, 0, 0)

    # --- short of something ------------------------------------------------------------------------------------

    def refused(self, meters: MeterSet, tokens: int, cost_nano_usd: int) -> Short | None:
        """Tell whether a need like this was refused a moment ago and nothing came back since: no call is made."""
        now = self.now()
        for meter in meters.all:
            refusal = meter.refusal
            if (
                refusal is not None
                and now < refusal.until
                and meters.need(meter, tokens, cost_nano_usd) >= refusal.need
            ):
                self.counts.remembered += 1
                return self._short(meter, now, is_final=refusal.is_final)
        return None

    async def wait(self, meters: MeterSet, tokens: int, cost_nano_usd: int) -> Reservation | Short:
        """Join those who wait for the store's next answer, for 50 ms at most; then the policy decides.

        What is more than a whole limit never passes, and while the store answers it is refused without a call: that
        would lease all that is left.
        """
        now = self.now()
        for meter in meters.all:
            if meters.need(meter, tokens, cost_nano_usd) > meter.sent_limit and now < meter.pump.valid_until:
                self.counts.refused += 1
                return self._short(meter, now, is_final=meter.resource == "budget")
        for meter in meters.all:
            if not meter.is_active:
                meter.pump.adopt(meter, now)
            meter.largest = max(meter.largest, meters.need(meter, tokens, cost_nano_usd))
        if meters.slot.number == self._slot_number:
            meters.slot.count(now)  # what is asked for follows from what was used
        if self._is_waiting_vain(meters, now):
            return self._decide(meters, tokens, cost_nano_usd)
        self.counts.waits += 1
        loop = asyncio.get_running_loop()
        waiter = Waiter(meters, tokens, cost_nano_usd, self.counts.calls, loop.create_future())
        for pump in meters.pumps:
            pump.join_waiters(waiter)
        self._wait_until(waiter, now + WAIT_S, now + LONGEST_WAIT_S)
        try:
            outcome = await waiter.outcome
        except asyncio.CancelledError:
            if waiter.outcome.done() and not waiter.outcome.cancelled():
                outcome = waiter.outcome.result()
                if isinstance(outcome, Reservation):
                    self.release(outcome)
            raise
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
            for pump in meters.pumps:
                pump.leave_waiters(waiter)
        if outcome is None:
            outcome = self.take(meters, tokens, cost_nano_usd) or self._decide(meters, tokens, cost_nano_usd)
        return outcome

    def _wait_until(self, waiter: Waiter, at: float, latest: float) -> None:
        waiter.timer = asyncio.get_running_loop().call_later(
            max(0.0, at - self.now()), self._end_wait, waiter, at, latest
        )

    def _end_wait(self, waiter: Waiter, due: float, latest: float) -> None:
        """End a wait in time; late, for a standstill of this loop, have it read first what came meanwhile."""
        now = self.now()
        if now - due > LATE_S and now + GRACE_S <= latest:
            self._wait_until(waiter, now + GRACE_S, latest)
        elif due - now > LATE_S:  # the loop's clock stood still as well when the timer was set
            self._wait_until(waiter, due, latest)
        else:
            waiter.give_up()

    def _is_waiting_vain(self, meters: MeterSet, now: float) -> bool:
        """Tell whether no answer within 50 ms can help: the store is away, or a budget's spend is being asked for."""
        return any(pump.is_away for pump in meters.pumps) or any(
            meter.missing_at is not None and now - meter.missing_at >= WAIT_S for meter in meters.budgets
        )

    def _decide(self, meters: MeterSet, tokens: int, cost_nano_usd: int) -> Reservation | Short:
        short = decide(self.when_store_away, meters, tokens, cost_nano_usd, self.configured_edges, self.now())
        if short is None:
            self.counts.policy_served += 1
            return self._take_bare(meters, tokens, cost_nano_usd)
        self.counts.policy_refused += 1
        return short

    # A reservation without a lease is held, and so told to the store as soon as it can be, but gives nothing to what
    # is spare: the store may not know of it yet.

    def _take_bare(self, meters: MeterSet, tokens: int, cost_nano_usd: int) -> Reservation:
        self.turn()
        for meter in meters.all:
            need = meters.need(meter, tokens, cost_nano_usd)
            meter.held += need
            meter.bare += need
            meter.pump.mark_dirty(meter)
        slot = meters.bare_slot
        if slot.number != self._slot_number:
            slot = self._open_slot(meters, is_covered=False)
        slot.requests += 1
        slot.tokens += tokens
        slot.tokens_taken += tokens
        slot.cost_taken += cost_nano_usd
        return Reservation(slot, tokens, cost_nano_usd)

    @staticmethod
    def _settle_bare(reservation: Reservation, tokens: int, cost_nano_usd: int) -> None:
        slot = reservation.slot
        for meter in slot.meters.open:
            meter.held -= 1
            meter.pump.mark_dirty(meter)
        if not slot.is_over:
            slot.tokens += tokens - reservation.tokens
            for meter in slot.meters.tokens:
                meter.held += tokens - reservation.tokens
                meter.pump.mark_dirty(meter)
        for meter in slot.meters.budgets:
            meter.held -= reservation.cost_nano_usd
            if meter.is_joined:
                meter.settled += cost_nano_usd
                if meter.unsent_since is None:
                    meter.pump.note_unsent(meter)
            else:
                meter.lone += cost_nano_usd
            meter.pump.mark_dirty(meter)

    def _short(self, meter: Meter, now: float, *, is_final: bool) -> Short:
        retry_after_s = 1
        if meter.resource in {"requests", "tokens"}:
            oldest = next(iter(meter.slots), None)
            if oldest is None:
                retry_after_s = RATE_RETRY_S
            else:
                retry_after_s = min(MOST_RETRY_S, max(1, math.ceil(self._comes_back_at(oldest) - now)))
        return Short(meter, retry_after_s=retry_after_s, is_final=is_final)

    def refuse(self, meter: Meter, need: int, now: float) -> Short:
        """Refuse a need for the store's answer, and remember it. For the pump."""
        is_final = meter.resource == "budget" and meter.spent is not None and meter.spent + need > meter.sent_limit
        meter.refusal = Refusal(need, now + (FINAL_MEMORY_S if is_final else MEMORY_S), is_final=is_final)
        meter.is_watched = True
        self.counts.refused += 1
        return self._short(meter, now, is_final=is_final)

    # --- sliding minutes ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Let what was admitted a minute ago come back. Called at least with every tick while a pump has meters."""
        now = self.now()
        if now >= self._slot_ends:
            self._turn(now)

    def _turn(self, now: float) -> None:
        for slot in self._present:
            slot.count(now)
            slot.meters.slot = slot.meters.bare_slot = NO_SLOT
        self._past[self._slot_number] = [slot for slot in self._present if slot.meters.rates]
        self._present = []
        self._slot_number = int(now / SLOT_S)
        self._slot_ends = (self._slot_number + 1) * SLOT_S
        while self._past and (number := next(iter(self._past))) < self._slot_number - MINUTE_SLOTS:
            for slot in self._past.pop(number):
                self._expire(slot)

    def _open_slot(self, meters: MeterSet, *, is_covered: bool = True) -> Slot:
        slot = Slot(meters, self._slot_number, is_covered=is_covered)
        if is_covered:
            meters.slot = slot
        else:
            meters.bare_slot = slot
        self._present.append(slot)
        for meter in meters.rates:
            meter.slots[slot.number] = None
        return slot

    @staticmethod
    def _expire(slot: Slot) -> None:
        slot.is_over = True
        for meter in slot.meters.rates:
            meter.slots.pop(slot.number, None)
            back = slot.requests if meter.resource == "requests" else slot.tokens
            if not slot.is_covered:
                meter.held -= back
                meter.pump.mark_dirty(meter)
                continue
            meter.spare += back
            if meter.is_watched:
                meter.pump.came_back(meter)

    @staticmethod
    def _comes_back_at(number: int) -> float:
        return (number + MINUTE_SLOTS + 1) * SLOT_S

    # --- life --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Literal["ok", "degraded"]:
        """Tell whether the store answers; while it does not, leases go on for 10 s and then the policy decides."""
        return "degraded" if any(pump.is_away for pump in self._pumps.values()) else "ok"

    @property
    def clock_skew_s(self) -> float:
        """Tell by how much the store's clock is ahead of this machine's; beyond a second periods begin differently."""
        return max((pump.skew_s for pump in self._pumps.values()), key=abs, default=0.0)

    async def start(self) -> None:
        """Start the pumps. Before this, no lease is taken and `wait` runs into the policy."""
        self._is_running = True
        for pump in self._pumps.values():
            pump.start()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Give all leases back, as far as the store answers in time. Reservations should be settled before."""
        self._is_running = False
        await asyncio.gather(*(pump.close(timeout_s) for pump in self._pumps.values()))
        self._pumps.clear()

    def _pump(self, tag: str) -> Pump:
        pump = self._pumps.get(tag)
        if pump is None:
            pump = self._pumps[tag] = Pump(self, tag)
            if self._is_running:
                pump.start()
        return pump
