"""What a run of retention does, and who is told. Nothing is dropped yet: partitions are made ahead."""

import time
from typing import Final

import asyncpg
import structlog

from sluicegate.bus.acked_publisher import AckedPublisher, PublishError
from sluicegate.bus.worker import BadEvent, Delivery, Done, Outcome, Retry, Settlement
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import RetentionCompleted, RetentionRequested
from sluicegate.contracts.ids import new_id
from sluicegate.contracts.subjects import HEADER_MESSAGE_ID, HEADER_SCHEMA, RETENTION_COMPLETED
from sluicegate.retention import policy, repository
from sluicegate.retention.metrics import Metrics
from sluicegate.store.pool import Pool

_log = structlog.get_logger("sluicegate.retention.handlers")

AWAY: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, PublishError)
_PUBLISH_DEADLINE_S: Final = 10.0

Command = Delivery[RetentionRequested]


class RetentionHandler:
    """Makes partitions, on command and on schedule."""

    def __init__(
        self, pool: Pool, publisher: AckedPublisher, settlement: Settlement, metrics: Metrics, *, days_ahead: int
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._settlement = settlement
        self._metrics = metrics
        self._days_ahead = days_ahead

    async def handle(self, deliveries: list[Command]) -> None:
        """Obey commands. Never raises: what cannot be done now comes again."""
        for delivery in deliveries:
            await self._settlement.settle(delivery, await self._obey(delivery))

    async def run(self) -> None:
        """Do what the schedule asks; say so only if something was made. Raises one of `AWAY`."""
        made = await self._make(is_dry=False)
        if made:
            await self._tell(RetentionCompleted(event_id=new_id("evt"), at_us=_now_us(), made=made))

    async def _obey(self, delivery: Command) -> Outcome:
        bad = []
        try:
            for item in delivery.items:
                if isinstance(item, BadEvent):
                    bad.append(item)
                    continue
                made = await self._make(is_dry=item.dry_run)
                # The answer carries the command's id; a command that comes again is answered again.
                await self._tell(
                    RetentionCompleted(event_id=item.event_id, at_us=_now_us(), made=made, dry_run=item.dry_run)
                )
        except AWAY as error:
            _log.warning("command comes again", reason=f"{type(error).__name__}: {error}")
            return Retry(str(error))
        return Done(tuple(bad))

    async def _make(self, *, is_dry: bool) -> tuple[str, ...]:
        days = policy.wanted_days(_now_us(), self._days_ahead)
        async with repository.only_one(self._pool) as connection:
            if is_dry:
                return tuple(await repository.missing_partitions(connection, days))
            made = tuple(await repository.make_partitions(connection, days))
        self._metrics.made.inc(len(made))
        self._metrics.last_run.set_to_current_time()
        if made:
            _log.info("partitions made", names=made)
        return made

    async def _tell(self, completed: RetentionCompleted) -> None:
        await self._publisher.publish(
            RETENTION_COMPLETED,
            join_events([encode_event(completed)]),
            {HEADER_MESSAGE_ID: f"completed.{completed.event_id}", HEADER_SCHEMA: "retention.completed.v1"},
            deadline_s=_PUBLISH_DEADLINE_S,
        )


def _now_us() -> int:
    return time.time_ns() // 1000
