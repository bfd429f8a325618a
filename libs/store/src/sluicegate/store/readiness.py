"""Watches whether the database answers and is what a room needs, for its readiness. Nothing depends on its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from sluicegate.store.pool import Pool, PoolConnection

LOOK_EVERY_S: Final = 2.0
LOOK_TIMEOUT_S: Final = 10.0
_MIGRATE: Final = "run `sluicegate migrate`"
# Class 42 is what does not fit the schema; this one of it is about rights.
_NO_RIGHT: Final = "42501"

Trial = Callable[[PoolConnection], Awaitable[None]]


def needs_table(table: str) -> Trial:
    """Return the trial of a room that needs `table`, one that the newest schema has."""

    async def look_for(connection: PoolConnection) -> None:
        if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table):
            raise asyncpg.UndefinedTableError(f'relation "{table}" does not exist')

    return look_for


async def watch(pool: Pool, trial: Trial, report: Callable[[bool, str], None]) -> None:
    """Report (ready, detail) every two seconds until cancelled; `trial` fails where the room's work would."""
    while True:
        report(*await look(pool, trial))
        await asyncio.sleep(LOOK_EVERY_S)


async def look(pool: Pool, trial: Trial) -> tuple[bool, str]:
    """Return whether `trial` succeeds on a connection, and if not, why and what to do."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S), pool.acquire() as connection:
            await trial(connection)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        # What a room makes on each new connection may be out of date with the schema.
        await pool.expire_connections()
        return False, _reason(error)
    return True, ""


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    state = str(error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
    if state.startswith("42") and state != _NO_RIGHT:
        return f"the database is not migrated as this version needs it ({text}): {_MIGRATE}"
    return text
