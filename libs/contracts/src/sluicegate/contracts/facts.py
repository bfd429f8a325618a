"""The other events: configuration changed, mirrors applied, refusals, budgets, alerts, dead letters, retention."""

from typing import Any, Literal

import msgspec

from sluicegate.contracts.catalogue import Scope


class ConfigurationChanged(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration.changed.v1`: one per change, with secrets masked. None before: created."""

    event_id: str
    at_us: int
    actor: str
    address: str | None
    noun: str
    id: str
    verb: Literal["created", "updated", "deleted", "revoked"]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class InvalidationApplied(msgspec.Struct, frozen=True, kw_only=True):
    """`invalidation.applied.v1`: how far one edge process has applied each bucket (stream sequence)."""

    edge: str
    keys_sequence: int
    catalogue_sequence: int
    at_us: int


class AuthFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`auth.failed.v1`: refusals of one reason from one address prefix, added up. Never the key."""

    event_id: str
    at_us: int
    reason: str
    address_prefix: str
    count: int
    edge: str


class BudgetThresholdReached(msgspec.Struct, frozen=True, kw_only=True):
    """`budget.threshold.v1`: a budget's spend has reached a share of its limit in this period.

    Found by several; `event_id` is the same for all: `budget:scope_id:period_start_s:threshold`. 100 on a soft budget:
    it is exceeded and serves on. `tenant` is None for budgets of providers and models that belong to nobody.
    """

    event_id: str
    at_us: int
    tenant: str | None
    budget: str
    budget_name: str
    scope: Scope
    scope_id: str
    period_start_us: int
    period_end_us: int
    threshold_percent: int
    limit_nano_usd: int
    spent_nano_usd: int
    is_soft: bool = False


class AlertsCommanded(msgspec.Struct, frozen=True, kw_only=True):
    """`alerts.commanded.v1`: deliver `delivery` once more, or send a test message to `endpoint`."""

    event_id: str
    at_us: int
    verb: Literal["replay", "test"]
    delivery: str | None = None
    endpoint: str | None = None


class DeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """`message.deadlettered.v1`: what could not be handled, and why.

    `payload` holds the event's own bytes as they came; `index` is its place in the message.
    """

    event_id: str
    at_us: int
    room: str
    stream: str
    subject: str
    sequence: int
    index: int
    reason: str
    payload: bytes


class RetentionRequested(msgspec.Struct, frozen=True, kw_only=True):
    """`retention.requested.v1`: run now."""

    event_id: str
    at_us: int
    dry_run: bool = False


class RetentionCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """`retention.completed.v1`: the partitions that were made (names)."""

    event_id: str
    at_us: int
    made: tuple[str, ...]
    dry_run: bool = False


class SpentQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Request of `gateway.rpc.budget.spent`: what a scope spent in [start, end), µs since the epoch."""

    scope: Scope
    id: str
    start_us: int
    end_us: int


class SpentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer: `behind` means the writer has not caught up and the number must not be used."""

    state: Literal["known", "behind"]
    spent_nano_usd: int | None = None
