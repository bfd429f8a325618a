"""The auditor's round as budget-alert makes it: Postgres first, the meter ten seconds later."""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from sluicegate.devstack.ledger_simulation.network import Link
from sluicegate.devstack.ledger_simulation.store import SimulatedStore
from sluicegate.devstack.ledger_simulation.workload import TAG
from sluicegate.ledger.store import Audit, Call, Reply, StoreError

if TYPE_CHECKING:
    from sluicegate.devstack.ledger_simulation.world import World

ROUND_S = 30.0
WAIT_S = 10.0


class Auditor:
    """One auditor of several, whose rounds are spread over the time of one."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._begins_s = ROUND_S * number / world.scenario.auditors
        link = Link(world.weather, Random(world.seed))
        self._store = SimulatedStore(world.loop, world.server, link, world.scripts, self)

    async def run(self) -> None:
        """Audit every budget's meter, every 30 s."""
        postgres = self._world.postgres
        noted = None
        await asyncio.sleep(self._begins_s)
        while True:
            await asyncio.sleep(ROUND_S - WAIT_S)
            is_complete = noted is not None and postgres.stored_up_to() >= noted
            noted = postgres.published_up_to()
            read_s = self._world.loop.time()
            recorded = {name: postgres.spent(name) for name, truth in self._world.truth.items() if truth.is_sum}
            try:
                read_at_ms = await self._store.now_ms(TAG)
            except StoreError:
                await asyncio.sleep(WAIT_S)
                continue
            await asyncio.sleep(WAIT_S)
            for name, spent in recorded.items():
                found = await self._audit(name, spent, read_at_ms, is_complete=is_complete)
                if found is not None:
                    self._world.counts.audits_busy += found.state == "BUSY"
                    self._world.audited(name, found, read_s)

    async def _audit(self, name: str, spent: int, read_at_ms: int, *, is_complete: bool) -> Audit | None:
        try:
            return await self._store.audit(TAG, name, spent, read_at_ms, is_complete=is_complete)
        except StoreError:
            return None

    # --- what the store tells (it is a `Watcher`) ---

    def sends(self) -> int:
        return 0

    def executed(self, call: Call, reply: Reply, sent: int) -> None:
        """It makes no such calls."""

    def repaired(self, name: str) -> None:
        self._world.touched.add(name)
