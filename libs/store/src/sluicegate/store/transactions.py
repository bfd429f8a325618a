"""One transaction for one piece of work, and what its failures mean.

Three kinds: *transient* (deadlock, serialisation, a plan that went stale): run again at once.
*Unavailable* (server away, shutting down, out of connections, timed out): run again later; nothing
is wrong with the data. Everything else is about the data or the statement and will fail again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg

from sluicegate.store.pool import Pool, PoolConnection

T = TypeVar("T")

TRANSIENT: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
)

# Class 08 connection, 53 resources, 55P03 lock timeout, 57 operator intervention, 58 system (disk, I/O).
_UNAVAILABLE_CLASSES: Final = ("08", "53", "57", "58")
_UNAVAILABLE_STATES: Final = frozenset({"55P03", "25006", "25P02", "28000", "28P01", "3D000", "42P01", "42501"})
# Class 22: the value is out of its domain; 23: a constraint; 54: too large for an index or a row.
_DATA_CLASSES: Final = ("22", "23", "54")


def is_transient(error: BaseException) -> bool:
    """Tell whether the same transaction may succeed at once."""
    return isinstance(error, TRANSIENT)


def is_unavailable(error: BaseException) -> bool:
    """Tell whether the server, not the data, is the reason: try again later.

    A missing table, database or right counts as well: the server is being set up or restored.
    """
    if isinstance(error, asyncpg.PostgresError):
        state = str(error.sqlstate or "")
        return state.startswith(_UNAVAILABLE_CLASSES) or state in _UNAVAILABLE_STATES
    # InterfaceError is asyncpg's for "connection is closed", but also the root of its complaints about data.
    if isinstance(error, asyncpg.DataError):
        return False
    return isinstance(error, OSError | TimeoutError | asyncpg.InterfaceError)


def is_data_error(error: BaseException) -> bool:
    """Tell whether some row, not the server and not the statement, is at fault.

    Everything else is tried again, for ever: a schema that is not migrated yet must never turn good events into dead
    letters.
    """
    if is_transient(error) or is_unavailable(error):
        return False
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "").startswith(_DATA_CLASSES)
    return isinstance(error, asyncpg.DataError | OverflowError | UnicodeError)


async def run(
    pool: Pool,
    work: Callable[[PoolConnection], Awaitable[T]],
    *,
    attempts: int = 10,
) -> T:
    """Run `work` in a transaction of its own and return what it returned.

    Transient failures run all of it again, with jitter, so it must have no effect beyond the database.
    Raises the last failure.
    """
    for attempt in range(attempts):
        async with pool.acquire() as connection:
            try:
                async with connection.transaction():
                    return await work(connection)
            except TRANSIENT:
                if attempt + 1 == attempts:
                    raise
        await asyncio.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 5)))
    raise AssertionError("attempts must be positive")
