"""SQL of the models and their prices."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from sluicegate.admin.limits import column, loaded
from sluicegate.admin.models.prices import PricePlan, PriceRow
from sluicegate.contracts.catalogue import Limits
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that is not deleted, with the prices that are not retired, oldest first."""

    id: str
    provider: str
    name: str
    model_type: str
    capabilities: list[str]
    context_tokens: int | None
    max_output_tokens: int | None
    owned_by: str
    enabled: bool
    limits: Limits
    version: int
    created_at: datetime
    updated_at: datetime
    prices: tuple[PriceRow, ...]


_INSERT = """
INSERT INTO models (id, provider, name, model_type, capabilities, context_tokens, max_output_tokens, owned_by, enabled,
    limits)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""

_GET = """
SELECT id, provider, name, model_type, capabilities, context_tokens, max_output_tokens, owned_by, enabled, limits,
    version, created_at, updated_at
FROM models WHERE id = $1 AND deleted_at IS NULL
"""

_LOCK = _GET + " FOR UPDATE"

_LOCK_OF_PROVIDERS = """
SELECT id, provider, name, model_type, capabilities, context_tokens, max_output_tokens, owned_by, enabled, limits,
    version, created_at, updated_at
FROM models WHERE provider = ANY($1) AND deleted_at IS NULL ORDER BY id FOR UPDATE
"""

_PAGE = """
SELECT id, provider, name, model_type, capabilities, context_tokens, max_output_tokens, owned_by, enabled, limits,
    version, created_at, updated_at
FROM models
WHERE deleted_at IS NULL AND id > coalesce($1, '') AND ($3::text IS NULL OR provider = $3)
    AND ($4::text IS NULL OR name = $4)
ORDER BY id LIMIT $2
"""

_UPDATE = """
UPDATE models
SET name = $2, model_type = $3, capabilities = $4, context_tokens = $5, max_output_tokens = $6, owned_by = $7,
    enabled = $8, limits = $9, version = version + 1, updated_at = now()
WHERE id = $1
"""

_DELETE = """
UPDATE models SET deleted_at = now(), version = version + 1, updated_at = now() WHERE id = ANY($1)
"""

_HOLD = """
SELECT models.id, providers.tenant
FROM models JOIN providers ON providers.id = models.provider
WHERE models.id = ANY($1) AND models.deleted_at IS NULL
ORDER BY models.id
FOR SHARE OF models
"""

_PRICES = """
SELECT model, version, valid_from, input, output, cached_input, cache_write_5m, cache_write_1h, reasoning
FROM model_prices WHERE model = ANY($1) AND retired_at IS NULL ORDER BY model, valid_from
"""

_LAST_PRICE_VERSION = "SELECT coalesce(max(version), 0) FROM model_prices WHERE model = $1"

_RETIRE_PRICES = "UPDATE model_prices SET retired_at = now() WHERE model = $1 AND version = ANY($2)"

_INSERT_PRICE = """
INSERT INTO model_prices (model, version, valid_from, input, output, cached_input, cache_write_5m, cache_write_1h,
    reasoning)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""


async def insert(
    connection: PoolConnection,
    *,
    model_id: str,
    provider: str,
    name: str,
    model_type: str,
    capabilities: list[str],
    context_tokens: int | None,
    max_output_tokens: int | None,
    owned_by: str,
    enabled: bool,
    limits: Limits,
) -> None:
    await connection.execute(
        _INSERT,
        model_id,
        provider,
        name,
        model_type,
        capabilities,
        context_tokens,
        max_output_tokens,
        owned_by,
        enabled,
        column(limits),
    )


async def get(connection: PoolConnection, model_id: str) -> ModelRow | None:
    rows = await _with_prices(connection, await connection.fetch(_GET, model_id))
    return rows[0] if rows else None


async def lock(connection: PoolConnection, model_id: str) -> ModelRow | None:
    """Return the row and keep others from changing it or its prices until the end of the transaction."""
    rows = await _with_prices(connection, await connection.fetch(_LOCK, model_id))
    return rows[0] if rows else None


async def lock_of_providers(connection: PoolConnection, provider_ids: Sequence[str]) -> list[ModelRow]:
    return await _with_prices(connection, await connection.fetch(_LOCK_OF_PROVIDERS, provider_ids))


async def hold(connection: PoolConnection, model_ids: Sequence[str]) -> dict[str, str | None]:
    """Return those that exist, with their provider's tenant; keep them from being deleted meanwhile."""
    return {row["id"]: row["tenant"] for row in await connection.fetch(_HOLD, model_ids)}


async def page(
    connection: PoolConnection, *, after: str | None, count: int, provider: str | None, name: str | None
) -> list[ModelRow]:
    return await _with_prices(connection, await connection.fetch(_PAGE, after, count, provider, name))


async def update(connection: PoolConnection, row: ModelRow) -> None:
    """Write all that may change but the prices."""
    await connection.execute(
        _UPDATE,
        row.id,
        row.name,
        row.model_type,
        row.capabilities,
        row.context_tokens,
        row.max_output_tokens,
        row.owned_by,
        row.enabled,
        column(row.limits),
    )


async def last_price_version(connection: PoolConnection, model_id: str) -> int:
    """Return the highest version ever given to a price of this model, 0 if none was."""
    version: int = await connection.fetchval(_LAST_PRICE_VERSION, model_id)
    return version


async def change_prices(connection: PoolConnection, model_id: str, plan: PricePlan) -> None:
    """Retire first: the new prices may begin when retired ones did."""
    if plan.retired:
        await connection.execute(_RETIRE_PRICES, model_id, plan.retired)
    for price in plan.added:
        await connection.execute(
            _INSERT_PRICE,
            model_id,
            price.version,
            price.valid_from,
            price.input,
            price.output,
            price.cached_input,
            price.cache_write_5m,
            price.cache_write_1h,
            price.reasoning,
        )


async def delete(connection: PoolConnection, model_ids: Sequence[str]) -> None:
    """Mark as deleted."""
    await connection.execute(_DELETE, model_ids)


async def prices_of(connection: PoolConnection, model_ids: Sequence[str]) -> dict[str, tuple[PriceRow, ...]]:
    """Return the prices in force of each of these models, oldest first."""
    prices: dict[str, list[PriceRow]] = {model_id: [] for model_id in model_ids}
    for row in await connection.fetch(_PRICES, model_ids):
        values = dict(row)
        prices[values.pop("model")].append(PriceRow(**values))
    return {model_id: tuple(rows) for model_id, rows in prices.items()}


async def _with_prices(connection: PoolConnection, records: Sequence[asyncpg.Record]) -> list[ModelRow]:
    prices = await prices_of(connection, [record["id"] for record in records])
    return [ModelRow(**loaded(record), prices=prices[record["id"]]) for record in records]
