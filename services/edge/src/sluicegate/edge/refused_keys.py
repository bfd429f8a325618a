"""Refused authentications, added up by reason and address prefix, and published once a second. Never a key."""

import asyncio
import contextlib
import ipaddress
import time
from typing import Final

from nats.errors import Error

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import AuthFailed
from sluicegate.contracts.ids import new_id

_EVERY_S: Final = 1.0
_MAX_KINDS: Final = 500
_HEADERS: Final = {subjects.HEADER_SCHEMA: "auth.failed.v1"}


class RefusedKeys:
    """Counts refusals and publishes them while connected; beyond 500 kinds a second the address is left out."""

    def __init__(self, connection: Connection | None, edge_id: str) -> None:
        self._connection = connection
        self._edge_id = edge_id
        self._counts: dict[tuple[str, str], int] = {}

    def count(self, reason: str, address: str) -> None:
        """Count one refusal; `reason` is its error code."""
        kind = (reason, address)
        if kind not in self._counts and len(self._counts) >= _MAX_KINDS:
            kind = (reason, "")
        self._counts[kind] = self._counts.get(kind, 0) + 1

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.publish()

    async def publish(self) -> None:
        """Publish what was counted; while NATS is away it goes on adding up."""
        connection = self._connection
        if not self._counts or connection is None or not connection.is_connected:
            return
        counts, self._counts = self._counts, {}
        merged: dict[tuple[str, str], int] = {}
        for (reason, address), count in counts.items():
            kind = (reason, address_prefix(address))
            merged[kind] = merged.get(kind, 0) + count
        now_us = time.time_ns() // 1000
        events = [
            encode_event(
                AuthFailed(
                    event_id=new_id("evt"),
                    at_us=now_us,
                    reason=reason,
                    address_prefix=prefix,
                    count=count,
                    edge=self._edge_id,
                )
            )
            for (reason, prefix), count in merged.items()
        ]
        # The last two: the connection is lost in this very moment (uvloop's closed transports raise RuntimeError).
        with contextlib.suppress(Error, OSError, RuntimeError):
            await connection.publish(subjects.AUTH_FAILED, join_events(events), headers=dict(_HEADERS))


def address_prefix(address: str) -> str:
    """Return the network of an address, /24 or /48: enough to see where refusals come from."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(ipaddress.ip_network((parsed, 24 if parsed.version == 4 else 48), strict=False))
