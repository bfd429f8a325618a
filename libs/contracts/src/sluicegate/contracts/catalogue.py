"""Records of the `sluicegate-keys` and `sluicegate-catalog` buckets: configuration as the edges see it.

A bucket entry is one record as JSON under `<sha256 hex>` (keys) or `<noun>.<id>` (catalogue). Admin
writes them, edges read them. A field is added with a default: readers ignore what they do not know.
"""

from typing import Final, Literal

import msgspec

from sluicegate.contracts.money import Price

Noun = Literal["tenant", "department", "team", "provider", "model", "route"]
META_COMPLETE: Final = "meta.complete"

ProviderType = Literal["openai_compatible"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What every record has."""

    id: str
    name: str
    enabled: bool = True


class Tenant(Record, frozen=True, kw_only=True):
    """A customer of the platform: the root of departments, teams and keys."""


class Department(Record, frozen=True, kw_only=True):
    """A part of a tenant that groups teams."""

    tenant: str


class Team(Record, frozen=True, kw_only=True):
    """The owner of keys."""

    tenant: str
    department: str | None = None


class Key(Record, frozen=True, kw_only=True):
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


class Provider(Record, frozen=True, kw_only=True):
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


class Model(Record, frozen=True, kw_only=True):
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


CatalogueRecord = Tenant | Department | Team | Provider | Model | Route

RECORD_TYPES: Final[dict[str, type[CatalogueRecord]]] = {
    "tenant": Tenant,
    "department": Department,
    "team": Team,
    "provider": Provider,
    "model": Model,
    "route": Route,
}


class MetaComplete(msgspec.Struct, frozen=True, kw_only=True):
    """`meta.complete`, written last after a rebuild. The count is information, not a condition."""

    count: int
    at_us: int
