"""What a batch of usage messages means: which transaction a record goes into, and what becomes of each message.

The way of a message: refused records are put aside (policy), names become numbers (dimensions), the rest is
stored with its neighbours in one transaction (repository). Only after the commit is it acknowledged. If
the transaction fails for the sake of a row, the row is found by halving, inside one transaction with
savepoints; if it fails because something is away, all its messages come again.
"""

import asyncio
import random
import time
from typing import Final

import structlog

from sluicegate.bus.worker import Done, Outcome, Retry, Settlement
from sluicegate.store.pool import Pool, PoolConnection
from sluicegate.store.transactions import is_transient, is_unavailable
from sluicegate.usage_writer import policy, records, repository, rows
from sluicegate.usage_writer.dimensions import Dimensions
from sluicegate.usage_writer.errors import is_bad_record, is_missing_partition
from sluicegate.usage_writer.metrics import Metrics
from sluicegate.usage_writer.records import Record, Refusals, UsageDelivery
from sluicegate.usage_writer.storing import Storing

_log = structlog.get_logger("sluicegate.usage_writer.handlers")

_ATTEMPTS: Final = 20
_JITTER_S: Final = 0.05


class UsageHandler:
    """Stores usage messages."""

    def __init__(
        self,
        pool: Pool,
        dimensions: Dimensions,
        settlement: Settlement,
        metrics: Metrics,
        storing: Storing,
        *,
        retention_days: int,
        transaction_rows: int,
    ) -> None:
        self._pool = pool
        self._dimensions = dimensions
        self._settlement = settlement
        self._metrics = metrics
        self._storing = storing
        self._retention_days = retention_days
        self._transaction_rows = transaction_rows
        self._days: set[int] = set()

    def forget(self) -> None:
        """Forget what was learned from the database: it may be another one now."""
        self._dimensions.clear()
        self._days.clear()

    async def handle(self, deliveries: list[UsageDelivery]) -> None:
        """Store and settle these messages. Never raises: what it cannot do comes again."""
        for group in policy.groups(((len(d.items), d) for d in deliveries), self._transaction_rows):
            outcomes = await self._outcomes(group)
            for delivery, outcome in outcomes.items():
                await self._settlement.settle(delivery, outcome)

    async def _outcomes(self, group: list[UsageDelivery]) -> dict[UsageDelivery, Outcome]:
        refusals: Refusals = {}
        started = time.perf_counter()
        try:
            # A new connection clears what is remembered, so it comes first.
            async with self._pool.acquire() as connection:
                window = policy.window_at(time.time_ns() // 1000, self._retention_days)
                admitted = records.admit(group, window, self._dimensions, refusals)
                if admitted:
                    await records.pack(connection, admitted, self._dimensions)
                    await self._store(connection, admitted, refusals)
                    self._storing.succeed()
        except Exception as error:  # noqa: BLE001 - whatever it is, the messages must come again
            return await self._again(group, error)
        self._metrics.transaction_seconds.observe(time.perf_counter() - started)
        self._metrics.refused.inc(sum(map(len, refusals.values())))
        return {delivery: Done(tuple(refusals.get(delivery, ()))) for delivery in group}

    async def _again(self, group: list[UsageDelivery], error: Exception) -> dict[UsageDelivery, Outcome]:
        reason = f"{type(error).__name__}: {error}"
        if is_unavailable(error) or is_transient(error):
            _log.warning("database away, messages come again", reason=reason, messages=len(group))
        else:
            _log.error("not stored, messages come again", reason=reason, messages=len(group), exc_info=error)
        self._metrics.retried.inc(len(group))
        self._storing.fail(reason)
        # The stage tables of these connections may be out of date with a schema that has changed.
        await self._pool.expire_connections()
        return {delivery: Retry(reason) for delivery in group}

    async def _store(self, connection: PoolConnection, batch: list[Record], refusals: Refusals) -> None:
        """Store records in one transaction; find those that the database refuses."""
        await self._make_partitions(connection, batch)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with connection.transaction():
                    stored = await self._insert(connection, batch)
                break
            except Exception as error:
                if is_bad_record(error):
                    stored, batch = await self._store_good(connection, batch, refusals)
                    break
                if attempt == _ATTEMPTS or not (is_transient(error) or is_missing_partition(error)):
                    raise
                _log.info("transaction again", reason=type(error).__name__)
                await asyncio.sleep(random.uniform(0, _JITTER_S))
                if is_missing_partition(error):
                    self._days.clear()
                    await self._make_partitions(connection, batch)
        self._metrics.stored.inc(stored)
        self._metrics.repeated.inc(len(batch) - stored)

    async def _insert(self, connection: PoolConnection, part: list[Record]) -> int:
        body = rows.copy_body([record.row for record in part])
        return await repository.insert(connection, body, records.details(part))

    async def _store_good(
        self, connection: PoolConnection, batch: list[Record], refusals: Refusals
    ) -> tuple[int, list[Record]]:
        """Store those that can be; return how many were new, and all that are stored now."""
        bad: dict[int, str] = {}

        async def store(part: list[Record]) -> int:
            try:
                async with connection.transaction():
                    await repository.empty_stage(connection)
                    return await self._insert(connection, part)
            except Exception as error:
                if not is_bad_record(error):
                    raise
                if len(part) == 1:
                    bad[id(part[0])] = f"{type(error).__name__}: {error}"
                    return 0
            half = len(part) // 2
            return await store(part[:half]) + await store(part[half:])

        async with connection.transaction():
            stored = await store(batch)
        for record in batch:
            if (reason := bad.get(id(record))) is not None:
                records.refuse(refusals, record.delivery, record.index, record.event, reason)
        return stored, [record for record in batch if id(record) not in bad]

    async def _make_partitions(self, connection: PoolConnection, batch: list[Record]) -> None:
        days = {record.event.started_at_us // policy.US_PER_DAY for record in batch}
        if days <= self._days:
            return
        made = await repository.make_partitions(connection, days - self._days)
        self._days |= days
        if made:
            self._metrics.partitions.inc(len(made))
            _log.info("partitions made", names=made)
