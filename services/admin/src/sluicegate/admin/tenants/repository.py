"""SQL of the tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluicegate.admin.limits import column, decoded, loaded
from sluicegate.contracts.catalogue import Limits
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant that is not deleted."""

    id: str
    name: str
    enabled: bool
    limits: Limits
    end_user_limits: Limits
    default_key_limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime


_INSERT = """
INSERT INTO tenants (id, name, enabled, limits, end_user_limits, default_key_limits) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id, name, enabled, limits, end_user_limits, default_key_limits, version, created_at, updated_at
"""

_GET = """
SELECT id, name, enabled, limits, end_user_limits, default_key_limits, version, created_at, updated_at
FROM tenants WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_PAGE = """
SELECT id, name, enabled, limits, end_user_limits, default_key_limits, version, created_at, updated_at
FROM tenants
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR name = $3)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE tenants
SET name = $2, enabled = $3, limits = $4, end_user_limits = $5, default_key_limits = $6,
    version = version + 1, updated_at = now()
WHERE id = $1
RETURNING id, name, enabled, limits, end_user_limits, default_key_limits, version, created_at, updated_at
"""

_DELETE = """
UPDATE tenants SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_HOLD = "SELECT true FROM tenants WHERE id = $1 AND deleted_at IS NULL FOR SHARE"

_DEFAULT_KEY_LIMITS = "SELECT default_key_limits FROM tenants WHERE id = $1"


async def insert(
    connection: PoolConnection,
    *,
    tenant_id: str,
    name: str,
    enabled: bool,
    limits: Limits,
    end_user_limits: Limits,
    default_key_limits: Limits,
) -> TenantRow:
    row = await connection.fetchrow(
        _INSERT, tenant_id, name, enabled, column(limits), column(end_user_limits), column(default_key_limits)
    )
    assert row is not None
    return TenantRow(**loaded(row))


async def get(connection: PoolConnection, tenant_id: str) -> TenantRow | None:
    row = await connection.fetchrow(_GET, tenant_id)
    return None if row is None else TenantRow(**loaded(row))


async def lock(connection: PoolConnection, tenant_id: str) -> TenantRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, tenant_id)
    return None if row is None else TenantRow(**loaded(row))


async def hold(connection: PoolConnection, tenant_id: str) -> bool:
    """Tell whether it exists, and keep it from being deleted until the end of the transaction."""
    return bool(await connection.fetchval(_HOLD, tenant_id))


async def default_key_limits(connection: PoolConnection, tenant_id: str) -> Limits:
    return decoded(await connection.fetchval(_DEFAULT_KEY_LIMITS, tenant_id))


async def page(connection: PoolConnection, *, after: str | None, count: int, name: str | None) -> list[TenantRow]:
    return [TenantRow(**loaded(row)) for row in await connection.fetch(_PAGE, after, count, name)]


async def update(connection: PoolConnection, row: TenantRow) -> TenantRow:
    """Write all that may change."""
    written = await connection.fetchrow(
        _UPDATE,
        row.id,
        row.name,
        row.enabled,
        column(row.limits),
        column(row.end_user_limits),
        column(row.default_key_limits),
    )
    assert written is not None
    return TenantRow(**loaded(written))


async def delete(connection: PoolConnection, tenant_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, tenant_ids)
