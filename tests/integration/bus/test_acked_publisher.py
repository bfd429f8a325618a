"""The publisher against a real server: acknowledged, refused, unanswered, cancelled; no slot is ever lost."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from sluicegate.bus.acked_publisher import AckedPublisher, MessageTooLargeError, PublishError
from sluicegate.bus.connection import Connection, connect
from sluicegate.devstack.servers import NatsServer

STREAM = StreamConfig(name="THINGS", subjects=["things.*"], discard=DiscardPolicy.NEW, duplicate_window=120)


def headers(message_id: str) -> dict[str, str]:
    return {"Nats-Msg-Id": message_id}


@pytest.fixture
def server(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    made = await connect(server.url, name="test")
    await made.jetstream().add_stream(STREAM)
    yield made
    await made.close()


async def until(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_publish_returns_sequence_when_stored(connection: Connection) -> None:
    publisher = AckedPublisher(connection)
    acks = await asyncio.gather(*(publisher.publish("things.a", b"%d" % n, headers(f"m{n}")) for n in range(500)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 501))
    assert {ack.stream for ack in acks} == {"THINGS"}
    assert publisher.in_flight == 0


async def test_publish_says_duplicate_when_id_is_known(connection: Connection) -> None:
    publisher = AckedPublisher(connection)
    first = await publisher.publish("things.a", b"x", headers("same"))
    again = await publisher.publish("things.a", b"x", headers("same"))
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    assert publisher.duplicate_count == 1


async def test_publish_fails_with_reason_when_no_stream_takes_it(connection: Connection) -> None:
    publisher = AckedPublisher(connection)
    with pytest.raises(PublishError, match="no stream takes this subject"):
        await publisher.publish("nowhere.a", b"x", deadline_s=0.6)
    assert publisher.in_flight == 0


async def test_publish_goes_through_when_stream_is_made_later(connection: Connection) -> None:
    publisher = AckedPublisher(connection)
    waiting = asyncio.create_task(publisher.publish("later.a", b"x", headers("l1"), deadline_s=20))
    await until(lambda: publisher.refused_count > 0)
    await connection.jetstream().add_stream(StreamConfig(name="LATER", subjects=["later.*"]))
    assert (await waiting).stream == "LATER"


async def test_publish_goes_through_when_full_stream_gets_room(connection: Connection) -> None:
    js = connection.jetstream()
    await js.update_stream(STREAM.evolve(max_msgs=1))
    publisher = AckedPublisher(connection)
    await publisher.publish("things.a", b"x", headers("f1"))
    waiting = asyncio.create_task(publisher.publish("things.a", b"y", headers("f2"), deadline_s=20))
    await until(lambda: publisher.refused_count > 0)
    await js.update_stream(STREAM.evolve(max_msgs=10))
    assert (await waiting).duplicate is False


async def test_publish_raises_at_once_when_message_is_too_large(connection: Connection) -> None:
    publisher = AckedPublisher(connection)
    with pytest.raises(MessageTooLargeError):
        await publisher.publish("things.a", b"x" * (2 << 20), headers("big"))
    assert publisher.in_flight == 0


async def test_publish_keeps_no_slot_when_cancelled(connection: Connection) -> None:
    publisher = AckedPublisher(connection, max_in_flight=2)
    waiting = [asyncio.create_task(publisher.publish("nowhere.a", b"x")) for _ in range(5)]
    await until(lambda: publisher.refused_count > 1)
    assert publisher.in_flight <= 2
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert publisher.in_flight == 0
    assert (await publisher.publish("things.a", b"x", headers("after"), deadline_s=10)).seq == 1


async def test_each_message_is_stored_once_when_server_is_killed_while_publishing(
    connection: Connection, server: NatsServer
) -> None:
    publisher = AckedPublisher(connection, max_in_flight=32)
    waiting = [
        asyncio.create_task(publisher.publish("things.a", b"%d" % n, headers(f"k{n}"), deadline_s=60))
        for n in range(3000)
    ]
    await until(lambda: publisher.acked_count > 200)
    server.kill()
    server.start()
    await asyncio.gather(*waiting)
    state = (await connection.jetstream().stream_info("THINGS")).state
    assert state.messages == 3000
    assert publisher.in_flight == 0


async def test_message_is_sent_again_when_server_does_not_answer(connection: Connection, server: NatsServer) -> None:
    publisher = AckedPublisher(connection, ack_timeout_s=0.1)
    await publisher.publish("things.a", b"x", headers("p0"))
    server.pause()
    waiting = asyncio.create_task(publisher.publish("things.a", b"y", headers("p1"), deadline_s=60))
    await until(lambda: publisher.unanswered_count > 1)
    server.resume()
    assert (await waiting).stream == "THINGS"
    assert (await connection.jetstream().stream_info("THINGS")).state.messages == 2


async def test_nothing_is_sent_when_not_connected(server: NatsServer) -> None:
    """nats-py would buffer it and send it whenever the server is back."""
    connection = Connection("test")
    publisher = AckedPublisher(connection)
    with pytest.raises(PublishError, match="not connected"):
        await publisher.publish("things.a", b"x", deadline_s=0.05)
    await connection.open(server.url)
    assert connection.stats["out_msgs"] == 0
    await connection.jetstream().add_stream(STREAM)
    assert (await publisher.publish("things.a", b"x", deadline_s=10)).seq == 1
    await connection.close()


async def test_publish_waits_and_goes_through_when_first_connection_comes_late(
    own_nats: Callable[[], NatsServer],
) -> None:
    server = own_nats()
    first = await connect(server.url, name="declarer")
    await first.jetstream().add_stream(STREAM)
    await first.close()
    connection = Connection("test")
    publisher = AckedPublisher(connection)
    waiting = asyncio.create_task(publisher.publish("things.a", b"x", headers("w1"), deadline_s=20))
    await until(lambda: publisher.in_flight == 1)
    await connection.open(server.url)
    assert (await waiting).seq == 1
    await connection.close()
