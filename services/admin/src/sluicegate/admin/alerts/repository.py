"""Reads alerts. The table is budget-alert's."""

from dataclasses import dataclass
from datetime import datetime

from sluicegate.contracts.catalogue import Scope
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class AlertRow:
    """A threshold that a budget has reached in a period."""

    id: str
    event_id: str
    tenant: str | None
    budget: str
    budget_name: str
    scope: Scope
    scope_id: str
    period_start: datetime
    period_end: datetime
    threshold_percent: int
    limit_nano_usd: int
    spent_nano_usd: int
    is_soft: bool
    reached_at: datetime
    created_at: datetime


_COLUMNS = """
SELECT id, event_id, tenant, budget, budget_name, scope, scope_id, period_start, period_end, threshold_percent,
    limit_nano_usd, spent_nano_usd, is_soft, reached_at, created_at
FROM alerts
"""

_GET = _COLUMNS + " WHERE id = $1"

_PAGE = (
    _COLUMNS
    + """
WHERE ($1::text IS NULL OR id < $1) AND ($3::text IS NULL OR tenant = $3) AND ($4::text IS NULL OR budget = $4)
    AND ($5::text IS NULL OR scope = $5) AND ($6::text IS NULL OR scope_id = $6)
ORDER BY id DESC LIMIT $2
"""
)


async def get(connection: PoolConnection, alert_id: str) -> AlertRow | None:
    row = await connection.fetchrow(_GET, alert_id)
    return None if row is None else AlertRow(**row)


async def page(
    connection: PoolConnection,
    *,
    before: str | None,
    count: int,
    tenant: str | None,
    budget: str | None,
    scope: Scope | None,
    scope_id: str | None,
) -> list[AlertRow]:
    """Return alerts, newest first."""
    rows = await connection.fetch(_PAGE, before, count, tenant, budget, scope, scope_id)
    return [AlertRow(**row) for row in rows]
