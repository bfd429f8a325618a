"""Publishing to JetStream with our own acknowledgements.

nats-py's `publish_async` keeps a future whose acknowledgement was lost in a disconnect for ever, and
its place among the pending ones with it; `js.publish` costs three times as much. So: one subscription
to `<inbox>.*`, each message carries `<inbox>.<n>` as its reply subject, and the deadline is ours.

Rules:
- A message is sent only while connected (nats-py would buffer it and send it late).
- Unanswered, it is sent again with the same bytes and headers, so with the same `Nats-Msg-Id`: within
  the stream's window the server then acknowledges a duplicate. Who gives no such header may see doubles.
- Every way out of `publish` gives its slot back: acknowledged, refused, out of time, cancelled.
"""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error, MaxPayloadError, OutboundBufferLimitError

from sluicegate.bus.connection import Connection

ACK_TIMEOUT_S: Final = 2.0
MAX_IN_FLIGHT: Final = 256
_REFUSED_WAIT_S: Final = 0.25
_NO_RESPONDERS: Final = "503"


class Ack(msgspec.Struct, frozen=True):
    """The server's answer: stored in `stream` as `seq`, or known there already."""

    stream: str
    seq: int
    duplicate: bool = False


class PublishError(Exception):
    """The message was not acknowledged. `reason`: why the last attempt failed."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject}: {reason}")
        self.subject = subject
        self.reason = reason


class MessageTooLargeError(PublishError):
    """The server's `max_payload` is below this message: no retry will help."""


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Refusal | None = None


_Outcome = Ack | _Refusal | None  # None: no answer, or none worth waiting for any longer
_NO_STREAM: Final = _Refusal(code=503, description="no stream takes this subject")
_decode = msgspec.json.Decoder(_Answer).decode


class _Message:
    """What is sent, and why the last attempt at it failed."""

    __slots__ = ("failure", "headers", "payload", "reply", "subject")

    def __init__(self, subject: str, payload: bytes, headers: dict[str, str], reply: str) -> None:
        self.subject = subject
        self.payload = payload
        self.headers = headers
        self.reply = reply
        self.failure = "not connected"


class AckedPublisher:
    """Publishes and waits for the stream's acknowledgement, at most `max_in_flight` messages at once.

    Made for a connection that need not be there yet. Counters are plain integers for metrics.
    """

    def __init__(
        self, connection: Connection, *, max_in_flight: int = MAX_IN_FLIGHT, ack_timeout_s: float = ACK_TIMEOUT_S
    ) -> None:
        """Nothing is sent or subscribed before the first `publish`."""
        self._connection = connection
        self._slots = asyncio.Semaphore(max_in_flight)
        self._ack_timeout_s = ack_timeout_s
        self._inbox = connection.new_inbox()
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[_Outcome]] = {}
        self._subscription: Subscription | None = None
        self._subscribing = asyncio.Lock()
        self.acked_count = 0
        self.duplicate_count = 0
        self.refused_count = 0
        self.unanswered_count = 0
        connection.on_connected(self._on_connected)

    @property
    def connection(self) -> Connection:
        """The connection that is published on."""
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Whether a message would be sent now, rather than wait."""
        return self._connection.is_connected

    @property
    def in_flight(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self._pending)

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, deadline_s: float | None = None
    ) -> Ack:
        """Send until acknowledged, for at most `deadline_s` seconds (None: for ever, until cancelled).

        Raises `PublishError` when the time is up (the message may have been stored all the same) and
        `MessageTooLargeError` at once.
        """
        number = str(next(self._numbers))
        message = _Message(subject, payload, dict(headers or {}), f"{self._inbox}.{number}")
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                return await self._send_until_acked(number, message)
        except TimeoutError:
            raise PublishError(subject, message.failure) from None

    async def close(self) -> None:
        """Unsubscribe. Messages in flight are not waited for."""
        if self._subscription is not None and not self._connection.is_closed:
            await self._subscription.unsubscribe()
        self._subscription = None

    async def _send_until_acked(self, number: str, message: _Message) -> Ack:
        try:
            while True:
                outcome = await self._attempt(number, message)
                if isinstance(outcome, Ack):
                    self.acked_count += 1
                    self.duplicate_count += outcome.duplicate
                    return outcome
                if outcome is not None:
                    # A full stream, a stream not made yet, a cluster without leader: all may pass.
                    self.refused_count += 1
                    message.failure = f"refused: {outcome.description} ({outcome.err_code or outcome.code})"
                    await asyncio.sleep(_REFUSED_WAIT_S)
        finally:
            self._pending.pop(number, None)

    async def _attempt(self, number: str, message: _Message) -> _Outcome:
        # The number stays the same over all attempts: a late answer to an earlier one is as good.
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Outcome] = loop.create_future()
        self._pending[number] = answer
        if not self._connection.is_connected:
            return await answer
        await self._send(message)
        timer = loop.call_later(self._ack_timeout_s, self._give_up, answer, message)
        try:
            return await answer
        finally:
            timer.cancel()

    def _give_up(self, answer: asyncio.Future[_Outcome], message: _Message) -> None:
        self.unanswered_count += 1
        message.failure = "not answered"
        _wake(answer)

    async def _send(self, message: _Message) -> None:
        try:
            if self._subscription is None:
                await self._subscribe()
            await self._connection.publish(
                message.subject, message.payload, reply=message.reply, headers=message.headers
            )
        except MaxPayloadError as error:
            reason = f"{len(message.payload)} bytes are too many for the server"
            raise MessageTooLargeError(message.subject, reason) from error
        except (OutboundBufferLimitError, OSError, RuntimeError) as error:
            # Lost in this very moment (uvloop's closed transports raise RuntimeError); the reconnect wakes us.
            message.failure = f"not connected: {error}"
        except Error as error:
            raise PublishError(message.subject, str(error)) from error

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscription is None:
                self._subscription = await self._connection.subscribe(f"{self._inbox}.*", cb=self._on_answer)

    async def _on_answer(self, message: Msg) -> None:
        answer = self._pending.get(message.subject.rpartition(".")[2])
        if answer is None or answer.done():
            return
        answer.set_result(_parse(message))

    def _on_connected(self) -> None:
        # What was in flight is sent again at once: its acknowledgement went down with the connection.
        for answer in self._pending.values():
            _wake(answer)


def _wake(answer: asyncio.Future[_Outcome]) -> None:
    if not answer.done():
        answer.set_result(None)


def _parse(message: Msg) -> Ack | _Refusal:
    if not message.data:
        status = (message.headers or {}).get("Status", "")
        return _NO_STREAM if status == _NO_RESPONDERS else _Refusal(description=f"empty answer, status {status!r}")
    try:
        answer = _decode(message.data)
    except msgspec.MsgspecError as error:
        return _Refusal(description=f"unreadable answer: {error}")
    if answer.error is not None:
        return answer.error
    return Ack(answer.stream, answer.seq, answer.duplicate)
