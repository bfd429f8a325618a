"""Whether this process can work: it can while the database answers. NATS may be away: changes wait for it."""

import asyncio
from typing import Final

from sluicegate.admin.metrics import Metrics
from sluicegate.admin.projection import repository
from sluicegate.bus.connection import Connection
from sluicegate.runtime.health import Health
from sluicegate.store.pool import Pool
from sluicegate.store.readiness import LOOK_EVERY_S, look, needs_table
from sluicegate.store.transactions import is_unavailable

# The newest of the tables that this room needs.
_TRIAL: Final = needs_table("deliveries")


async def watch(health: Health, metrics: Metrics, pool: Pool, connection: Connection) -> None:
    """Keep `health` true until cancelled."""
    while True:
        is_ready, detail = await look(pool, _TRIAL)
        health.set_ready("postgres", is_ready, detail)
        health.set_ready("nats", True, "" if connection.is_connected else "away: changes are saved, and told later")
        if is_ready:
            await _measure(metrics, pool)
        await asyncio.sleep(LOOK_EVERY_S)


async def _measure(metrics: Metrics, pool: Pool) -> None:
    try:
        async with pool.acquire() as connection:
            metrics.outbox_rows.set(await repository.outbox_depth(connection))
    except Exception as error:
        if not is_unavailable(error):
            raise
