"""SQL of the departments."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluicegate.admin.limits import column, loaded
from sluicegate.contracts.catalogue import Limits
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class DepartmentRow:
    """A department that is not deleted."""

    id: str
    tenant: str
    name: str
    enabled: bool
    limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime


_INSERT = """
INSERT INTO departments (id, tenant, name, enabled, limits) VALUES ($1, $2, $3, $4, $5)
RETURNING id, tenant, name, enabled, limits, version, created_at, updated_at
"""

_GET = """
SELECT id, tenant, name, enabled, limits, version, created_at, updated_at
FROM departments WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_TENANT = """
SELECT id, tenant, name, enabled, limits, version, created_at, updated_at
FROM departments WHERE tenant = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, tenant, name, enabled, limits, version, created_at, updated_at
FROM departments
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR name = $4)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE departments SET name = $2, enabled = $3, limits = $4, version = version + 1, updated_at = now() WHERE id = $1
RETURNING id, tenant, name, enabled, limits, version, created_at, updated_at
"""

_DELETE = """
UPDATE departments SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_HOLD = "SELECT tenant FROM departments WHERE id = $1 AND deleted_at IS NULL FOR SHARE"


async def insert(
    connection: PoolConnection, *, department_id: str, tenant: str, name: str, enabled: bool, limits: Limits
) -> DepartmentRow:
    row = await connection.fetchrow(_INSERT, department_id, tenant, name, enabled, column(limits))
    assert row is not None
    return DepartmentRow(**loaded(row))


async def get(connection: PoolConnection, department_id: str) -> DepartmentRow | None:
    row = await connection.fetchrow(_GET, department_id)
    return None if row is None else DepartmentRow(**loaded(row))


async def lock(connection: PoolConnection, department_id: str) -> DepartmentRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, department_id)
    return None if row is None else DepartmentRow(**loaded(row))


async def lock_of_tenant(connection: PoolConnection, tenant: str) -> list[DepartmentRow]:
    return [DepartmentRow(**loaded(row)) for row in await connection.fetch(_LOCK_OF_TENANT, tenant)]


async def hold(connection: PoolConnection, department_id: str) -> str | None:
    """Return its tenant if it exists, and keep it from being deleted until the end of the transaction."""
    tenant: str | None = await connection.fetchval(_HOLD, department_id)
    return tenant


async def page(
    connection: PoolConnection, *, after: str | None, count: int, tenant: str | None, name: str | None
) -> list[DepartmentRow]:
    return [DepartmentRow(**loaded(row)) for row in await connection.fetch(_PAGE, after, count, tenant, name)]


async def update(connection: PoolConnection, row: DepartmentRow) -> DepartmentRow:
    """Write all that may change."""
    written = await connection.fetchrow(_UPDATE, row.id, row.name, row.enabled, column(row.limits))
    assert written is not None
    return DepartmentRow(**loaded(written))


async def delete(connection: PoolConnection, department_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, department_ids)
