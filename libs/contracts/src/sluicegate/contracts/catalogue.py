"""Records of the `sluicegate-keys` and `sluicegate-catalog` buckets: configuration as the edges see it.

A bucket entry is one record as JSON under `<sha256 hex>` (keys) or `<noun>.<id>` (catalogue). Admin
writes them, edges read them. A field is added with a default: readers ignore what they do not know.
"""

from typing import Final, Literal

import msgspec

from sluicegate.contracts.money import Price

Noun = Literal["tenant", "department", "team", "provider", "model", "route", "budget"]
Scope = Literal["key", "team", "department", "tenant", "provider", "model"]
Period = Literal["hour", "day", "week", "month", "quarter", "year"]
MAX_LIMIT_NANO_USD: Final = 9_000_000 * 1_000_000_000
META_COMPLETE: Final = "meta.complete"

ProviderType = Literal["openai_compatible"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What every record has."""

    id: str
    name: str
    enabled: bool = True


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast and how wide a scope may go. None: no limit; 0: nothing passes."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    open_requests: int | None = None


class LimitedRecord(Record, frozen=True, kw_only=True):
    """A record whose limits bind every request that passes under it."""

    limits: Limits = Limits()


class Tenant(LimitedRecord, frozen=True, kw_only=True):
    """A customer of the platform: the root of departments, teams and keys.

    `end_user_limits` bind each end user (the request's `user` field) by itself, known or not.
    """

    end_user_limits: Limits = Limits()


class Department(LimitedRecord, frozen=True, kw_only=True):
    """A part of a tenant that groups teams."""

    tenant: str


class Team(LimitedRecord, frozen=True, kw_only=True):
    """The owner of keys."""

    tenant: str
    department: str | None = None


class Key(LimitedRecord, frozen=True, kw_only=True):
    """A gateway key, found by the SHA-256 of its text. Times are µs since the Unix epoch.

    `allowed_models`: aliases, `*` at the end matches any rest; None allows all, () none.
    A revoked key stays for 30 days as a tombstone, so that the refusal can say so.
    """

    tenant: str
    team: str
    department: str | None = None
    prefix: str
    expires_at_us: int | None = None
    revoked_at_us: int | None = None
    allowed_models: tuple[str, ...] | None = None


class SealedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret under AES-256-GCM: key ring entry, 96-bit nonce, ciphertext with its tag."""

    key_id: str
    nonce: bytes
    ciphertext: bytes


class Provider(LimitedRecord, frozen=True, kw_only=True):
    """An upstream server. `base_url` ends before `/chat/completions`, e.g. `https://host/v1`.

    `credential` is sealed with the provider's id as associated data. Timeouts are per attempt.
    """

    type: ProviderType = "openai_compatible"
    base_url: str
    credential: SealedSecret | None = None
    tenant: str | None = None
    supports_stream_options: bool = True
    connect_timeout_ms: int = 5_000
    first_byte_timeout_ms: int = 120_000
    idle_timeout_ms: int = 60_000
    total_timeout_ms: int = 900_000
    max_connections: int = 1_024


class Model(LimitedRecord, frozen=True, kw_only=True):
    """A model of a provider, under the name the provider knows it by. Prices: oldest first."""

    provider: str
    model_type: str = "chat"
    capabilities: tuple[str, ...] = ()
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    owned_by: str = ""
    prices: tuple[Price, ...] = ()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One place a route may lead to: a model's id."""

    model: str


class Route(Record, frozen=True, kw_only=True):
    """What a client calls: `alias` leads to targets, tried in order. A tenant's own route wins.

    `name` is the label people gave it; `created_at_us` becomes `created` in the models list.
    """

    alias: str
    targets: tuple[Target, ...]
    tenant: str | None = None
    created_at_us: int = 0


class Budget(Record, frozen=True, kw_only=True):
    """What a scope may spend in each calendar period of an IANA time zone. 0 blocks.

    A soft budget serves on and says so. `first_weekday` (0 is Monday) matters to weeks only.
    `counts_since_us`: when scope, period, zone or weekday last changed; a period that began before then is seeded
    from what was spent in it.
    """

    scope: Scope
    scope_id: str
    limit_nano_usd: int
    period: Period
    first_weekday: int = 0
    time_zone: str = "UTC"
    thresholds_percent: tuple[int, ...] = (50, 80, 100)
    is_soft: bool = False
    counts_since_us: int = 0


CatalogueRecord = Tenant | Department | Team | Provider | Model | Route | Budget

RECORD_TYPES: Final[dict[str, type[CatalogueRecord]]] = {
    "tenant": Tenant,
    "department": Department,
    "team": Team,
    "provider": Provider,
    "model": Model,
    "route": Route,
    "budget": Budget,
}


class MetaComplete(msgspec.Struct, frozen=True, kw_only=True):
    """`meta.complete`, written last after a rebuild. The count is information, not a condition."""

    count: int
    at_us: int
