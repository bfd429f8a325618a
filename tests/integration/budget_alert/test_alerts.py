"""Thresholds and commands from the bus: each stored once, over redelivery, restarts and outages; the bad put aside."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import msgspec

from sluicegate.budget_alert.repository import LEASE_S
from sluicegate.bus.connection import Connection
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import AlertsCommanded, BudgetThresholdReached, DeadLettered
from sluicegate.contracts.subjects import (
    ALERT_COMMANDS,
    ALERT_WORKER,
    ALERTS_COMMAND,
    BUDGET_THRESHOLD,
    DEADLETTER,
    DEADLETTER_STREAM,
    Consumer,
)
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.servers import PostgresServer
from sluicegate.devstack.waiting import until
from sluicegate.devstack.webhook_receiver import Webhook, WebhookReceiver, answer
from sluicegate.store.migrations import migrate

Start = Callable[..., Awaitable[Callable[[], Awaitable[None]]]]
AddEndpoint = Callable[..., Awaitable[tuple[str, str]]]

START_US = 1_793_491_200_000_000


def threshold(percent: int = 80, **changes: Any) -> BudgetThresholdReached:
    values: dict[str, Any] = {
        "event_id": f"bud_1:tea_1:{START_US // 1_000_000}:{percent}",
        "at_us": START_US + 5,
        "tenant": "ten_1",
        "budget": "bud_1",
        "budget_name": "research",
        "scope": "team",
        "scope_id": "tea_1",
        "period_start_us": START_US,
        "period_end_us": START_US + 86_400_000_000,
        "threshold_percent": percent,
        "limit_nano_usd": 10_000_000_000,
        "spent_nano_usd": 8_000_000_000,
    }
    return BudgetThresholdReached(**(values | changes))


def command(**fields: Any) -> AlertsCommanded:
    return AlertsCommanded(at_us=START_US, **fields)


async def publish(bus: Connection, subject: str, *events: msgspec.Struct) -> int:
    sequence: int = (await bus.jetstream().publish(subject, join_events(list(map(encode_event, events))))).seq
    return sequence


async def reach(bus: Connection, *events: BudgetThresholdReached) -> int:
    return await publish(bus, f"{BUDGET_THRESHOLD}.ten_1", *events)


async def until_read(bus: Connection, sequence: int, consumer: Consumer = ALERT_WORKER) -> None:
    async def is_read() -> bool:
        info = await bus.jetstream().consumer_info(consumer.stream, consumer.durable)
        return info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= sequence

    await until(is_read, f"acknowledged up to {sequence}")


async def is_nobody_waiting(bus: Connection) -> bool:
    info = await bus.jetstream().consumer_info(ALERT_WORKER.stream, ALERT_WORKER.durable)
    return not info.num_waiting


async def counts(database: Any) -> tuple[int, int]:
    alerts = await database.fetchval("SELECT count(*) FROM alerts")
    return alerts, await database.fetchval("SELECT count(*) FROM deliveries")


async def dead_letters(bus: Connection) -> list[DeadLettered]:
    js = bus.jetstream()
    found: list[DeadLettered] = []
    for sequence in range(1, (await js.stream_info(DEADLETTER_STREAM.name)).state.last_seq + 1):
        message = await js.get_msg(DEADLETTER_STREAM.name, sequence)
        assert message.subject == f"{DEADLETTER}.budget-alert"
        found += msgspec.json.decode(message.data or b"", type=list[DeadLettered])
    return found


async def test_threshold_is_stored_once_however_often_and_by_whomever_it_is_found(
    bus: Connection, database: Any, start_room: Start, add_endpoint: AddEndpoint, receiver: WebhookReceiver
) -> None:
    await add_endpoint(receiver.url, tenant="ten_1")
    await add_endpoint(receiver.url)
    stop = await start_room()
    await reach(bus, threshold(), threshold())
    # Another finder saw another sum, a moment later.
    await until_read(bus, await reach(bus, threshold(at_us=START_US + 99, spent_nano_usd=8_000_000_777)))
    assert await counts(database) == (1, 2)
    await stop()
    await until(lambda: is_nobody_waiting(bus), "pulls of the stopped one are over")  # one would take a message along
    await start_room()
    await until_read(bus, await reach(bus, threshold(), threshold(50)))
    assert await counts(database) == (2, 4)
    await receiver.until_received(4)
    assert {webhook.headers["webhook-id"] for webhook in receiver.received} == {
        threshold(50).event_id,
        threshold(80).event_id,
    }


async def test_threshold_of_another_period_or_scope_is_another_alert(
    bus: Connection, database: Any, start_room: Start
) -> None:
    await start_room()
    day_us = 86_400_000_000
    last = await reach(
        bus,
        threshold(),
        threshold(period_start_us=START_US + day_us, period_end_us=START_US + 2 * day_us),
        threshold(scope_id="tea_2"),
        threshold(budget="bud_2"),
    )
    await until_read(bus, last)
    assert await counts(database) == (4, 0)


async def test_bad_events_are_put_aside_and_the_others_stored(
    bus: Connection, database: Any, start_room: Start
) -> None:
    await start_room()
    good = [encode_event(threshold(percent)) for percent in (50, 80)]
    bad = encode_event(threshold(threshold_percent=0))
    js = bus.jetstream()
    await js.publish(f"{BUDGET_THRESHOLD}.ten_1", join_events([good[0], b'{"nothing": 1}', bad, good[1]]))
    last = (await js.publish(f"{BUDGET_THRESHOLD}.ten_1", b"not even an array")).seq
    await until_read(bus, last)
    assert await counts(database) == (2, 0)
    letters = await dead_letters(bus)
    assert [(letter.index, letter.payload) for letter in letters] == [
        (1, b'{"nothing": 1}'),
        (2, bad),
        (0, b"not even an array"),
    ]


async def test_commands_send_tests_and_replays_once_each(
    bus: Connection, database: Any, start_room: Start, add_endpoint: AddEndpoint, receiver: WebhookReceiver
) -> None:
    endpoint, secret = await add_endpoint(receiver.url, tenant="ten_1")
    await start_room()
    await reach(bus, threshold())
    await receiver.until_received(1)
    await until(lambda: database.fetchval("SELECT state = 'delivered' FROM deliveries"), "delivered")
    delivery = await database.fetchval("SELECT id FROM deliveries")
    test = command(event_id="evt_1", verb="test", endpoint=endpoint)
    replay = command(event_id="evt_2", verb="replay", delivery=delivery)
    await publish(bus, ALERTS_COMMAND, test, test, replay)
    await receiver.until_received(3)
    unknown = command(event_id="evt_3", verb="replay", delivery="dlv_none")
    empty = command(event_id="evt_4", verb="test")
    last = await publish(bus, ALERTS_COMMAND, replay, unknown, empty, test)
    await until_read(bus, last, ALERT_COMMANDS)

    async def are_delivered() -> bool:
        return bool(await database.fetchval("SELECT bool_and(state = 'delivered') FROM deliveries"))

    await until(are_delivered, "all delivered")
    assert sorted(webhook.headers["webhook-id"] for webhook in receiver.received) == sorted(
        [threshold().event_id, threshold().event_id, "evt_1"]
    )
    assert all(webhook.is_signed_with(secret) for webhook in receiver.received)
    assert [letter.reason for letter in await dead_letters(bus)] == [
        "there is nothing to replay under this id",
        "the command names nothing to do it with",
    ]


async def test_alert_and_its_deliveries_are_stored_together_or_not_at_all(
    bus: Connection, database: Any, start_room: Start, add_endpoint: AddEndpoint, receiver: WebhookReceiver
) -> None:
    await add_endpoint(receiver.url)
    await database.execute("ALTER TABLE deliveries RENAME TO elsewhere")
    await start_room()
    await reach(bus, threshold())

    async def was_tried() -> bool:
        info = await bus.jetstream().consumer_info(ALERT_WORKER.stream, ALERT_WORKER.durable)
        return bool(info.num_redelivered)

    await until(was_tried, "tried")
    assert await database.fetchval("SELECT count(*) FROM alerts") == 0
    await database.execute("ALTER TABLE elsewhere RENAME TO deliveries")
    await receiver.until_received(1)
    assert await counts(database) == (1, 1)


async def test_alerts_arrive_once_when_postgres_was_away_and_the_process_was_killed(
    bus: Connection, own_postgres: Callable[[], PostgresServer], new_room: Callable[..., RoomProcess]
) -> None:
    """Nothing listens to deliveries here: what counts is one row for each threshold."""
    postgres = own_postgres()
    dsn = postgres.create_database("alerts")
    await asyncio.to_thread(migrate, dsn)
    room = new_room(dsn)
    room.start()
    await room.until_ready()
    postgres.stop()
    await reach(bus, threshold(50), threshold(80))
    await room.until_unready()
    assert (await room.get("/livez")).status_code == 200
    room.kill()
    postgres.start()
    again = new_room(dsn)
    again.start()
    await again.until_ready()
    await until_read(bus, await reach(bus, threshold(80), threshold(100)))
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("SELECT threshold_percent FROM alerts ORDER BY 1")
    await connection.close()
    assert [row["threshold_percent"] for row in rows] == [50, 80, 100]
    assert await again.stop_gently() == 0


async def test_delivery_is_taken_over_when_its_process_was_killed_while_sending(
    bus: Connection,
    database: Any,
    new_room: Callable[..., RoomProcess],
    add_endpoint: AddEndpoint,
    let_pass: Callable[[float], Awaitable[None]],
    receiver: WebhookReceiver,
) -> None:
    async def never(_webhook: Webhook, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    receiver.respond = never
    await add_endpoint(receiver.url)
    killed, other = new_room(), new_room()
    killed.start()
    await killed.until_ready()
    await reach(bus, threshold())
    await receiver.until_received(1)
    killed.kill()
    receiver.respond = answer(200)
    other.start()
    await other.until_ready()
    await let_pass(LEASE_S)
    await until(lambda: database.fetchval("SELECT state = 'delivered' FROM deliveries"), "delivered")
    history = await database.fetch(
        "SELECT number, ended_at IS NOT NULL AS ended FROM delivery_attempts ORDER BY number"
    )
    assert [tuple(row) for row in history] == [(1, False), (2, True)]
    assert len(receiver.received) == 2


async def test_readiness_names_what_is_away(
    start_room: Start, new_room: Callable[..., RoomProcess], empty_postgres_dsn: str, bus: Connection
) -> None:
    room = new_room(empty_postgres_dsn)
    room.start()

    async def is_nats_ready() -> bool:
        return room.process.is_running and bool((await room.get("/readyz")).json()["parts"]["nats"]["ready"])

    await room.until_unready()
    await until(is_nats_ready, "nats ready")
    parts = (await room.get("/readyz")).json()["parts"]
    assert "run `sluicegate migrate`" in parts["postgres"]["detail"]
    assert parts["meters"]["ready"]
    assert "sluicegate_budget_alert_deliveries_pending" in (await room.get("/metrics")).text
