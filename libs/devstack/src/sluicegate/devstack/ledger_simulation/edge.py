"""One simulated edge process: a real ledger, a clock of its own, a link to the store, and requests."""

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING

from sluicegate.devstack.ledger_simulation.network import Link
from sluicegate.devstack.ledger_simulation.store import SimulatedStore
from sluicegate.devstack.ledger_simulation.truth import Charge
from sluicegate.devstack.ledger_simulation.virtual_loop import Owner, VirtualLoop
from sluicegate.devstack.ledger_simulation.workload import PERIOD_END_US, PERIOD_START_US, TAG, MeterSpec, Request
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Short
from sluicegate.ledger.store import Call, Reply

if TYPE_CHECKING:
    from sluicegate.devstack.ledger_simulation.world import World

_PUBLISHED_WITHIN_S = 0.05
_LONG_SILENCE_S = 15.0


class OwnClock:
    """A process's own clock: it began elsewhere, and runs up to 100 ppm wrong."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._began_s = random.uniform(0, 1e6)
        self._rate = 1 + random.uniform(-1e-4, 1e-4)

    def now(self) -> float:
        return self._began_s + self._loop.time() * self._rate


class SimulatedEdge:
    """Serves a stream of requests until it is told to stop, or killed."""

    def __init__(self, world: "World", random: Random) -> None:
        self.world = world
        self.random = random
        self.owner = Owner(world.loop)
        self.clock = OwnClock(world.loop, random)
        self.link = Link(world.weather, random)
        self._store = SimulatedStore(world.loop, world.server, self.link, world.scripts, self)
        self.ledger = Ledger(
            self._store,
            spent_so_far=lambda meter: world.postgres.spent_so_far(meter.name),
            when_store_away=world.scenario.when_store_away,
            configured_edges=world.scenario.edges,
            clock=self.clock,
        )
        self.open: dict[int, tuple[Request, list[Charge]]] = {}
        self.unpublished: dict[int, tuple[str, int]] = {}
        self.is_stopping = False
        self.pace = 1.0  # its part of the load
        self.meters: dict[str, Meter] = {}
        self.seen_s = -math.inf  # when the server ran a call of it last
        self.back_s = -math.inf  # when it was last heard of after a long silence, and how long that was
        self.was_silent_s = 0.0
        self.left: set[str] = set()  # meters that it left of its own will
        self._debts: dict[str, list[tuple[int, int]]] = {}  # meter: moments and amounts on their way to the store
        self._moments = 0
        self._numbers = 0
        self._sets: dict[tuple[MeterSpec, ...], MeterSet] = {}

    @property
    def is_unaware_of_loss(self) -> bool:
        """Tell whether the store has lost data since it answered this process last."""
        return self._store.knows_of_losses != self.world.server.losses

    async def run(self) -> None:
        """Start the ledger and bring requests at random intervals."""
        await self.ledger.start()
        workload = self.world.workload
        while not self.is_stopping:
            await asyncio.sleep(self.random.expovariate(workload.requests_per_s * self.pace))
            self.owner.start(self._serve(workload.request(self.random)))

    def meter(self, spec: MeterSpec) -> Meter:
        """Return the ledger's meter of a limit, as the edge does from its mirror."""
        limit = self.world.limits[spec]
        if spec.is_sum:
            meter = self.ledger.sum_meter(
                "limit",
                spec.scope_id,
                scope="key",
                start_us=PERIOD_START_US,
                end_us=PERIOD_END_US,
                limit=limit,
                zero_from_us=PERIOD_START_US,
                tag=TAG,
            )
        else:
            meter = self.ledger.cap_meter(spec.resource, "key", spec.scope_id, limit=limit, tag=TAG)
        self.meters[meter.name] = meter
        return meter

    # --- what its requests use beyond their leases ---

    def owes(self, name: str, amount: int) -> None:
        """A request used more than was reserved, or was let through without a lease: the next call tells the store."""
        self._moments += 1
        self._debts.setdefault(name, []).append((self._moments, amount))

    def debts(self, name: str) -> int:
        """Return what of a meter the store was not yet told."""
        return sum(amount for _, amount in self._debts.get(name, ()))

    # --- what the store tells (it is a `Watcher`) ---

    def sends(self) -> int:
        return self._moments

    def executed(self, call: Call, reply: Reply, sent: int) -> None:
        if reply.status == "OK":
            now_s = self.world.loop.time()
            if now_s - self.seen_s > _LONG_SILENCE_S:
                self.was_silent_s, self.back_s = now_s - self.seen_s, now_s
            self.seen_s = now_s
            for line, answer in zip(call.lines, reply.answers, strict=True):
                if line.leaves:
                    self.left.add(line.name)
                elif answer.code == "OK":
                    self.left.discard(line.name)
        for line, answer in zip(call.lines, reply.answers, strict=False):
            debts = self._debts.get(line.name)
            if debts and answer.code == "OK":
                self._debts[line.name] = [debt for debt in debts if debt[0] > sent]
        self.world.executed(call, reply)

    def repaired(self, name: str) -> None:
        self.world.touched.add(name)

    # --- requests ---

    async def _serve(self, request: Request) -> None:
        world, counts = self.world, self.world.counts
        meters = self._meter_set(request.specs)
        counts.requests += 1
        answer: Reservation | Short | None = self.ledger.take(meters, request.tokens, request.cost_nano_usd)
        answer = answer or self.ledger.refused(meters, request.tokens, request.cost_nano_usd)
        if answer is None:
            counts.waits += 1
            answer = await self.ledger.wait(meters, request.tokens, request.cost_nano_usd)
        if isinstance(answer, Short):
            world.refused(request, answer)
            return
        number = self._number()
        self.open[number] = request, world.admitted(self, request, is_covered=answer.is_covered)
        await asyncio.sleep(request.lasts_s)
        self.ledger.settle(answer, request.true_tokens, request.true_cost_nano_usd)
        _, charges = self.open.pop(number)
        world.settled(self, request, charges)
        self._journal(request)

    def _journal(self, request: Request) -> None:
        for spec in request.specs:
            if spec.is_sum:
                number = self._number()
                self.unpublished[number] = self.world.names[spec], request.true_cost_nano_usd
                asyncio.get_running_loop().call_later(_PUBLISHED_WITHIN_S, self._publish, number)

    def _publish(self, number: int) -> None:
        self.world.postgres.publish(*self.unpublished.pop(number))

    def _meter_set(self, specs: tuple[MeterSpec, ...]) -> MeterSet:
        meters = self._sets.get(specs)
        if meters is None:
            meters = self._sets[specs] = MeterSet(map(self.meter, specs))
        return meters

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
