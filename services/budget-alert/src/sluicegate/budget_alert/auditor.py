"""Compares each budget's meter with what was really spent, and repairs it.

A process that was killed leaves on a meter what it held, and takes with it what it had not yet sent; its journal brings
the spend to PostgreSQL later, by way of another process. So every 30 s, in this order:

1. `is_complete`: usage-writer has stored all that was in the stream one run ago;
2. what PostgreSQL knows to be spent, asked of usage-writer;
3. the store's time;
4. ten seconds in which live processes sync, by which they show how far they have reported;
5. the script of the ledger, which folds dead records and corrects upwards (PostgreSQL was read first, so what it has
   more is missing for sure) and, where nothing moves, downwards.

The order is the proof, so nothing here may be reordered or overlapped. While usage-writer is behind, a meter is
compared with nothing: dead records are folded all the same. Any number of auditors do no harm: the difference is taken
in the script.

The auditor is also the second finder of thresholds: an edge may die between spending and telling.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import asyncpg
import msgspec
import structlog

from sluicegate.budget_alert import repository
from sluicegate.budget_alert.meters import BudgetMeter, audited_meters
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.bus.acked_publisher import AckedPublisher, PublishError
from sluicegate.contracts.budgets import NO_TENANT, threshold_event, thresholds_reached
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import BudgetThresholdReached, SpentQuestion
from sluicegate.contracts.subjects import BUDGET_THRESHOLD, HEADER_MESSAGE_ID, HEADER_SCHEMA
from sluicegate.ledger.meters import ONE_TAG
from sluicegate.ledger.store import Audit, StoreError
from sluicegate.store.pool import Pool

_log = structlog.get_logger("sluicegate.budget_alert.auditor")

EVERY_S: Final = 30.0
WAIT_S: Final = 10.0
_QUESTIONS_AT_ONCE: Final = 8
_AUDITS_AT_ONCE: Final = 16
_PUBLISH_DEADLINE_S: Final = 10.0


class Store(Protocol):
    """What the auditor needs of the ledger's store."""

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit: ...

    async def now_ms(self, tag: str) -> int: ...


class Present(Protocol):
    """Tells which meters are there."""

    async def of(self, meters: Sequence[BudgetMeter]) -> list[BudgetMeter]: ...


class Spent(Protocol):
    """What usage-writer knows."""

    async def spent(self, question: SpentQuestion) -> int | None: ...

    async def has_caught_up(self) -> bool: ...


class Finding(msgspec.Struct, frozen=True):
    """What is known of a meter after a run: in PostgreSQL, and on the meter; None: not known."""

    meter: BudgetMeter
    recorded: int | None
    total: int | None


class Auditor:
    """Audits all budget meters, again and again."""

    def __init__(
        self,
        pool: Pool,
        store: Store,
        present: Present,
        spending: Spent,
        publisher: AckedPublisher,
        metrics: Metrics,
        *,
        every_s: float = EVERY_S,
        wait_s: float = WAIT_S,
    ) -> None:
        """Nothing happens before `run` or `audit`."""
        self._pool = pool
        self._store = store
        self._present = present
        self._spending = spending
        self._publisher = publisher
        self._metrics = metrics
        self._every_s = every_s
        self._wait_s = wait_s

    async def run(self) -> None:
        """Audit until cancelled. Each process does: two do no harm, and none is waited for."""
        while True:
            started = time.monotonic()
            try:
                await self.audit()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.warning("audit failed", reason=f"{type(error).__name__}: {error}")
            except Exception:  # noqa: BLE001 - the next audit may succeed, and alerts depend on this loop
                _log.exception("audit failed in an unforeseen way")
            await asyncio.sleep(max(0.0, started + self._every_s - time.monotonic()))

    async def audit(self) -> list[Finding]:
        """Do one run. Raises asyncpg's errors and OSError when PostgreSQL is away."""
        is_complete = await self._spending.has_caught_up()
        async with self._pool.acquire() as connection:
            budgets = await repository.enabled_budgets(connection)
        meters = audited_meters(budgets, _now_us())
        try:
            findings = await self._compare(await self._present.of(meters), is_complete=is_complete)
        except StoreError as error:
            # Nothing to repair, and the edges share what was left: thresholds are found from the records alone.
            _log.warning("meters cannot be read", reason=str(error))
            findings = [Finding(meter, recorded, None) for meter, recorded in await self._recorded(meters)]
        else:
            self._metrics.last_audit.set_to_current_time()
        await self._tell(findings)
        return findings

    async def _compare(self, meters: Sequence[BudgetMeter], *, is_complete: bool) -> list[Finding]:
        if not meters:
            self._measure([])
            return []
        recorded = await self._recorded(meters)
        read_at_ms = await self._store.now_ms(ONE_TAG)
        await asyncio.sleep(self._wait_s)
        limit = asyncio.Semaphore(_AUDITS_AT_ONCE)

        async def compare(meter: BudgetMeter, spent: int | None) -> Finding:
            async with limit:
                audit = await self._store.audit(
                    ONE_TAG,
                    meter.name,
                    spent or 0,
                    read_at_ms,
                    is_complete=is_complete and spent is not None,
                )
            self._count(meter, audit, spent)
            return Finding(meter, spent, audit.total if audit.state == "OK" else None)

        findings = await asyncio.gather(*(compare(meter, spent) for meter, spent in recorded))
        self._measure(findings)
        return findings

    async def _recorded(self, meters: Iterable[BudgetMeter]) -> list[tuple[BudgetMeter, int | None]]:
        """Return what the records say was spent on each."""
        limit = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

        async def ask(meter: BudgetMeter) -> tuple[BudgetMeter, int | None]:
            async with limit:
                return meter, await self._spending.spent(meter.question)

        return await asyncio.gather(*map(ask, meters))

    def _count(self, meter: BudgetMeter, audit: Audit, spent: int | None) -> None:
        self._metrics.audited.inc()
        if spent is None:
            self._metrics.unknown.inc()
        if audit.state == "BUSY":
            self._metrics.busy.inc()
        if audit.correction:
            self._metrics.repaired.labels("up" if audit.correction > 0 else "down").inc(abs(audit.correction))
            _log.info("meter repaired", meter=meter.name, correction=audit.correction, total=audit.total)

    def _measure(self, findings: Sequence[Finding]) -> None:
        self._metrics.busy_last_run.set(sum(finding.total is None for finding in findings))
        self._metrics.drift.set(
            sum(
                finding.total - finding.recorded
                for finding in findings
                if finding.total is not None and finding.recorded is not None
            )
        )

    async def _tell(self, findings: Iterable[Finding]) -> None:
        """Publish the thresholds that are reached and that no alert tells of yet."""
        events = [event for finding in findings for event in _thresholds(finding)]
        if not events:
            return
        async with self._pool.acquire() as connection:
            known = await repository.known_alerts(connection, [event.event_id for event in events])
        for event in events:
            if event.event_id in known:
                continue
            try:
                await self._publisher.publish(
                    f"{BUDGET_THRESHOLD}.{event.tenant or NO_TENANT}",
                    join_events([encode_event(event)]),
                    {HEADER_MESSAGE_ID: event.event_id, HEADER_SCHEMA: "budget.threshold.v1"},
                    deadline_s=_PUBLISH_DEADLINE_S,
                )
            except PublishError as error:
                _log.warning("threshold not published, the next audit tries again", reason=str(error))
                return
            self._metrics.found.inc()


def _thresholds(finding: Finding) -> list[BudgetThresholdReached]:
    meter, spent = finding.meter, max(finding.total or 0, finding.recorded or 0)
    return [
        threshold_event(
            meter.budget,
            meter.tenant,
            (meter.start_us, meter.end_us),
            percent,
            spent_nano_usd=spent,
            at_us=_now_us(),
        )
        for percent in thresholds_reached(meter.budget, spent)
    ]


def _now_us() -> int:
    return time.time_ns() // 1000
