"""One run: a scenario, a seed, and what came of it."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate.devstack.ledger_simulation.auditor import Auditor
from sluicegate.devstack.ledger_simulation.checks import Checks
from sluicegate.devstack.ledger_simulation.findings import Findings
from sluicegate.devstack.ledger_simulation.network import Weather
from sluicegate.devstack.ledger_simulation.server import Server
from sluicegate.devstack.ledger_simulation.store import Scripts
from sluicegate.devstack.ledger_simulation.virtual_loop import VirtualLoop
from sluicegate.devstack.ledger_simulation.world import Counts, World

if TYPE_CHECKING:
    from sluicegate.devstack.ledger_simulation.scenarios import Scenario

# After the load: the longest request (90 s); then a minute until idle leases are given back, three rounds of the
# auditor over a Postgres that lags no more, and time to spare, in which a look now and then is enough.
_LONGEST_REQUEST_S = 90.0
_QUIET_S = 330.0
_EVERY_S_WHEN_QUIET = 1.0
_CALLS_PER_REQUEST_AT_MOST = 2
_CALLS_AT_FIRST = 1_000


@dataclass(frozen=True)
class Outcome:
    """What a run counted and found."""

    scenario: str
    seed: int
    counts: Counts
    findings: Findings

    @property
    def overspent_percent(self) -> tuple[float, float]:
        """By how much the worst meter went above its limit, and how much was allowed then."""
        return max(self.findings.overspent_percent.values(), default=(0.0, 0.0))


def run(
    server: Server, scenario: "Scenario", seed: int, *, scripts: Scripts | None = None, stops_early: bool = False
) -> Outcome:
    """Run a scenario on an emptied server. With `stops_early` it ends at the first violation."""
    server.flush()
    loop = VirtualLoop()  # type: ignore[abstract]
    world = World(loop, server, scenario, seed, scripts or Scripts())
    checks = Checks(world)
    loop.run(_run(world, checks, stops_early=stops_early))
    return Outcome(scenario.name, seed, world.counts, world.findings)


async def _run(world: World, checks: Checks, *, stops_early: bool) -> None:
    for _ in range(world.scenario.edges):
        world.start_edge()
    auditors = [asyncio.ensure_future(Auditor(world, number).run()) for number in range(world.scenario.auditors)]
    faults = [asyncio.ensure_future(fault(world)) for fault in world.scenario.faults]

    async def watch(seconds: float, every_s: float) -> bool:
        ends_s = world.loop.time() + seconds
        while world.loop.time() < ends_s:
            await asyncio.sleep(every_s)
            checks.look()
            if stops_early and world.findings.violations:
                return False
            if world.counts.calls > _CALLS_PER_REQUEST_AT_MOST * world.counts.requests + _CALLS_AT_FIRST:
                world.findings.violated("end", "there is no end of calls")
                return False
        return True

    if not await watch(world.scenario.seconds, checks.every_s):
        return
    for fault in faults:
        fault.cancel()
    _calm(world)
    if not await watch(_LONGEST_REQUEST_S, checks.every_s) or not await watch(_QUIET_S, _EVERY_S_WHEN_QUIET):
        return
    for auditor in auditors:
        auditor.cancel()
    checks.end()


def _calm(world: World) -> None:
    for name, value in vars(Weather()).items():
        setattr(world.weather, name, value)
    world.postgres.lag_s = 0.05
    for edge in world.running():
        edge.is_stopping = True
        edge.link.is_cut = edge.link.is_slow = False
        if edge.owner.is_paused:
            edge.owner.resume()
