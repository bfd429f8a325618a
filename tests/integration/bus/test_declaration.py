"""Declaring against a real server: idempotent, updated on drift, made again when lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from nats.js.api import RetentionPolicy, StreamConfig
from nats.js.errors import APIError

from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import Declarations, bucket_stream_name, declare, find_missing, wait_until_declared
from sluicegate.contracts import subjects
from sluicegate.devstack.servers import NatsServer

EVERYTHING: dict[str, Any] = {"streams": subjects.STREAMS, "consumers": subjects.CONSUMERS, "buckets": subjects.BUCKETS}


@pytest.fixture
def server(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    made = await connect(server.url, name="test")
    yield made
    await made.close()


async def test_declare_makes_everything_and_keeps_it_when_repeated(connection: Connection) -> None:
    js = connection.jetstream()
    assert len(await find_missing(js, **EVERYTHING)) == sum(map(len, EVERYTHING.values()))
    await declare(js)
    await js.publish("gateway.request.completed.ten_x", b"[]")
    created = (await js.stream_info("USAGE")).created
    await declare(js)
    info = await js.stream_info("USAGE")
    assert (info.created, info.state.messages) == (created, 1)
    assert await find_missing(js, **EVERYTHING) == []


async def test_streams_discard_new_and_consumers_redeliver_without_end(connection: Connection) -> None:
    js = connection.jetstream()
    await declare(js)
    for stream in subjects.STREAMS:
        config = (await js.stream_info(stream.name)).config
        assert (config.discard, config.max_age) == ("new", stream.max_age_s)
    consumer = (await js.consumer_info("USAGE", "usage-writer")).config
    assert (consumer.ack_policy, consumer.max_deliver, consumer.ack_wait) == ("explicit", -1, 30.0)


async def test_buckets_equal_those_of_the_client_library(connection: Connection) -> None:
    """Otherwise `create_key_value` with the same settings, by whoever, would be refused."""
    js = connection.jetstream()
    await declare(js)
    for bucket in subjects.BUCKETS:
        await js.create_key_value(bucket=bucket.name, description=bucket.description)
        bucket_view = await js.key_value(bucket.name)
        await bucket_view.put("a", b"1")
        assert (await bucket_view.get("a")).value == b"1"


async def test_declare_updates_what_drifted_and_leaves_other_settings(connection: Connection) -> None:
    js = connection.jetstream()
    await declare(js)
    config = (await js.stream_info("USAGE")).config
    await js.update_stream(config.evolve(max_age=60.0, duplicate_window=30.0, max_msg_size=4096))
    await js.add_consumer(
        "USAGE", (await js.consumer_info("USAGE", "usage-writer")).config.evolve(ack_wait=1.0, headers_only=True)
    )
    await declare(js)
    config = (await js.stream_info("USAGE")).config
    assert (config.max_age, config.duplicate_window, config.max_msg_size) == (7 * 86_400.0, 120.0, 4096)
    consumer = (await js.consumer_info("USAGE", "usage-writer")).config
    assert (consumer.ack_wait, consumer.headers_only) == (30.0, True)


async def test_declare_raises_when_a_setting_cannot_be_changed(connection: Connection) -> None:
    js = connection.jetstream()
    await js.add_stream(
        StreamConfig(name="USAGE", subjects=["gateway.request.completed.*"], retention=RetentionPolicy.WORK_QUEUE)
    )
    with pytest.raises(APIError):
        await declare(js)
    assert await find_missing(js, **EVERYTHING) == []


async def test_two_rooms_may_declare_at_once(connection: Connection, server: NatsServer) -> None:
    other = await connect(server.url, name="other")
    later = msgspec.structs.replace(subjects.USAGE, description="of a later version")
    await asyncio.gather(
        *(declare(c.jetstream()) for c in (connection, other) for _ in range(5)),
        declare(other.jetstream(), streams=[later], consumers=[], buckets=[]),
    )
    assert await find_missing(connection.jetstream(), **EVERYTHING) == []
    await other.close()


async def test_declarations_make_a_deleted_stream_and_its_consumer_again(connection: Connection) -> None:
    declarations = Declarations(connection, check_every_s=0.1)
    running = asyncio.create_task(declarations.run())
    async with asyncio.timeout(20):
        await declarations.declared.wait()
        await connection.jetstream().delete_stream("USAGE")
        await connection.jetstream().delete_stream(bucket_stream_name("sluicegate-keys"))
        await wait_until_declared(connection, **EVERYTHING)
    assert declarations.remade_count >= 3
    running.cancel()


async def test_declarations_make_everything_again_when_the_store_was_wiped(
    connection: Connection, server: NatsServer
) -> None:
    declarations = Declarations(connection, check_every_s=60)
    running = asyncio.create_task(declarations.run())
    async with asyncio.timeout(20):
        await declarations.declared.wait()
    server.kill()
    server.wipe()
    server.start()
    async with asyncio.timeout(20):
        await wait_until_declared(connection, **EVERYTHING)
    running.cancel()


async def test_declarations_go_on_when_one_is_refused(connection: Connection) -> None:
    js = connection.jetstream()
    await js.add_stream(
        StreamConfig(name="USAGE", subjects=["gateway.request.completed.*"], retention=RetentionPolicy.WORK_QUEUE)
    )
    declarations = Declarations(connection, check_every_s=0.05)
    running = asyncio.create_task(declarations.run())
    await asyncio.sleep(0.3)
    assert not declarations.is_declared
    assert not running.done()
    await js.delete_stream("USAGE")
    async with asyncio.timeout(20):
        await declarations.declared.wait()
    running.cancel()


async def test_wait_until_declared_waits_for_another_room(connection: Connection, server: NatsServer) -> None:
    waiting = asyncio.create_task(wait_until_declared(connection, streams=[subjects.USAGE]))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    other = await connect(server.url, name="other")
    await declare(other.jetstream())
    await asyncio.wait_for(waiting, 20)
    await other.close()
