"""SQL of the teams."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluicegate.admin.limits import column, loaded
from sluicegate.contracts.catalogue import Limits
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A team that is not deleted."""

    id: str
    tenant: str
    department: str | None
    name: str
    enabled: bool
    limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime


_INSERT = """
INSERT INTO teams (id, tenant, department, name, enabled, limits) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id, tenant, department, name, enabled, limits, version, created_at, updated_at
"""

_GET = """
SELECT id, tenant, department, name, enabled, limits, version, created_at, updated_at
FROM teams WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_TENANT = """
SELECT id, tenant, department, name, enabled, limits, version, created_at, updated_at
FROM teams WHERE tenant = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_LOCK_OF_DEPARTMENT = """
SELECT id, tenant, department, name, enabled, limits, version, created_at, updated_at
FROM teams WHERE department = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, tenant, department, name, enabled, limits, version, created_at, updated_at
FROM teams
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR department = $4) AND ($5::text IS NULL OR name = $5)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE teams
SET department = $2, name = $3, enabled = $4, limits = $5, version = version + 1, updated_at = now()
WHERE id = $1
RETURNING id, tenant, department, name, enabled, limits, version, created_at, updated_at
"""

_DELETE = """
UPDATE teams SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_HOLD = "SELECT tenant FROM teams WHERE id = $1 AND deleted_at IS NULL FOR SHARE"


async def insert(
    connection: PoolConnection,
    *,
    team_id: str,
    tenant: str,
    department: str | None,
    name: str,
    enabled: bool,
    limits: Limits,
) -> TeamRow:
    row = await connection.fetchrow(_INSERT, team_id, tenant, department, name, enabled, column(limits))
    assert row is not None
    return TeamRow(**loaded(row))


async def get(connection: PoolConnection, team_id: str) -> TeamRow | None:
    row = await connection.fetchrow(_GET, team_id)
    return None if row is None else TeamRow(**loaded(row))


async def lock(connection: PoolConnection, team_id: str) -> TeamRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, team_id)
    return None if row is None else TeamRow(**loaded(row))


async def lock_of_tenant(connection: PoolConnection, tenant: str) -> list[TeamRow]:
    return [TeamRow(**loaded(row)) for row in await connection.fetch(_LOCK_OF_TENANT, tenant)]


async def lock_of_department(connection: PoolConnection, department: str) -> list[TeamRow]:
    return [TeamRow(**loaded(row)) for row in await connection.fetch(_LOCK_OF_DEPARTMENT, department)]


async def hold(connection: PoolConnection, team_id: str) -> str | None:
    """Return its tenant if it exists, and keep it from being deleted until the end of the transaction."""
    tenant: str | None = await connection.fetchval(_HOLD, team_id)
    return tenant


async def page(
    connection: PoolConnection,
    *,
    after: str | None,
    count: int,
    tenant: str | None,
    department: str | None,
    name: str | None,
) -> list[TeamRow]:
    return [TeamRow(**loaded(row)) for row in await connection.fetch(_PAGE, after, count, tenant, department, name)]


async def update(connection: PoolConnection, row: TeamRow) -> TeamRow:
    """Write all that may change."""
    written = await connection.fetchrow(_UPDATE, row.id, row.department, row.name, row.enabled, column(row.limits))
    assert written is not None
    return TeamRow(**loaded(written))


async def delete(connection: PoolConnection, team_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, team_ids)
