"""Keeps the leases of one tag in step with the store: what to send when, and what an answer means.

The protocol, its letters and its invariants are in `ledger.py`. A tag is a hash slot of a cluster, else there is one
for all meters, so that calls serve everybody at once.

*Urgent* meters go at once: those that waiting requests are short of, then *dirty* ones (a debt, a doubt, something to
give back, a failed call). They are kept in sets; all meters are never scanned for them.
*Due* meters go in the background, in this order: with settlements that wait since a heartbeat; scarce and unused for
half a second; unused for a minute (they give back, or leave if nothing is held); with far more spare than is used
since the load went to another process; low; not sent for long. Twice a second a few calls are allowed, by the number
of those that are due, so that a backlog of any size is gone in about a second and a lone key costs two calls a second
at most; and due meters fill up urgent calls meanwhile. Who is due is found by looking at each meter twice a second
while it is used, and less and less often after that. Without anything to say, a call every 5 s keeps the process
alive. So cost follows activity, not the number of leases.
"""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Short
from sluicegate.ledger.policy import Breaker
from sluicegate.ledger.seeding import Seeding
from sluicegate.ledger.store import Answer, Call, Line, Reply, StoreError

if TYPE_CHECKING:
    from sluicegate.ledger.ledger import Ledger

TICK_S: Final = 0.25
BACKGROUND_S: Final = 2 * TICK_S
HEARTBEAT_S: Final = 5.0
VALID_S: Final = 10.0
IDLE_S: Final = 60.0
REFRESH_S: Final = 300.0
KEPT_AFTER_LEAVING_S: Final = 60.0
COALESCE_S: Final = 0.01
GAP_MARGIN_MS: Final = 2_000
SHORTEST_TTL_MS: Final = 20_000
LINES_PER_CALL: Final = 32
BACKGROUND_SHARE: Final = 64
LARGEST_NEEDS_AHEAD: Final = 4
# A 64th each look: while a meter is in use, one large request is forgotten by half in 22 s.
LARGEST_FADES: Final = 64
SECONDS_AHEAD: Final = 2
SURPLUS_TIMES: Final = 2
SURPLUS_S: Final = 2.0
LONGEST_CHECK_TURNS: Final = 16

# Why a meter is due without urgency, in the order in which they are sent; settlements that wait come before all.
SCARCE, IDLE, SURPLUS, LOW, OLD = 1, 2, 3, 4, 5


class Waiter:
    """A request that waits for an answer of the store."""

    __slots__ = ("calls_before", "cost_nano_usd", "meters", "outcome", "timer", "tokens")

    def __init__(
        self,
        meters: MeterSet,
        tokens: int,
        cost_nano_usd: int,
        calls_before: int,
        outcome: "asyncio.Future[Reservation | Short | None]",
    ) -> None:
        self.meters = meters
        self.tokens = tokens
        self.cost_nano_usd = cost_nano_usd
        self.calls_before = calls_before  # only a call with a higher number was sent after it came
        self.outcome = outcome  # None: the policy is to decide
        self.timer: asyncio.TimerHandle | None = None

    def need(self, meter: Meter) -> int:
        """Return what it wants of a meter."""
        return self.meters.need(meter, self.tokens, self.cost_nano_usd)

    def give_up(self) -> None:
        """End waiting without an answer."""
        self.resolve(None)

    def resolve(self, outcome: Reservation | Short | None) -> None:
        """End waiting."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class _Sent(NamedTuple):
    """A meter in the call in flight."""

    meter: Meter
    line: Line
    unsent_since: float | None


class Pump:
    """The only one that talks to the store about the meters of a tag: at most one call in flight."""

    def __init__(self, ledger: "Ledger", tag: str) -> None:
        self.tag = tag
        self.valid_until = -math.inf
        self._ledger = ledger
        self._seeding = Seeding(ledger, self)
        self._breaker = Breaker()
        self._meters: dict[Meter, None] = {}
        self._waiters: dict[Waiter, None] = {}
        # Urgent.
        self._asked: dict[Meter, None] = {}  # waiters are short of them
        self._dirty: dict[Meter, None] = {}
        self._returned: dict[Meter, None] = {}  # become dirty together, 10 ms after the first
        self._is_renewal_wanted = False  # a waiter needs nothing but validity
        # Background.
        self._unsent: dict[Meter, None] = {}  # with settlements to send, the oldest first
        self._due: dict[int, dict[Meter, None]] = {SCARCE: {}, IDLE: {}, SURPLUS: {}, LOW: {}, OLD: {}}
        self._allowed_calls = 0
        self._checks: dict[int, list[Meter]] = {}  # turn -> who is looked at in it
        self._turn = 0
        self._ticks = 0
        # The conversation.
        self._number = 0  # q
        self._acked = 0
        self._server_ms: int | None = None  # N
        self._server_at = 0.0  # P
        self.skew_s = 0.0  # the server's clock minus this machine's, with the way of the answer
        self._sent_at = -math.inf
        self._may_probe = False
        # The task and its timers.
        self._is_closing = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._coalesce_timer: asyncio.TimerHandle | None = None

    @property
    def is_away(self) -> bool:
        """Tell whether the store has not answered three times in a row."""
        return self._breaker.is_open

    # --- what the hot path reports -----------------------------------------------------------------------------

    def adopt(self, meter: Meter, now: float) -> None:
        """Take a meter into care: it is to be used."""
        meter.is_active = True
        meter.used_at = meter.sent_at = now
        self._meters[meter] = None
        self._check_later(meter, 1)
        if self._tick_timer is None and self._task is not None:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def mark_dirty(self, meter: Meter) -> None:
        """Send a meter at once."""
        if not meter.is_active:
            self.adopt(meter, self._ledger.now())
        if meter.missing_at is None:  # else there is nothing to join until it is seeded
            self._dirty[meter] = None
            self._woken.set()

    def owe(self, meter: Meter) -> None:
        """More was used than reserved, and more than was spare: the rest is held without being covered."""
        meter.held -= meter.spare
        meter.spare = 0
        self.mark_dirty(meter)

    def came_back(self, meter: Meter) -> None:
        """Something came back to a meter that is scarce or has refused."""
        meter.refusal = None
        meter.is_watched = meter.is_scarce
        if meter.is_scarce:
            self._returned[meter] = None
            if self._coalesce_timer is None and self._task is not None:
                self._coalesce_timer = asyncio.get_running_loop().call_later(COALESCE_S, self._give_back)

    def note_unsent(self, meter: Meter) -> None:
        """A joined meter has settled something since it was sent."""
        meter.unsent_since = self._ledger.now()
        self._unsent[meter] = None

    def join_waiters(self, waiter: Waiter) -> None:
        """Ask for what a request is short of."""
        self._waiters[waiter] = None
        for meter in waiter.meters.all:
            if meter.pump is self:
                meter.waiters[waiter] = None
                meter.wanted += waiter.need(meter)
        self._ask_for(waiter)
        if self._ledger.now() >= self.valid_until:
            self._is_renewal_wanted = True
        self._woken.set()

    def leave_waiters(self, waiter: Waiter) -> None:
        """Forget a request that waits no longer."""
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        for meter in waiter.meters.all:
            if meter.pump is self:
                del meter.waiters[waiter]
                meter.wanted -= waiter.need(meter)

    def seeded(self, meter: Meter) -> None:
        """A missing meter has its base now: join it if it is still wanted."""
        meter.missing_at = None
        if meter.waiters:
            self._asked[meter] = None
            self._woken.set()
        elif meter.held:
            self.mark_dirty(meter)

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start calling."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"ledger pump {self.tag}")
        self._tick()

    async def close(self, timeout_s: float) -> None:
        """Let every meter go, as far as the store answers within `timeout_s`."""
        self._is_closing = True
        self._woken.set()
        self._seeding.close()
        for timer in (self._tick_timer, self._coalesce_timer):
            if timer is not None:
                timer.cancel()
        for waiter in list(self._waiters):
            waiter.give_up()
        task, self._task = self._task, None
        if task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await task
                self._dirty = dict.fromkeys(meter for meter in self._meters if meter.is_joined)
                while self._dirty and not self._breaker.is_open:
                    await self._call()
        self.valid_until = -math.inf

    async def _run(self) -> None:
        while not self._is_closing:
            await self._woken.wait()
            self._woken.clear()
            try:
                while self._has_to_call():
                    await self._call()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end all admission
                self._start_over(error)
                await asyncio.sleep(TICK_S)

    def _start_over(self, error: Exception) -> None:
        """Say everything anew: whatever was left half-way, absolute values make it right."""
        asyncio.get_running_loop().call_exception_handler({"message": "the ledger's pump failed", "exception": error})
        self._breaker.failed()
        self._doubt_after_loss(self._acked)

    def _has_to_call(self) -> bool:
        if self._is_closing:
            return False
        if self._breaker.is_open:
            return self._may_probe
        if self._dirty or self._is_renewal_wanted or any(self._is_short(meter) for meter in self._asked):
            return True
        if self._allowed_calls > 0 and (any(self._due.values()) or self._has_overdue(self._ledger.now())):
            return True
        return bool(self._meters) and self._ledger.now() - self._sent_at >= HEARTBEAT_S

    def _tick(self) -> None:
        self._tick_timer = None
        if self._is_closing or not self._meters:
            return
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._ledger.turn()
        self._may_probe = True
        self._ticks += 1
        if self._ticks % 2 == 0:
            self._look_around(self._ledger.now())
        self._woken.set()

    def _give_back(self) -> None:
        self._coalesce_timer = None
        for meter in self._returned:
            self.mark_dirty(meter)
        self._returned.clear()

    # --- background: who is due --------------------------------------------------------------------------------

    def _look_around(self, now: float) -> None:
        """Look at the meters whose turn it is, and allow as many calls as end any backlog in about a second."""
        self._turn += 1
        for meter in self._checks.pop(self._turn, ()):
            if meter.check_turn == self._turn and meter.is_active:
                self._check(meter, now)
        overdue = sum(1 for _ in self._overdue(now))
        due = overdue + sum(map(len, self._due.values()))
        self._allowed_calls = -(-due // BACKGROUND_SHARE)

    def _check(self, meter: Meter, now: float) -> None:
        recent_use = meter.used - meter.used_seen
        meter.use_per_s = recent_use + meter.use_before
        meter.use_before = recent_use
        meter.used_seen = meter.used
        meter.largest -= meter.largest // LARGEST_FADES
        idle_s = now - meter.used_at
        reason = 0
        if not meter.is_joined:
            if self._is_forgettable(meter, now, idle_s):
                self._forget(meter)
                return
        elif meter.is_scarce and meter.spare and idle_s >= BACKGROUND_S:
            reason = SCARCE
        elif idle_s >= IDLE_S and (meter.spare or not meter.held):
            reason = IDLE
        elif self._has_surplus(meter, now):
            reason = SURPLUS
        elif self._is_low(meter):
            reason = LOW
        elif now - meter.sent_at >= REFRESH_S:
            reason = OLD
        if reason and meter.due == 0:
            meter.due = reason
            self._due[reason][meter] = None
        # Those in use are looked at every turn; the others less and less often, and again after each call for them.
        self._check_later(meter, min(1 + int(idle_s), LONGEST_CHECK_TURNS))

    @staticmethod
    def _next_second(meter: Meter) -> int:
        """Return what the next second may take, by what the last one did."""
        use = max(meter.use_per_s, meter.used - meter.used_seen + meter.use_before)
        # Slots of requests that end within the second are taken again and again: what matters is how many are open.
        return min(use, (meter.held - meter.spare) // 2) if meter.resource == "open" else use

    def _ahead(self, meter: Meter) -> int:
        """Return what a meter in use should have spare: two seconds' use, or a few large requests."""
        return max(SECONDS_AHEAD * self._next_second(meter), LARGEST_NEEDS_AHEAD * meter.largest)

    def _has_surplus(self, meter: Meter, now: float) -> bool:
        """Tell whether much more is spare than this process uses since the load went elsewhere: others may lack it."""
        if meter.spare <= SURPLUS_TIMES * self._ahead(meter):
            meter.surplus_since = None
        elif meter.surplus_since is None:
            meter.surplus_since = now
        return meter.surplus_since is not None and now - meter.surplus_since >= SURPLUS_S

    def _is_low(self, meter: Meter) -> bool:
        """Tell whether the next second, or the next two large requests, would have to wait for a call.

        At a third of a second's use 2 to 5 % of the requests of a key with 1 to 12 a second waited; so under 1 % do.
        """
        if meter.is_scarce or not meter.use_per_s:
            return False
        return meter.spare < max(self._next_second(meter), 2 * meter.largest)

    def _check_later(self, meter: Meter, turns: int) -> None:
        turn = self._turn + turns
        if meter.check_turn != turn:  # else it is noted there already
            meter.check_turn = turn
            self._checks.setdefault(turn, []).append(meter)

    def _is_forgettable(self, meter: Meter, now: float, idle_s: float) -> bool:
        return (
            idle_s >= IDLE_S
            and now - meter.given_up_at >= KEPT_AFTER_LEAVING_S
            and not (meter.held or meter.waiters)
            and meter not in self._dirty
        )

    def _forget(self, meter: Meter) -> None:
        """Drop a meter from care. Sets may still refer to it: used again, it is adopted again."""
        meter.is_active = False
        meter.missing_at = None
        self._seeding.forget(meter)
        del self._meters[meter]
        if not self._meters:
            self._acked = 0  # nothing is left that a loss could put in doubt

    def _overdue(self, now: float) -> Iterator[Meter]:
        for meter in self._unsent:
            if meter.unsent_since is not None and now - meter.unsent_since < HEARTBEAT_S:
                return
            yield meter

    def _has_overdue(self, now: float) -> bool:
        return next(self._overdue(now), None) is not None

    # --- sending -----------------------------------------------------------------------------------------------

    async def _call(self) -> None:
        now = self._ledger.now()
        meters = self._choose(now)
        sent = [self._write(meter, now) for meter in meters]
        self._number += 1
        call = Call(
            self._ledger.process, self._number, self._acked, self._watermark_ms(now), [one.line for one in sent]
        )
        self._sent_at = now
        self._may_probe = self._is_renewal_wanted = False
        counts = self._ledger.counts
        counts.calls += 1
        counts.syncs += len(sent)
        order = counts.calls
        try:
            reply = await self._ledger.store.sync(self.tag, call)
        except StoreError:
            counts.failures += 1
            self._breaker.failed()
            self._unsend(sent)
            if self._breaker.is_open:
                for waiter in list(self._waiters):
                    waiter.give_up()
            return
        self._breaker.answered()
        if reply.status == "OK":
            self._read(reply, sent, now, order)
            return
        self._unsend(sent)
        if reply.status == "LOST":
            counts.losses += 1
            self._doubt_after_loss(reply.number)
        else:
            counts.stale += 1

    def _choose(self, now: float) -> list[Meter]:
        """Return the meters of the next call: those that requests wait for, dirty ones, and what is due if allowed."""
        chosen: dict[Meter, None] = {}
        while self._asked and len(chosen) < LINES_PER_CALL:
            meter = _pop_first(self._asked)
            if self._is_short(meter):
                chosen[meter] = None
        while self._dirty and len(chosen) < LINES_PER_CALL:
            chosen[_pop_first(self._dirty)] = None
        if self._allowed_calls > 0 and len(chosen) < LINES_PER_CALL:
            urgent = len(chosen)
            for meter in itertools.chain(self._overdue(now), *self._due.values()):
                chosen[meter] = None
                if len(chosen) == LINES_PER_CALL:
                    break
            if len(chosen) > urgent:
                self._allowed_calls -= 1
        return list(chosen)

    @staticmethod
    def _is_short(meter: Meter) -> bool:
        return bool(meter.waiters) and meter.missing_at is None and (not meter.is_ok or meter.spare < meter.wanted)

    def _write(self, meter: Meter, now: float) -> _Sent:
        """Write a meter's line, after lowering its lease by what is to be given back: only the edge ever shrinks it."""
        is_idle = self._is_closing or now - meter.used_at >= IDLE_S
        is_unwanted = not meter.waiters and (meter.is_scarce or is_idle)
        if is_unwanted or not meter.is_ok:
            meter.held -= meter.spare
            meter.spare = 0
        want = 0
        if not (meter.is_scarce or is_idle):
            ahead = self._ahead(meter)
            want = max(0, ahead - meter.spare)
            if not meter.waiters and self._has_surplus(meter, now):
                meter.held -= meter.spare - ahead
                meter.spare = ahead
                meter.surplus_since = None
        line = Line(
            name=meter.name,
            kind=meter.kind,
            limit=meter.sent_limit,
            zero_from_ms=meter.zero_from_us // 1000,
            is_joined=meter.is_joined,
            settled=meter.settled,
            hold=meter.held,
            need=max(0, meter.wanted - meter.spare),
            want=want,
            ttl_ms=meter.ttl_ms,
            leaves=not meter.waiters and not meter.held and (is_idle or not meter.is_joined),
            expire_at_ms=meter.expire_at_ms,
        )
        unsent_since, meter.unsent_since = meter.unsent_since, None
        self._unsent.pop(meter, None)
        self._dirty.pop(meter, None)
        self._returned.pop(meter, None)
        if meter.due:
            self._due[meter.due].pop(meter)
            meter.due = 0
        meter.sent_at = now
        meter.bare_sent, meter.bare = meter.bare, 0
        return _Sent(meter, line, unsent_since)

    def _watermark_ms(self, now: float) -> int:
        """W: in the server's time, before which every settlement is in this call, was sent, or never will be."""
        if self._server_ms is None:
            return 0
        oldest = next(iter(self._unsent), None)
        since = now if oldest is None or oldest.unsent_since is None else oldest.unsent_since
        if since == -math.inf:
            return 0
        return math.floor(self._server_ms + (since - self._server_at) * 1000)

    # --- answers -----------------------------------------------------------------------------------------------

    def _unsend(self, sent: Iterable[_Sent]) -> None:
        """The call counts as never sent: the next one says everything again, with what is true then."""
        for meter, _, since in sent:
            meter.bare, meter.bare_sent = meter.bare + meter.bare_sent, 0
            if since is not None:
                meter.unsent_since = since if meter.unsent_since is None else min(since, meter.unsent_since)
                self._unsent[meter] = None
            self.mark_dirty(meter)
        self._sort_unsent()

    def _sort_unsent(self) -> None:
        self._unsent = dict.fromkeys(sorted(self._unsent, key=lambda meter: meter.unsent_since or 0.0))

    def _doubt_after_loss(self, last_known: int) -> None:
        """The store has lost all it did for us after the call `last_known`.

        All leases are in doubt, older ones as well: what was lost may have kept them alive.
        """
        self._acked = last_known
        for meter in self._meters:
            if meter.is_joined and meter.joined_by > last_known > 0:
                # Its joining is lost: a record that is there belongs to an earlier one, and is to be folded. (0 is also
                # said to a process that was silent for long, whose records may be as it left them.)
                self._end_lease(meter)
            elif meter.is_joined and meter.kind == "sum":
                meter.unsent_since = -math.inf
                self._unsent[meter] = None
            self._doubt(meter)
        self._sort_unsent()

    def _doubt(self, meter: Meter) -> None:
        meter.is_ok = False
        meter.held -= meter.spare
        meter.spare = 0
        self.mark_dirty(meter)

    def _read(self, reply: Reply, sent: list[_Sent], sent_at: float, order: int) -> None:
        """Apply an OK, all in one loop turn."""
        now = self._ledger.now()
        if self._server_ms is not None:
            self._doubt_silent_leases(reply.number - self._server_ms, {one.meter for one in sent})
        self._acked = self._number
        self._server_ms = reply.number
        self._server_at = now
        self.skew_s = reply.number / 1000 - time.time()
        self.valid_until = sent_at + VALID_S
        answered: set[Meter] = set()
        for (meter, line, _), answer in zip(sent, reply.answers, strict=True):
            meter.bare_sent = 0
            if answer.code == "OK":
                if line.leaves:
                    self._read_leave(meter, answer, now)
                else:
                    self._read_lease(meter, line, answer)
                    answered.add(meter)
            else:
                self._read_rejoin(meter)
                if answer.code == "REJOIN":
                    self._ledger.counts.rejoins += 1
                elif meter.held or meter.waiters or now - meter.used_at < IDLE_S:
                    # Also one that nobody waits for now: it should have its base before the next request comes.
                    meter.missing_at = now
                    self._dirty.pop(meter, None)
                    self._seeding.ask(meter)
        self._serve(answered, order, now)

    def _doubt_silent_leases(self, silent_ms: int, asked: set[Meter]) -> None:
        """While this process was silent, leases may have ended that this call said nothing of."""
        if silent_ms < SHORTEST_TTL_MS - GAP_MARGIN_MS:
            return
        for meter in self._meters:
            if meter.is_joined and meter not in asked and silent_ms >= meter.ttl_ms - GAP_MARGIN_MS:
                self._doubt(meter)

    def _read_lease(self, meter: Meter, line: Line, answer: Answer) -> None:
        if not meter.is_active:
            self.adopt(meter, self._ledger.now())  # forgotten while the call was on its way
        if not line.is_joined:
            meter.joined_by = self._number
        meter.is_joined = meter.is_ok = True
        # What was let through without a lease while the call was on its way is covered by what it brings.
        covered = min(meter.bare, meter.spare + answer.grant)
        meter.held += answer.grant - covered
        meter.spare += answer.grant - covered
        meter.left = answer.left
        meter.members = answer.members
        meter.is_scarce = answer.left < max(line.need, 1)
        meter.is_watched = meter.is_scarce or meter.refusal is not None
        if meter.kind == "sum":
            self._note_spent(meter, line, answer)
        if answer.left < 0 and meter.spare:
            meter.held -= meter.spare
            meter.spare = 0
            self.mark_dirty(meter)
        if meter.is_scarce or line.need:
            self._check_later(meter, 1)

    def _read_leave(self, meter: Meter, answer: Answer, now: float) -> None:
        self._end_lease(meter)
        meter.given_up_at = now
        meter.left = answer.left
        meter.is_scarce = meter.is_watched = False
        if meter.held:  # taken without a lease while the call was on its way
            self.mark_dirty(meter)

    def _read_rejoin(self, meter: Meter) -> None:
        """The one way back, whatever happened: what is reserved is said again as a new process would."""
        self._end_lease(meter)
        if meter.held:
            self.mark_dirty(meter)

    def _end_lease(self, meter: Meter) -> None:
        meter.lone += meter.settled - meter.synced  # in the records, and added from there by the auditor
        meter.is_joined = meter.is_ok = False
        meter.settled = meter.synced = 0
        meter.held -= meter.spare
        meter.spare = 0
        meter.unsent_since = None
        self._unsent.pop(meter, None)

    def _note_spent(self, meter: Meter, line: Line, answer: Answer) -> None:
        is_news = answer.spent != meter.spent
        meter.spent = answer.spent
        meter.synced = line.settled
        meter.lone = 0
        if is_news and self._ledger.on_spent is not None:
            # In a turn of its own: what it does, and raises, is none of the pump's business.
            asyncio.get_running_loop().call_soon(self._ledger.on_spent, meter, answer.spent)

    # --- waiters -----------------------------------------------------------------------------------------------

    def _serve(self, answered: set[Meter], order: int, now: float) -> None:
        for waiter in list(self._waiters):
            if waiter.outcome.done():
                continue
            outcome: Reservation | Short | None = self._ledger.take(waiter.meters, waiter.tokens, waiter.cost_nano_usd)
            if outcome is None and order > waiter.calls_before:
                outcome = self._refuse(waiter, answered, now)
            if outcome is None:
                self._ask_for(waiter)
                continue
            waiter.resolve(outcome)
            for pump in waiter.meters.pumps:
                pump.leave_waiters(waiter)

    def _refuse(self, waiter: Waiter, answered: set[Meter], now: float) -> Short | None:
        """Refuse only for a meter that was in a call sent after the request came: others may have run short since.

        And only if the store has no more of it: others may have taken all that was spare while the call, which then
        asked for nothing, was on its way.
        """
        for meter in waiter.meters.all:
            need = waiter.need(meter)
            if meter in answered and meter.spare + max(0, meter.left or 0) < need:
                return self._ledger.refuse(meter, need, now)
        return None

    def _ask_for(self, waiter: Waiter) -> None:
        for meter in waiter.meters.all:
            if meter.pump is self and self._is_short(meter):
                self._asked[meter] = None
                self._woken.set()


def _pop_first(meters: dict[Meter, None]) -> Meter:
    meter = next(iter(meters))
    del meters[meter]
    return meter
