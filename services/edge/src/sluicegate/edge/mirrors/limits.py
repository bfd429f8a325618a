"""Which limits bind a request: meters of the ledger for its key, all above it, its end user, its target.

Worked out once per caller and kept until the next change of configuration or the end of a budget's period.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sluicegate.contracts.catalogue import Budget, Limits
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import NO_LIMIT, Meter, MeterSet, Resource
from sluicegate.ledger.periods import period_of

NO_LIMITS: Final = Limits()
_SOFT_EXCEEDED: Final = b"x-sluicegate-warning: budget_soft_exceeded\r\n"
# What a request takes from a sliding minute comes back a minute later: until then the limit is not whole again.
_RATE_LINES: Final = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: 1m0s\r\n"

WatchBudget = Callable[[Meter, Budget, str | None], None]


class Scoped(NamedTuple):
    """One scope that a request falls under. `name` is how messages call it."""

    scope: str
    id: str
    name: str
    limits: Limits


class Bounds:
    """The limits on one kind of request that starts in [since_us, until_us).

    `closed`: what has a limit of 0, so that nothing passes; "" if nothing has. `names` says whose a meter is.
    """

    __slots__ = (
        "closed",
        "closed_resource",
        "has_hard_budget",
        "is_bound",
        "meters",
        "names",
        "since_us",
        "soft",
        "takes_amounts",
        "until_us",
    )

    def __init__(self, names: Mapping[Meter, str], closed: tuple[Resource, str] | None) -> None:
        self.meters = MeterSet(names)
        self.names = names
        self.closed_resource: Resource | None = None if closed is None else closed[0]
        self.closed = "" if closed is None else closed[1]
        self.since_us = self.meters.since_us
        self.until_us = self.meters.until_us
        self.soft = tuple(meter for meter in self.meters.budgets if meter.is_soft)
        self.has_hard_budget = len(self.soft) < len(self.meters.budgets)
        self.takes_amounts = bool(self.meters.tokens or self.meters.budgets)
        self.is_bound = bool(self.meters.all) or closed is not None

    def header_lines(self, target: "Bounds") -> bytes:
        """Return the header lines that tell the client where it stands: the tightest of its limits of each kind.

        `target`: the limits on where its request went, which bind it as well.
        """
        lines = b""
        requests, tokens, soft = self.meters.requests, self.meters.tokens, self.soft
        if target.is_bound:
            requests += target.meters.requests
            tokens += target.meters.tokens
            soft += target.soft
        if requests:
            lines = _rate_lines(b"requests", requests)
        if tokens:
            lines += _rate_lines(b"tokens", tokens)
        for meter in soft:
            if meter.is_exceeded:
                return lines + _SOFT_EXCEEDED
        return lines


def _rate_lines(kind: bytes, meters: Sequence[Meter]) -> bytes:
    # As `Meter.remaining`, without a call for each: it is done for every answer.
    tightest, least = meters[0], NO_LIMIT
    for meter in meters:
        left = meter.left
        remaining = meter.spare + (meter.limit - meter.held if left is None else left)
        if remaining < least:
            tightest, least = meter, remaining
    limit = tightest.limit
    return _RATE_LINES % (kind, limit, kind, 0 if least < 0 else min(limit, least), kind)


UNBOUND: Final = Bounds({}, None)


class LimitFinder:
    """Makes bounds out of records. `watch` hears of each budget's meter."""

    def __init__(self, ledger: Ledger, watch: WatchBudget) -> None:
        self._ledger = ledger
        self._watch = watch

    def bounds(
        self,
        scopes: Iterable[Scoped],
        budgets: Mapping[tuple[str, str], Mapping[str, Budget]],
        tenant: str | None,
        at_us: int,
    ) -> Bounds:
        """Return the limits on requests under these scopes; `budgets` by scope and the scope's id, then their own."""
        names: dict[Meter, str] = {}
        closed: tuple[Resource, str] | None = None
        for scoped in scopes:
            limits = scoped.limits
            caps: tuple[tuple[Resource, int | None], ...] = (
                ("requests", limits.requests_per_minute),
                ("tokens", limits.tokens_per_minute),
                ("open", limits.open_requests),
            )
            for resource, limit in caps:
                if limit == 0:
                    closed = closed or (resource, scoped.name)
                elif limit is not None:
                    names[self._ledger.cap_meter(resource, scoped.scope, scoped.id, limit=limit)] = scoped.name
            for budget in budgets.get((scoped.scope, scoped.id), {}).values():
                if not budget.enabled:
                    continue
                name = f"the budget {budget.name!r} of {scoped.name}"
                if budget.limit_nano_usd == 0 and not budget.is_soft:
                    closed = closed or ("budget", name)
                else:
                    names[self._budget_meter(budget, tenant, at_us)] = name
        return Bounds(names, closed) if names or closed else UNBOUND

    def _budget_meter(self, budget: Budget, tenant: str | None, at_us: int) -> Meter:
        start_us, end_us = period_of(budget.period, budget.time_zone, budget.first_weekday, at_us)
        meter = self._ledger.sum_meter(
            budget.id,
            budget.scope_id,
            scope=budget.scope,
            start_us=start_us,
            end_us=end_us,
            limit=budget.limit_nano_usd,
            zero_from_us=start_us if budget.counts_since_us <= start_us else None,
            is_soft=budget.is_soft,
        )
        self._watch(meter, budget, tenant)
        return meter


def utc_text(at_us: int) -> str:
    """Return a time as messages show it."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
