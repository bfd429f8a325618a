"""The usage event: one for every authenticated request, whatever ended it. No prompt, no answer."""

from typing import Final, Literal

import msgspec

Outcome = Literal[
    "success",
    "client_cancelled",
    "stream_interrupted",
    "interrupted",
    "provider_error",
    "rate_limited",
    "budget_exceeded",
    "guard_blocked",
    "rejected",
]
UsageSource = Literal["provider", "estimated", "partial", "none"]
CostSource = Literal["priced", "unpriced"]

# Stored as their place in these rows: append only.
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "success",
    "client_cancelled",
    "stream_interrupted",
    "interrupted",
    "provider_error",
    "rate_limited",
    "budget_exceeded",
    "guard_blocked",
    "rejected",
)
USAGE_SOURCES: Final[tuple[UsageSource, ...]] = ("provider", "estimated", "partial", "none")
COST_SOURCES: Final[tuple[CostSource, ...]] = ("priced", "unpriced")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One call to a provider. Times are µs since the request started; None: it did not come to that."""

    provider: str
    status: int | None
    started_us: int
    first_byte_us: int | None
    end_us: int


class UsageRecorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`request.completed.v1`: who used what, at what cost, how it ended and how long it took.

    `request_id` is the gateway's own UUIDv7. `started_at_us` is µs since the Unix epoch; all other
    `_us` fields are durations. Token counts have OpenAI's meaning: input includes cached and
    cache-write tokens, output includes reasoning. `cost_nano_usd` is null where no price is known,
    never 0. `count` is above 1 only for repeated refusals that share one record.
    """

    request_id: str
    started_at_us: int
    tenant: str
    team: str
    key: str
    endpoint: str
    status: int
    outcome: Outcome
    department: str | None = None
    requested_model: str | None = None
    provider: str | None = None
    upstream_model: str | None = None
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
    price_version: int | None = None
    duration_us: int = 0
    first_token_us: int | None = None
    provider_us: int | None = None
    overhead_us: int | None = None
    guard_action: str | None = None
    guard_counts: dict[str, int] = {}
    end_user: str | None = None
    tags: dict[str, str] = {}
    edge: str = ""
    count: int = 1
    traceparent: str | None = None


class RequestAdmitted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the journal knows of a request before it ends: enough for its record if the process dies."""

    request_id: str
    started_at_us: int
    tenant: str
    team: str
    key: str
    endpoint: str
    department: str | None = None
    requested_model: str | None = None
    provider: str | None = None
    upstream_model: str | None = None
    streamed: bool = False
    input_tokens: int = 0
    price: "PriceOfInput | None" = None
    end_user: str | None = None
    edge: str = ""
    traceparent: str | None = None


class PriceOfInput(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a price that an interrupted request is charged: its input, nano-USD per million."""

    version: int
    input: int
