"""Runs changes: one request is one transaction, then the edges are told, then the caller."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import asyncpg
from pydantic import Field

from sluicegate.admin.access import Caller
from sluicegate.admin.changes.unit import Ref, Unit
from sluicegate.admin.errors import NotFoundError, name_taken
from sluicegate.admin.fields import Answer
from sluicegate.store import transactions
from sluicegate.store.pool import Pool, PoolConnection

T = TypeVar("T")


class Edges(Answer):
    """The edge processes that announced themselves within five seconds."""

    applied: int = Field(description="Those that have applied the change.")
    live: int = Field(description="All of them.")


class Propagation(Answer):
    """How far a change has come."""

    propagated: bool = Field(
        description="Every live edge process has applied the change (waited for at most a second). False: it is "
        "saved and will be told; also when no edge is live."
    )
    edges: Edges


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """What a change left behind, and how far it has come."""

    row: T
    propagation: Propagation


def found(row: T | None, noun: str, record_id: str) -> T:
    """Return the row; raise NotFoundError where there is none."""
    if row is None:
        raise NotFoundError(noun, record_id)
    return row


class Projection(Protocol):
    """What tells the edges."""

    async def propagate(self, refs: Sequence[Ref]) -> Propagation:
        """Tell the present state of these records and wait until the edges have it, or a second."""


class Changes:
    """Runs reads and changes against the tables."""

    def __init__(self, pool: Pool, projection: Projection) -> None:
        self._pool = pool
        self._projection = projection

    async def read(self, work: Callable[[PoolConnection], Awaitable[T]]) -> T:
        """Run `work` in a transaction that changes nothing."""
        return await transactions.run(self._pool, work)

    async def change(self, caller: Caller, work: Callable[[Unit], Awaitable[T]]) -> Changed[T]:
        """Run `work` in a transaction together with its audit and outbox rows; tell the edges after the commit.

        `work` may run several times (deadlocks), each time with a fresh unit.
        """
        row, refs = await self._commit(caller, work)
        return Changed(row, await self._projection.propagate(refs))

    async def keep(self, caller: Caller, work: Callable[[Unit], Awaitable[T]]) -> T:
        """Do as `change` does for what no edge needs to know."""
        row, _ = await self._commit(caller, work)
        return row

    async def _commit(self, caller: Caller, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, tuple[Ref, ...]]:
        async def transact(connection: PoolConnection) -> tuple[T, tuple[Ref, ...]]:
            unit = Unit(connection, caller)
            done = await work(unit)
            await unit.write()
            return done, unit.refs

        try:
            return await transactions.run(self._pool, transact)
        except asyncpg.UniqueViolationError as error:
            raise name_taken(error.constraint_name) from None
