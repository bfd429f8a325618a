"""The connection pool every room opens. It starts and goes on without a server: readiness tells, nothing crashes."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import asyncpg
import asyncpg.pool

CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0

if TYPE_CHECKING:  # generic in the stubs only
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    PoolConnection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
else:
    Connection = asyncpg.Connection
    PoolConnection = asyncpg.pool.PoolConnectionProxy
    Pool = asyncpg.Pool


class Init(Protocol):
    """What makes a new connection ready: settings, temporary tables."""

    async def __call__(self, con: Connection, /) -> None: ...


async def open_pool(
    dsn: str,
    *,
    application_name: str,
    max_size: int = 10,
    command_timeout_s: float | None = 60.0,
    statement_cache_size: int = 100,
    server_settings: Mapping[str, str] | None = None,
    init: Init | None = None,
) -> Pool:
    """Return a pool. No connection is made yet, so this works while PostgreSQL is away.

    `application_name` is `sluicegate-<room>`: it is how statements are told apart in the server's log.
    Behind pgbouncer in transaction mode `statement_cache_size` must be 0, and of `server_settings` it knows
    few. `init` runs once on each new connection.
    A server that went away is connected to again by the next call; that call raises what
    `transactions.is_unavailable` recognises.
    """
    return await asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=max_size,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=command_timeout_s,
        statement_cache_size=statement_cache_size,
        max_inactive_connection_lifetime=300.0,
        init=init,
        server_settings={"application_name": application_name, **(server_settings or {})},
    )


async def close_pool(pool: Pool) -> None:
    """Close a pool whose work is done; a connection that hangs is cut."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await pool.close()
    except TimeoutError:
        pool.terminate()
