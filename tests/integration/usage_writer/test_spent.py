"""What was spent: equal to the truth, or `behind`; never a number that is too small."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from sluicegate.bus.connection import Connection
from sluicegate.contracts.facts import SpentAnswer, SpentQuestion
from sluicegate.contracts.subjects import RPC_BUDGET_SPENT
from sluicegate.contracts.usage import UsageRecorded
from sluicegate.devstack.usage_events import population, usage_event
from sluicegate.devstack.waiting import until

QUARTER_US = 900_000_000

Publish = Callable[..., Awaitable[int]]
UntilRead = Callable[[int], Awaitable[None]]
Start = Callable[..., Awaitable[Callable[[], Awaitable[None]]]]


async def ask(bus: Connection, body: bytes | SpentQuestion) -> SpentAnswer:
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = await bus.request(RPC_BUDGET_SPENT, payload, timeout=10)
    return msgspec.json.decode(answer.data, type=SpentAnswer)


async def answers(bus: Connection) -> bool:
    question = SpentQuestion(scope="key", id="none", start_us=0, end_us=QUARTER_US)
    try:
        return (await ask(bus, question)).state == "known"
    except Exception:  # noqa: BLE001 - not subscribed yet
        return False


def truth(events: list[UsageRecorded], scope: str, one: str, start_us: int, end_us: int) -> int:
    return sum(
        event.cost_nano_usd or 0
        for event in events
        if id_in(event, scope) == one and start_us <= event.started_at_us < end_us
    )


def id_in(event: UsageRecorded, scope: str) -> str | None:
    """Return the id of a scope in a record; a model's is made of the names it has there."""
    return f"{event.provider}/{event.upstream_model}" if scope == "model" else getattr(event, scope)


async def put_models(database: Any, events: list[UsageRecorded]) -> None:
    """Configure what the records name, as admin would have."""
    for provider in {event.provider for event in events if event.provider}:
        await database.execute(
            "INSERT INTO providers (id, name, type, base_url, supports_stream_options, connect_timeout_ms, "
            "first_byte_timeout_ms, idle_timeout_ms, total_timeout_ms, max_connections, enabled) "
            "VALUES ($1, $1, 'openai_compatible', 'http://x/v1', true, 1, 1, 1, 1, 1, true)",
            provider,
        )
    for provider, model in {(event.provider, event.upstream_model) for event in events if event.provider}:
        await database.execute(
            "INSERT INTO models (id, provider, name, model_type, capabilities, owned_by, enabled) "
            "VALUES ($1 || '/' || $2, $1, $2, 'chat', '{}', '', true)",
            provider,
            model,
        )


async def test_spent_equals_the_truth_for_every_scope_and_period(
    bus: Connection, database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    now_us = time.time_ns() // 1000
    events = list(population(3_000, start_us=now_us - 6 * 3_600_000_000, span_us=6 * 3_600_000_000))
    await put_models(database, events)
    await start_writer()
    await until_read(await publish(events))
    first = now_us // QUARTER_US * QUARTER_US
    periods = [
        (first - 24 * 4 * QUARTER_US, first + 4 * QUARTER_US),
        (first - 10 * QUARTER_US, first - 3 * QUARTER_US),
        (first - 5 * QUARTER_US, first - 4 * QUARTER_US),
        (first, first + QUARTER_US),
    ]
    sample = events[len(events) // 2]
    checked = 0
    for scope in ("tenant", "department", "team", "key", "provider", "model"):
        one = next(found for event in [sample, *events] if (found := id_in(event, scope)))
        for start_us, end_us in periods:
            answer = await ask(bus, SpentQuestion(scope=scope, id=one, start_us=start_us, end_us=end_us))
            assert answer == SpentAnswer(state="known", spent_nano_usd=truth(events, scope, one, start_us, end_us))
            checked += (answer.spent_nano_usd or 0) > 0
    assert checked > 10


@pytest.mark.parametrize("one", ["nobody", "", "x' OR '1'='1"])
async def test_spent_is_zero_when_the_scope_is_not_known(
    bus: Connection, publish: Publish, until_read: UntilRead, start_writer: Start, one: str
) -> None:
    await start_writer()
    await until_read(await publish([usage_event()]))
    await until(lambda: answers(bus), "answers")
    answer = await ask(bus, SpentQuestion(scope="key", id=one, start_us=0, end_us=QUARTER_US * 10**7))
    assert answer == SpentAnswer(state="known", spent_nano_usd=0)


async def test_spent_is_behind_while_records_wait_and_known_afterwards(
    bus: Connection, database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    now_us = time.time_ns() // 1000
    await start_writer()
    await until(lambda: answers(bus), "answers")
    await until_read(await publish([usage_event(cost_nano_usd=5)]))
    question = SpentQuestion(
        scope="key",
        id="key_0",
        start_us=(now_us // QUARTER_US - 4) * QUARTER_US,
        end_us=now_us // QUARTER_US * QUARTER_US + 4 * QUARTER_US,
    )
    assert await ask(bus, question) == SpentAnswer(state="known", spent_nano_usd=5)
    async with database.transaction():
        await database.execute("LOCK TABLE usage_rollup IN EXCLUSIVE MODE")  # reading goes on, storing waits
        sequence = await publish([usage_event(cost_nano_usd=7)])
        assert await ask(bus, question) == SpentAnswer(state="behind")
    await until_read(sequence)
    assert await ask(bus, question) == SpentAnswer(state="known", spent_nano_usd=12)


async def test_many_questions_are_answered_within_the_time_of_one(
    bus: Connection, database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    """Each waits a second while the writer is behind: one after the other, the last would wait for a minute."""
    question = SpentQuestion(scope="key", id="key_0", start_us=0, end_us=QUARTER_US)
    await start_writer()
    await until(lambda: answers(bus), "answers")
    await until_read(await publish([usage_event()]))
    async with database.transaction():
        await database.execute("LOCK TABLE usage_rollup IN EXCLUSIVE MODE")
        await publish([usage_event()])
        found = await asyncio.gather(*(ask(bus, question) for _ in range(60)))
    assert {answer.state for answer in found} == {"behind"}


async def test_spent_waits_up_to_a_second_when_records_are_just_being_stored(
    bus: Connection, publish: Publish, start_writer: Start
) -> None:
    now_us = time.time_ns() // 1000
    start_us = (now_us // QUARTER_US - 4) * QUARTER_US
    question = SpentQuestion(scope="key", id="key_0", start_us=start_us, end_us=start_us + 8 * QUARTER_US)
    await start_writer()
    await until(lambda: answers(bus), "answers")
    total = 0
    for number in range(1, 11):
        await publish([usage_event(cost_nano_usd=number)])
        total += number
        answer = await ask(bus, question)
        assert answer in {SpentAnswer(state="known", spent_nano_usd=total), SpentAnswer(state="behind")}


async def test_events_of_other_subjects_do_not_keep_it_behind(
    bus: Connection, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    await start_writer()
    await until_read(await publish([usage_event()]))
    js = bus.jetstream()
    config = (await js.stream_info("USAGE")).config
    await js.update_stream(config.evolve(subjects=[*(config.subjects or ()), "gateway.other"]))
    await js.publish("gateway.other", b"not ours")
    await until(lambda: answers(bus), "answers though the stream's last sequence is never reached")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"scope":"planet","id":"x","start_us":0,"end_us":900000000}',
        msgspec.json.encode(SpentQuestion(scope="key", id="x", start_us=1, end_us=QUARTER_US)),
        msgspec.json.encode(SpentQuestion(scope="key", id="x", start_us=0, end_us=QUARTER_US + 1)),
        msgspec.json.encode(SpentQuestion(scope="key", id="a\0b", start_us=0, end_us=QUARTER_US)),
        msgspec.json.encode(SpentQuestion(scope="key", id="x", start_us=0, end_us=QUARTER_US * 10**10)),
    ],
    ids=lambda body: repr(body[:60]),
)
async def test_question_is_answered_behind_when_it_cannot_be_understood(
    bus: Connection, start_writer: Start, body: bytes
) -> None:
    await start_writer()
    await until(lambda: answers(bus), "answers")
    async with asyncio.timeout(10):
        assert (await ask(bus, body)).state == "behind"
