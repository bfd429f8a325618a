"""SQL of the keys. A key's tenant and department are its team's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sluicegate.admin.keys.schemas import KeyStatus
from sluicegate.admin.limits import column, loaded
from sluicegate.contracts.catalogue import Limits
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key that is not deleted."""

    id: str
    tenant: str
    department: str | None
    team: str
    name: str
    prefix: str
    enabled: bool
    allowed_models: list[str] | None
    expires_at: datetime | None
    revoked_at: datetime | None
    limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime

    @property
    def status(self) -> KeyStatus:
        """What the key is worth now, by itself."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= datetime.now(UTC):
            return "expired"
        return "active" if self.enabled else "disabled"


_INSERT = """
WITH made AS (
    INSERT INTO keys (id, team, name, digest, prefix, enabled, allowed_models, expires_at, limits)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    RETURNING *
)
SELECT made.id, teams.tenant, teams.department, made.team, made.name, made.prefix, made.enabled, made.allowed_models,
    made.expires_at, made.revoked_at, made.limits, made.version, made.created_at, made.updated_at
FROM made JOIN teams ON teams.id = made.team
"""

_GET = """
SELECT keys.id, teams.tenant, teams.department, keys.team, keys.name, keys.prefix, keys.enabled, keys.allowed_models,
    keys.expires_at, keys.revoked_at, keys.limits, keys.version, keys.created_at, keys.updated_at
FROM keys JOIN teams ON teams.id = keys.team
WHERE keys.id = $1 AND keys.deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE OF keys"

_LOCK_OF_TEAMS = """
SELECT keys.id, teams.tenant, teams.department, keys.team, keys.name, keys.prefix, keys.enabled, keys.allowed_models,
    keys.expires_at, keys.revoked_at, keys.limits, keys.version, keys.created_at, keys.updated_at
FROM keys JOIN teams ON teams.id = keys.team
WHERE keys.team = ANY($1) AND keys.deleted_at IS NULL
ORDER BY keys.id
FOR UPDATE OF keys
"""

_PAGE = """
SELECT keys.id, teams.tenant, teams.department, keys.team, keys.name, keys.prefix, keys.enabled, keys.allowed_models,
    keys.expires_at, keys.revoked_at, keys.limits, keys.version, keys.created_at, keys.updated_at
FROM keys JOIN teams ON teams.id = keys.team
WHERE keys.deleted_at IS NULL AND keys.id > coalesce($1, '')
    AND ($3::text IS NULL OR teams.tenant = $3)
    AND ($4::text IS NULL OR teams.department = $4)
    AND ($5::text IS NULL OR keys.team = $5)
    AND ($6::text IS NULL OR keys.name = $6)
    AND ($7::text IS NULL OR starts_with(keys.prefix, $7))
ORDER BY keys.id LIMIT $2
"""

_UPDATE = """
UPDATE keys
SET name = $2, enabled = $3, allowed_models = $4, expires_at = $5, revoked_at = $6, limits = $7,
    version = version + 1, updated_at = now()
WHERE id = $1
RETURNING version, updated_at
"""

_DELETE = """
UPDATE keys
SET deleted_at = now(), revoked_at = coalesce(revoked_at, now()), version = version + 1, updated_at = now()
WHERE id = ANY($1)
"""

_HOLD = """
SELECT teams.tenant FROM keys JOIN teams ON teams.id = keys.team
WHERE keys.id = $1 AND keys.deleted_at IS NULL FOR SHARE OF keys
"""

_IDS_OF_TEAM = "SELECT id FROM keys WHERE team = $1 ORDER BY id"


async def insert(
    connection: PoolConnection,
    *,
    key_id: str,
    team: str,
    name: str,
    digest: str,
    prefix: str,
    enabled: bool,
    allowed_models: list[str] | None,
    expires_at: datetime | None,
    limits: Limits,
) -> KeyRow:
    row = await connection.fetchrow(
        _INSERT, key_id, team, name, digest, prefix, enabled, allowed_models, expires_at, column(limits)
    )
    assert row is not None
    return KeyRow(**loaded(row))


async def get(connection: PoolConnection, key_id: str) -> KeyRow | None:
    row = await connection.fetchrow(_GET, key_id)
    return None if row is None else KeyRow(**loaded(row))


async def lock(connection: PoolConnection, key_id: str) -> KeyRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, key_id)
    return None if row is None else KeyRow(**loaded(row))


async def lock_of_teams(connection: PoolConnection, team_ids: Sequence[str]) -> list[KeyRow]:
    return [KeyRow(**loaded(row)) for row in await connection.fetch(_LOCK_OF_TEAMS, team_ids)]


async def hold(connection: PoolConnection, key_id: str) -> str | None:
    """Return its tenant if it exists, and keep it from being deleted until the end of the transaction."""
    tenant: str | None = await connection.fetchval(_HOLD, key_id)
    return tenant


async def ids_of_team(connection: PoolConnection, team: str) -> list[str]:
    """Return all ids, those of deleted keys too: their tombstones name the department as well."""
    return [row["id"] for row in await connection.fetch(_IDS_OF_TEAM, team)]


async def page(
    connection: PoolConnection,
    *,
    after: str | None,
    count: int,
    tenant: str | None,
    department: str | None,
    team: str | None,
    name: str | None,
    prefix: str | None,
) -> list[KeyRow]:
    rows = await connection.fetch(_PAGE, after, count, tenant, department, team, name, prefix)
    return [KeyRow(**loaded(row)) for row in rows]


async def update(connection: PoolConnection, row: KeyRow) -> tuple[int, datetime]:
    """Write all that may change; return the new version and its time."""
    written = await connection.fetchrow(
        _UPDATE,
        row.id,
        row.name,
        row.enabled,
        row.allowed_models,
        row.expires_at,
        row.revoked_at,
        column(row.limits),
    )
    assert written is not None
    return written["version"], written["updated_at"]


async def delete(connection: PoolConnection, key_ids: Sequence[str]) -> None:
    """Revoke and mark as deleted."""
    await connection.execute(_DELETE, key_ids)
