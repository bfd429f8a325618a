"""Commands to budget-alert: events on the bus, obeyed once however often they arrive."""

import time
from typing import Final

from nats.errors import Error
from pydantic import Field

from sluicegate.admin.errors import EventsUnavailableError
from sluicegate.admin.fields import Answer
from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import AlertsCommanded
from sluicegate.contracts.ids import new_id

_ANSWER_WITHIN_S: Final = 2.0
_SCHEMA: Final = "alerts.commanded.v1"


class Commanded(Answer):
    """A command that was handed over."""

    command: str = Field(
        description="Its id. `GET /api/deliveries?command=…` shows what came of it, as soon as it was begun.",
        examples=["evt_06f3k2m9v5w8x1y4z7a0b3c6d9"],
    )


class AlertCommands:
    """Hands commands over; raises EventsUnavailableError if that cannot be done now."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._js = connection.jetstream(timeout=_ANSWER_WITHIN_S)

    async def test(self, endpoint: str) -> str:
        """Send a test message to an endpoint; return the command's id."""
        return await self._publish(
            AlertsCommanded(event_id=new_id("evt"), at_us=_now_us(), verb="test", endpoint=endpoint)
        )

    async def replay(self, delivery: str) -> str:
        """Begin a delivery anew; return the command's id."""
        return await self._publish(
            AlertsCommanded(event_id=new_id("evt"), at_us=_now_us(), verb="replay", delivery=delivery)
        )

    async def _publish(self, command: AlertsCommanded) -> str:
        if not self._connection.is_connected:  # nats-py would keep it and send it late
            raise EventsUnavailableError
        try:
            await self._js.publish(
                subjects.ALERTS_COMMAND,
                join_events([encode_event(command)]),
                stream=subjects.ALERTS.name,
                headers={subjects.HEADER_MESSAGE_ID: command.event_id, subjects.HEADER_SCHEMA: _SCHEMA},
            )
        except (Error, TimeoutError):
            raise EventsUnavailableError from None
        return command.event_id


def _now_us() -> int:
    return time.time_ns() // 1_000
