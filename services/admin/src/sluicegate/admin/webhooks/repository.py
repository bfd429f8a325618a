"""SQL of the webhooks and their secrets. Circuits are budget-alert's and only read here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import asyncpg

from sluicegate.contracts.catalogue import SealedSecret
from sluicegate.store.pool import PoolConnection

Format = Literal["json", "slack"]
CircuitState = Literal["closed", "open", "gone"]


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret that is valid now, without what it is. The present one does not expire."""

    id: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class CircuitRow:
    """What deliveries have learned about an endpoint lately."""

    state: CircuitState
    failures: int
    open_until: datetime | None
    last_error: str | None
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A webhook that is not deleted, with the secrets that are valid now, the present one first."""

    id: str
    tenant: str | None
    name: str
    url: str
    format: Format
    enabled: bool
    allow_private_addresses: bool
    version: int
    created_at: datetime
    updated_at: datetime
    secrets: tuple[SecretRow, ...] = ()
    circuit: CircuitRow | None = None


_INSERT = """
INSERT INTO webhook_endpoints (id, tenant, name, url, format, enabled, allow_private_addresses)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""

_GET = """
SELECT id, tenant, name, url, format, enabled, allow_private_addresses, version, created_at, updated_at
FROM webhook_endpoints WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_TENANT = """
SELECT id, tenant, name, url, format, enabled, allow_private_addresses, version, created_at, updated_at
FROM webhook_endpoints WHERE tenant = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, tenant, name, url, format, enabled, allow_private_addresses, version, created_at, updated_at
FROM webhook_endpoints
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR tenant = $3)
    AND ($4::text IS NULL OR name = $4)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE webhook_endpoints
SET name = $2, url = $3, format = $4, enabled = $5, allow_private_addresses = $6,
    version = version + 1, updated_at = now()
WHERE id = $1
"""

_DELETE = """
UPDATE webhook_endpoints SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_DELETE_SECRETS = "DELETE FROM webhook_secrets WHERE endpoint = ANY($1)"

_SECRETS = """
SELECT endpoint, id, created_at, expires_at FROM webhook_secrets
WHERE endpoint = ANY($1) AND (expires_at IS NULL OR expires_at > now())
ORDER BY endpoint, expires_at DESC NULLS FIRST, id DESC
"""

# An endpoint that has changed since it said that it is gone is tried again.
_CIRCUITS = """
SELECT circuit.endpoint, circuit.state, circuit.failures, circuit.open_until, circuit.last_error, circuit.changed_at
FROM endpoint_circuits AS circuit JOIN webhook_endpoints AS endpoint ON endpoint.id = circuit.endpoint
WHERE endpoint.id = ANY($1) AND (circuit.state <> 'gone' OR circuit.changed_at >= endpoint.updated_at)
"""

# What is replaced ends with the overlap, and what was replaced earlier not later than that.
_EXPIRE_SECRETS = """
UPDATE webhook_secrets SET expires_at = least(expires_at, now() + make_interval(hours => $2)) WHERE endpoint = $1
"""

_FORGET_SECRETS = "DELETE FROM webhook_secrets WHERE endpoint = $1 AND expires_at <= now()"

_INSERT_SEALED = """
INSERT INTO webhook_secrets (id, endpoint, secret_key_id, secret_nonce, secret_ciphertext) VALUES ($1, $2, $3, $4, $5)
"""

_TOUCH = "UPDATE webhook_endpoints SET version = version + 1, updated_at = now() WHERE id = $1"

_OF_SECRET: Final = ("id", "created_at", "expires_at")
_OF_CIRCUIT: Final = ("state", "failures", "open_until", "last_error", "changed_at")


async def insert(
    connection: PoolConnection,
    *,
    webhook_id: str,
    tenant: str | None,
    name: str,
    url: str,
    format: Format,  # noqa: A002 - its name everywhere else
    enabled: bool,
    allow_private_addresses: bool,
) -> None:
    await connection.execute(_INSERT, webhook_id, tenant, name, url, format, enabled, allow_private_addresses)


async def get(connection: PoolConnection, webhook_id: str) -> WebhookRow | None:
    rows = await _whole(connection, await connection.fetch(_GET, webhook_id))
    return rows[0] if rows else None


async def lock(connection: PoolConnection, webhook_id: str) -> WebhookRow | None:
    """Return the row and keep others from changing it or its secrets until the end of the transaction."""
    rows = await _whole(connection, await connection.fetch(_LOCK, webhook_id))
    return rows[0] if rows else None


async def lock_of_tenant(connection: PoolConnection, tenant: str) -> list[WebhookRow]:
    return await _whole(connection, await connection.fetch(_LOCK_OF_TENANT, tenant))


async def page(
    connection: PoolConnection, *, after: str | None, count: int, tenant: str | None, name: str | None
) -> list[WebhookRow]:
    return await _whole(connection, await connection.fetch(_PAGE, after, count, tenant, name))


async def update(connection: PoolConnection, row: WebhookRow) -> None:
    """Write all that may change but the secrets."""
    await connection.execute(_UPDATE, row.id, row.name, row.url, row.format, row.enabled, row.allow_private_addresses)


async def replace_secret(
    connection: PoolConnection, webhook_id: str, secret_id: str, sealed: SealedSecret, *, overlap_hours: int
) -> None:
    """Add a secret and let the earlier ones end after the overlap."""
    await connection.execute(_EXPIRE_SECRETS, webhook_id, overlap_hours)
    await connection.execute(_FORGET_SECRETS, webhook_id)
    await connection.execute(_INSERT_SEALED, secret_id, webhook_id, sealed.key_id, sealed.nonce, sealed.ciphertext)
    await connection.execute(_TOUCH, webhook_id)


async def insert_secret(connection: PoolConnection, webhook_id: str, secret_id: str, sealed: SealedSecret) -> None:
    """Add the first secret."""
    await connection.execute(_INSERT_SEALED, secret_id, webhook_id, sealed.key_id, sealed.nonce, sealed.ciphertext)


async def delete(connection: PoolConnection, webhook_ids: Sequence[str]) -> None:
    """Mark as deleted; the secrets go for good."""
    await connection.execute(_DELETE, webhook_ids)
    await connection.execute(_DELETE_SECRETS, webhook_ids)


async def _whole(connection: PoolConnection, records: Sequence[asyncpg.Record]) -> list[WebhookRow]:
    ids = [record["id"] for record in records]
    secrets: dict[str, list[SecretRow]] = {webhook_id: [] for webhook_id in ids}
    for row in await connection.fetch(_SECRETS, ids):
        secrets[row["endpoint"]].append(SecretRow(**{name: row[name] for name in _OF_SECRET}))
    circuits = {
        row["endpoint"]: CircuitRow(**{name: row[name] for name in _OF_CIRCUIT})
        for row in await connection.fetch(_CIRCUITS, ids)
    }
    return [
        WebhookRow(**record, secrets=tuple(secrets[record["id"]]), circuit=circuits.get(record["id"]))
        for record in records
    ]
