"""Everything of one run: the store, Postgres, the network, the processes, and what is truly the case."""

import asyncio
import math
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from sluicegate.devstack.ledger_simulation.edge import SimulatedEdge
from sluicegate.devstack.ledger_simulation.findings import Findings
from sluicegate.devstack.ledger_simulation.lagging_postgres import LaggingPostgres
from sluicegate.devstack.ledger_simulation.network import Weather
from sluicegate.devstack.ledger_simulation.server import EPOCH_S, Server
from sluicegate.devstack.ledger_simulation.store import Scripts
from sluicegate.devstack.ledger_simulation.truth import WINDOW_S, Charge, TrueMeter
from sluicegate.devstack.ledger_simulation.virtual_loop import VirtualLoop
from sluicegate.devstack.ledger_simulation.workload import PERIOD_START_US, TAG, MeterSpec, Request
from sluicegate.ledger.meters import TTL_S, Short, cap_name, sum_name
from sluicegate.ledger.store import Audit, Call, Reply, alive_key

if TYPE_CHECKING:
    from sluicegate.devstack.ledger_simulation.scenarios import Scenario

# At a limit some of it lies spare in leases. A refusal while more than this is free counts as false.
SLACK_PERCENT = 5.0
FALSE_PERCENT = 75.0
_ADOPTED_WITHIN_S = 30.0
# A call with the old limit may be on its way for this long after every process heard of the new one.
_LATEST_OLD_LIMIT_S = 8.0


@dataclass
class Counts:
    """What the requests saw, and what reached the server."""

    requests: int = 0
    waits: int = 0
    refused: int = 0
    refused_falsely: int = 0
    refused_by_policy: int = 0
    served_by_policy: int = 0
    calls: int = 0
    syncs: int = 0
    audits_busy: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


class World:
    """What faults act upon and checks look at."""

    def __init__(self, loop: VirtualLoop, server: Server, scenario: "Scenario", seed: int, scripts: Scripts) -> None:
        self.loop = loop
        self.server = server
        self.scenario = scenario
        self.seed = seed
        self.scripts = scripts
        self.random = Random(seed)
        self.weather = Weather()
        self.postgres = LaggingPostgres()
        self.workload = scenario.workload()
        self.limits: dict[MeterSpec, int] = {spec: spec.limit for spec in self.workload.specs}
        self.names: dict[MeterSpec, str] = {spec: _name(spec) for spec in self.workload.specs}
        self.specs: dict[str, MeterSpec] = {name: spec for spec, name in self.names.items()}
        self.truth = {
            name: TrueMeter(name, spec.limit, is_sum=spec.is_sum, is_rate=spec.is_rate)
            for spec, name in self.names.items()
        }
        self.counts = Counts()
        self.findings = Findings()
        self.edges: list[SimulatedEdge] = []
        self.touched: set[str] = set()  # meters to be checked next
        self.faulted: set[str] = set()  # meters some of whose leases the store has forgotten
        self.synced: set[str] = set()  # meters that were in a call since the last look
        self.died_s: dict[str, float] = {}
        self.held_by_dead: dict[str, int] = {}
        self.leases_lag_until_s = 0.0  # the load has just moved, and leases are where it was
        self.limits_unsettled_until_s: dict[str, float] = {}

    # --- processes ---

    def start_edge(self) -> SimulatedEdge:
        """Start a process; a restart is a new one."""
        edge = SimulatedEdge(self, Random(self.random.getrandbits(64)))
        self.edges.append(edge)
        edge.owner.start(edge.run())
        return edge

    def running(self) -> list[SimulatedEdge]:
        """Return the processes that are not dead."""
        return [edge for edge in self.edges if not edge.owner.is_dead]

    def kill(self, edge: SimulatedEdge) -> None:
        """`kill -9`: its provider calls break off, its journal is adopted some time later."""
        edge.owner.kill()
        self.died_s[edge.ledger.process] = self.loop.time()
        lost: list[tuple[str, int]] = list(edge.unpublished.values())
        for request, charges in edge.open.values():
            for spec, charge in zip(request.specs, charges, strict=True):
                cost = min(request.true_use(spec), charge.amount) if spec.is_sum else charge.amount
                charge.meter.settled(charge, cost, self.loop.time())
                self.touched.add(charge.meter.name)
                if spec.is_sum:
                    lost.append((charge.meter.name, cost))
        self.loop.call_later(self.random.uniform(1, _ADOPTED_WITHIN_S), self._adopt, lost)

    def _adopt(self, lost: list[tuple[str, int]]) -> None:
        for name, cost in lost:
            self.postgres.publish(name, cost)

    # --- requests ---

    def admitted(self, edge: SimulatedEdge, request: Request, *, is_covered: bool) -> list[Charge]:
        """A process let a request through; without a lease, all of it may rightly exceed the limit."""
        now_s = self.loop.time()
        charges = [self.truth[self.names[spec]].admitted(request.need(spec), now_s) for spec in request.specs]
        self.touched.update(charge.meter.name for charge in charges)
        silent_s = now_s - edge.seen_s
        if is_covered and silent_s >= min(TTL_S[spec.resource] for spec in request.specs):
            self.findings.violated("life", f"admitted at {now_s:.2f} by a process silent for {silent_s:.2f} s")
        if not is_covered:
            self.counts.served_by_policy += 1
            for charge in charges:
                self._owes(edge, charge, charge.amount)
        return charges

    def settled(self, edge: SimulatedEdge, request: Request, charges: list[Charge]) -> None:
        """A request ended; what it used beyond its reservation may rightly exceed the limit."""
        now_s = self.loop.time()
        for spec, charge in zip(request.specs, charges, strict=True):
            use = request.true_use(spec)
            self._owes(edge, charge, use - charge.amount)
            charge.meter.settled(charge, use, now_s)
            self.touched.add(charge.meter.name)

    @staticmethod
    def _owes(edge: SimulatedEdge, charge: Charge, amount: int) -> None:
        if amount > 0:
            charge.meter.debts += amount
            edge.owes(charge.meter.name, amount)

    def refused(self, request: Request, short: Short) -> None:
        """A process refused a request: falsely, if there was room on the very meter it blames."""
        if short.reason == "store_away":
            self.counts.refused_by_policy += 1
            return
        self.counts.refused += 1
        truth = self.truth[short.meter.name]
        now_s = self.loop.time()
        truth.forget_before(now_s - WINDOW_S)
        free = truth.limit - truth.committed - self.held_by_dead.get(truth.name, 0)
        if free < request.need(self.specs[truth.name]):
            return
        free_percent = 100 * free / truth.limit
        self.counts.refused_falsely += free_percent > SLACK_PERCENT
        if free_percent > FALSE_PERCENT and self.scenario.is_calm and now_s > self.leases_lag_until_s:
            self.findings.violated("false", f"{truth.name} at {now_s:.2f}: {free_percent:.0f} % were free")

    def executed(self, call: Call, reply: Reply) -> None:
        """The server ran a call."""
        self.counts.calls += 1
        self.counts.syncs += len(call.lines)
        self.counts.statuses[reply.status] = self.counts.statuses.get(reply.status, 0) + 1
        names = [line.name for line in call.lines]
        self.touched.update(names)
        if reply.status == "OK":
            self.synced.update(names)

    def audited(self, name: str, found: Audit, read_s: float) -> None:
        """The auditor looked at a meter; Postgres was read at `read_s`."""
        if found.correction < 0:
            published = self.postgres.published_before(name, read_s)
            if found.total < published:
                now_s = self.loop.time()
                self.findings.violated("audit", f"{name} at {now_s:.2f}: lowered to {found.total} of {published}")

    # --- what befalls the store, and limits ---

    def flush(self) -> None:
        """The store forgets everything."""
        self.server.flush()
        self._data_lost()

    def fail_over(self, replica: dict[str, bytes]) -> None:
        """The store forgets the last second."""
        self.server.fail_over(replica)
        self._data_lost()
        (alive,) = self.server.hashes([alive_key(TAG)])
        for edge in self.edges:
            life = alive.get(edge.ledger.process)
            edge.seen_s = int(life.split()[1]) / 1000 - EPOCH_S if life else -math.inf

    def _data_lost(self) -> None:
        self.touched.update(self.truth)
        self.faulted.update(self.truth)

    async def change_limit(self, name: str, limit: int) -> None:
        """Change a limit; the processes learn of it within a second, a new one at once."""
        spec, truth = self.specs[name], self.truth[name]
        self.limits[spec] = limit
        truth.allowed_excess += max(0, truth.limit - limit)
        truth.limit = limit
        for edge in self.running():
            self.loop.call_later(self.random.uniform(0, 1), edge.meter, spec, context=edge.owner.context)
        self.leases_lag_until_s = 0.0  # the load has just moved, and leases are where it was
        self.limits_unsettled_until_s[name] = self.loop.time() + _LATEST_OLD_LIMIT_S
        await asyncio.sleep(0)


def _name(spec: MeterSpec) -> str:
    if spec.is_sum:
        return sum_name(TAG, "limit", spec.scope_id, PERIOD_START_US)
    return cap_name(TAG, spec.resource, "key", spec.scope_id)
