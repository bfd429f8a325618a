"""The edge of this room towards the bus. No SQL, no decisions."""

from typing import Final

from faststream.nats import NatsBroker

from sluicegate.budget_alert.handlers import AlertHandler
from sluicegate.bus.worker import BatchDecoder, subscribe_batches
from sluicegate.contracts.facts import AlertsCommanded, BudgetThresholdReached
from sluicegate.contracts.subjects import ALERT_COMMANDS, ALERT_WORKER

_MESSAGES_AT_ONCE: Final = 50
_FILL_S: Final = 0.1


def subscribe(broker: NatsBroker, handler: AlertHandler) -> None:
    """Add this room's subscribers to a broker."""
    subscribe_batches(
        broker,
        ALERT_WORKER,
        BatchDecoder(BudgetThresholdReached),
        handler.store,
        batch_messages=_MESSAGES_AT_ONCE,
        fill_s=_FILL_S,
    )
    subscribe_batches(
        broker,
        ALERT_COMMANDS,
        BatchDecoder(AlertsCommanded),
        handler.obey,
        batch_messages=_MESSAGES_AT_ONCE,
        fill_s=_FILL_S,
    )
