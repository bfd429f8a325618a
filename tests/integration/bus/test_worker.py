"""FastStream's batch subscriber as we run it: nothing that was fetched waits for redelivery, no outage ends it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import uvloop
from faststream.nats import NatsBroker

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import Declarations
from sluicegate.bus.worker import BatchDecoder, Delivery, Done, Settlement, SteadyPull, Worker, subscribe_batches
from sluicegate.contracts.subjects import DEADLETTER_STREAM, Consumer, Stream
from sluicegate.devstack.servers import NatsServer
from sluicegate.devstack.waiting import until

THINGS = Stream(name="THINGS", subjects=("things.*",), max_age_s=3_600.0, description="Things")
CONSUMER = Consumer(stream="THINGS", durable="things", filter_subject="things.*", description="takes things")


class Thing(msgspec.Struct, frozen=True):
    n: int


class Taker:
    """Takes things and notes them."""

    def __init__(self, connection: Connection, url: str) -> None:
        self.settlement = Settlement(AckedPublisher(connection), "taker")
        self.taken: list[int] = []
        self.attempts: list[int] = []
        self.brokers: list[NatsBroker] = []
        self.declarations = Declarations(
            connection, streams=(THINGS, DEADLETTER_STREAM), consumers=(CONSUMER,), buckets=(), check_every_s=0.5
        )
        self.worker = Worker(
            url, name="taker", connection=connection, declarations=self.declarations, subscribe=self.subscribe
        )

    def subscribe(self, broker: NatsBroker) -> None:
        self.brokers.append(broker)
        subscribe_batches(broker, CONSUMER, BatchDecoder(Thing), self.take, batch_messages=10, fill_s=0.02)

    async def take(self, deliveries: list[Delivery[Thing]]) -> None:
        for delivery in deliveries:
            self.attempts.append(delivery.attempt)
            self.taken += [item.n for item in delivery.items if isinstance(item, Thing)]
            await self.settlement.settle(delivery, Done())


@asynccontextmanager
async def running(connection: Connection, url: str) -> AsyncIterator[Taker]:
    taker = Taker(connection, url)
    declaring = asyncio.create_task(taker.declarations.run())
    working = asyncio.create_task(taker.worker.run())
    yield taker
    taker.worker.stop()
    await working
    declaring.cancel()


@pytest.fixture
def server(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    made = await connect(server.url, name="test")
    yield made
    await made.close()


async def publish(connection: Connection, n: int) -> None:
    await AckedPublisher(connection).publish("things.a", b'[{"n":%d}]' % n, deadline_s=30)


async def test_every_message_is_taken_at_its_first_delivery_when_they_trickle_in(
    server: NatsServer, connection: Connection
) -> None:
    async with running(connection, server.url) as taker:
        await taker.declarations.declared.wait()
        publisher = AckedPublisher(connection)
        for n in range(300):
            await publisher.publish("things.a", b'[{"n":%d}]' % n)
            await asyncio.sleep(0.003 if n % 7 else 0.021)  # in and out of step with the time to fill a batch
        await until(lambda: len(taker.taken) >= 300, "all taken", deadline_s=20)
        assert sorted(taker.taken) == list(range(300))
        assert set(taker.attempts) == {1}
        (subscriber,) = taker.brokers[0].subscribers
        assert isinstance(getattr(subscriber, "subscription", None), SteadyPull)


async def test_messages_are_taken_when_the_server_was_restarted(server: NatsServer, connection: Connection) -> None:
    async with running(connection, server.url) as taker:
        await taker.declarations.declared.wait()
        await publish(connection, 1)
        await until(lambda: taker.taken == [1], "first taken")
        server.kill()
        server.start()
        await publish(connection, 2)
        await until(lambda: 2 in taker.taken, "second taken")


async def test_messages_are_taken_when_the_store_was_lost(server: NatsServer, connection: Connection) -> None:
    async with running(connection, server.url) as taker:
        await taker.declarations.declared.wait()
        await publish(connection, 1)
        await until(lambda: taker.taken == [1], "first taken")
        server.kill()
        server.wipe()
        server.start()
        await publish(connection, 2)
        await until(lambda: 2 in taker.taken, "second taken")
        assert taker.declarations.remade_count or taker.declarations.is_declared


async def test_messages_are_taken_when_the_consumer_was_deleted(server: NatsServer, connection: Connection) -> None:
    async with running(connection, server.url) as taker:
        await taker.declarations.declared.wait()
        await until(lambda: taker.worker.is_consuming, "consuming")
        await connection.jetstream().delete_consumer("THINGS", "things")
        await publish(connection, 3)
        await until(lambda: 3 in taker.taken, "taken")


async def test_worker_stops_at_once_when_the_server_is_away(server: NatsServer, connection: Connection) -> None:
    async with running(connection, server.url) as taker:
        await until(lambda: taker.worker.is_consuming, "consuming")
        server.kill()
        async with asyncio.timeout(20):
            taker.worker.stop()
            await until(lambda: not taker.worker.is_consuming, "stopped")


def test_connection_closes_quietly_on_uvloop_when_the_server_is_away_and_something_waits(server: NatsServer) -> None:
    async def close_with_something_left() -> None:
        connection = await connect(server.url, name="test")
        server.kill()
        await until(lambda: not connection.is_connected, "noticed")
        await connection.publish("things.a", b"never sent")
        await connection.close()
        assert connection.is_closed

    uvloop.run(close_with_something_left())
