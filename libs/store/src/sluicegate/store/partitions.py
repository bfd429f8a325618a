"""Day partitions: their names, their bounds, and making them beside running readers and writers.

`CREATE TABLE … PARTITION OF` locks the parent against everybody, and waits behind one open reader. So a
partition is made as a plain table LIKE its parent, with its primary key, and then attached: that
waits for nobody. The CHECK spares ATTACH the look at the rows, and is dropped in the same transaction,
because the partition bound says the same and would be checked a second time for each row.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Final

from sluicegate.store.pool import PoolConnection

US_PER_DAY: Final = 86_400_000_000
LOCK_TIMEOUT: Final = "200ms"

# Partitioned by day on `started_at`. Parents never get a DEFAULT partition: it forbids DETACH CONCURRENTLY.
DAILY_TABLES: Final = ("usage", "usage_detail")

_EPOCH: Final = dt.date(1970, 1, 1)
# Two makers of one partition would collide in the catalogue; this lock lets the second one see the first's.
_ADVISORY_LOCK: Final = 0x51_06_00_01


def day_number(at_us: int) -> int:
    """Return the UTC day (days since the epoch) that a time in µs falls in."""
    return at_us // US_PER_DAY


def date_of(day: int) -> dt.date:
    """Return the date of a day number."""
    return _EPOCH + dt.timedelta(days=day)


def partition_name(table: str, day: int) -> str:
    """Return the partition of `table` for a day, such as `usage_20261130`."""
    return f"{table}_{date_of(day):%Y%m%d}"


async def existing(connection: PoolConnection, tables: Iterable[str] = DAILY_TABLES) -> set[str]:
    """Return the names of the attached partitions of `tables`."""
    rows = await connection.fetch(
        """
        SELECT child.relname
        FROM pg_inherits
        JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = ANY (SELECT to_regclass(name) FROM unnest($1::text[]) AS name)
        """,
        list(tables),
    )
    return {row["relname"] for row in rows}


async def missing(
    connection: PoolConnection, days: Iterable[int], tables: Iterable[str] = DAILY_TABLES
) -> list[tuple[str, int]]:
    """Return (table, day) for each partition that does not exist yet, oldest day first."""
    tables = tuple(tables)
    have = await existing(connection, tables)
    return [(table, day) for day in sorted(set(days)) for table in tables if partition_name(table, day) not in have]


async def make(connection: PoolConnection, days: Iterable[int], tables: Iterable[str] = DAILY_TABLES) -> list[str]:
    """Make the partitions of `tables` for `days` that are missing; return the names of those made.

    Each is a transaction of its own, so that a lock that is not to be had (`lock_timeout`) costs one
    and not all. Raises `LockNotAvailableError` then; what was made before stays. `connection` must not
    be inside a transaction.
    """
    return [
        partition_name(table, day)
        for table, day in await missing(connection, days, tables)
        if await _make_one(connection, table, day)
    ]


async def _make_one(connection: PoolConnection, table: str, day: int) -> bool:
    name = partition_name(table, day)
    lower, upper = f"'{date_of(day)} 00:00:00+00'", f"'{date_of(day + 1)} 00:00:00+00'"
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _ADVISORY_LOCK)
        if name in await existing(connection, (table,)):
            return False
        # A table of this name that is not attached was left by a DETACH: its rows are not ours to touch.
        await connection.execute(
            f"""
            CREATE TABLE {name} (LIKE {table} INCLUDING ALL);
            ALTER TABLE {name} ADD CONSTRAINT {name}_bounds
                CHECK (started_at >= {lower} AND started_at < {upper});
            ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({lower}) TO ({upper});
            ALTER TABLE {name} DROP CONSTRAINT {name}_bounds;
            """
        )
    return True
