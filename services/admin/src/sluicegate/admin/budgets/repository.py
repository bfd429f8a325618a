"""SQL of the budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from sluicegate.contracts.catalogue import Period, Scope
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget that is not deleted. `first_weekday`: 0 is Monday."""

    id: str
    tenant: str | None
    name: str
    scope: Scope
    scope_id: str
    limit_nano_usd: int
    period: Period
    first_weekday: int
    time_zone: str
    thresholds_percent: tuple[int, ...]
    is_soft: bool
    enabled: bool
    counts_since: datetime
    version: int
    created_at: datetime
    updated_at: datetime


_INSERT = """
INSERT INTO budgets (id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone,
    thresholds_percent, is_soft, enabled)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, enabled, counts_since, version, created_at, updated_at
"""

_GET = """
SELECT id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, enabled, counts_since, version, created_at, updated_at
FROM budgets WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_SCOPES = """
SELECT id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, enabled, counts_since, version, created_at, updated_at
FROM budgets WHERE scope_id = ANY($1) AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, enabled, counts_since, version, created_at, updated_at
FROM budgets
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR scope = $4) AND ($5::text IS NULL OR scope_id = $5) AND ($6::text IS NULL OR name = $6)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE budgets
SET tenant = $2, name = $3, scope = $4, scope_id = $5, limit_nano_usd = $6, period = $7, first_weekday = $8,
    time_zone = $9, thresholds_percent = $10, is_soft = $11, enabled = $12,
    counts_since = CASE WHEN $13 THEN now() ELSE counts_since END, version = version + 1, updated_at = now()
WHERE id = $1
RETURNING id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, enabled, counts_since, version, created_at, updated_at
"""

_DELETE = """
UPDATE budgets SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""


async def insert(
    connection: PoolConnection,
    *,
    budget_id: str,
    tenant: str | None,
    name: str,
    scope: Scope,
    scope_id: str,
    limit_nano_usd: int,
    period: Period,
    first_weekday: int,
    time_zone: str,
    thresholds_percent: tuple[int, ...],
    is_soft: bool,
    enabled: bool,
) -> BudgetRow:
    row = await connection.fetchrow(
        _INSERT,
        budget_id,
        tenant,
        name,
        scope,
        scope_id,
        limit_nano_usd,
        period,
        first_weekday,
        time_zone,
        thresholds_percent,
        is_soft,
        enabled,
    )
    assert row is not None
    return _row(row)


async def get(connection: PoolConnection, budget_id: str) -> BudgetRow | None:
    row = await connection.fetchrow(_GET, budget_id)
    return None if row is None else _row(row)


async def lock(connection: PoolConnection, budget_id: str) -> BudgetRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, budget_id)
    return None if row is None else _row(row)


async def lock_of_scopes(connection: PoolConnection, scope_ids: Sequence[str]) -> list[BudgetRow]:
    return [_row(row) for row in await connection.fetch(_LOCK_OF_SCOPES, scope_ids)]


async def page(
    connection: PoolConnection,
    *,
    after: str | None,
    count: int,
    tenant: str | None,
    scope: Scope | None,
    scope_id: str | None,
    name: str | None,
) -> list[BudgetRow]:
    return [_row(row) for row in await connection.fetch(_PAGE, after, count, tenant, scope, scope_id, name)]


async def update(connection: PoolConnection, row: BudgetRow, *, counts_anew: bool) -> BudgetRow:
    """Write all that may change; `counts_anew`: its present period has another meaning from now on."""
    written = await connection.fetchrow(
        _UPDATE,
        row.id,
        row.tenant,
        row.name,
        row.scope,
        row.scope_id,
        row.limit_nano_usd,
        row.period,
        row.first_weekday,
        row.time_zone,
        row.thresholds_percent,
        row.is_soft,
        row.enabled,
        counts_anew,
    )
    assert written is not None
    return _row(written)


async def delete(connection: PoolConnection, budget_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, budget_ids)


def _row(record: asyncpg.Record) -> BudgetRow:
    values: dict[str, Any] = dict(record)
    values["thresholds_percent"] = tuple(values["thresholds_percent"])
    return BudgetRow(**values)
