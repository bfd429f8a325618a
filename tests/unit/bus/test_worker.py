"""Decoding that never raises, and the one mapping from outcomes to acknowledgements."""

import base64
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.errors import ConnectionClosedError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import APIError, BadRequestError, FetchTimeoutError, ServiceUnavailableError

from sluicegate.bus.acked_publisher import Ack, PublishError
from sluicegate.bus.worker import (
    MAX_DEAD_PAYLOAD_BYTES,
    BadEvent,
    BatchDecoder,
    Delivery,
    Done,
    Never,
    Outcome,
    Retry,
    Settlement,
    SteadyPull,
    split_array,
    trace_links,
)


class Thing(msgspec.Struct, frozen=True):
    n: int
    s: str = ""


DECODER = BatchDecoder(Thing)


class FakeMessage:
    """A JetStream message that notes what it is answered."""

    def __init__(self, data: bytes = b"[]", attempt: int = 1, headers: dict[str, str] | None = None) -> None:
        self.data = data
        self.subject = "things.a"
        self.headers = headers
        self.metadata = SimpleNamespace(
            stream="THINGS", num_delivered=attempt, sequence=SimpleNamespace(stream=7, consumer=1)
        )
        self.answers: list[Any] = []
        self.is_away = False

    async def ack(self) -> None:
        self._answer("ack")

    async def nak(self, delay: float | None = None) -> None:
        self._answer(("nak", delay))

    def _answer(self, answer: Any) -> None:
        if self.is_away:
            raise ConnectionClosedError
        self.answers.append(answer)


class FakePublisher:
    def __init__(self, *, is_away: bool = False) -> None:
        self.published: list[tuple[str, list[dict[str, Any]], dict[str, str]]] = []
        self.is_away = is_away

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str], *, deadline_s: float | None = None
    ) -> Ack:
        if self.is_away:
            raise PublishError(subject, "not answered")
        self.published.append((subject, json.loads(payload), dict(headers)))
        return Ack("DEADLETTER", 1)


async def settle(message: FakeMessage, outcome: Outcome, publisher: FakePublisher | None = None) -> FakePublisher:
    publisher = publisher or FakePublisher()
    delivery = Delivery[Any](message, 7, [], is_clean=True)  # type: ignore[arg-type]
    await Settlement(publisher, "writer").settle(delivery, outcome)  # type: ignore[arg-type]
    return publisher


def test_items_are_events_when_all_is_well() -> None:
    assert DECODER.items(b'[{"n":1},{"n":2,"new":true}]') == [Thing(1), Thing(2)]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"n":"x"}',
        b"{}",
        b"null",
        b'{"n":1.5}',
        b'{"n":1,"s":"\\ud83d"}',
        b'{"n":1,"s":"\xff"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"n":1,"s":"\x00"}',
        b'{"n":1,"s":",]}[{\\"","t":tru}',
        b"nonsense",
        b"",
    ],
    ids=lambda bad: repr(bad[:30]),
)
def test_items_mark_the_bad_one_and_keep_its_neighbours(bad: bytes) -> None:
    first, second, third = DECODER.items(b'[{"n":1},' + bad + b',{"n":3}]')
    assert (first, third) == (Thing(1), Thing(3))
    assert isinstance(second, BadEvent)
    assert (second.index, second.payload) == (1, bad)
    assert second.reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[",
        b'[{"n":1}',
        b'[{"n":1}] x',
        b"\x00\xff",
        b'"text"',
        b"[" * 100_000,
        b'[{"n":1}]]',
        b'[{"n":1,"s":"]',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_items_are_one_bad_event_when_the_body_is_no_array(body: bytes) -> None:
    (item,) = DECODER.items(body)
    assert isinstance(item, BadEvent)
    assert item.payload == body


_TEXTS = st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.integers() | _TEXTS, lambda x: st.lists(x) | st.dictionaries(_TEXTS, x), max_leaves=6
)


@settings(max_examples=50)
@given(st.lists(_JSON, max_size=5))
@pytest.mark.parametrize("indent", [None, 1])
def test_split_array_returns_the_elements_whatever_they_are(indent: int | None, elements: list[Any]) -> None:
    parts = split_array(json.dumps(elements, indent=indent).encode())
    assert parts is not None
    assert [json.loads(part) for part in parts] == elements


async def test_decode_tells_clean_messages_apart() -> None:
    batch = SimpleNamespace(raw_message=[FakeMessage(b'[{"n":1}]'), FakeMessage(b'[{"n":"x"}]')])
    clean, dirty = await DECODER.decode(batch)
    assert (clean.is_clean, dirty.is_clean) == (True, False)
    assert (clean.sequence, clean.stream, clean.attempt) == (7, "THINGS", 1)


async def test_message_is_acknowledged_when_done() -> None:
    message = FakeMessage()
    publisher = await settle(message, Done())
    assert message.answers == ["ack"]
    assert publisher.published == []


async def test_bad_events_are_published_before_the_message_is_acknowledged() -> None:
    message = FakeMessage()
    publisher = await settle(message, Done((BadEvent(2, "too old", b'{"n":1}'),)))
    ((subject, (letter,), headers),) = publisher.published
    assert subject == "gateway.deadletter.writer"
    assert headers["Nats-Msg-Id"].startswith("THINGS.7.2.")
    assert base64.b64decode(letter["payload"]) == b'{"n":1}'
    assert (letter["room"], letter["stream"], letter["subject"], letter["sequence"], letter["index"]) == (
        ("writer", "THINGS", "things.a", 7, 2)
    )
    assert letter["reason"] == "too old"
    assert message.answers == ["ack"]


async def test_message_comes_again_when_its_dead_letter_was_not_stored() -> None:
    message = FakeMessage()
    await settle(message, Done((BadEvent(0, "bad", b"x"),)), FakePublisher(is_away=True))
    assert message.answers == [("nak", 0.5)]


async def test_whole_message_is_a_dead_letter_when_never() -> None:
    message = FakeMessage(b"junk")
    publisher = await settle(message, Never("no"))
    assert base64.b64decode(publisher.published[0][1][0]["payload"]) == b"junk"
    assert message.answers == ["ack"]


async def test_dead_letter_is_cut_when_it_would_not_pass_the_server() -> None:
    publisher = await settle(FakeMessage(), Done((BadEvent(0, "big", bytes(MAX_DEAD_PAYLOAD_BYTES + 1)),)))
    letter = publisher.published[0][1][0]
    assert len(base64.b64decode(letter["payload"])) == MAX_DEAD_PAYLOAD_BYTES
    assert f"of {MAX_DEAD_PAYLOAD_BYTES + 1} bytes" in letter["reason"]


@pytest.mark.parametrize(("attempt", "delay_s"), [(1, 0.5), (2, 1.0), (5, 8.0), (6, 15.0), (10_000, 15.0)])
async def test_message_waits_longer_each_time_when_it_comes_again(attempt: int, delay_s: float) -> None:
    message = FakeMessage(attempt=attempt)
    await settle(message, Retry("away"))
    assert message.answers == [("nak", delay_s)]


@pytest.mark.parametrize("outcome", [Done(), Retry("away"), Done((BadEvent(0, "bad", b""),))], ids=repr)
async def test_settling_never_raises_when_nats_is_away(outcome: Outcome) -> None:
    message = FakeMessage()
    message.is_away = True
    await settle(message, outcome)
    assert message.answers == []


def test_links_are_made_only_for_sampled_traces() -> None:
    sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = (
        {"traceparent": sampled},
        {"traceparent": sampled[:-2] + "00"},
        {"traceparent": "nonsense-01"},
        {"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"},
        {"other": "x"},
        None,
    )
    deliveries = [Delivery[Any](FakeMessage(headers=one), 1, [], is_clean=True) for one in headers]  # type: ignore[arg-type]
    (link,) = trace_links(deliveries)
    assert f"{link.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


class FakePull:
    """Ends a fetch as told."""

    def __init__(self, end: BaseException | list[Any]) -> None:
        self.end = end
        self.asked: list[tuple[int, float]] = []

    async def fetch(self, batch: int, timeout: float) -> list[Any]:
        self.asked.append((batch, timeout))
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


async def test_fetch_returns_what_came() -> None:
    messages: list[Any] = [FakeMessage(), FakeMessage()]
    pull = FakePull(messages)
    assert await SteadyPull(pull).fetch(5, 0.1) is messages
    assert pull.asked == [(5, 0.1)]


@pytest.mark.parametrize(
    "end",
    [TimeoutError(), NatsTimeoutError(), FetchTimeoutError(), BadRequestError(), ServiceUnavailableError(), APIError()],
    ids=lambda end: f"{type(end).__module__}.{type(end).__name__}",
)
async def test_fetch_ends_as_faststream_knows_it_whatever_ended_it(end: BaseException) -> None:
    with pytest.raises(NatsTimeoutError):
        await SteadyPull(FakePull(end)).fetch(5, 0.1)


async def test_fetch_is_not_asked_for_when_no_time_is_left() -> None:
    pull = FakePull([1])
    with pytest.raises(NatsTimeoutError):
        await SteadyPull(pull).fetch(5, 0.0005)
    assert pull.asked == []


async def test_fetch_says_so_when_the_connection_is_closed() -> None:
    with pytest.raises(ConnectionClosedError):
        await SteadyPull(FakePull(ConnectionClosedError())).fetch(5, 0.1)
