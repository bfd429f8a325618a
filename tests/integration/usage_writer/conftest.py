"""Fixtures of these tests: a database and a NATS of each test's own, and writers that run in this process."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.subjects import USAGE_WRITER
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.servers import NatsServer, PostgresServer
from sluicegate.devstack.usage_events import messages
from sluicegate.devstack.waiting import until
from sluicegate.usage_writer.config import WriterSettings
from sluicegate.usage_writer.wiring import run


@pytest.fixture
def dsn(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = f"usage_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def nats(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(nats.url, name="test")
    await declare(connection.jetstream(), buckets=())
    yield connection
    await connection.close()


@pytest.fixture
def publish(bus: Connection) -> Callable[..., Awaitable[int]]:
    """Publishes events in messages; returns the sequence of the last one."""

    async def send(events: Sequence[UsageRecorded], per_message: int = 100) -> int:
        sequence = 0
        for subject, body in messages(events, per_message):
            sequence = (await bus.jetstream().publish(subject, body)).seq
        return sequence

    return send


@pytest.fixture
def until_read(bus: Connection) -> Callable[[int], Awaitable[None]]:
    """Waits until all messages up to a sequence are acknowledged."""

    async def wait(sequence: int) -> None:
        async def is_read() -> bool:
            info = await bus.jetstream().consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
            return info.ack_floor is not None and info.ack_floor.stream_seq >= sequence

        await until(is_read, f"acknowledged up to {sequence}")

    return wait


@pytest.fixture
async def start_writer(nats: NatsServer, dsn: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Starts a writer in this process; returns what stops it."""
    running: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def start(**changes: Any) -> Callable[[], Awaitable[None]]:
        values: dict[str, Any] = {"nats_url": nats.url, "postgres_dsn": dsn, "internal_port": 0, "fill_ms": 20}
        stop = asyncio.Event()
        task = asyncio.create_task(run(WriterSettings(**(values | changes)), stop))
        running.append((stop, task))

        async def end() -> None:
            stop.set()
            await task

        return end

    yield start
    for stop, task in running:
        stop.set()
        await task


@pytest.fixture
def new_writer(nats: NatsServer, dsn: str, tmp_path: Path) -> Iterator[Callable[..., RoomProcess]]:
    """Makes writers that are processes of their own; `dsn` may be another one."""
    made: list[RoomProcess] = []

    def new(postgres_dsn: str = dsn, **settings: object) -> RoomProcess:
        environment = {
            "SLUICEGATE_NATS_URL": nats.url,
            "SLUICEGATE_POSTGRES_DSN": postgres_dsn,
            "SLUICEGATE_USAGE_WRITER_FILL_MS": "20",
            **{f"SLUICEGATE_USAGE_WRITER_{name.upper()}": str(value) for name, value in settings.items()},
        }
        writer = RoomProcess("usage_writer", environment, tmp_path / f"writer-{len(made)}.log")
        made.append(writer)
        return writer

    yield new
    for writer in made:
        if writer.process.is_running:
            writer.kill()
