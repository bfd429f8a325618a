"""What the ledger counts with: meters, the sets a request is checked against, reservations and refusals.

Data and names only: who changes these fields and why is said in `ledger.py`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from sluicegate.ledger.pump import Pump, Waiter

Kind = Literal["sum", "cap"]
Resource = Literal["budget", "requests", "tokens", "open"]
Reason = Literal["limit", "store_away"]

# How long a process may be silent before its leases on such a meter end. A rate's must outlive the sliding minute
# and the validity of a lease that was used in its last moment: 60 + 10 s and a margin.
TTL_S: Final[dict[Resource, int]] = {"budget": 60, "open": 20, "requests": 80, "tokens": 80}
# Lua's numbers are doubles, exact up to here. A soft budget's meter gets it as its limit.
NO_LIMIT: Final = 2**53 - 1
FOREVER_US: Final = 2**62
_KEPT_AFTER_PERIOD_MS: Final = 48 * 3_600_000
ONE_TAG: Final = "all"


def sum_name(tag: str, budget_id: str, scope_id: str, start_us: int) -> str:
    """Return the key of a budget's meter. Its period is part of the name: nothing is ever reset."""
    return f"sg:{{{tag}}}:sum:{budget_id}:{scope_id}:{start_us // 1_000_000}"


def cap_name(tag: str, resource: Resource, scope: str, scope_id: str) -> str:
    """Return the key of a capacity's meter."""
    return f"sg:{{{tag}}}:cap:{resource}:{scope}:{scope_id}"


class Meter:
    """One limit on one scope, as this process knows it, and its lease of it.

    Money is nano-USD. The letters in the comments are those of the protocol in `ledger.py`.
    """

    __slots__ = (
        "__weakref__",
        "bare",
        "bare_sent",
        "budget_id",
        "check_turn",
        "due",
        "end_us",
        "given_up_at",
        "held",
        "is_active",
        "is_joined",
        "is_ok",
        "is_scarce",
        "is_soft",
        "is_watched",
        "joined_by",
        "kind",
        "largest",
        "left",
        "limit",
        "lone",
        "members",
        "missing_at",
        "name",
        "pump",
        "refusal",
        "resource",
        "scope",
        "scope_id",
        "sent_at",
        "settled",
        "slots",
        "spare",
        "spent",
        "start_us",
        "surplus_since",
        "synced",
        "ttl_ms",
        "unsent_since",
        "use_before",
        "use_per_s",
        "used",
        "used_at",
        "used_seen",
        "waiters",
        "wanted",
        "zero_from_us",
    )

    def __init__(
        self,
        pump: "Pump",
        name: str,
        resource: Resource,
        scope: str,
        scope_id: str,
        limit: int,
        *,
        budget_id: str = "",
        start_us: int = 0,
        end_us: int = FOREVER_US,
        zero_from_us: int = 0,
        is_soft: bool = False,
    ) -> None:
        # What it is.
        self.pump = pump
        self.name = name
        self.kind: Kind = "sum" if resource == "budget" else "cap"
        self.resource: Resource = resource
        self.scope = scope
        self.scope_id = scope_id
        self.limit = limit
        self.is_soft = is_soft
        self.budget_id = budget_id
        self.start_us = start_us
        self.end_us = end_us
        self.zero_from_us = zero_from_us
        self.ttl_ms = TTL_S[resource] * 1000
        # The lease.
        self.is_joined = False  # the store is known to have a record of ours
        self.is_ok = False  # joined and not in doubt
        self.settled = 0  # S: settled since joining
        self.held = 0  # R + A: reserved by requests, or used up in the last minute, and spare
        self.spare = 0  # A: may be given to requests
        # Taken without a lease: since the last line was written, so that the answer's grant knows nothing of it; and
        # told in the call in flight.
        self.bare = self.bare_sent = 0
        self.slots: dict[int, None] = {}  # rates: the half seconds whose use has yet to come back, oldest first
        # What the store said last.
        self.spent: int | None = None  # spent by all (sums)
        self.left: int | None = None  # leased to nobody
        self.members = 0  # live processes that use it; 0: not known
        self.synced = 0  # S in that call
        self.lone = 0  # settled since then without being in S
        self.is_scarce = False
        # The pump's notes.
        self.joined_by = 0  # number of the call that joined
        self.unsent_since: float | None = None  # when the oldest unsent settlement was made; -inf: before a loss
        self.waiters: dict[Waiter, None] = {}
        self.wanted = 0  # sum of the waiters' needs
        self.missing_at: float | None = None  # waits for its seed since
        self.refusal: Refusal | None = None
        self.is_watched = False  # scarce or with a refusal: what comes back is worth a look
        self.is_active = False  # in its pump's care
        self.used = 0  # all that was ever taken, to see what a second uses
        self.used_seen = 0
        self.used_at = 0.0
        self.largest = 1  # the largest need of late; it fades
        self.surplus_since: float | None = None  # has had much more spare than is used
        self.use_before = 0  # in the half second before the last look
        self.use_per_s = 0
        self.sent_at = 0.0
        self.given_up_at = 0.0  # when it left the store
        self.check_turn = 0
        self.due = 0

    @property
    def tag(self) -> str:
        """Tell which hash slot, and so which pump, it belongs to."""
        return self.pump.tag

    @property
    def taken(self) -> int:
        """R: what requests hold, or have used up in the last minute."""
        return self.held - self.spare

    @property
    def sent_limit(self) -> int:
        """Tell the limit that the store enforces: none for a soft budget."""
        return NO_LIMIT if self.is_soft else self.limit

    @property
    def expire_at_ms(self) -> int:
        """Tell until when the store keeps a budget's meter: two days longer than its period."""
        return self.end_us // 1000 + _KEPT_AFTER_PERIOD_MS

    @property
    def is_exceeded(self) -> bool:
        """Tell whether all of the limit is known to be spent: a soft budget then serves with a warning."""
        return self.spent is not None and self.spent + self.settled - self.synced + self.lone >= self.limit

    def remaining(self) -> int:
        """Return what this process believes to be left, for headers: unleased at the last answer, and its spare."""
        if self.left is None:
            return max(0, min(self.limit, self.limit - self.taken))
        return max(0, min(self.limit, self.left + self.spare))

    def __repr__(self) -> str:
        return f"<Meter {self.name} limit={self.limit} S={self.settled} R={self.taken} A={self.spare}>"


class Refusal:
    """What a meter remembers so that equal or larger needs are refused without a call."""

    __slots__ = ("is_final", "need", "until")

    def __init__(self, need: int, until: float, *, is_final: bool) -> None:
        self.need = need
        self.until = until
        self.is_final = is_final


class MeterSet:
    """The meters one kind of request is checked against, grouped by what it takes from them. Made once per principal.

    A request that started in [since_us, until_us) may use it; outside, a budget's period has changed and the set
    is to be made anew. Requests in flight keep theirs through their reservation.
    """

    __slots__ = (
        "all",
        "bare_slot",
        "budgets",
        "ones",
        "open",
        "pumps",
        "rates",
        "requests",
        "since_us",
        "slot",
        "tokens",
        "until_us",
    )

    def __init__(self, meters: Iterable[Meter]) -> None:
        self.all = tuple(meters)
        if len(set(self.all)) != len(self.all):
            raise ValueError("a meter stands twice in a set")
        self.requests = tuple(meter for meter in self.all if meter.resource == "requests")
        self.tokens = tuple(meter for meter in self.all if meter.resource == "tokens")
        self.open = tuple(meter for meter in self.all if meter.resource == "open")
        self.ones = self.requests + self.open
        self.rates = self.requests + self.tokens
        self.budgets = tuple(meter for meter in self.all if meter.resource == "budget")
        self.pumps = tuple(dict.fromkeys(meter.pump for meter in self.all))
        self.since_us = max((meter.start_us for meter in self.all), default=0)
        self.until_us = min((meter.end_us for meter in self.all), default=FOREVER_US)
        # Those of the present half second, if it was used in it.
        self.slot = self.bare_slot = NO_SLOT

    def need(self, meter: Meter, tokens: int, cost_nano_usd: int) -> int:
        """Return what a request takes from one of these meters."""
        if meter.resource == "tokens":
            return tokens
        return cost_nano_usd if meter.resource == "budget" else 1


class Slot:
    """What was taken from one set in one half second: what comes back to its rates a minute later.

    Kept per set, not per meter: a request then counts once what it takes from a dozen meters.
    """

    __slots__ = (
        "cost_taken",
        "counted_cost",
        "counted_requests",
        "counted_tokens",
        "is_covered",
        "is_over",
        "largest_cost",
        "largest_tokens",
        "meters",
        "number",
        "requests",
        "tokens",
        "tokens_taken",
    )

    def __init__(self, meters: MeterSet, number: int, *, is_covered: bool = True) -> None:
        self.meters = meters
        self.number = number  # half seconds since the clock's zero
        self.is_covered = is_covered  # False: let through without a lease while the store was away
        self.is_over = False  # the minute has passed, and all came back
        self.requests = 0
        self.tokens = 0  # lowered or raised to what was really used
        # What the set's meters are told to have been used, and were told already.
        self.tokens_taken = self.counted_tokens = 0
        self.cost_taken = self.counted_cost = 0
        self.counted_requests = 0
        self.largest_tokens = self.largest_cost = 0

    def count(self, now: float) -> None:
        """Tell the meters what was used of them since the last time."""
        requests, tokens = self.requests - self.counted_requests, self.tokens_taken - self.counted_tokens
        cost = self.cost_taken - self.counted_cost
        for meter in self.meters.all:
            meter.used_at = now
        for meter in self.meters.ones:
            meter.used += requests
        for meter in self.meters.tokens:
            meter.used += tokens
            meter.largest = max(meter.largest, self.largest_tokens)
        for meter in self.meters.budgets:
            meter.used += cost
            meter.largest = max(meter.largest, self.largest_cost)
        self.counted_requests, self.counted_tokens, self.counted_cost = (
            self.requests,
            self.tokens_taken,
            self.cost_taken,
        )


class Reservation:
    """What one request, or one attempt, has taken. Settle or release it once; further calls do nothing."""

    __slots__ = ("cost_nano_usd", "is_open", "slot", "tokens")

    def __init__(self, slot: Slot, tokens: int, cost_nano_usd: int) -> None:
        self.slot = slot
        self.tokens = tokens
        self.cost_nano_usd = cost_nano_usd
        self.is_open = True

    @property
    def meters(self) -> MeterSet:
        """Return what it was taken from."""
        return self.slot.meters

    @property
    def is_covered(self) -> bool:
        """Tell whether leases back it; if not, the policy let it through."""
        return self.slot.is_covered


class Short:
    """A refusal: which meter is short, and when asking again makes sense.

    `is_final`: settled money alone refuses, so waiting helps only until the period ends (402, `x-should-retry: false`);
    else what is in the way will come back (`retry_after_s`). `reason` "store_away": the limit is not known to be
    reached, but the store cannot be asked and the policy refuses: an infrastructure fault (503).
    """

    __slots__ = ("is_final", "meter", "reason", "retry_after_s")

    def __init__(self, meter: Meter, *, retry_after_s: int, is_final: bool = False, reason: Reason = "limit") -> None:
        self.meter = meter
        self.retry_after_s = retry_after_s
        self.is_final = is_final
        self.reason: Reason = reason

    @property
    def resource(self) -> Resource:
        """Tell what there is too little of."""
        return self.meter.resource


NO_SLOT: Final = Slot(MeterSet.__new__(MeterSet), -1)
