"""What a message means: a threshold is stored with its deliveries, a command begins one."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import structlog

from sluicegate.budget_alert import policy, repository
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.bus.worker import BadEvent, Delivery, Done, Outcome, Retry, Settlement
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.facts import AlertsCommanded, BudgetThresholdReached
from sluicegate.store import transactions
from sluicegate.store.pool import Pool, PoolConnection

_log = structlog.get_logger("sluicegate.budget_alert.handlers")

E = TypeVar("E", bound=msgspec.Struct)
_NAME_CHARACTERS: Final = 200


class _BadEventError(Exception):
    """This event can never be taken."""


class AlertHandler:
    """Stores thresholds and obeys commands. Never raises: what cannot be done now comes again."""

    def __init__(self, pool: Pool, settlement: Settlement, metrics: Metrics, on_stored: Callable[[], None]) -> None:
        """`on_stored` is called when there may be something to deliver."""
        self._pool = pool
        self._settlement = settlement
        self._metrics = metrics
        self._on_stored = on_stored

    async def store(self, deliveries: list[Delivery[BudgetThresholdReached]]) -> None:
        """Store thresholds, each once, however often it comes."""
        for delivery in deliveries:
            await self._settlement.settle(delivery, await self._outcome(delivery, self._store))

    async def obey(self, deliveries: list[Delivery[AlertsCommanded]]) -> None:
        """Obey commands, each once, however often it comes."""
        for delivery in deliveries:
            await self._settlement.settle(delivery, await self._outcome(delivery, self._obey))

    async def _outcome(self, delivery: Delivery[E], handle: Callable[[E], Awaitable[None]]) -> Outcome:
        bad: list[BadEvent] = []
        for index, item in enumerate(delivery.items):
            if isinstance(item, BadEvent):
                bad.append(item)
                continue
            try:
                await handle(item)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is an outcome
                if not isinstance(error, _BadEventError) and not transactions.is_data_error(error):
                    return self._again(error)
                bad.append(BadEvent(index, str(error), encode_event(item)))
        return Done(tuple(bad))

    def _again(self, error: Exception) -> Retry:
        reason = f"{type(error).__name__}: {error}"
        if transactions.is_unavailable(error) or transactions.is_transient(error):
            _log.warning("database away, message comes again", reason=reason)
        else:
            _log.error("not stored, message comes again", reason=reason, exc_info=error)
        return Retry(reason)

    async def _store(self, event: BudgetThresholdReached) -> None:
        if (reason := policy.refusal(event)) is not None:
            raise _BadEventError(reason)
        stored = await transactions.run(self._pool, lambda connection: repository.store_alert(connection, event))
        if stored is None:
            self._metrics.repeated.inc()
            return
        self._metrics.stored.inc()
        _log.info("threshold stored", event_id=event.event_id, deliveries=stored)
        self._on_stored()

    async def _obey(self, command: AlertsCommanded) -> None:
        async def work(connection: PoolConnection) -> bool:
            if command.verb == "test" and command.endpoint:
                return await repository.add_test(connection, command.endpoint, command.event_id)
            if command.verb == "replay" and command.delivery:
                return await repository.replay(connection, command.delivery, command.event_id)
            raise _BadEventError("the command names nothing to do it with")

        texts = (command.event_id, command.endpoint or "", command.delivery or "")
        if any("\0" in text or len(text) > _NAME_CHARACTERS for text in texts):
            raise _BadEventError("a text of the command is not an id")
        if not await transactions.run(self._pool, work):
            raise _BadEventError(f"there is nothing to {command.verb} under this id")
        _log.info("command obeyed", verb=command.verb, endpoint=command.endpoint, delivery=command.delivery)
        self._on_stored()
