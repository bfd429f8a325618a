"""What the journal is told of a request, as bytes: `RequestAdmitted`, then `UsageRecorded` (`contracts.usage`).

Both are one JSON object made of two: what differs from request to request, and behind it what all requests
of one key to one target share, which is encoded once and kept with the principal. The halves are mutable and
made empty, because that takes a third of the time of a frozen event of 34 arguments; a test holds them to
the contract, field by field.
"""

import hashlib
from typing import Final

import msgspec

from sluicegate.contracts.money import Price
from sluicegate.contracts.usage import Attempt, CostSource, Outcome, PriceOfInput, UsageSource
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.mirrors.view import Principal

_MAX_TEXT_BYTES: Final = 256
_encode: Final = msgspec.json.Encoder().encode


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who called what: the same for all requests of one key, under one alias, to one target."""

    tenant: str
    team: str
    key: str
    endpoint: str
    department: str | None = None
    requested_model: str | None = None
    provider: str | None = None
    upstream_model: str | None = None
    edge: str = ""


class _AdmittedIdentity(Identity, frozen=True, kw_only=True, omit_defaults=True):
    price: PriceOfInput | None = None


class _FinishedIdentity(Identity, frozen=True, kw_only=True, omit_defaults=True):
    price_version: int | None = None


class Admission(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The half of `RequestAdmitted` that is the request's own."""

    request_id: str = ""
    started_at_us: int = 0
    streamed: bool = False
    input_tokens: int = 0
    end_user: str | None = None
    traceparent: str | None = None


class Ending(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The half of `UsageRecorded` that is the request's own."""

    request_id: str = ""
    started_at_us: int = 0
    status: int = 0
    outcome: Outcome | None = None
    upstream_request_id: str | None = None
    streamed: bool = False
    error_code: str | None = None
    attempts: tuple[Attempt, ...] = ()
    fallbacks: int = 0
    rule: str | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    usage_source: UsageSource = "none"
    cost_nano_usd: int | None = None
    cost_source: CostSource = "unpriced"
    duration_us: int = 0
    first_token_us: int | None = None
    provider_us: int | None = None
    overhead_us: int | None = None
    guard_action: str | None = None
    guard_counts: dict[str, int] = {}
    end_user: str | None = None
    tags: dict[str, str] = {}
    count: int = 1
    traceparent: str | None = None


class SharedHalves:
    """The halves of both records that requests share, encoded, without their opening brace."""

    __slots__ = ("admitted", "finished")

    def __init__(self, identity: Identity, price: Price | None) -> None:
        fields = msgspec.structs.asdict(identity)
        of_input = None if price is None else PriceOfInput(version=price.version, input=price.input)
        version = None if price is None else price.version
        self.admitted = _encode(_AdmittedIdentity(**fields, price=of_input))[1:]
        self.finished = _encode(_FinishedIdentity(**fields, price_version=version))[1:]


def shared_halves(
    principal: Principal, endpoint: str, model: str | None, target: Target | None, price: Price | None, edge_id: str
) -> SharedHalves:
    """Return the shared halves for a caller (`model`: the name it asked for), from its principal if they are there."""
    name = (endpoint, model, None if target is None else target.model_id, None if price is None else price.version)
    halves = principal.shared_halves.get(name)
    if halves is None:
        identity = Identity(
            tenant=principal.tenant,
            team=principal.team,
            key=principal.key.id,
            endpoint=endpoint,
            department=principal.department,
            requested_model=clean_text(model) if model else None,
            provider=None if target is None else target.provider_id,
            upstream_model=None if target is None else target.model_name,
            edge=edge_id,
        )
        halves = SharedHalves(identity, price)
        if target is not None:
            # Only names that lead somewhere are kept: there are no more of them than routes.
            principal.shared_halves[name] = halves
    return halves


def clean_text(text: str) -> str:
    """Return a client's string as it may be stored: without NUL and lone surrogates, at most 256 bytes."""
    if text.isascii() and len(text) <= _MAX_TEXT_BYTES and "\0" not in text:
        return text
    return text.replace("\0", "").encode("utf-8", "ignore")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


def pseudonym(user: str, tenant: str) -> str:
    """Return who a request's `user` is in records: the same within a tenant, meaningless outside it."""
    text = user.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=tenant.encode()[:64], digest_size=12).hexdigest()


def admitted_record(admission: Admission, halves: SharedHalves) -> bytes:
    """Return an encoded `RequestAdmitted`."""
    return _encode(admission)[:-1] + b"," + halves.admitted


def finished_record(ending: Ending, halves: SharedHalves) -> bytes:
    """Return an encoded `UsageRecorded`."""
    return _encode(ending)[:-1] + b"," + halves.finished
