"""Tells the bus when a budget's spend reaches a threshold: once per process, period and threshold, until acknowledged.

An edge is one finder of several. All give the event the same id, and a row in PostgreSQL makes it one alert; what
cannot be published now is found again with the meter's next answer, or by the auditor.
"""

import asyncio
import time
from typing import Final
from weakref import WeakKeyDictionary

from sluicegate.bus.acked_publisher import AckedPublisher, PublishError
from sluicegate.contracts.budgets import EXHAUSTED_PERCENT, NO_TENANT, threshold_event, thresholds_reached
from sluicegate.contracts.catalogue import Budget
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import BudgetThresholdReached
from sluicegate.contracts.subjects import BUDGET_THRESHOLD, HEADER_MESSAGE_ID, HEADER_SCHEMA
from sluicegate.ledger.meters import Meter
from sluicegate.runtime.logs import get_logger

_DEADLINE_S: Final = 10.0
# From here on a refusal for good says that the budget is at its end.
_NEARLY_EXHAUSTED_PERCENT: Final = 80
_log = get_logger(__name__)


class _Watched:
    """A budget's meter, and which of its thresholds are told or being told."""

    __slots__ = ("budget", "tenant", "told")

    def __init__(self, budget: Budget, tenant: str | None) -> None:
        self.budget = budget
        self.tenant = tenant
        self.told: set[tuple[int, int]] = set()


class Thresholds:
    """What one process has told about budgets. Without a publisher it tells nobody (tests)."""

    def __init__(self, publisher: AckedPublisher | None) -> None:
        self._publisher = publisher
        self._watched: WeakKeyDictionary[Meter, _Watched] = WeakKeyDictionary()
        self._publishing: set[asyncio.Task[None]] = set()

    def watch(self, meter: Meter, budget: Budget, tenant: str | None) -> None:
        """Know whose spend a meter counts; called again whenever its budget may have changed."""
        known = self._watched.get(meter)
        if known is None:
            self._watched[meter] = _Watched(budget, tenant)
        else:
            known.budget = budget

    def on_spent(self, meter: Meter, spent_nano_usd: int) -> None:
        """The store has said what was spent."""
        watched = self._watched.get(meter)
        if watched is not None:
            for percent in thresholds_reached(watched.budget, spent_nano_usd):
                self._tell(meter, watched, percent, spent_nano_usd)

    def on_exhausted(self, meter: Meter) -> None:
        """A request was refused for good. A hard budget rarely reaches 100 % to the last nano-dollar: this counts.

        Not while much is left: then the request was too large, and the period's one alert would be spent on it.
        """
        watched = self._watched.get(meter)
        if watched is None or EXHAUSTED_PERCENT not in watched.budget.thresholds_percent:
            return
        spent_nano_usd = meter.spent or 0
        if spent_nano_usd * 100 >= watched.budget.limit_nano_usd * _NEARLY_EXHAUSTED_PERCENT:
            self._tell(meter, watched, EXHAUSTED_PERCENT, spent_nano_usd)

    async def close(self, timeout_s: float) -> None:
        """Wait for what is being published."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=timeout_s)

    def _tell(self, meter: Meter, watched: _Watched, percent: int, spent_nano_usd: int) -> None:
        # With another limit the same threshold is another one here; the alert is one all the same.
        mark = (percent, watched.budget.limit_nano_usd)
        if mark in watched.told or self._publisher is None:
            return
        watched.told.add(mark)
        event = threshold_event(
            watched.budget,
            watched.tenant,
            (meter.start_us, meter.end_us),
            percent,
            spent_nano_usd=spent_nano_usd,
            at_us=time.time_ns() // 1000,
        )
        task = asyncio.get_running_loop().create_task(self._publish(self._publisher, event, watched, mark))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    @staticmethod
    async def _publish(
        publisher: AckedPublisher, event: BudgetThresholdReached, watched: _Watched, mark: tuple[int, int]
    ) -> None:
        try:
            await publisher.publish(
                f"{BUDGET_THRESHOLD}.{event.tenant or NO_TENANT}",
                join_events([encode_event(event)]),
                {HEADER_MESSAGE_ID: event.event_id, HEADER_SCHEMA: "budget.threshold.v1"},
                deadline_s=_DEADLINE_S,
            )
        except PublishError as error:
            watched.told.discard(mark)
            _log.warning("a budget's threshold could not be told yet", event_id=event.event_id, reason=error.reason)
