"""All SQL of this room. Everything here is written so that doing it twice adds nothing.

A transaction: COPY into a stage (a temporary table per connection, emptied at commit: no catalogue bloat),
then ONE statement that inserts the rows that are new and, from what that RETURNs and nothing else, adds
to roll-ups, last-used times and details. Each part goes in the order of its key, so that writers wait
for each other instead of deadlocking.
"""

import datetime as dt
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, cast

from sluicegate.contracts.facts import SpentQuestion
from sluicegate.store import partitions
from sluicegate.store.pool import Connection, PoolConnection
from sluicegate.usage_writer import rows
from sluicegate.usage_writer.rows import Detail

_SERIES_OF: Final = {
    **{
        scope: f"SELECT id FROM usage_series WHERE {scope} = (SELECT id FROM usage_name WHERE name = $1)"  # noqa: S608 - our own names
        for scope in ("tenant", "department", "team", "key", "provider")
    },
    # Records name a model as its provider does, and two providers may use one name.
    "model": """
        SELECT series.id FROM usage_series series
        JOIN models ON models.id = $1
        JOIN usage_name provider ON provider.name = models.provider
        JOIN usage_name model ON model.name = models.name
        WHERE series.provider = provider.id AND series.upstream_model = model.id
    """,
}

_MAKE_STAGE: Final = """
CREATE TEMPORARY TABLE IF NOT EXISTS usage_stage (
    started_at timestamptz NOT NULL,
    duration_us bigint NOT NULL,
    cost_nano_usd bigint NOT NULL,
    series integer NOT NULL,
    key integer NOT NULL,
    edge integer NOT NULL,
    input_tokens integer NOT NULL,
    output_tokens integer NOT NULL,
    provider_us integer NOT NULL,
    first_token_us integer NOT NULL,
    overhead_us integer NOT NULL,
    cached_input_tokens integer NOT NULL,
    cache_write_5m_tokens integer NOT NULL,
    cache_write_1h_tokens integer NOT NULL,
    reasoning_tokens integer NOT NULL,
    error_code integer NOT NULL,
    count integer NOT NULL,
    status smallint NOT NULL,
    outcome smallint NOT NULL,
    fallbacks smallint NOT NULL,
    request_id uuid NOT NULL,
    upstream_request_id text
) ON COMMIT DELETE ROWS;
CREATE TEMPORARY TABLE IF NOT EXISTS usage_detail_stage (LIKE usage_detail) ON COMMIT DELETE ROWS;
"""

_INSERT: Final = """
WITH added AS (
    INSERT INTO usage (
        started_at, duration_us, cost_nano_usd, series, key, edge, input_tokens, output_tokens, provider_us,
        first_token_us, overhead_us, cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens,
        reasoning_tokens, error_code, count, status, outcome, fallbacks, request_id, upstream_request_id
    )
    SELECT
        started_at, duration_us, nullif(cost_nano_usd, -1), series, key, edge, input_tokens, output_tokens,
        nullif(provider_us, -1), nullif(first_token_us, -1), nullif(overhead_us, -1),
        nullif(cached_input_tokens, 0), nullif(cache_write_5m_tokens, 0), nullif(cache_write_1h_tokens, 0),
        nullif(reasoning_tokens, 0), nullif(error_code, 0), nullif(count, 1), status, outcome,
        nullif(fallbacks, 0::smallint), request_id, upstream_request_id
    FROM usage_stage
    ORDER BY started_at, request_id
    ON CONFLICT DO NOTHING
    RETURNING
        started_at, request_id, series, key, outcome, coalesce(count, 1) AS count, fallbacks,
        cost_nano_usd, input_tokens, cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens,
        output_tokens, reasoning_tokens, duration_us, first_token_us, overhead_us
),
rolled_up AS (
    INSERT INTO usage_rollup AS rollup (
        series, bucket, outcome, requests, unpriced_requests, fallbacks, cost_nano_usd, input_tokens,
        cached_input_tokens, cache_write_5m_tokens, cache_write_1h_tokens, output_tokens, reasoning_tokens,
        duration_us, duration, first_token, overhead
    )
    SELECT
        series,
        date_bin('15 minutes', started_at, timestamptz 'epoch') AS bucket,
        outcome,
        sum(count),
        coalesce(sum(count) FILTER (WHERE cost_nano_usd IS NULL), 0),
        coalesce(sum(fallbacks), 0),
        coalesce(sum(cost_nano_usd), 0)::bigint,
        sum(input_tokens),
        coalesce(sum(cached_input_tokens), 0),
        coalesce(sum(cache_write_5m_tokens), 0),
        coalesce(sum(cache_write_1h_tokens), 0),
        sum(output_tokens),
        coalesce(sum(reasoning_tokens), 0),
        sum(duration_us)::bigint,
        usage_latency_merge(array_agg(usage_latency(duration_us, count)), NULL),
        usage_latency_merge(
            array_agg(usage_latency(first_token_us, count)) FILTER (WHERE first_token_us IS NOT NULL), NULL
        ),
        usage_latency_merge(
            array_agg(usage_latency(overhead_us, count)) FILTER (WHERE overhead_us IS NOT NULL), NULL
        )
    FROM added
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3
    ON CONFLICT (series, bucket, outcome) DO UPDATE SET
        requests = rollup.requests + excluded.requests,
        unpriced_requests = rollup.unpriced_requests + excluded.unpriced_requests,
        fallbacks = rollup.fallbacks + excluded.fallbacks,
        cost_nano_usd = rollup.cost_nano_usd + excluded.cost_nano_usd,
        input_tokens = rollup.input_tokens + excluded.input_tokens,
        cached_input_tokens = rollup.cached_input_tokens + excluded.cached_input_tokens,
        cache_write_5m_tokens = rollup.cache_write_5m_tokens + excluded.cache_write_5m_tokens,
        cache_write_1h_tokens = rollup.cache_write_1h_tokens + excluded.cache_write_1h_tokens,
        output_tokens = rollup.output_tokens + excluded.output_tokens,
        reasoning_tokens = rollup.reasoning_tokens + excluded.reasoning_tokens,
        duration_us = rollup.duration_us + excluded.duration_us,
        duration = usage_latency_merge(rollup.duration, excluded.duration),
        first_token = usage_latency_merge(rollup.first_token, excluded.first_token),
        overhead = usage_latency_merge(rollup.overhead, excluded.overhead)
),
seen AS (
    INSERT INTO usage_last_used AS seen (key, last_used_at)
    SELECT key, max(started_at) FROM added GROUP BY key ORDER BY key
    ON CONFLICT (key) DO UPDATE SET last_used_at = excluded.last_used_at
    WHERE seen.last_used_at < excluded.last_used_at
),
detailed AS (
    INSERT INTO usage_detail (started_at, request_id, end_user, traceparent, rule, tags, attempts, guard)
    SELECT started_at, request_id, end_user, traceparent, rule, tags, attempts, guard
    FROM usage_detail_stage
    JOIN added USING (started_at, request_id)
    ORDER BY started_at, request_id
)
SELECT count(*) FROM added
"""

_NAME_IDS: Final = """
WITH wanted AS (SELECT DISTINCT name FROM unnest($1::text[]) AS name),
added AS (
    INSERT INTO usage_name (name)
    SELECT name FROM wanted
    WHERE NOT EXISTS (SELECT FROM usage_name WHERE usage_name.name = wanted.name)
    ORDER BY name
    ON CONFLICT (name) DO NOTHING
    RETURNING id, name
)
SELECT id, name FROM added
UNION ALL
SELECT id, name FROM usage_name WHERE name = ANY ($1)
"""

_SERIES_COLUMNS: Final = (
    "tenant, department, team, key, endpoint, requested_model, provider, upstream_model, price_version, "
    "usage_source, cost_source, streamed"
)
_SERIES_IDS: Final = f"""
WITH wanted AS (
    SELECT DISTINCT *
    FROM unnest(
        $1::integer[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::integer[],
        $8::integer[], $9::integer[], $10::smallint[], $11::smallint[], $12::boolean[]
    ) AS wanted ({_SERIES_COLUMNS})
),
known AS (SELECT id, {_SERIES_COLUMNS} FROM usage_series JOIN wanted USING ({_SERIES_COLUMNS})),
added AS (
    INSERT INTO usage_series ({_SERIES_COLUMNS})
    SELECT {_SERIES_COLUMNS} FROM wanted EXCEPT SELECT {_SERIES_COLUMNS} FROM known
    ORDER BY {_SERIES_COLUMNS}
    ON CONFLICT DO NOTHING
    RETURNING id, {_SERIES_COLUMNS}
)
SELECT * FROM known UNION ALL SELECT * FROM added
"""  # noqa: S608 - only column names

# A series by the numbers of its names, in the order of the columns above.
Combination = tuple[int, int, int, int, int, int, int, int, int, int, int, bool]


async def make_stage(connection: Connection) -> None:
    """Make a new connection's temporary tables."""
    await connection.execute(_MAKE_STAGE)


async def insert(connection: PoolConnection, body: bytes, details: Sequence[Detail]) -> int:
    """Stage a binary COPY body and details, move them on, return how many rows were new.

    To be called once in a transaction; after a failure only after going back to a savepoint.
    """
    await connection.copy_to_table("usage_stage", source=_at_once(body), columns=rows.COLUMNS, format="binary")
    if details:
        await connection.copy_records_to_table("usage_detail_stage", records=details, columns=rows.DETAIL_COLUMNS)
    return cast("int", await connection.fetchval(_INSERT))


async def store_nothing(connection: PoolConnection) -> None:
    """Run every statement of storing without a row: it fails as storing would, on the schema and on rights."""
    await connection.fetch(_NAME_IDS, [])
    await connection.fetch(_SERIES_IDS, *([] for _ in _SERIES_COLUMNS.split(", ")))
    await connection.copy_records_to_table("usage_detail_stage", records=(), columns=rows.DETAIL_COLUMNS)
    await insert(connection, rows.copy_body(()), ())


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def empty_stage(connection: PoolConnection) -> None:
    """Take out what an earlier part of the same transaction staged."""
    await connection.execute("DELETE FROM usage_stage; DELETE FROM usage_detail_stage")


async def name_ids(connection: PoolConnection, names: Sequence[str]) -> dict[str, int]:
    """Return the id of each name, adding those that are new."""
    found: dict[str, int] = {}
    while len(found) < len(names):  # a second look sees what another writer added meanwhile
        records = await connection.fetch(_NAME_IDS, names)
        found = {record["name"]: record["id"] for record in records}
    return found


async def series_ids(connection: PoolConnection, series: Sequence[Combination]) -> dict[Combination, int]:
    """Return the id of each series, adding those that are new."""
    found: dict[Combination, int] = {}
    columns = [list(column) for column in zip(*series, strict=True)]
    while len(found) < len(series):
        records = await connection.fetch(_SERIES_IDS, *columns)
        found = {cast("Combination", tuple(record)[1:]): record["id"] for record in records}
    return found


async def make_partitions(connection: PoolConnection, days: Iterable[int]) -> list[str]:
    """Make the partitions of these days that are missing; return their names."""
    return await partitions.make(connection, days)


async def spent(connection: PoolConnection, question: SpentQuestion) -> int:
    """Return what a scope spent in [start, end), from the roll-ups; both ends lie on quarters of an hour."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    total = await connection.fetchval(
        f"""
        SELECT coalesce(sum(cost_nano_usd), 0)::bigint
        FROM usage_rollup
        WHERE series IN ({_SERIES_OF[question.scope]}) AND bucket >= $2 AND bucket < $3
        """,  # noqa: S608 - one of our own queries
        question.id,
        epoch + dt.timedelta(microseconds=question.start_us),
        epoch + dt.timedelta(microseconds=question.end_us),
    )
    return cast("int", total)
