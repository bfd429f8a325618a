"""The edge of this room towards the bus and the clock. No SQL, no decisions."""

import asyncio
from typing import Final

import structlog
from faststream.nats import NatsBroker

from sluicegate.bus.worker import BatchDecoder, subscribe_batches
from sluicegate.contracts.facts import RetentionRequested
from sluicegate.contracts.subjects import RETENTION_WORKER
from sluicegate.retention.handlers import AWAY, RetentionHandler

_log = structlog.get_logger("sluicegate.retention.subscribers")

_COMMANDS_AT_ONCE: Final = 10
_FILL_S: Final = 0.2
_AGAIN_AFTER_S: Final = 5.0


def subscribe(broker: NatsBroker, handler: RetentionHandler) -> None:
    """Add this room's subscribers to a broker."""
    subscribe_batches(
        broker,
        RETENTION_WORKER,
        BatchDecoder(RetentionRequested),
        handler.handle,
        batch_messages=_COMMANDS_AT_ONCE,
        fill_s=_FILL_S,
    )


async def keep_schedule(handler: RetentionHandler, every_s: float) -> None:
    """Run at once, then every `every_s` seconds, sooner after a run that failed; until cancelled.

    Each process keeps its own clock; a lock in the database lets one work at a time, and the others find
    nothing left to do.
    """
    while True:
        delay_s = every_s
        try:
            await handler.run()
        except AWAY as error:
            _log.warning("run failed", reason=f"{type(error).__name__}: {error}")
            delay_s = min(_AGAIN_AFTER_S, every_s)
        await asyncio.sleep(delay_s)
