"""Refused keys go on being counted and published, whatever becomes of the connection."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from nats.errors import ConnectionClosedError

from sluicegate.bus.connection import Connection
from sluicegate.contracts.facts import AuthFailed
from sluicegate.edge import refused_keys
from sluicegate.edge.refused_keys import RefusedKeys


class Bus:
    """A connection whose first message is lost."""

    is_connected = True

    def __init__(self, error: Exception) -> None:
        self._errors = [error]
        self.published: asyncio.Queue[bytes] = asyncio.Queue()

    async def publish(self, _subject: str, payload: bytes, **_: Any) -> None:
        if self._errors:
            raise self._errors.pop()
        self.published.put_nowait(payload)


@pytest.mark.parametrize(
    "error", [ConnectionClosedError(), OSError("broken pipe"), RuntimeError("the transport is closed")], ids=repr
)
async def test_refusals_are_published_after_one_that_could_not_be(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_keys, "_EVERY_S", 0.001)
    bus = Bus(error)
    keys = RefusedKeys(cast(Connection, bus), "edge_1")
    keys.count("invalid_key", "192.0.2.7")
    publishing = asyncio.create_task(keys.run())
    while bus._errors:
        await asyncio.sleep(0)
    keys.count("missing_key", "192.0.2.7")
    async with asyncio.timeout(5):
        [told] = msgspec.json.decode(await bus.published.get(), type=list[AuthFailed])
    assert (told.reason, told.address_prefix, told.count) == ("missing_key", "192.0.2.0/24", 1)
    publishing.cancel()
