"""Partitions ahead: on schedule, on command, by one of several, and over outages."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import RetentionCompleted, RetentionRequested
from sluicegate.contracts.ids import new_id
from sluicegate.contracts.subjects import RETENTION, RETENTION_COMMAND, RETENTION_COMPLETED
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.servers import NatsServer, PostgresServer
from sluicegate.devstack.waiting import until
from sluicegate.retention.config import RetentionSettings
from sluicegate.retention.policy import wanted_days
from sluicegate.retention.wiring import run
from sluicegate.store.migrations import migrate
from sluicegate.store.partitions import DAILY_TABLES, partition_name

Start = Callable[..., Awaitable[None]]


@pytest.fixture
def dsn(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = f"retention_{secrets.token_hex(4)}"
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
async def start(nats: NatsServer, dsn: str) -> AsyncIterator[Start]:
    stop, tasks = asyncio.Event(), []

    async def begin(**changes: Any) -> None:
        values: dict[str, Any] = {"nats_url": nats.url, "postgres_dsn": dsn, "internal_port": 0, "days_ahead": 3}
        tasks.append(asyncio.create_task(run(RetentionSettings(**(values | changes)), stop)))

    yield begin
    stop.set()
    await asyncio.gather(*tasks)


def wanted_names(days_ahead: int) -> set[str]:
    days = wanted_days(time.time_ns() // 1000, days_ahead)
    return {partition_name(table, day) for table in DAILY_TABLES for day in days}


async def names(database: Any) -> set[str]:
    rows = await database.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = ANY ($1::text[]::regclass[])",
        list(DAILY_TABLES),
    )
    return {row["name"] for row in rows}


async def completed(bus: Connection) -> list[RetentionCompleted]:
    js = bus.jetstream()
    found: list[RetentionCompleted] = []
    for sequence in range(1, (await js.stream_info(RETENTION.name)).state.last_seq + 1):
        message = await js.get_msg(RETENTION.name, sequence)
        if message.subject == RETENTION_COMPLETED:
            found += msgspec.json.decode(message.data or b"", type=list[RetentionCompleted])
    return found


async def command(bus: Connection, *requests: RetentionRequested) -> None:
    await bus.jetstream().publish(RETENTION_COMMAND, join_events([encode_event(request) for request in requests]))


def request(*, dry_run: bool = False) -> RetentionRequested:
    return RetentionRequested(event_id=new_id("evt"), at_us=time.time_ns() // 1000, dry_run=dry_run)


async def test_partitions_are_there_after_the_start_and_told_once(bus: Connection, database: Any, start: Start) -> None:
    await start()
    (told,) = await until(lambda: completed(bus), "completed")
    assert await names(database) == wanted_names(3)
    assert set(told.made) == wanted_names(3)
    assert not told.dry_run


async def test_schedule_makes_what_is_missing_and_is_silent_when_nothing_is(
    bus: Connection, database: Any, start: Start
) -> None:
    await start(run_every_s=1)
    await until(lambda: completed(bus), "first run")
    victim = partition_name("usage", max(wanted_days(time.time_ns() // 1000, 3)))
    await database.execute(f"DROP TABLE {victim}")

    async def told_twice() -> list[RetentionCompleted]:
        found = await completed(bus)
        return found if len(found) > 1 else []

    found = await until(told_twice, "second run")
    assert found[1].made == (victim,)
    assert await names(database) == wanted_names(3)


async def test_command_is_answered_under_its_own_id(bus: Connection, database: Any, start: Start) -> None:
    await start()
    await until(lambda: completed(bus), "first run")
    victim = partition_name("usage_detail", max(wanted_days(time.time_ns() // 1000, 3)))
    await database.execute(f"DROP TABLE {victim}")
    dry, wet, again = request(dry_run=True), request(), request()
    for one in (dry, wet, again):
        await command(bus, one)

    async def answers() -> dict[str, RetentionCompleted]:
        found = {one.event_id: one for one in await completed(bus)}
        return found if {dry.event_id, wet.event_id, again.event_id} <= set(found) else {}

    found = await until(answers, "answers")
    assert (found[dry.event_id].made, found[dry.event_id].dry_run) == ((victim,), True)
    assert (found[wet.event_id].made, found[wet.event_id].dry_run) == ((victim,), False)
    assert found[again.event_id].made == ()
    assert await names(database) == wanted_names(3)


async def test_bad_command_is_a_dead_letter_and_the_next_is_obeyed(bus: Connection, start: Start) -> None:
    await start()
    good = request()
    await bus.jetstream().publish(RETENTION_COMMAND, b'[{"bad": 1}]')
    await command(bus, good)

    async def is_answered() -> bool:
        return good.event_id in {one.event_id for one in await completed(bus)}

    await until(is_answered, "good one answered")
    letter = await bus.jetstream().get_last_msg("DEADLETTER", "gateway.deadletter.retention")
    assert letter.data is not None
    assert b"RETENTION" in letter.data


async def test_each_partition_is_made_once_when_several_work(bus: Connection, database: Any, start: Start) -> None:
    for _ in range(3):
        await start(days_ahead=20)

    async def all_there() -> bool:
        return await names(database) == wanted_names(20)

    await until(all_there, "all partitions")
    made = [name for one in await until(lambda: completed(bus), "told") for name in one.made]
    assert len(made) == len(set(made))


async def test_process_waits_for_its_neighbours_and_stops_in_order(
    own_nats: Callable[[], NatsServer], own_postgres: Callable[[], PostgresServer], tmp_path: Path
) -> None:
    nats, postgres = own_nats(), own_postgres()
    nats.stop()
    postgres.stop()
    environment = {"SLUICEGATE_NATS_URL": nats.url, "SLUICEGATE_POSTGRES_DSN": postgres.dsn()}
    process = RoomProcess("retention", environment, tmp_path / "retention.log")
    process.start()
    try:
        await process.until_unready()
        assert (await process.get("/livez")).status_code == 200
        postgres.start()
        migrate(postgres.dsn())
        nats.start()
        await process.until_ready()
        database = await asyncpg.connect(postgres.dsn())

        async def all_there() -> bool:
            return await names(database) == wanted_names(7)

        await until(all_there, "all partitions")
        await database.close()
        assert "sluicegate_retention_partitions_made_total 18.0" in (await process.get("/metrics")).text
        postgres.kill()
        await process.until_unready()
        assert await process.stop_gently() == 0
    finally:
        if process.process.is_running:
            process.kill()
