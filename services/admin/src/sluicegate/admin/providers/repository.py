"""SQL of the providers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from sluicegate.admin.limits import column, loaded
from sluicegate.contracts.catalogue import Limits, ProviderType, SealedSecret
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A provider that is not deleted."""

    id: str
    tenant: str | None
    name: str
    type: ProviderType
    base_url: str
    credential: SealedSecret | None
    credential_hint: str | None
    supports_stream_options: bool
    connect_timeout_ms: int
    first_byte_timeout_ms: int
    idle_timeout_ms: int
    total_timeout_ms: int
    max_connections: int
    enabled: bool
    limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime

    @property
    def has_credential(self) -> bool:
        return self.credential is not None


_INSERT = """
INSERT INTO providers (id, tenant, type, name, base_url, credential_key_id, credential_nonce, credential_ciphertext,
    credential_hint, supports_stream_options, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms,
    total_timeout_ms, max_connections, enabled, limits)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
RETURNING *
"""

_GET = "SELECT * FROM providers WHERE id = $1 AND deleted_at IS NULL"

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_TENANT = "SELECT * FROM providers WHERE tenant = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE"

_PAGE = """
SELECT * FROM providers
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR name = $4)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE providers
SET name = $2, base_url = $3, credential_key_id = $4, credential_nonce = $5, credential_ciphertext = $6,
    credential_hint = $7, supports_stream_options = $8, connect_timeout_ms = $9, first_byte_timeout_ms = $10,
    idle_timeout_ms = $11, total_timeout_ms = $12, max_connections = $13, enabled = $14, limits = $15,
    version = version + 1, updated_at = now()
WHERE id = $1
RETURNING *
"""

_DELETE = """
UPDATE providers SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_HOLD = "SELECT id, tenant FROM providers WHERE id = ANY($1) AND deleted_at IS NULL ORDER BY id FOR SHARE"

_ELSEWHERE: Final = frozenset({"credential_key_id", "credential_nonce", "credential_ciphertext", "deleted_at"})


async def insert(
    connection: PoolConnection,
    *,
    provider_id: str,
    tenant: str | None,
    provider_type: ProviderType,
    credential: SealedSecret | None,
    credential_hint: str | None,
    name: str,
    base_url: str,
    supports_stream_options: bool,
    connect_timeout_ms: int,
    first_byte_timeout_ms: int,
    idle_timeout_ms: int,
    total_timeout_ms: int,
    max_connections: int,
    enabled: bool,
    limits: Limits,
) -> ProviderRow:
    row = await connection.fetchrow(
        _INSERT,
        provider_id,
        tenant,
        provider_type,
        name,
        base_url,
        *_sealed_columns(credential),
        credential_hint,
        supports_stream_options,
        connect_timeout_ms,
        first_byte_timeout_ms,
        idle_timeout_ms,
        total_timeout_ms,
        max_connections,
        enabled,
        column(limits),
    )
    assert row is not None
    return _row(row)


async def get(connection: PoolConnection, provider_id: str) -> ProviderRow | None:
    row = await connection.fetchrow(_GET, provider_id)
    return None if row is None else _row(row)


async def lock(connection: PoolConnection, provider_id: str) -> ProviderRow | None:
    """Return the row and keep others from changing it until the end of the transaction."""
    row = await connection.fetchrow(_LOCK, provider_id)
    return None if row is None else _row(row)


async def lock_of_tenant(connection: PoolConnection, tenant: str) -> list[ProviderRow]:
    return [_row(row) for row in await connection.fetch(_LOCK_OF_TENANT, tenant)]


async def hold(connection: PoolConnection, provider_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the tenants (None: all) of those that exist, and keep them from being deleted until the end."""
    return {row["id"]: row["tenant"] for row in await connection.fetch(_HOLD, provider_ids)}


async def page(
    connection: PoolConnection, *, after: str | None, count: int, tenant: str | None, name: str | None
) -> list[ProviderRow]:
    return [_row(row) for row in await connection.fetch(_PAGE, after, count, tenant, name)]


async def update(connection: PoolConnection, row: ProviderRow) -> ProviderRow:
    """Write all that may change."""
    written = await connection.fetchrow(
        _UPDATE,
        row.id,
        row.name,
        row.base_url,
        *_sealed_columns(row.credential),
        row.credential_hint,
        row.supports_stream_options,
        row.connect_timeout_ms,
        row.first_byte_timeout_ms,
        row.idle_timeout_ms,
        row.total_timeout_ms,
        row.max_connections,
        row.enabled,
        column(row.limits),
    )
    assert written is not None
    return _row(written)


async def delete(connection: PoolConnection, provider_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, provider_ids)


def sealed(record: asyncpg.Record) -> SealedSecret | None:
    """Return the sealed credential that a row of `providers` holds."""
    if record["credential_key_id"] is None:
        return None
    return SealedSecret(
        key_id=record["credential_key_id"],
        nonce=record["credential_nonce"],
        ciphertext=record["credential_ciphertext"],
    )


def _sealed_columns(credential: SealedSecret | None) -> tuple[str | None, bytes | None, bytes | None]:
    if credential is None:
        return None, None, None
    return credential.key_id, credential.nonce, credential.ciphertext


def _row(record: asyncpg.Record) -> ProviderRow:
    values: dict[str, Any] = {name: value for name, value in loaded(record).items() if name not in _ELSEWHERE}
    return ProviderRow(credential=sealed(record), **values)
