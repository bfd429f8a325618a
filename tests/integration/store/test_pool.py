"""The pool without a server, with one that comes back, and transactions that get into each other's way."""

import asyncio
from collections.abc import Callable

import pytest

from sluicegate.devstack.servers import PostgresServer
from sluicegate.store import readiness, transactions
from sluicegate.store.pool import PoolConnection, close_pool, open_pool


async def test_pool_opens_without_a_server_and_works_once_it_is_there(
    own_postgres: Callable[[], PostgresServer],
) -> None:
    server = own_postgres()
    server.stop()
    pool = await open_pool(server.dsn(), application_name="sluicegate-test")
    with pytest.raises(OSError) as failure:  # noqa: PT011 - which one depends on the moment
        await pool.fetchval("SELECT 1")
    assert transactions.is_unavailable(failure.value)
    server.start()
    assert await pool.fetchval("SHOW application_name") == "sluicegate-test"
    server.kill()
    with pytest.raises(Exception, match=r".") as lost:
        await pool.fetchval("SELECT 1")
    assert transactions.is_unavailable(lost.value)
    server.start()
    assert await pool.fetchval("SELECT 1") == 1
    await close_pool(pool)


async def test_readiness_tells_what_is_wrong(own_postgres: Callable[[], PostgresServer], postgres_dsn: str) -> None:
    server = own_postgres()
    empty = await open_pool(server.dsn(), application_name="test")
    needs_usage = readiness.needs_table("usage")
    is_ready, detail = await readiness.look(empty, needs_usage)
    assert not is_ready
    assert '"usage" does not exist' in detail
    assert "run `sluicegate migrate`" in detail
    server.stop()
    is_ready, detail = await readiness.look(empty, needs_usage)
    assert not is_ready
    assert detail
    assert "migrate" not in detail
    await close_pool(empty)
    migrated = await open_pool(postgres_dsn, application_name="test")
    assert await readiness.look(migrated, needs_usage) == (True, "")
    await close_pool(migrated)


async def test_transaction_runs_again_when_it_was_the_victim_of_a_deadlock(postgres_dsn: str) -> None:
    pool = await open_pool(postgres_dsn, application_name="test")
    await pool.execute("CREATE TABLE meters (id int PRIMARY KEY, n int); INSERT INTO meters VALUES (1, 0), (2, 0)")
    runs = 0
    both_hold_one = asyncio.Barrier(2)

    async def add(first: int, second: int, *, meet: bool) -> None:
        met = not meet

        async def work(connection: PoolConnection) -> None:
            nonlocal runs, met
            runs += 1
            await connection.execute("UPDATE meters SET n = n + 1 WHERE id = $1", first)
            if not met:
                met = True
                await both_hold_one.wait()
            await connection.execute("UPDATE meters SET n = n + 1 WHERE id = $1", second)

        await transactions.run(pool, work)

    await asyncio.gather(add(1, 2, meet=True), add(2, 1, meet=True))
    assert runs == 3
    assert [row["n"] for row in await pool.fetch("SELECT n FROM meters ORDER BY id")] == [2, 2]
    await close_pool(pool)


async def test_transaction_is_undone_and_not_repeated_when_the_work_fails(postgres_dsn: str) -> None:
    pool = await open_pool(postgres_dsn, application_name="test")
    await pool.execute("CREATE TABLE notes (n int)")
    runs = 0

    async def work(connection: PoolConnection) -> None:
        nonlocal runs
        runs += 1
        await connection.execute("INSERT INTO notes VALUES (1)")
        raise LookupError("ours")

    with pytest.raises(LookupError, match="ours"):
        await transactions.run(pool, work)
    assert (runs, await pool.fetchval("SELECT count(*) FROM notes")) == (1, 0)
    await close_pool(pool)
