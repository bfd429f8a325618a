"""The tail of a bucket's stream: every message after a start, in stream order and without a gap, or an end.

nats-py's own watcher is not used: it is deaf for 10 to 20 s after a server restart, skips entries of a
bucket that was made again, and loses what is dropped as "slow consumer". This tail never repairs itself.
It ends, says why, and whoever reads it starts over.

Mechanics: an ephemeral pull consumer without acknowledgements. One request at a time asks for a slice of
messages and lives `EXPIRES_S` at most, so
- a bulk read comes in slices, with a turn of the loop for others between any two of them;
- the server's "expired" every few seconds is the sign that the consumer still lives, and "no responders"
  or silence is the sign that it does not;
- the consumer keeps its place between requests, so renewing one loses nothing.
The consumer numbers what it delivers; a number left out is a message lost on the way.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import bucket_stream_name
from sluicegate.runtime.logs import get_logger

SLICE: Final = 128
EXPIRES_S: Final = 5.0
_SILENCE_S: Final = EXPIRES_S + 2.0
# How long the server keeps a consumer that nobody asks any more.
_INACTIVE_S: Final = 30.0
_EXPIRED_STATUSES: Final = ("404", "408")
_HEARTBEAT: Final = "100"
_ACK_TOKENS_WITHOUT_DOMAIN: Final = 9
# Set by the server on a marker that it placed itself, when the last message of a key aged out.
_MARKER_REASON: Final = "Nats-Marker-Reason"

_REQUEST: Final = msgspec.json.encode({"batch": SLICE, "expires": int(EXPIRES_S * 1e9)})
_log = get_logger(__name__)


class Change(NamedTuple):
    """One message. `value` None: the key was deleted. `pending`: messages that wait behind this one."""

    sequence: int
    at_ns: int
    key: str
    value: bytes | None
    pending: int


class StreamTail:
    """Reads from `start` (a stream sequence; None: the last message of each key, then all later ones).

    `on_change` and `on_idle` are plain functions called on the loop: for each message, and now and then when
    none waits. `ended` resolves, with the reason, when nothing more will come.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        start: int | None,
        on_change: Callable[[Change], None],
        on_idle: Callable[[], None],
    ) -> None:
        """Nothing happens before it is entered."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._stream = bucket_stream_name(bucket)
        self._prefix = f"$KV.{bucket}."
        self._start = start
        self._on_change = on_change
        self._on_idle = on_idle
        self._inbox = connection.new_inbox()
        self.subscription: Subscription | None = None
        self._consumer = ""
        self._delivered = 0
        self._left_in_slice = 0
        self._silence: asyncio.TimerHandle | None = None
        self.pending_at_start = 0

    async def __aenter__(self) -> Self:
        """Make the consumer and ask for the first slice; raises nats-py's errors."""
        info = await self._connection.jetstream(timeout=2.0).add_consumer(
            self._stream,
            ConsumerConfig(
                deliver_policy=DeliverPolicy.LAST_PER_SUBJECT
                if self._start is None
                else DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._start,
                filter_subject=f"{self._prefix}>",
                ack_policy=AckPolicy.NONE,
                inactive_threshold=_INACTIVE_S,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        self._consumer = info.name
        self.pending_at_start = info.num_pending or 0
        self.subscription = await self._connection.subscribe(self._inbox, cb=self._take)
        try:
            await self._ask()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let go of the consumer. Neither waits for an answer: the server forgets it by itself as well."""
        self.end("closed")
        try:
            if self.subscription is not None:
                await self.subscription.unsubscribe()
            if self._consumer and self._connection.is_connected:
                await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")
        except Error:
            pass

    def end(self, reason: str) -> None:
        """Deliver nothing more."""
        if self._silence is not None:
            self._silence.cancel()
        if not self.ended.done():
            self.ended.set_result(reason)

    async def _take(self, message: Msg) -> None:
        if self.ended.done():
            return
        try:
            if message.reply.startswith("$JS.ACK."):
                self._deliver(message)
                self._left_in_slice -= 1
            else:
                self._obey(message.headers or {})
            if self._left_in_slice <= 0 and not self.ended.done():
                await self._ask()
        except Exception as error:  # noqa: BLE001 - logged below
            # Nothing may leave this callback: nats-py would report it and go on with the next message.
            _log.exception("mirror tail failed", stream=self._stream)
            self.end(f"failed: {error}")

    def _deliver(self, message: Msg) -> None:
        # $JS.ACK.<stream>.<consumer>.<tries>.<stream seq>.<consumer seq>.<ns>.<pending>, or with
        # <domain>.<account> before the stream and a random token at the end.
        tokens = message.reply.split(".")
        first = 5 if len(tokens) == _ACK_TOKENS_WITHOUT_DOMAIN else 7
        sequence, delivered, at_ns, pending = map(int, tokens[first : first + 4])
        if delivered != self._delivered + 1:
            self.end(f"{delivered - self._delivered - 1} messages were lost on the way")
            return
        self._delivered = delivered
        value = None if message.headers and _is_deletion(message.headers) else message.data
        self._on_change(Change(sequence, at_ns, message.subject.removeprefix(self._prefix), value, pending))

    def _obey(self, headers: dict[str, str]) -> None:
        status = headers.get("Status", "")
        if status in _EXPIRED_STATUSES:
            self._left_in_slice = 0
            self._on_idle()
        elif status != _HEARTBEAT:
            self.end(f"the consumer is gone ({status} {headers.get('Description', '')})".rstrip())

    async def _ask(self) -> None:
        self._left_in_slice = SLICE
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(_SILENCE_S, self.end, "the server is silent")
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", _REQUEST, reply=self._inbox
        )


def _is_deletion(headers: dict[str, str]) -> bool:
    return headers.get("KV-Operation") in {"DEL", "PURGE"} or _MARKER_REASON in headers
