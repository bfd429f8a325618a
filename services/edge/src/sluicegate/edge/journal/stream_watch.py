"""Watches whether the USAGE stream is still the one that acknowledged: a new one has forgotten everything."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog
from nats.errors import Error

from sluicegate.bus.connection import Connection

_log = structlog.get_logger("sluicegate.edge.journal.stream_watch")

CHECK_EVERY_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 2.0
_RETRY_AFTER_S: Final = 0.5


class StreamWatch:
    """Compares the stream's `created` on each reconnect and every few seconds.

    `generation` counts how often the stream was found to be another one; `seen` is set once it was
    found at all. Nothing may be published before: its acknowledgement would come from who knows whom.
    """

    def __init__(self, connection: Connection, stream: str, *, check_every_s: float = CHECK_EVERY_S) -> None:
        """Nothing happens before `run`."""
        self._connection = connection
        self._js = connection.jetstream(timeout=_ANSWER_TIMEOUT_S)
        self._stream = stream
        self._check_every_s = check_every_s
        self._created: datetime | None = None
        self._wake = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._asked = 0
        self._answered = 0
        self.seen = asyncio.Event()
        self.generation = 0

    async def run(self, on_changed: Callable[[], None]) -> None:
        """Watch until cancelled; `on_changed` is called after `generation` went up."""
        self._connection.on_connected(self._wake.set)
        while True:
            delay_s = self._check_every_s
            if self._connection.is_connected:
                asked = self._asked
                if await self._compare(on_changed):
                    self._answered = asked
                    self.seen.set()
                    self._confirmed.set()
                else:
                    delay_s = _RETRY_AFTER_S
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def confirm(self) -> None:
        """Return when a comparison that began after this call was answered, so that `generation` is of now."""
        self._asked += 1
        asked = self._asked
        self._wake.set()
        while self._answered < asked:
            self._confirmed.clear()
            await self._confirmed.wait()

    async def _compare(self, on_changed: Callable[[], None]) -> bool:
        try:
            created = (await self._js.stream_info(self._stream)).created
        except (Error, TimeoutError):
            return False
        if self._created is not None and created != self._created:
            self.generation += 1
            _log.warning("stream was made again, publishing all kept events", stream=self._stream)
            on_changed()
        self._created = created
        return True
