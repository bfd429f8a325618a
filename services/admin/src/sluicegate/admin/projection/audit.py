"""Publishes audit events, one message each: their subjects differ, and changes are rare."""

import asyncio
from collections.abc import Sequence
from typing import Final

from nats.errors import Error

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import ConfigurationChanged
from sluicegate.runtime.logs import get_logger

_ANSWER_WITHIN_S: Final = 2.0
_SCHEMA: Final = "configuration.changed.v1"
_log = get_logger(__name__)


class AuditPublisher:
    """Puts events into the AUDIT stream."""

    def __init__(self, connection: Connection) -> None:
        self._js = connection.jetstream(timeout=_ANSWER_WITHIN_S)

    async def publish(self, events: Sequence[ConfigurationChanged]) -> set[str]:
        """Publish; return the ids of the events that the stream has. An event may be published again."""
        results = await asyncio.gather(*(self._publish(event) for event in events), return_exceptions=True)
        published = set()
        for event, result in zip(events, results, strict=True):
            if result is None:
                published.add(event.event_id)
            elif not isinstance(result, Error | TimeoutError):
                raise result
        if len(published) < len(events):
            _log.warning("audit events wait for their stream", count=len(events) - len(published))
        return published

    async def _publish(self, event: ConfigurationChanged) -> None:
        await self._js.publish(
            f"{subjects.AUDIT}.{event.noun}.{event.verb}",
            join_events([encode_event(event)]),
            stream=subjects.AUDIT_STREAM.name,
            headers={subjects.HEADER_MESSAGE_ID: event.event_id, subjects.HEADER_SCHEMA: _SCHEMA},
        )
