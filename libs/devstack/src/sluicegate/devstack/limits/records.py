"""What the usage records of PostgreSQL say of a key or of a whole team: the truth that meters must come to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import asyncpg

from sluicegate.devstack.stack_client import Stack


class Recorded(NamedTuple):
    """All records of a scope added up."""

    requests: int
    served: int
    tokens: int
    cost_nano_usd: int


_RECORDED = """
SELECT coalesce(sum(count), 0)::bigint AS requests, count(*) FILTER (WHERE outcome = 'success') AS served,
    coalesce(sum(input_tokens + output_tokens), 0)::bigint AS tokens,
    coalesce(sum(cost_nano_usd), 0)::bigint AS cost_nano_usd
FROM usage_record WHERE {column} = $1
"""
_STARTS = """
SELECT extract(epoch FROM started_at)::float8 AS started_s FROM usage_record
WHERE key = $1 AND outcome = 'success' ORDER BY started_at
"""


class Records:
    """Reads the records; changes nothing."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self._connection = connection

    async def of(self, scope_id: str, scope: Literal["key", "team", "department"] = "key") -> Recorded:
        """Add up what is recorded of a scope."""
        row = await self._connection.fetchrow(_RECORDED.format(column=scope), scope_id)
        return Recorded(**dict(row or {}))

    async def starts_s(self, key_id: str) -> list[float]:
        """Return when the answered requests of a key began, in seconds of the wall clock."""
        return [row["started_s"] for row in await self._connection.fetch(_STARTS, key_id)]


@asynccontextmanager
async def records(stack: Stack) -> AsyncIterator[Records]:
    """Reads the records of this stack."""
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        yield Records(connection)
    finally:
        await connection.close()


def most_within(times_s: list[float], window_s: float) -> int:
    """Return the most of these ascending times that lie in any window of this length."""
    most = first = 0
    for last, time_s in enumerate(times_s):
        while times_s[first] <= time_s - window_s:
            first += 1
        most = max(most, last - first + 1)
    return most
