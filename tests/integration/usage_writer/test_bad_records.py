"""Poison: each bad record becomes one dead letter, and nothing beside it is lost or held up."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import msgspec
import pytest

from sluicegate.bus.connection import Connection
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import DeadLettered
from sluicegate.contracts.subjects import DEADLETTER_STREAM
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.devstack.usage_checks import rollup_differences
from sluicegate.devstack.usage_events import usage_event
from sluicegate.devstack.waiting import until

SUBJECT = "gateway.request.completed.ten_0"
DAY_US = 86_400_000_000

UntilRead = Callable[[int], Awaitable[None]]
Start = Callable[..., Awaitable[Callable[[], Awaitable[None]]]]


async def send(bus: Connection, parts: list[bytes]) -> int:
    return (await bus.jetstream().publish(SUBJECT, join_events(parts))).seq


async def dead_letters(bus: Connection) -> list[DeadLettered]:
    js = bus.jetstream()
    count = (await js.stream_info(DEADLETTER_STREAM.name)).state.messages
    letters: list[DeadLettered] = []
    for sequence in range(1, count + 1):
        message = await js.get_msg(DEADLETTER_STREAM.name, sequence)
        assert message.subject == "gateway.deadletter.usage-writer"
        letters += msgspec.json.decode(message.data or b"", type=list[DeadLettered])
    return letters


def changed(**fields: Any) -> bytes:
    """Return an event with fields set that its type would not take."""
    return json.dumps(json.loads(encode_event(usage_event())) | fields).encode()


POISON = {
    "wrong type": changed(input_tokens="many"),
    "unknown outcome": changed(outcome="great"),
    "missing fields": b"{}",
    "no object": b"17",
    "not JSON": b"nonsense",
    "number beyond 64 bits": changed(cost_nano_usd=2**70),
    "lone surrogate": changed(requested_model="XX").replace(b"XX", b"\\ud83d"),
    "bad UTF-8": changed(requested_model="XX").replace(b"XX", b"\xff\xfe"),
    "deep nesting": changed(tags={}).replace(b'"tags": {}', b'"tags": ' + b"[" * 2_000 + b"]" * 2_000),
    "NUL in a name": changed(requested_model="a\0b"),
    "NUL in the edge": changed(edge="a\0b"),
    "NUL in a detail": changed(end_user="a\0b"),
    "NUL in a tag": changed(tags={"a": "\0"}),
    "NUL in the provider's id": changed(upstream_request_id="\0"),
    "name too long": changed(requested_model="x" * 5_000),
    "no UUID": changed(request_id="17"),
    "negative tokens": changed(input_tokens=-1),
    "tokens beyond a column": changed(output_tokens=2**31),
    "negative cost": changed(cost_nano_usd=-5),
    "absurd cost": changed(cost_nano_usd=2**62),
    "absurd duration": changed(duration_us=2**62),
    "too old": changed(started_at_us=time.time_ns() // 1000 - 401 * DAY_US),
    "too far ahead": changed(started_at_us=time.time_ns() // 1000 + 3 * DAY_US),
    "before the epoch": changed(started_at_us=-1),
    "time beyond all": changed(started_at_us=2**62),
}


async def test_each_bad_record_is_one_dead_letter_when_they_are_among_good_ones(
    bus: Connection, database: Any, until_read: UntilRead, start_writer: Start
) -> None:
    await start_writer()
    expected, last = {}, 0
    for name, poison in POISON.items():
        last = await send(bus, [encode_event(usage_event()), poison, encode_event(usage_event())])
        expected[last] = (name, poison)
    whole = (await bus.jetstream().publish(SUBJECT, b'{"not": "an array"}')).seq
    await until_read(whole)
    letters = {letter.sequence: letter for letter in await dead_letters(bus)}
    assert set(letters) == {*expected, whole}
    for sequence, (name, poison) in expected.items():
        letter = letters[sequence]
        assert (letter.room, letter.stream, letter.subject) == ("usage-writer", "USAGE", SUBJECT)
        assert letter.index == 1, name
        assert letter.reason, name
        try:
            wanted = msgspec.json.decode(poison, type=UsageRecorded)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            assert letter.payload == poison, name
        else:
            assert msgspec.json.decode(letter.payload, type=UsageRecorded) == wanted, name
    assert letters[whole].payload == b'{"not": "an array"}'
    assert await database.fetchval("SELECT count(*) FROM usage") == 2 * len(POISON)
    assert await rollup_differences(database) == []


async def test_row_is_found_by_halving_when_only_the_database_refuses_it(
    bus: Connection, database: Any, until_read: UntilRead, start_writer: Start
) -> None:
    await database.execute("ALTER TABLE usage ADD CONSTRAINT no_666 CHECK (input_tokens <> 666)")
    await start_writer()
    bad = {3, 4, 250, 499}
    events = [usage_event(input_tokens=666 if n in bad else n, end_user=f"u{n}") for n in range(500)]
    first = await send(bus, [encode_event(event) for event in events])
    other = await send(bus, [encode_event(usage_event(input_tokens=n)) for n in range(50)])
    await until_read(other)
    letters = await dead_letters(bus)
    assert sorted((letter.sequence, letter.index) for letter in letters) == [(first, index) for index in sorted(bad)]
    assert all("no_666" in letter.reason for letter in letters)
    assert await database.fetchval("SELECT count(*) FROM usage") == 546
    assert await database.fetchval("SELECT count(*) FROM usage_detail") == 496
    assert await rollup_differences(database) == []


async def test_no_record_is_a_dead_letter_when_the_schema_is_not_there_yet(
    bus: Connection, dsn: str, until_read: UntilRead, start_writer: Start
) -> None:
    other = await asyncpg.connect(dsn)
    await other.execute("ALTER TABLE usage_rollup RENAME TO later")
    await start_writer()
    sequence = await send(bus, [encode_event(usage_event())])

    async def was_tried_twice() -> bool:
        info = await bus.jetstream().consumer_info("USAGE", "usage-writer")
        return (info.num_redelivered or 0) > 0

    await until(was_tried_twice, "tried again")
    assert await dead_letters(bus) == []
    await other.execute("ALTER TABLE later RENAME TO usage_rollup")
    await until_read(sequence)
    assert await dead_letters(bus) == []
    assert await other.fetchval("SELECT count(*) FROM usage") == 1
    assert await rollup_differences(other) == []
    await other.close()


@pytest.mark.parametrize("count", [1, 500])
async def test_message_is_acknowledged_when_every_record_in_it_is_bad(
    bus: Connection, database: Any, until_read: UntilRead, start_writer: Start, count: int
) -> None:
    await start_writer()
    await until_read(await send(bus, [changed(input_tokens=-1)] * count))
    assert [letter.index for letter in await dead_letters(bus)] == list(range(count))
    assert await database.fetchval("SELECT count(*) FROM usage") == 0
