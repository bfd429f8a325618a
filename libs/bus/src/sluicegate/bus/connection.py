"""The connection to NATS: one that comes back by itself, for ever, and tells who wants to know.

Nothing here knows streams or events. The defaults of nats-py that would break that promise
(it gives up after 60 attempts, notices a dead peer after six minutes, prints a traceback for each
failed attempt, closes for good on most protocol errors) are changed in this file only.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import urlsplit

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError
from nats.protocol.parser import PERMISSIONS_ERR

_log = structlog.get_logger("sluicegate.bus.connection")

PING_INTERVAL_S: Final = 2
RECONNECT_WAIT_S: Final = 0.2
_COMPLAIN_EVERY_S: Final = 10.0


def connect_options() -> dict[str, Any]:
    """Return the keyword arguments that every NATS connection of ours uses, FastStream's included."""
    return {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "connect_timeout": 2,
        # A dead peer without FIN is noticed after two unanswered pings, so in about 6 s.
        "ping_interval": PING_INTERVAL_S,
        "max_outstanding_pings": 2,
    }


class Connection(Client):
    """A NATS client that never gives up.

    Listeners are plain functions called on the loop: they must not block or raise; let them set an
    event or start a task.
    """

    def __init__(self, name: str) -> None:
        """Make an unconnected client; `name` shows up in the server's monitoring."""
        super().__init__()
        self.name = name
        self.is_open = False
        self._connected_listeners: list[Callable[[], None]] = []
        self._error_listeners: list[Callable[[Exception], None]] = []
        self._complain_at = 0.0
        self._quiet_failures = 0

    def on_connected(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time a connection was made, the first included."""
        self._connected_listeners.append(listener)

    def on_error(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` with each error that nats-py reports, such as `SlowConsumerError`."""
        self._error_listeners.append(listener)

    async def open(self, url: str) -> Self:
        """Connect; waits as long as the server is away. Run it as a task where that must not matter."""
        await self.connect(
            servers=url.split(","),
            name=self.name,
            error_cb=self._report_error,
            disconnected_cb=self._report_disconnect,
            reconnected_cb=self._report_reconnect,
            **connect_options(),
        )
        self.is_open = True
        _log.info("nats connected", name=self.name, server=_without_password(url))
        self._tell_connected()
        return self

    # nats-py swallows a cancellation in two places: `request` when it meets the answer (it uses
    # `asyncio.wait_for`, which did that before Python 3.12), `publish` while its buffer is full.
    # A loop around them would run on for ever, and whoever ended it would wait as long.

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - the parent's signature
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Ask and wait for the answer, as in nats-py, whose JetStream calls all end here."""
        cancelled_before = _cancelled_count()
        answer = await super().request(subject, payload, timeout, old_style, headers)
        if _cancelled_count() > cancelled_before:
            raise asyncio.CancelledError
        return answer

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        """Send a message, as in nats-py."""
        cancelled_before = _cancelled_count()
        await super().publish(subject, payload, reply, headers)
        if _cancelled_count() > cancelled_before:
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Close. What is still to be sent while the server is away is dropped."""
        if not self.is_connected:
            # nats-py would write it to the transport that was lost, and uvloop raises for that.
            self._pending = []
            self._pending_data_size = 0
        await super().close()

    async def _process_err(self, err_msg: str) -> None:
        # nats-py closes the client for good on every `-ERR` but two, e.g. when the server has too
        # many connections just now. Coming back is right in all these cases.
        if PERMISSIONS_ERR in err_msg.lower():
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(Error(f"nats: {err_msg}"))

    async def _report_reconnect(self) -> None:
        self._complain_at = 0.0
        _log.info("nats reconnected", name=self.name, failures=self._quiet_failures)
        self._quiet_failures = 0
        self._tell_connected()

    async def _report_disconnect(self) -> None:
        if self.is_open and not self.is_closed:
            _log.warning("nats connection lost", name=self.name)

    async def _report_error(self, error: Exception) -> None:
        for listener in self._error_listeners:
            listener(error)
        now = time.monotonic()
        is_slow_consumer = isinstance(error, SlowConsumerError)
        if now < self._complain_at and not is_slow_consumer:
            self._quiet_failures += 1
            return
        self._complain_at = now + _COMPLAIN_EVERY_S
        _log.warning("nats error", name=self.name, error=str(error) or type(error).__name__)

    def _tell_connected(self) -> None:
        for listener in self._connected_listeners:
            listener()


async def connect(url: str, *, name: str, on_reconnected: Callable[[], None] | None = None) -> Connection:
    """Return an open connection to `url` (several servers: comma-separated).

    Waits for the first connection until it is there or the caller is cancelled. `on_reconnected` is
    called on the loop after each later connection.
    """
    connection = Connection(name)
    try:
        await connection.open(url)
    except asyncio.CancelledError:
        await connection.close()
        raise
    if on_reconnected is not None:
        connection.on_connected(on_reconnected)
    return connection


def _cancelled_count() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _without_password(url: str) -> str:
    return ",".join(part.netloc.rpartition("@")[2] for part in map(urlsplit, url.split(",")))
