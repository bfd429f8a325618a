"""Whether this process can work: it can while the database answers. NATS may be away: changes wait for it."""

import asyncio
from typing import Final

from sluicegate.admin.metrics import Metrics
from sluicegate.admin.projection import repository
from sluicegate.bus.connection import Connection
from sluicegate.runtime.health import Health
from sluicegate.store.pool import Pool

_LOOK_EVERY_S: Final = 2.0
_ANSWER_WITHIN_S: Final = 2.0


async def watch(health: Health, metrics: Metrics, pool: Pool, connection: Connection) -> None:
    """Keep `health` true until cancelled."""
    while True:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S), pool.acquire() as database:
                depth = await repository.outbox_depth(database)
        except Exception as error:  # noqa: BLE001 - whatever it is, the database does not work
            health.set_ready("postgres", ok=False, detail=str(error) or type(error).__name__)
        else:
            health.set_ready("postgres", ok=True)
            metrics.outbox_rows.set(depth)
        health.set_ready(
            "nats", ok=True, detail="" if connection.is_connected else "away: changes are saved and told later"
        )
        await asyncio.sleep(_LOOK_EVERY_S)
