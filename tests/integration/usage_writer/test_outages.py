"""Processes that die, servers that go away, writers in numbers: afterwards each record is there once, and sums are right."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection, connect
from sluicegate.contracts.subjects import USAGE_WRITER
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.servers import NatsServer, PostgresServer
from sluicegate.devstack.usage_checks import last_used_differences, rollup_differences
from sluicegate.devstack.usage_events import messages, population, usage_event
from sluicegate.devstack.waiting import until
from sluicegate.store.migrations import migrate

Publish = Callable[..., Awaitable[int]]
UntilRead = Callable[[int], Awaitable[None]]
NewWriter = Callable[..., RoomProcess]


async def assert_each_once(database: Any, events: list[UsageRecorded]) -> None:
    rows = await database.fetch("SELECT request_id::text FROM usage")
    assert sorted(row["request_id"] for row in rows) == sorted(event.request_id for event in events)
    assert await rollup_differences(database) == []
    assert await last_used_differences(database) == []


async def test_each_record_is_there_once_when_the_writer_is_killed_again_and_again(
    bus: Connection, database: Any, publish: Publish, until_read: UntilRead, new_writer: NewWriter
) -> None:
    events = list(population(30_000, detail_share=0.1))
    last = await publish(events)
    chance = random.Random(7)
    kills_in_the_middle = 0
    for _ in range(3):
        writer = new_writer(transaction_rows=700)
        writer.start()
        before = await database.fetchval("SELECT count(*) FROM usage")
        await until(partial(count_above, database, before), "something stored")
        await asyncio.sleep(chance.random() * 0.15)  # somewhere inside a batch; which moment must not matter
        writer.kill()
        kills_in_the_middle += await database.fetchval("SELECT count(*) FROM usage") < len(events)
    assert kills_in_the_middle
    writer = new_writer()
    writer.start()
    await writer.until_ready()
    await redeliver_soon(bus)
    await until_read(last)
    await assert_each_once(database, events)


async def redeliver_soon(bus: Connection) -> None:
    """What was delivered to one who died comes again after 1 s, not 30; to be called after a writer has declared."""
    js = bus.jetstream()
    info = await js.consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
    await js.add_consumer(USAGE_WRITER.stream, info.config.evolve(ack_wait=1))


async def count_above(database: Any, before: int) -> bool:
    return bool(await database.fetchval("SELECT count(*) > $1 FROM usage", before))


async def test_what_is_in_hand_is_settled_when_the_writer_is_stopped(
    bus: Connection, database: Any, publish: Publish, new_writer: NewWriter
) -> None:
    events = list(population(30_000))
    await publish(events)
    writer = new_writer(transaction_rows=700)
    writer.start()
    await until(lambda: count_above(database, 0), "something stored")
    assert await writer.stop_gently() == 0
    stored = await database.fetchval("SELECT count(*) FROM usage")
    info = await bus.jetstream().consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
    assert info.ack_floor is not None
    # Whatever is stored was also acknowledged: messages hold 100 records each, the last of a tenant fewer.
    assert stored <= info.ack_floor.stream_seq * 100
    assert info.ack_floor.stream_seq * 100 - stored < 100 * 6
    assert await rollup_differences(database) == []


@pytest.mark.parametrize("writers", [2, 4])
async def test_sums_are_right_when_several_writers_store_the_same_messages(
    bus: Connection, database: Any, new_writer: NewWriter, until_read: UntilRead, writers: int
) -> None:
    events = list(population(10_000, detail_share=0.1))
    bodies = list(messages(events, 50)) * 3
    random.Random(writers).shuffle(bodies)
    for subject, body in bodies:
        last = (await bus.jetstream().publish(subject, body)).seq
    processes = [new_writer(transaction_rows=500, batch_messages=10) for _ in range(writers)]
    for process in processes:
        process.start()
    await until_read(last)
    await assert_each_once(database, events)
    stored = [await metric(process, "records_stored_total") for process in processes]
    repeated = [await metric(process, "records_repeated_total") for process in processes]
    assert sum(stored) == len(events)
    assert sum(stored) + sum(repeated) <= 3 * len(events)
    print(f"stored by each: {stored}, repeated: {repeated}")


async def metric(process: RoomProcess, name: str) -> float:
    text = (await process.get("/metrics")).text
    return float(
        next(line.split()[1] for line in text.splitlines() if line.startswith(f"sluicegate_usage_writer_{name} "))
    )


async def test_records_are_stored_when_postgres_was_killed_in_between(
    nats: NatsServer,
    publish: Publish,
    until_read: UntilRead,
    own_postgres: Callable[[], PostgresServer],
    new_writer: NewWriter,
) -> None:
    postgres = own_postgres()
    migrate(postgres.dsn())
    writer = new_writer(postgres.dsn())
    writer.start()
    await writer.until_ready()
    events = list(population(12_000))
    await publish(events[:6_000])
    postgres.kill()
    await publish(events[6_000:9_000])
    await writer.until_unready()
    postgres.start()
    await until_read(await publish(events[9_000:]))
    await writer.until_ready()
    database = await asyncpg.connect(postgres.dsn())
    await assert_each_once(database, events)
    await database.close()


async def test_numbers_of_names_are_asked_for_again_when_the_database_is_another_one(
    publish: Publish, until_read: UntilRead, own_postgres: Callable[[], PostgresServer], new_writer: NewWriter
) -> None:
    postgres = own_postgres()
    migrate(postgres.dsn())
    writer = new_writer(postgres.dsn())
    writer.start()
    await until_read(await publish([usage_event(key="key_first"), usage_event(key="key_second")]))
    postgres.kill()
    postgres.wipe()
    postgres.start()
    migrate(postgres.dsn())
    await until_read(await publish([usage_event(key="key_second")]))
    database = await asyncpg.connect(postgres.dsn())
    assert await database.fetchval("SELECT key FROM usage_record") == "key_second"
    assert await rollup_differences(database) == []
    await database.close()


async def test_records_are_stored_when_nats_was_killed_in_between(
    nats: NatsServer, bus: Connection, database: Any, until_read: UntilRead, new_writer: NewWriter
) -> None:
    writer = new_writer()
    writer.start()
    await writer.until_ready()
    events = list(population(9_000))
    publisher = AckedPublisher(bus)
    last = 0
    for number, (subject, body) in enumerate(messages(events)):
        if number in {20, 50}:
            nats.kill()
            nats.start()
        last = (await publisher.publish(subject, body, deadline_s=30)).seq
    await writer.until_ready()
    await redeliver_soon(bus)
    await until_read(last)
    await assert_each_once(database, events)


async def test_records_are_stored_once_when_nats_lost_everything_and_all_is_published_again(
    nats: NatsServer, bus: Connection, database: Any, until_read: UntilRead, new_writer: NewWriter
) -> None:
    writer = new_writer()
    writer.start()
    await writer.until_ready()
    events = list(population(6_000))
    publisher = AckedPublisher(bus)
    for subject, body in messages(events[:4_000]):
        await publisher.publish(subject, body, deadline_s=30)
    nats.kill()
    nats.wipe()
    nats.start()
    last = 0
    for subject, body in messages(events):  # as the edges' journals do
        last = (await publisher.publish(subject, body, deadline_s=60)).seq
    await until_read(last)
    await assert_each_once(database, events)


async def test_writer_starts_and_waits_when_nothing_else_is_there(
    own_nats: Callable[[], NatsServer], own_postgres: Callable[[], PostgresServer], tmp_path: Path
) -> None:
    nats, postgres = own_nats(), own_postgres()
    nats.stop()
    postgres.stop()
    environment = {"SLUICEGATE_NATS_URL": nats.url, "SLUICEGATE_POSTGRES_DSN": postgres.dsn()}
    writer = RoomProcess("usage_writer", environment, tmp_path / "writer.log")
    writer.start()
    try:
        await writer.until_unready()
        assert (await writer.get("/livez")).status_code == 200
        postgres.start()
        await until(lambda: part(writer, "postgres", "run `sluicegate migrate`"), "postgres there, but empty")
        migrate(postgres.dsn())
        await until(lambda: part(writer, "postgres", ""), "postgres ready")
        assert not (await writer.get("/readyz")).json()["ready"]
        nats.start()
        await writer.until_ready()
        bus = await connect(nats.url, name="test")
        await bus.jetstream().publish(*next(messages([usage_event()])))
        database = await asyncpg.connect(postgres.dsn())
        await until(lambda: count_above(database, 0), "stored")
        await database.close()
        await bus.close()
        nats.stop()
        await writer.until_unready()
        assert await writer.stop_gently() == 0
    finally:
        if writer.process.is_running:
            writer.kill()


async def part(writer: RoomProcess, name: str, detail: str) -> bool:
    said: str = (await writer.get("/readyz")).json()["parts"][name]["detail"]
    return detail in said if detail else not said
