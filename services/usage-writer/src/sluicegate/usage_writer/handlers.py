"""What a batch of usage messages means: which transaction a record goes into, and what becomes of each message.

The way of a message: refused records are put aside (policy), names become numbers (dimensions), the rest is
stored with its neighbours in one transaction (repository). Only after the commit is it acknowledged. If
the transaction fails for the sake of a row, the row is found by halving, inside one transaction with
savepoints; if it fails because something is away, all its messages come again.
"""

import time
from typing import Final

import structlog

from sluicegate.bus.worker import BadEvent, Delivery, Done, Outcome, Retry, Settlement
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.store.pool import Pool, PoolConnection
from sluicegate.store.transactions import is_transient, is_unavailable
from sluicegate.usage_writer import policy, repository, rows
from sluicegate.usage_writer.dimensions import Dimensions
from sluicegate.usage_writer.errors import is_data_error, is_missing_partition
from sluicegate.usage_writer.metrics import Metrics
from sluicegate.usage_writer.policy import Window
from sluicegate.usage_writer.rows import Names

_log = structlog.get_logger("sluicegate.usage_writer.handlers")

_ATTEMPTS: Final = 20

UsageDelivery = Delivery[UsageRecorded]


class Record:
    """One record on its way, and where it came from. `row` is there once its names have numbers."""

    __slots__ = ("delivery", "event", "index", "names", "request_id", "row")

    def __init__(
        self, delivery: UsageDelivery, index: int, event: UsageRecorded, request_id: bytes, names: Names
    ) -> None:
        self.delivery = delivery
        self.index = index
        self.event = event
        self.request_id = request_id
        self.names = names
        self.row = b""

    def refused(self, reason: str) -> BadEvent:
        """Return what goes to the dead letters."""
        return BadEvent(self.index, reason, encode_event(self.event))


Refusals = dict[UsageDelivery, list[BadEvent]]


class UsageHandler:
    """Stores usage messages."""

    def __init__(
        self,
        pool: Pool,
        dimensions: Dimensions,
        settlement: Settlement,
        metrics: Metrics,
        *,
        retention_days: int,
        transaction_rows: int,
    ) -> None:
        self._pool = pool
        self._dimensions = dimensions
        self._settlement = settlement
        self._metrics = metrics
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
                records = self._admit(group, refusals)
                if records:
                    await self._store(connection, records, refusals)
        except Exception as error:  # noqa: BLE001 - whatever it is, the messages must come again
            return self._again(group, error)
        self._metrics.transaction_seconds.observe(time.perf_counter() - started)
        self._metrics.refused.inc(sum(map(len, refusals.values())))
        return {delivery: Done(tuple(refusals.get(delivery, ()))) for delivery in group}

    def _again(self, group: list[UsageDelivery], error: Exception) -> dict[UsageDelivery, Outcome]:
        reason = f"{type(error).__name__}: {error}"
        if is_unavailable(error) or is_transient(error):
            _log.warning("database away, messages come again", reason=reason, messages=len(group))
        else:
            _log.error("not stored, messages come again", reason=reason, messages=len(group), exc_info=error)
        self._metrics.retried.inc(len(group))
        return {delivery: Retry(reason) for delivery in group}

    def _admit(self, group: list[UsageDelivery], refusals: Refusals) -> list[Record]:
        """Return the records that can be stored, each once; put the others among the refusals."""
        window = policy.window_at(time.time_ns() // 1000, self._retention_days)
        admitted: dict[tuple[int, bytes], Record] = {}
        for delivery in group:
            may_hold_nul = policy.may_hold_nul(delivery.message.data)
            for index, item in enumerate(delivery.items):
                if isinstance(item, BadEvent):
                    refusals.setdefault(delivery, []).append(item)
                    continue
                record = self._record(delivery, index, item, window, may_hold_nul=may_hold_nul)
                if isinstance(record, str):
                    refusals.setdefault(delivery, []).append(BadEvent(index, record, encode_event(item)))
                else:
                    admitted.setdefault((item.started_at_us, record.request_id), record)
        return list(admitted.values())

    def _record(
        self, delivery: UsageDelivery, index: int, event: UsageRecorded, window: Window, *, may_hold_nul: bool
    ) -> Record | str:
        reason = policy.refusal(event, window)
        if reason is None and may_hold_nul and policy.has_nul(event):
            reason = "a string holds a NUL character"
        if reason is not None:
            return reason
        try:
            request_id = rows.identity(event.request_id)
        except ValueError:
            return "request_id is not a UUID"
        names = rows.names_of(event)
        if self._dimensions.get(names) is None:
            for name in names:
                if isinstance(name, str) and (reason := policy.name_refusal(name)) is not None:
                    return reason
        return Record(delivery, index, event, request_id, names)

    async def _store(self, connection: PoolConnection, records: list[Record], refusals: Refusals) -> None:
        """Store records in one transaction; find those that the database refuses."""
        await self._pack(connection, records)
        await self._make_partitions(connection, records)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with connection.transaction():
                    stored = await self._insert(connection, records)
                break
            except Exception as error:
                if is_data_error(error):
                    stored, records = await self._store_good(connection, records, refusals)
                    break
                if attempt == _ATTEMPTS or not (is_transient(error) or is_missing_partition(error)):
                    raise
                _log.info("transaction again", reason=type(error).__name__)
                if is_missing_partition(error):
                    self._days.clear()
                    await self._make_partitions(connection, records)
        self._metrics.stored.inc(stored)
        self._metrics.repeated.inc(len(records) - stored)

    async def _pack(self, connection: PoolConnection, records: list[Record]) -> None:
        """Give each record its row."""
        known = self._dimensions.get
        unknown = []
        for record in records:
            ids = known(record.names)
            if ids is None:
                unknown.append(record)
            else:
                record.row = rows.row(record.event, record.request_id, ids)
        if unknown:
            learned = await self._dimensions.learn(connection, {record.names for record in unknown})
            for record in unknown:
                record.row = rows.row(record.event, record.request_id, learned[record.names])

    async def _insert(self, connection: PoolConnection, records: list[Record]) -> int:
        details = [rows.detail(r.event, r.request_id) for r in records if rows.has_detail(r.event)]
        return await repository.insert(connection, rows.copy_body([r.row for r in records]), details)

    async def _store_good(
        self, connection: PoolConnection, records: list[Record], refusals: Refusals
    ) -> tuple[int, list[Record]]:
        """Store those that can be; return how many were new, and all that are stored now."""
        bad: dict[int, str] = {}

        async def store(part: list[Record]) -> int:
            try:
                async with connection.transaction():
                    await repository.empty_stage(connection)
                    return await self._insert(connection, part)
            except Exception as error:
                if not is_data_error(error):
                    raise
                if len(part) == 1:
                    bad[id(part[0])] = f"{type(error).__name__}: {error}"
                    return 0
            half = len(part) // 2
            return await store(part[:half]) + await store(part[half:])

        async with connection.transaction():
            stored = await store(records)
        for record in records:
            if (reason := bad.get(id(record))) is not None:
                refusals.setdefault(record.delivery, []).append(record.refused(reason))
        return stored, [record for record in records if id(record) not in bad]

    async def _make_partitions(self, connection: PoolConnection, records: list[Record]) -> None:
        days = {record.event.started_at_us // policy.US_PER_DAY for record in records}
        if days <= self._days:
            return
        made = await repository.make_partitions(connection, days - self._days)
        self._days |= days
        if made:
            self._metrics.partitions.inc(len(made))
            _log.info("partitions made", names=made)
