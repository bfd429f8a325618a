"""Reads deliveries and their attempts. The tables are budget-alert's."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sluicegate.store.pool import PoolConnection

State = Literal["pending", "delivered", "dead"]


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt at a delivery. Without an end it is under way, or its process was killed."""

    number: int
    started_at: datetime
    ended_at: datetime | None
    status: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A message to one webhook; without an alert it is a test."""

    id: str
    alert: str | None
    webhook: str
    tenant: str | None
    message_id: str
    state: State
    attempt_count: int
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    command: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class WholeDeliveryRow(DeliveryRow):
    """A delivery with its attempts, oldest first."""

    attempts: tuple[AttemptRow, ...]


_COLUMNS = """
SELECT id, alert, endpoint AS webhook, tenant, message_id, state, attempts AS attempt_count,
    CASE WHEN state = 'pending' THEN next_attempt_at END AS next_attempt_at, last_status, last_error, command,
    created_at, ended_at
FROM deliveries
"""

_GET = _COLUMNS + " WHERE id = $1"

_PAGE = (
    _COLUMNS
    + """
WHERE ($1::text IS NULL OR id < $1) AND ($3::text IS NULL OR state = $3) AND ($4::text IS NULL OR endpoint = $4)
    AND ($5::text IS NULL OR alert = $5) AND ($6::text IS NULL OR tenant = $6) AND ($7::text IS NULL OR command = $7)
ORDER BY id DESC LIMIT $2
"""
)

_ATTEMPTS = """
SELECT number, started_at, ended_at, status, error FROM delivery_attempts WHERE delivery = $1 ORDER BY number
"""


async def get(connection: PoolConnection, delivery_id: str) -> WholeDeliveryRow | None:
    row = await connection.fetchrow(_GET, delivery_id)
    if row is None:
        return None
    attempts = await connection.fetch(_ATTEMPTS, delivery_id)
    return WholeDeliveryRow(**row, attempts=tuple(AttemptRow(**attempt) for attempt in attempts))


async def page(
    connection: PoolConnection,
    *,
    before: str | None,
    count: int,
    state: State | None,
    webhook: str | None,
    alert: str | None,
    tenant: str | None,
    command: str | None,
) -> list[DeliveryRow]:
    """Return deliveries, newest first."""
    rows = await connection.fetch(_PAGE, before, count, state, webhook, alert, tenant, command)
    return [DeliveryRow(**row) for row in rows]
