"""What workers on FastStream share: decoding, the one mapping from outcomes to acknowledgements, dead letters.

FastStream delivers batches of messages, a message is an array of events. Its own failure handling is
not used: a decoder that raises fails every message beside the bad one, and none of its policies does
what we promise (retry what is away, keep what is bad, lose nothing). So here

- the decoder never raises: a bad event becomes a `BadEvent` in its place;
- a handler says for each message *done* (with the events it could not take), *retry* or *never*;
- `Settlement.settle` alone acknowledges: dead letters first, acknowledged by their stream, then the ack.

No room's facts live here.
"""

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import Error as JetStreamError
from opentelemetry.trace import Link, SpanContext, TraceFlags

from sluicegate.bus.acked_publisher import AckedPublisher, PublishError
from sluicegate.bus.connection import Connection, connect_options
from sluicegate.bus.declaration import Declarations
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import DeadLettered
from sluicegate.contracts.ids import new_id
from sluicegate.contracts.subjects import DEADLETTER, HEADER_MESSAGE_ID, HEADER_SCHEMA, Consumer

_log = structlog.get_logger("sluicegate.bus.worker")

E = TypeVar("E", bound=msgspec.Struct)

# Base64 makes 4/3 of it, and a server takes 1 MiB unless told otherwise.
MAX_DEAD_PAYLOAD_BYTES: Final = 512 * 1024
_MAX_REASON_CHARACTERS: Final = 500
_DEADLETTER_DEADLINE_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.5
_RETRY_MOST_S: Final = 15.0
_RESTART_AFTER_S: Final = 1.0
_WATCH_EVERY_S: Final = 1.0
_START_TIMEOUT_S: Final = 10.0
_SHORTEST_FETCH_S: Final = 0.001  # nats-py takes 0.1 ms off, and the server refuses what is not above 0
_PAUSE_AFTER_REFUSAL_S: Final = 0.2
_JSON_SPACE: Final = b" \t\r\n"
_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_TRACEPARENT: Final = "traceparent"


class BadEvent(msgspec.Struct, frozen=True):
    """An event that cannot be taken. `index`: its place in the message; `payload`: its own bytes."""

    index: int
    reason: str
    payload: bytes


class Delivery(Generic[E]):
    """One message: its events in order, a `BadEvent` where one could not be decoded."""

    __slots__ = ("is_clean", "items", "message", "sequence")

    def __init__(self, message: Msg, sequence: int, items: list[E | BadEvent], *, is_clean: bool) -> None:
        self.message = message
        self.sequence = sequence
        self.items = items
        self.is_clean = is_clean

    @property
    def stream(self) -> str:
        """The stream the message lies in."""
        return self.message.metadata.stream

    @property
    def attempt(self) -> int:
        """How often it has been delivered, this time included."""
        return self.message.metadata.num_delivered


class Done(msgspec.Struct, frozen=True):
    """Handled. `bad`: the events that never can be; they go to the dead letters."""

    bad: tuple[BadEvent, ...] = ()


class Retry(msgspec.Struct, frozen=True):
    """Something else is away: deliver again later, however often. `delay_s` None: longer each time."""

    reason: str
    delay_s: float | None = None


class Never(msgspec.Struct, frozen=True):
    """The message as a whole can never be handled."""

    reason: str


Outcome = Done | Retry | Never


def split_array(body: bytes) -> list[bytes] | None:
    """Return the elements of a JSON array as they stand there, None if it is no array.

    For messages that did not decode. `list[msgspec.Raw]` is not enough there: one lone surrogate or one
    very deep value, anywhere, and it refuses the whole array, the good events beside it included. Only
    brackets and strings are looked at, so an element may be anything but unbalanced.
    """
    body = body.strip(_JSON_SPACE)
    if body[:1] != b"[" or body[-1:] != b"]":
        return None
    parts, depth, start = [], 0, 1
    for token in _JSON_TOKEN.finditer(body):
        mark = token[0]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
        if (depth == 1 and mark == b",") or depth == 0:
            parts.append(body[start : token.start()].strip(_JSON_SPACE))
            start = token.end()
        if depth == 0:
            break
    if depth or start != len(body):
        return None
    return [] if parts == [b""] else parts


class BatchDecoder(Generic[E]):
    """Turns message bodies into events of one type. `decode` is what FastStream is given."""

    def __init__(self, event_type: type[E]) -> None:
        self._whole = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(event_type)

    async def decode(self, batch: Any) -> list[Delivery[E]]:
        """Return one delivery per message of a FastStream batch."""
        return [self.delivery(message) for message in batch.raw_message]

    def delivery(self, message: Msg) -> Delivery[E]:
        """Decode one message. Never raises for what a body may hold."""
        items = self.items(message.data)
        is_clean = not any(type(item) is BadEvent for item in items)
        return Delivery(message, message.metadata.sequence.stream, items, is_clean=is_clean)

    def items(self, body: bytes) -> list[E | BadEvent]:
        """Return the events of a body, a `BadEvent` in the place of each that does not decode."""
        try:
            return self._whole.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        parts = split_array(body)
        if parts is None:
            return [BadEvent(0, "not an array of events", body)]
        return [self._item(index, part) for index, part in enumerate(parts)]

    def _item(self, index: int, part: bytes) -> E | BadEvent:
        try:
            return self._one.decode(part)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return BadEvent(index, str(error), part)


class Settlement:
    """Maps outcomes to acknowledgements, in one place for all workers."""

    def __init__(self, publisher: AckedPublisher, room: str) -> None:
        """Dead letters leave through `publisher` and name `room`."""
        self._publisher = publisher
        self._room = room
        self.dead_count = 0

    async def settle(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        """Acknowledge a message as its outcome asks. Never raises for a NATS outage: then it comes again."""
        match outcome:
            case Done(bad=bad):
                pass
            case Never(reason=reason):
                bad = (BadEvent(0, reason, delivery.message.data),)
            case Retry(delay_s=delay_s):
                await self._nak(delivery, delay_s)
                return
        try:
            for event in bad:
                await self._bury(delivery, event)
        except PublishError as error:
            _log.warning("dead letter not published", reason=str(error), sequence=delivery.sequence)
            await self._nak(delivery, None)
            return
        try:
            await delivery.message.ack()
        except NatsError as error:
            _log.warning("ack not sent", reason=str(error), sequence=delivery.sequence)

    async def _nak(self, delivery: Delivery[Any], delay_s: float | None) -> None:
        if delay_s is None:
            delay_s = min(_RETRY_MOST_S, _RETRY_FIRST_S * 2 ** min(delivery.attempt - 1, 10))
        try:
            await delivery.message.nak(delay=delay_s)
        except NatsError as error:
            _log.warning("nak not sent", reason=str(error), sequence=delivery.sequence)

    async def _bury(self, delivery: Delivery[Any], event: BadEvent) -> None:
        payload = event.payload[:MAX_DEAD_PAYLOAD_BYTES]
        cut = "" if len(payload) == len(event.payload) else f" (first {len(payload)} of {len(event.payload)} bytes)"
        letter = DeadLettered(
            event_id=new_id("evt"),
            at_us=time.time_ns() // 1000,
            room=self._room,
            stream=delivery.stream,
            subject=delivery.message.subject,
            sequence=delivery.sequence,
            index=event.index,
            reason=event.reason[:_MAX_REASON_CHARACTERS] + cut,
            payload=payload,
        )
        # The checksum tells apart what a wiped stream delivers under the same sequence.
        identity = f"{delivery.stream}.{delivery.sequence}.{event.index}.{zlib.crc32(event.payload):08x}"
        await self._publisher.publish(
            f"{DEADLETTER}.{self._room}",
            join_events([encode_event(letter)]),
            {HEADER_MESSAGE_ID: identity, HEADER_SCHEMA: "message.deadlettered.v1"},
            deadline_s=_DEADLETTER_DEADLINE_S,
        )
        self.dead_count += 1
        _log.error("event dead-lettered", sequence=delivery.sequence, index=event.index, reason=letter.reason)


def trace_links(deliveries: Iterable[Delivery[Any]]) -> list[Link]:
    """Return a span link for each message that carries a sampled `traceparent`; the others cost one look-up."""
    links = []
    for delivery in deliveries:
        headers = delivery.message.headers
        if headers and (traceparent := headers.get(_TRACEPARENT)) and traceparent.endswith("-01"):
            context = _span_context(traceparent)
            if context is not None and context.is_valid:
                links.append(Link(context))
    return links


def _span_context(traceparent: str) -> SpanContext | None:
    try:
        _version, trace_id, span_id, flags = traceparent.split("-")
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    except ValueError:
        return None


class SteadyPull:
    """A pull subscription that FastStream's batch loop can live with.

    nats-py's `fetch` ends in two kinds of time-out, its own and asyncio's; FastStream's loop knows only the
    first. The second, and any refusal by the server, ends the loop's task, and the messages it had collected
    by then are lost to it until `ack_wait` is over: 30 s late, seen whenever the time to fill a batch ran
    out between two fetches. So every end of a fetch but a closed connection looks like nats-py's own
    time-out here. After a refusal it also waits, because the loop would come back at once, for ever.
    """

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def fetch(self, batch: int, timeout: float) -> list[Msg]:  # noqa: ASYNC109 - FastStream calls it so
        """Return up to `batch` messages."""
        if timeout < _SHORTEST_FETCH_S:
            raise NatsTimeoutError
        try:
            messages: list[Msg] = await self._subscription.fetch(batch=batch, timeout=timeout)
        except ConnectionClosedError:
            raise
        except TimeoutError:
            raise NatsTimeoutError from None
        except (NatsError, JetStreamError) as error:
            await asyncio.sleep(_PAUSE_AFTER_REFUSAL_S)
            raise NatsTimeoutError from error
        return messages

    async def unsubscribe(self) -> None:
        """End it."""
        await self._subscription.unsubscribe()


async def _start_steadily(broker: NatsBroker) -> None:
    """Start a broker whose pull subscriptions are `SteadyPull`s from their first fetch on."""
    await broker.connect()
    js = broker.config.connection_state.stream
    pull_subscribe = js.pull_subscribe

    async def steadily(*arguments: Any, **options: Any) -> Any:
        return SteadyPull(await pull_subscribe(*arguments, **options))

    js.pull_subscribe = steadily
    await broker.start()


class Worker:
    """Runs the subscribers of a room until it is stopped, over any outage.

    FastStream's broker has a connection of its own, and nats-py closes one for good on some errors:
    then a new broker is made.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        connection: Connection,
        declarations: Declarations,
        subscribe: Callable[[NatsBroker], None],
        before_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`connection` is the room's own, `declarations` its watchdog; `subscribe` adds the subscribers to a broker.

        `before_close` is awaited when nothing new arrives any more and acknowledgements still leave.
        """
        self._url = url
        self._name = name
        self._connection = connection
        self._declarations = declarations
        self._subscribe = subscribe
        self._before_close = before_close
        self._ended = asyncio.Event()
        self._is_stopping = False
        self.is_consuming = False

    def stop(self) -> None:
        """Let `run` return after what is in hand is settled."""
        self._is_stopping = True
        self._ended.set()

    async def watch(self, report: Callable[[bool, str], None]) -> None:
        """Report (ready, detail) every second until cancelled: whether messages would arrive now."""
        while True:
            is_ready = self.is_consuming and self._connection.is_connected and self._declarations.is_declared
            report(is_ready, "" if is_ready else "NATS or the stream is away")
            await asyncio.sleep(_WATCH_EVERY_S)

    async def run(self) -> None:
        """Consume until `stop`."""
        while not self._is_stopping:
            self._ended.clear()
            if await self._is_declared():
                await self._consume()
            if not self._is_stopping:
                await asyncio.sleep(_RESTART_AFTER_S)

    async def _is_declared(self) -> bool:
        declared = asyncio.create_task(self._declarations.declared.wait())
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait((declared, ended), return_when=asyncio.FIRST_COMPLETED)
        declared.cancel()
        ended.cancel()
        return not self._is_stopping

    async def _consume(self) -> None:
        broker = self._broker()
        self._subscribe(broker)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await _start_steadily(broker)
            self.is_consuming = True
            _log.info("consuming", name=self._name)
            await self._ended.wait()
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            _log.warning("cannot consume", name=self._name, reason=str(error) or type(error).__name__)
        finally:
            self.is_consuming = False
            await self._close(broker)

    async def _close(self, broker: NatsBroker) -> None:
        for subscriber in broker.subscribers:
            await subscriber.stop()
        if self._before_close is not None:
            await self._before_close()
        try:
            await broker.stop()
        except (NatsError, JetStreamError, OSError, TimeoutError, RuntimeError) as error:  # RuntimeError: uvloop
            # Stopped while NATS is away: what was not acknowledged comes again.
            _log.info("closed without the server", name=self._name, reason=str(error) or type(error).__name__)

    def _broker(self) -> NatsBroker:
        async def closed() -> None:
            self._ended.set()

        async def ignore(_error: Exception) -> None:
            """The room's own connection reports outages already."""

        return NatsBroker(
            self._url.split(","),
            name=self._name,
            logger=None,
            apply_types=False,
            error_cb=ignore,
            closed_cb=closed,
            **connect_options(),
        )


def subscribe_batches(
    broker: NatsBroker,
    consumer: Consumer,
    decoder: BatchDecoder[E],
    handle: Callable[[list[Delivery[E]]], Awaitable[None]],
    *,
    batch_messages: int,
    fill_s: float,
) -> None:
    """Subscribe `handle` to a declared pull consumer: up to `batch_messages` messages, collected for at most `fill_s`.

    `handle` must settle every delivery and must not raise.
    """

    async def handler(deliveries: list[Delivery[E]]) -> None:
        await handle(deliveries)

    broker.subscriber(
        consumer.filter_subject,
        durable=consumer.durable,
        stream=JStream(consumer.stream, declare=False),
        pull_sub=PullSub(batch_size=batch_messages, timeout=fill_s, batch=True),
        decoder=decoder.decode,
        ack_policy=AckPolicy.MANUAL,
    )(handler)
