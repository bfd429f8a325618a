"""Records, roll-ups and last-used times: each event counts once, whatever comes twice or in which order."""

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.contracts.usage import Attempt
from sluicegate.devstack.usage_checks import last_used_differences, rollup_differences
from sluicegate.devstack.usage_events import population, usage_event

Publish = Callable[..., Awaitable[int]]
UntilRead = Callable[[int], Awaitable[None]]
Start = Callable[..., Awaitable[Callable[[], Awaitable[None]]]]


async def assert_consistent(database: Any, count: int) -> None:
    assert await database.fetchval("SELECT count(*) FROM usage") == count
    assert await rollup_differences(database) == []
    assert await last_used_differences(database) == []


async def test_record_keeps_every_field_when_stored(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    event = usage_event(
        department="dep_1",
        requested_model="модель 🙂",
        upstream_request_id="req_1",
        streamed=True,
        status=499,
        outcome="client_cancelled",
        error_code="client_closed",
        fallbacks=1,
        rule="rule-1",
        cached_input_tokens=7,
        cache_write_5m_tokens=8,
        cache_write_1h_tokens=9,
        reasoning_tokens=10,
        usage_source="partial",
        end_user="user-1",
        tags={"app": "search"},
        attempts=(Attempt(provider="prv_0", status=500, started_us=1, first_byte_us=2, end_us=3),),
        guard_action="masked",
        guard_counts={"email": 2},
        traceparent="00-1-2-01",
        count=3,
    )
    await start_writer()
    await until_read(await publish([event]))
    record = await database.fetchrow("SELECT * FROM usage_record")
    in_detail = {"attempts", "rule", "guard_action", "guard_counts", "end_user", "tags", "traceparent"}
    for name in set(event.__struct_fields__) - in_detail - {"started_at_us"}:
        value = str(record[name]) if name == "request_id" else record[name]
        assert value == getattr(event, name), name
    assert round(record["started_at"].timestamp() * 1_000_000) == event.started_at_us
    detail = await database.fetchrow(
        """
        SELECT *, tags->>'app' AS app, attempts->0->>'status' AS attempt, guard->'counts'->>'email' AS emails
        FROM usage_detail
        """
    )
    assert (detail["end_user"], detail["rule"], detail["traceparent"]) == ("user-1", "rule-1", "00-1-2-01")
    assert (detail["app"], detail["attempt"], detail["emails"]) == ("search", "500", "2")
    assert (detail["started_at"], detail["request_id"]) == (record["started_at"], record["request_id"])
    await assert_consistent(database, 1)


async def test_record_keeps_unknown_apart_from_zero(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    unknown = usage_event(cost_nano_usd=None, cost_source="unpriced", first_token_us=None, provider_us=None)
    zero = usage_event(cost_nano_usd=0, first_token_us=0, provider_us=0)
    await start_writer()
    await until_read(await publish([unknown, zero]))
    rows = await database.fetch(
        "SELECT cost_nano_usd, first_token_us, provider_us FROM usage ORDER BY cost_nano_usd NULLS LAST"
    )
    assert [tuple(row) for row in rows] == [(0, 0, 0), (None, None, None)]
    assert await database.fetchval("SELECT sum(unpriced_requests) FROM usage_rollup") == 1


async def test_nothing_is_added_when_messages_come_again(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    events = list(population(2_000))
    await start_writer()
    await until_read(await publish(events))
    await assert_consistent(database, 2_000)
    before = await database.fetch("SELECT * FROM usage_rollup ORDER BY series, bucket, outcome")
    await until_read(await publish(events))
    assert await database.fetch("SELECT * FROM usage_rollup ORDER BY series, bucket, outcome") == before
    await assert_consistent(database, 2_000)


async def test_only_the_new_ones_are_added_when_messages_overlap(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    events = list(population(3_000, detail_share=0.3))
    await start_writer()
    for start in range(0, 3_000, 500):
        # Cut differently each time, with doubles inside one message and across messages.
        part = events[max(0, start - 300) : start + 500]
        await publish([*part, *part[:50]], per_message=random.Random(start).randrange(1, 200))
    await until_read(await publish(events[-1:]))
    await assert_consistent(database, 3_000)
    with_detail = sum(bool(event.end_user) for event in events)
    assert await database.fetchval("SELECT count(*) FROM usage_detail") == with_detail


async def test_all_are_stored_when_messages_are_larger_than_a_transaction(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    events = list(population(3_000))
    last = await publish(events, per_message=500)
    await start_writer(transaction_rows=400)
    await until_read(last)
    await assert_consistent(database, 3_000)


async def test_partition_is_made_when_it_is_missing(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    now_us, day_us = time.time_ns() // 1000, 86_400_000_000
    events = [usage_event(started_at_us=now_us + shift * day_us) for shift in (-399, -30, -1, 0, 1)]
    await start_writer()
    await until_read(await publish(events))
    await assert_consistent(database, 5)
    names = await database.fetch("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage'::regclass")
    assert len(names) == 5


async def test_partition_is_made_again_when_it_was_dropped_under_a_running_writer(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    await start_writer()
    first = usage_event()
    await until_read(await publish([first]))
    name = await database.fetchval("SELECT tableoid::regclass::text FROM usage")
    await database.execute(f"DROP TABLE {name}")
    second = usage_event(started_at_us=first.started_at_us + 1)
    await until_read(await publish([second]))
    assert await database.fetchval("SELECT count(*) FROM usage") == 1


async def test_last_used_is_the_latest_when_records_come_late(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    now_us = time.time_ns() // 1000
    await start_writer()
    for shift_s in (0, -100, 50, -3_000):
        await until_read(await publish([usage_event(started_at_us=now_us + shift_s * 1_000_000)]))
    seen = await database.fetchrow("SELECT key, last_used_at FROM key_last_used")
    assert (seen["key"], round(seen["last_used_at"].timestamp() * 1e6)) == ("key_0", now_us + 50_000_000)


async def test_percentiles_are_within_five_percent_when_histograms_are_merged(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    await start_writer(transaction_rows=500)
    await until_read(await publish(list(population(20_000, span_us=7_200_000_000))))
    for column in ("duration", "first_token", "overhead"):
        for fraction in (0.01, 0.25, 0.5, 0.9, 0.99, 0.999):
            merged = await database.fetchval(
                f"SELECT usage_latency_percentile(usage_latency_union({column}), $1) FROM usage_rollup", fraction
            )
            exact = await database.fetchval(
                f"SELECT percentile_disc($1) WITHIN GROUP (ORDER BY {column}_us) FROM usage", fraction
            )
            assert merged == pytest.approx(exact, rel=0.05), (column, fraction)


async def test_record_takes_at_most_260_bytes_with_all_indexes(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    count = 200_000
    await start_writer()
    await until_read(await publish(list(population(count))))
    sizes = dict(
        await database.fetch(
            """
            SELECT root, sum(pg_total_relation_size(relid))::float8 / $1
            FROM unnest(ARRAY['usage', 'usage_detail']) AS root, pg_partition_tree(root::regclass)
            GROUP BY 1
            """,
            count,
        )
    )
    print(f"bytes per record: {sizes}")
    assert await database.fetchval("SELECT count(*) FROM usage") == count
    assert sum(sizes.values()) <= 260
    # Not made small by leaving out what real records have.
    assert await database.fetchval("SELECT count(*) FROM usage WHERE upstream_request_id IS NULL") < count / 20


async def test_client_that_invents_names_only_costs_its_rows(
    database: Any, publish: Publish, until_read: UntilRead, start_writer: Start
) -> None:
    last = await publish([usage_event(requested_model=f"made-up-{n}") for n in range(2_000)])
    await start_writer()
    await until_read(last)
    await assert_consistent(database, 2_000)
    assert await database.fetchval("SELECT count(*) FROM usage_series") == 2_000
