"""SQL of the routes and their targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A place a route leads to."""

    model: str


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A route that is not deleted; `models` are ids, in order."""

    id: str
    tenant: str | None
    alias: str
    name: str
    enabled: bool
    version: int
    created_at: datetime
    updated_at: datetime
    models: list[str]

    @property
    def targets(self) -> list[TargetRow]:
        return [TargetRow(model) for model in self.models]


_GET = """
SELECT id, tenant, alias, name, enabled, version, created_at, updated_at,
    ARRAY(SELECT model FROM route_targets WHERE route = id ORDER BY place) AS models
FROM routes WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_TENANT = """
SELECT id, tenant, alias, name, enabled, version, created_at, updated_at,
    ARRAY(SELECT model FROM route_targets WHERE route = id ORDER BY place) AS models
FROM routes WHERE tenant = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, tenant, alias, name, enabled, version, created_at, updated_at,
    ARRAY(SELECT model FROM route_targets WHERE route = id ORDER BY place) AS models
FROM routes
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR alias = $4)
ORDER BY id LIMIT $2
"""

_INSERT = "INSERT INTO routes (id, tenant, alias, name, enabled) VALUES ($1, $2, $3, $4, $5)"

_UPDATE = """
UPDATE routes SET alias = $2, name = $3, enabled = $4, version = version + 1, updated_at = now() WHERE id = $1
"""

_DELETE = """
UPDATE routes SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_DELETE_TARGETS = "DELETE FROM route_targets WHERE route = $1"

_INSERT_TARGETS = """
INSERT INTO route_targets (route, place, model)
SELECT $1, place, model FROM unnest($2::text[]) WITH ORDINALITY AS target (model, place)
"""

_ALIASES_TO = """
SELECT DISTINCT routes.alias
FROM routes JOIN route_targets ON route_targets.route = routes.id
WHERE route_targets.model = ANY($1) AND routes.deleted_at IS NULL
ORDER BY routes.alias LIMIT 10
"""


async def insert(
    connection: PoolConnection,
    *,
    route_id: str,
    tenant: str | None,
    alias: str,
    name: str,
    enabled: bool,
    models: Sequence[str],
) -> None:
    await connection.execute(_INSERT, route_id, tenant, alias, name, enabled)
    await connection.execute(_INSERT_TARGETS, route_id, models)


async def get(connection: PoolConnection, route_id: str) -> RouteRow | None:
    row = await connection.fetchrow(_GET, route_id)
    return None if row is None else RouteRow(**row)


async def lock(connection: PoolConnection, route_id: str) -> RouteRow | None:
    """Return the row and keep others from changing it or its targets until the end of the transaction."""
    if await connection.fetchrow(_LOCK, route_id) is None:
        return None
    # Read again: the targets of the first statement's snapshot may be older than the lock.
    return await get(connection, route_id)


async def lock_of_tenant(connection: PoolConnection, tenant: str) -> list[RouteRow]:
    return [RouteRow(**row) for row in await connection.fetch(_LOCK_OF_TENANT, tenant)]


async def page(
    connection: PoolConnection, *, after: str | None, count: int, tenant: str | None, alias: str | None
) -> list[RouteRow]:
    return [RouteRow(**row) for row in await connection.fetch(_PAGE, after, count, tenant, alias)]


async def update(connection: PoolConnection, row: RouteRow) -> None:
    """Write all that may change."""
    await connection.execute(_UPDATE, row.id, row.alias, row.name, row.enabled)
    await connection.execute(_DELETE_TARGETS, row.id)
    await connection.execute(_INSERT_TARGETS, row.id, row.models)


async def delete(connection: PoolConnection, route_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, route_ids)


async def aliases_to(connection: PoolConnection, model_ids: Sequence[str]) -> list[str]:
    """Return aliases that lead to one of these models, ten at most."""
    return [row["alias"] for row in await connection.fetch(_ALIASES_TO, model_ids)]
