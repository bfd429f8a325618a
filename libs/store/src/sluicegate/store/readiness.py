"""Watches whether the database answers and is migrated, for a room's readiness. Nothing depends on its answer."""

import asyncio
from collections.abc import Callable
from typing import Final

import asyncpg

from sluicegate.store.pool import Pool

LOOK_EVERY_S: Final = 2.0


async def watch(pool: Pool, table: str, report: Callable[[bool, str], None]) -> None:
    """Report (ready, detail) every two seconds until cancelled; `table` is one that the newest schema has."""
    while True:
        report(*await look(pool, table))
        await asyncio.sleep(LOOK_EVERY_S)


async def look(pool: Pool, table: str) -> tuple[bool, str]:
    """Return whether the database answers and holds `table`, and if not, why."""
    try:
        is_there = await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", table)
    except asyncpg.UndefinedTableError:  # met by what a room does on each new connection
        is_there = False
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return False, str(error) or type(error).__name__
    return (True, "") if is_there else (False, "the database is not migrated")
