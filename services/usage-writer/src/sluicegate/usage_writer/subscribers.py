"""The edge of this room towards the bus: what is subscribed, and how batches overlap. No SQL, no decisions."""

import asyncio
from typing import Any, Final

from faststream.nats import NatsBroker
from opentelemetry import trace

from sluicegate.bus.worker import BatchDecoder, subscribe_batches, trace_links
from sluicegate.contracts.subjects import RPC_BUDGET_SPENT, USAGE_WRITER
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.usage_writer.config import WriterSettings
from sluicegate.usage_writer.handlers import UsageHandler
from sluicegate.usage_writer.records import UsageDelivery
from sluicegate.usage_writer.spent import SpentHandler

QUEUE_GROUP: Final = "usage-writer"
# One after the other they would grow old: each may wait a second, and who asks does not wait for more than two.
_QUESTIONS_AT_ONCE: Final = 256

_tracer = trace.get_tracer("sluicegate.usage_writer")


class Intake:
    """Works on a few batches at once: one is decoded and packed while the database is busy with another."""

    def __init__(self, handler: UsageHandler, batches_in_flight: int) -> None:
        self._handler = handler
        self._slots = asyncio.Semaphore(batches_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, deliveries: list[UsageDelivery]) -> None:
        """Start on a batch; wait only if too many are being worked on."""
        await self._slots.acquire()
        task = asyncio.create_task(self._work(deliveries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait until all batches are settled."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self, deliveries: list[UsageDelivery]) -> None:
        try:
            with _tracer.start_as_current_span("store usage", links=trace_links(deliveries)):
                await self._handler.handle(deliveries)
        finally:
            self._slots.release()


def subscribe(broker: NatsBroker, settings: WriterSettings, intake: Intake, spent: SpentHandler) -> None:
    """Add this room's subscribers to a broker."""
    subscribe_batches(
        broker,
        USAGE_WRITER,
        BatchDecoder(UsageRecorded),
        intake.take,
        batch_messages=settings.batch_messages,
        fill_s=settings.fill_ms / 1000,
    )

    async def raw(message: Any) -> bytes:
        body: bytes = message.body
        return body

    async def answer(body: bytes) -> bytes:
        return await spent.answer(body)

    broker.subscriber(RPC_BUDGET_SPENT, queue=QUEUE_GROUP, decoder=raw, max_workers=_QUESTIONS_AT_ONCE)(answer)
