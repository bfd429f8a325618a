"""SQL of the projection: the outbox, the present state of records, and who may relay."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from sluicegate.admin.fields import to_us
from sluicegate.admin.limits import decoded, loaded
from sluicegate.admin.models import repository as models
from sluicegate.admin.models.prices import PriceRow
from sluicegate.admin.projection.entries import TOMBSTONE_DAYS, BucketName, Entry, encoded
from sluicegate.admin.providers.repository import sealed
from sluicegate.contracts.catalogue import (
    Budget,
    CatalogueRecord,
    Department,
    Key,
    Model,
    Provider,
    Route,
    Target,
    Team,
    Tenant,
)
from sluicegate.contracts.facts import ConfigurationChanged
from sluicegate.contracts.money import Price
from sluicegate.store.pool import PoolConnection

# Advisory locks: one relay at a time, one comparison at a time, in the whole cluster.
_RELAY_LOCK: Final = 0x51_01_CE
_COMPARE_LOCK: Final = 0x51_01_CF
_PREFETCH: Final = 500


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A record whose state must be told, and the audit event to publish."""

    sequence: int
    noun: str
    record_id: str
    event_id: str | None
    is_projected: bool
    digest: str | None


# Losing the removal of outbox rows in a crash costs nothing, they are told again: so nothing waits for the disk.
# One statement, because a change waits for it: the settings come first, and hold when the lock is asked for.
_TAKE_RELAY_LOCK = """
SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true),
    pg_advisory_xact_lock($1)
"""

_OUTBOX = """
SELECT outbox.sequence, outbox.noun, outbox.record_id, outbox.event_id, outbox.is_projected, keys.digest
FROM outbox LEFT JOIN keys ON outbox.noun = 'key' AND keys.id = outbox.record_id
ORDER BY outbox.is_projected, outbox.record_id <> ALL($2::text[]), outbox.sequence LIMIT $1
"""

_KEYS = """
SELECT keys.id, keys.digest, keys.team, keys.name, keys.prefix, keys.enabled, keys.allowed_models, keys.expires_at,
    keys.revoked_at, keys.limits, teams.tenant, teams.department
FROM keys JOIN teams ON teams.id = keys.team
WHERE coalesce(least(keys.revoked_at, keys.expires_at) > now() - make_interval(days => $1), true)
"""

_TENANTS = "SELECT id, name, enabled, limits, end_user_limits FROM tenants WHERE deleted_at IS NULL"
_DEPARTMENTS = "SELECT id, tenant, name, enabled, limits FROM departments WHERE deleted_at IS NULL"
_TEAMS = "SELECT id, tenant, department, name, enabled, limits FROM teams WHERE deleted_at IS NULL"
_PROVIDERS = "SELECT * FROM providers WHERE deleted_at IS NULL"
_MODELS = """
SELECT id, provider, name, model_type, capabilities, context_tokens, max_output_tokens, owned_by, enabled, limits
FROM models WHERE deleted_at IS NULL
"""
_ROUTES = """
SELECT id, tenant, alias, name, enabled, created_at,
    ARRAY(SELECT model FROM route_targets WHERE route = id ORDER BY place) AS models
FROM routes WHERE deleted_at IS NULL
"""
_BUDGETS = """
SELECT id, name, enabled, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
    is_soft, counts_since
FROM budgets WHERE deleted_at IS NULL
"""


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(**loaded(row))


def _department(row: asyncpg.Record) -> Department:
    return Department(**loaded(row))


def _team(row: asyncpg.Record) -> Team:
    return Team(**loaded(row))


def _provider(row: asyncpg.Record) -> Provider:
    return Provider(
        id=row["id"],
        name=row["name"],
        enabled=row["enabled"],
        type=row["type"],
        base_url=row["base_url"],
        credential=sealed(row),
        tenant=row["tenant"],
        supports_stream_options=row["supports_stream_options"],
        connect_timeout_ms=row["connect_timeout_ms"],
        first_byte_timeout_ms=row["first_byte_timeout_ms"],
        idle_timeout_ms=row["idle_timeout_ms"],
        total_timeout_ms=row["total_timeout_ms"],
        max_connections=row["max_connections"],
        limits=decoded(row["limits"]),
    )


def _model(row: asyncpg.Record, prices: tuple[PriceRow, ...]) -> Model:
    values = loaded(row)
    values["capabilities"] = tuple(values["capabilities"])
    return Model(**values, prices=tuple(_price(price) for price in prices))


def _price(row: PriceRow) -> Price:
    return Price(
        version=row.version,
        valid_from_us=to_us(row.valid_from),
        input=row.input,
        output=row.output,
        cached_input=row.cached_input,
        cache_write_5m=row.cache_write_5m,
        cache_write_1h=row.cache_write_1h,
        reasoning=row.reasoning,
    )


def _route(row: asyncpg.Record) -> Route:
    return Route(
        id=row["id"],
        name=row["name"],
        enabled=row["enabled"],
        alias=row["alias"],
        targets=tuple(Target(model=model) for model in row["models"]),
        tenant=row["tenant"],
        created_at_us=to_us(row["created_at"]),
    )


def _budget(row: asyncpg.Record) -> Budget:
    values = dict(row)
    values["thresholds_percent"] = tuple(values["thresholds_percent"])
    counts_since_us = to_us(values.pop("counts_since"))
    return Budget(**values, counts_since_us=counts_since_us)


def _key(row: asyncpg.Record) -> Key:
    expires_at, revoked_at, allowed_models = row["expires_at"], row["revoked_at"], row["allowed_models"]
    return Key(
        id=row["id"],
        name=row["name"],
        enabled=row["enabled"],
        tenant=row["tenant"],
        team=row["team"],
        department=row["department"],
        prefix=row["prefix"],
        expires_at_us=None if expires_at is None else to_us(expires_at),
        revoked_at_us=None if revoked_at is None else to_us(revoked_at),
        allowed_models=None if allowed_models is None else tuple(allowed_models),
        limits=decoded(row["limits"]),
    )


# Models are not among them: their prices take a second query.
_PLAIN: Final[dict[str, tuple[str, Callable[[asyncpg.Record], CatalogueRecord]]]] = {
    "tenant": (_TENANTS, _tenant),
    "department": (_DEPARTMENTS, _department),
    "team": (_TEAMS, _team),
    "provider": (_PROVIDERS, _provider),
    "route": (_ROUTES, _route),
    "budget": (_BUDGETS, _budget),
}


async def take_relay_lock(connection: PoolConnection) -> None:
    """Become the relay until the end of the transaction; raise LockNotAvailableError after a second of waiting."""
    await connection.execute(_TAKE_RELAY_LOCK, _RELAY_LOCK)


async def try_compare_lock(connection: PoolConnection) -> bool:
    """Become the only one to compare, until the end of the transaction; False: another one does."""
    return bool(await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", _COMPARE_LOCK))


async def outbox_depth(connection: PoolConnection) -> int:
    """Return how many rows wait."""
    depth: int = await connection.fetchval("SELECT count(*) FROM outbox")
    return depth


async def read_outbox(connection: PoolConnection, count: int, *, first: Sequence[str]) -> list[OutboxRow]:
    """Return the next rows: those whose state is still to be told come before the others, and `first` before all."""
    return [OutboxRow(**row) for row in await connection.fetch(_OUTBOX, count, first)]


async def pending(connection: PoolConnection, record_ids: Sequence[str]) -> set[str]:
    """Return those of these records whose state is still to be told."""
    query = "SELECT DISTINCT record_id FROM outbox WHERE NOT is_projected AND record_id = ANY($1)"
    return {row["record_id"] for row in await connection.fetch(query, record_ids)}


async def remove_from_outbox(connection: PoolConnection, sequences: Sequence[int]) -> None:
    await connection.execute("DELETE FROM outbox WHERE sequence = ANY($1)", sequences)


async def mark_projected(connection: PoolConnection, sequences: Sequence[int]) -> None:
    """Note that only the audit events of these rows are still to be published."""
    await connection.execute("UPDATE outbox SET is_projected = true WHERE sequence = ANY($1)", sequences)


async def read_audit(connection: PoolConnection, event_ids: Sequence[str]) -> dict[str, ConfigurationChanged]:
    """Return audit events by id."""
    rows = await connection.fetch("SELECT * FROM audit WHERE event_id = ANY($1)", event_ids)
    return {row["event_id"]: _audit_event(row) for row in rows}


def _audit_event(row: asyncpg.Record) -> ConfigurationChanged:
    return ConfigurationChanged(
        event_id=row["event_id"],
        at_us=to_us(row["at"]),
        actor=row["actor"],
        address=row["address"],
        noun=row["noun"],
        id=row["record_id"],
        verb=row["verb"],
        before=None if row["before"] is None else json.loads(row["before"]),
        after=None if row["after"] is None else json.loads(row["after"]),
    )


async def digests(connection: PoolConnection, key_ids: Sequence[str]) -> dict[str, str]:
    """Return the digests of keys, deleted ones too, by id."""
    rows = await connection.fetch("SELECT id, digest FROM keys WHERE id = ANY($1)", key_ids)
    return {row["id"]: row["digest"] for row in rows}


async def present(connection: PoolConnection, entries: Sequence[Entry]) -> dict[Entry, bytes]:
    """Return what should stand at these places now; a place that should be empty is left out."""
    values: dict[Entry, bytes] = {}
    ids: dict[str, list[str]] = {}
    for entry in entries:
        noun, _, record_id = entry.name.partition(".") if entry.bucket == "catalogue" else ("key", "", entry.name)
        ids.setdefault(noun, []).append(record_id)
    if wanted := ids.pop("key", None):
        rows = await connection.fetch(f"{_KEYS} AND keys.digest = ANY($2)", TOMBSTONE_DAYS, wanted)
        values |= {Entry("keys", row["digest"]): encoded(_key(row)) for row in rows}
    if wanted := ids.pop("model", None):
        rows = await connection.fetch(f"{_MODELS} AND id = ANY($1)", wanted)
        values |= await _model_entries(connection, rows)
    for noun, wanted in ids.items():
        if noun in _PLAIN:  # anything else in the bucket is not ours and goes
            query, record = _PLAIN[noun]
            rows = await connection.fetch(f"{query} AND id = ANY($1)", wanted)
            values |= {Entry("catalogue", f"{noun}.{row['id']}"): encoded(record(row)) for row in rows}
    return values


async def everything(connection: PoolConnection, bucket: BucketName) -> AsyncIterator[tuple[str, bytes]]:
    """Yield name and value of all that should stand in a bucket. Needs a transaction; reads in portions."""
    if bucket == "keys":
        async for row in connection.cursor(_KEYS, TOMBSTONE_DAYS, prefetch=_PREFETCH):
            yield row["digest"], encoded(_key(row))
        return
    for noun, (query, record) in _PLAIN.items():
        async for row in connection.cursor(query, prefetch=_PREFETCH):
            yield f"{noun}.{row['id']}", encoded(record(row))
    for entry, value in (await _model_entries(connection, await connection.fetch(_MODELS))).items():
        yield entry.name, value


async def _model_entries(connection: PoolConnection, rows: Sequence[asyncpg.Record]) -> dict[Entry, bytes]:
    prices = await models.prices_of(connection, [row["id"] for row in rows])
    return {Entry("catalogue", f"model.{row['id']}"): encoded(_model(row, prices[row["id"]])) for row in rows}
