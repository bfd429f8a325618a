"""What a tail makes of single messages. Its life against a real server is in tests/integration/edge_mirrors."""

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sluicegate.bus.connection import Connection
from sluicegate.edge.mirrors.tail import SLICE, Change, StreamTail


class FakeConnection(Connection):
    """Remembers what was published."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.asked = 0

    async def publish(self, *_: Any, **__: Any) -> None:
        self.asked += 1


class Tail:
    """A tail that was never opened, and what it delivered."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.changes: list[Change] = []
        self.idle = 0
        self.tail = StreamTail(self.connection, "keys", None, self.changes.append, self._count_idle)
        self.tail._left_in_slice = SLICE

    def _count_idle(self) -> None:
        self.idle += 1

    async def take(self, reply: str, headers: dict[str, str] | None = None, key: str = "aa") -> None:
        await self.tail._take(Msg(Client(), f"$KV.keys.{key}", reply, b"value", headers))

    @property
    def reason(self) -> str | None:
        return self.tail.ended.result() if self.tail.ended.done() else None


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.KV_keys.consumer.1.7.1.1700000000000000000.3",
        "$JS.ACK.domain.account.KV_keys.consumer.1.7.1.1700000000000000000.3.token",
    ],
)
async def test_change_is_read_from_both_forms_of_the_reply_subject(reply: str) -> None:
    tail = Tail()
    await tail.take(reply, key="a.b")
    assert tail.changes == [Change(7, 1_700_000_000_000_000_000, "a.b", b"value", 3)]


@pytest.mark.parametrize(
    "headers", [{"KV-Operation": "DEL"}, {"KV-Operation": "PURGE"}, {"Nats-Marker-Reason": "MaxAge"}]
)
async def test_change_is_a_deletion_when_the_message_is_a_marker(headers: dict[str, str]) -> None:
    tail = Tail()
    await tail.take("$JS.ACK.KV_keys.consumer.1.7.1.0.3", headers)
    assert tail.changes[0].value is None


async def test_change_keeps_its_value_when_the_message_has_other_headers() -> None:
    tail = Tail()
    await tail.take("$JS.ACK.KV_keys.consumer.1.7.1.0.3", {"traceparent": "00-0-0-00"})
    assert tail.changes[0].value == b"value"


async def test_tail_ends_without_delivering_when_a_message_is_missing_before_one() -> None:
    tail = Tail()
    await tail.take("$JS.ACK.KV_keys.consumer.1.7.1.0.3")
    await tail.take("$JS.ACK.KV_keys.consumer.1.10.3.0.0")
    await tail.take("$JS.ACK.KV_keys.consumer.1.11.4.0.0")
    assert [change.sequence for change in tail.changes] == [7]
    assert tail.reason == "1 messages were lost on the way"


@pytest.mark.parametrize("status", ["404", "408"])
async def test_tail_asks_again_when_a_request_expired(status: str) -> None:
    tail = Tail()
    await tail.take("", {"Status": status})
    assert (tail.reason, tail.idle, tail.connection.asked) == (None, 1, 1)
    tail.tail.end("done")


async def test_tail_goes_on_when_the_server_says_that_it_lives() -> None:
    tail = Tail()
    await tail.take("", {"Status": "100"})
    assert (tail.reason, tail.connection.asked) == (None, 0)


@pytest.mark.parametrize("headers", [{"Status": "503"}, {"Status": "409", "Description": "Consumer Deleted"}, {}])
async def test_tail_ends_when_the_consumer_is_gone(headers: dict[str, str]) -> None:
    tail = Tail()
    await tail.take("", headers)
    assert tail.reason is not None
    assert headers.get("Description", "the consumer is gone") in tail.reason


async def test_tail_asks_for_the_next_slice_when_one_is_through() -> None:
    tail = Tail()
    for number in range(1, SLICE + 1):
        assert tail.connection.asked == 0
        await tail.take(f"$JS.ACK.KV_keys.consumer.1.{number}.{number}.0.9")
    assert tail.connection.asked == 1
    tail.tail.end("done")


async def test_tail_ends_when_its_owner_fails() -> None:
    def fail(_change: Change) -> None:
        raise RuntimeError("a bug")

    tail = StreamTail(FakeConnection(), "keys", None, fail, lambda: None)
    await tail._take(Msg(Client(), "$KV.keys.aa", "$JS.ACK.KV_keys.consumer.1.7.1.0.3", b"", None))
    assert await asyncio.wait_for(tail.ended, 1) == "failed: a bug"
