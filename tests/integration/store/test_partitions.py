"""Making partitions beside readers, writers and other makers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from sluicegate.store import partitions
from sluicegate.store.pool import Pool, close_pool, open_pool

DAY = 20_000
ROW = """
INSERT INTO usage_detail (started_at, request_id) VALUES (to_timestamp($1::float8), gen_random_uuid())
"""


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[Pool]:
    made = await open_pool(postgres_dsn, application_name="test")
    yield made
    await close_pool(made)


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Any]:
    made = await asyncpg.connect(postgres_dsn)
    yield made
    await made.close()


async def test_partitions_are_made_once_and_take_the_whole_day(pool: Pool, connection: Any) -> None:
    async with pool.acquire() as other:
        made = await partitions.make(other, [DAY, DAY + 1])
        assert made == ["usage_20241004", "usage_detail_20241004", "usage_20241005", "usage_detail_20241005"]
        assert await partitions.make(other, [DAY, DAY + 1]) == []
    for at_s in (DAY * 86_400, DAY * 86_400 + 86_399.999999, (DAY + 1) * 86_400):
        await connection.execute(ROW, at_s)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute(ROW, DAY * 86_400 - 0.000001)


async def test_partition_has_the_parents_indexes_and_no_check_of_its_own(pool: Pool, connection: Any) -> None:
    async with pool.acquire() as other:
        await partitions.make(other, [DAY + 10])
    indexes = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'usage_20241014'")
    definitions = sorted(row["indexdef"].partition(" USING ")[2] for row in indexes)
    assert definitions == ["btree (key, started_at)", "btree (started_at, request_id)"]
    parents = await connection.fetchval(
        "SELECT count(*) FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid WHERE indrelid = 'usage_20241014'::regclass"
    )
    assert parents == 2
    checks = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'usage_20241014'::regclass AND contype = 'c'"
    assert await connection.fetchval(checks) == 0


async def test_partition_is_made_beside_an_open_reader_and_writer(
    pool: Pool, connection: Any, postgres_dsn: str
) -> None:
    async with pool.acquire() as other:
        await partitions.make(other, [DAY + 20])
    writer = await asyncpg.connect(postgres_dsn)
    async with connection.transaction(), writer.transaction():
        await connection.fetch("SELECT * FROM usage_detail")
        await writer.execute(ROW, (DAY + 20) * 86_400)
        async with pool.acquire() as other:
            assert len(await partitions.make(other, [DAY + 21])) == 2
    await writer.close()


async def test_partition_is_made_by_one_when_several_make_it_at_once(pool: Pool) -> None:
    async def make() -> list[str]:
        async with pool.acquire() as connection:
            return await partitions.make(connection, range(DAY + 30, DAY + 34))

    made = await asyncio.gather(*(make() for _ in range(4)))
    names = [name for part in made for name in part]
    assert len(names) == len(set(names)) == 8


async def test_making_gives_up_soon_when_the_parent_is_locked(pool: Pool, connection: Any) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE usage IN ACCESS EXCLUSIVE MODE")
        async with pool.acquire() as other:
            async with asyncio.timeout(20):
                with pytest.raises(asyncpg.LockNotAvailableError):
                    await partitions.make(other, [DAY + 40])
    async with pool.acquire() as other:
        assert len(await partitions.make(other, [DAY + 40])) == 2


async def test_detached_table_is_left_alone(pool: Pool, connection: Any) -> None:
    async with pool.acquire() as other:
        await partitions.make(other, [DAY + 50])
        await connection.execute("ALTER TABLE usage_detail DETACH PARTITION usage_detail_20241123")
        with pytest.raises(asyncpg.DuplicateTableError):
            await partitions.make(other, [DAY + 50])
    assert await connection.fetchval("SELECT to_regclass('usage_detail_20241123')")
