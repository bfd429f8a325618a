"""All SQL of this room."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.store import partitions
from sluicegate.store.pool import Pool, PoolConnection

# Any number of retention processes may run; this lock lets one work at a time.
_ADVISORY_LOCK: Final = 0x51_06_00_02


@asynccontextmanager
async def only_one(pool: Pool) -> AsyncIterator[PoolConnection]:
    """Yield a connection once no other retention process works."""
    async with pool.acquire() as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", _ADVISORY_LOCK)
        try:
            yield connection
        finally:
            if not connection.is_closed():  # a broken connection has let go of it already
                await connection.execute("SELECT pg_advisory_unlock($1)", _ADVISORY_LOCK)


async def missing_partitions(connection: PoolConnection, days: Iterable[int]) -> list[str]:
    """Return the names of the partitions that these days lack."""
    return [partitions.partition_name(table, day) for table, day in await partitions.missing(connection, days)]


async def make_partitions(connection: PoolConnection, days: Iterable[int]) -> list[str]:
    """Make the partitions that these days lack; return their names."""
    return await partitions.make(connection, days)
