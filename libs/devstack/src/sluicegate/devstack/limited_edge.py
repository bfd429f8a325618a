"""An edge under test whose one key stands below everything that can be limited, and what Valkey holds of its meters."""

import re
import time
from typing import Any, Final, Literal, NamedTuple, get_args

from redis.asyncio import Redis

from sluicegate.contracts.catalogue import Budget, Department, Limits, Model, Scope, Team, Tenant
from sluicegate.contracts.ids import new_id
from sluicegate.devstack.edge_process import PRICE, EdgeUnderTest
from sluicegate.devstack.raw_http import Response, chat
from sluicegate.edge.phases.records import pseudonym
from sluicegate.ledger.meters import Meter

LimitedScope = Literal[Scope, "end_user"]
SCOPES: Final[tuple[LimitedScope, ...]] = (*get_args(Scope), "end_user")
BUDGET_SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
# What an answer of the fake provider costs at `PRICE` where nothing else is asked for: 11 and 10 tokens.
ANSWER_NANO_USD: Final = 11 * 1_000 + 10 * 3_000
ANSWER_TOKENS: Final = 11 + 10
_PERIOD_START: Final = re.compile(r":\d+$")


class Stored(NamedTuple):
    """What Valkey holds of one meter. `settled` counts the base in."""

    settled: int
    held: int
    processes: int


class LimitedEdge:
    """Says in one line what a test limits. Limits of one scope add up; `limit(scope, …=None)` takes one away."""

    def __init__(self, edge: EdgeUnderTest) -> None:
        self.edge = edge
        self._limits: dict[LimitedScope, dict[str, int | None]] = {scope: {} for scope in SCOPES}
        self._model: dict[str, Any] = {}
        for scope in SCOPES:
            self._put(scope)

    @staticmethod
    def id_of(scope: LimitedScope, user: str = "") -> str:
        """Return the scope's id in meters."""
        ids = {"key": "key_1", "team": "tea_1", "department": "dep_1", "tenant": "ten_1", "provider": "prv_1"}
        if scope == "end_user":
            return f"ten_1:{pseudonym(user, 'ten_1')}"
        return ids.get(scope, "mod_demo_prv_1")

    def limit(self, scope: LimitedScope, **limits: int | None) -> None:
        """Put limits on a scope, as the mirror would."""
        self._limits[scope].update(limits)
        self._put(scope)

    def model(self, **model: Any) -> None:
        """Change fields of the model, for example its prices."""
        self._model.update(model)
        self._put("model")

    def budget(self, scope: Scope, limit_nano_usd: int, **fields: Any) -> Budget:
        """Put a budget on a scope."""
        defaults = {"id": new_id("bud"), "name": "purse", "scope_id": self.id_of(scope), "period": "month"}
        record = Budget(scope=scope, limit_nano_usd=limit_nano_usd, **{**defaults, **fields})
        self.edge.put(record)
        return record

    def _put(self, scope: LimitedScope) -> None:
        edge, limits = self.edge, self._limits
        of = Limits(**limits["tenant" if scope == "end_user" else scope])
        if scope in {"tenant", "end_user"}:
            edge.put(Tenant(id="ten_1", name="acme", limits=of, end_user_limits=Limits(**limits["end_user"])))
        elif scope == "department":
            edge.put(Department(id="dep_1", name="research", tenant="ten_1", limits=of))
        elif scope == "team":
            edge.put(Team(id="tea_1", name="search", tenant="ten_1", department="dep_1", limits=of))
        elif scope == "key":
            edge.put_key(edge.key, department="dep_1", limits=of)
        elif scope == "provider":
            edge.put_provider(limits=of)
        else:
            fields = {"name": "fake-gpt", "provider": "prv_1", "prices": (PRICE,), **self._model}
            edge.put(Model(id="mod_demo_prv_1", limits=of, **fields))

    # Asking

    async def ask(self, fake: str = "", *, key: str | None = None, **fields: Any) -> Response:
        """Send one request on a connection of its own and return the answer."""
        async with self.edge.client() as client:
            return await client.ask(chat(fake, key=key or self.edge.key, **fields))

    async def statuses(self, count: int, fake: str = "", **fields: Any) -> list[int]:
        """Send requests one after another and return how each was answered."""
        return [(await self.ask(fake, **fields)).status for _ in range(count)]

    # What is counted

    def meters(self, user: str | None = None) -> dict[tuple[str, str], Meter]:
        """Return the meters that bind a request now, by resource and scope; of several budgets on one scope, one."""
        edge = self.edge
        at_us = time.time_ns() // 1000
        view, principal = edge.view, edge.view.principal(edge.key.encode())
        end_user = None if user is None else pseudonym(user, "ten_1")
        bounds = [view.bounds(principal, end_user, at_us)]
        bounds += [view.target_bounds(target, at_us) for target in view.targets(principal, "demo")]
        return {(meter.resource, meter.scope): meter for bound in bounds for meter in bound.meters.all}

    def taken(self, user: str | None = None) -> dict[tuple[str, str], int]:
        """Return what open requests, and of rates those of the last minute, hold of each meter."""
        return {name: meter.taken for name, meter in self.meters(user).items()}

    async def stored_after_giving_back(self) -> dict[str, Stored]:
        """Let the edge give back its leases, as it does when it ends, and return what Valkey then holds.

        Names are without prefix and period: `cap:requests:key:key_1`, `sum:bud_1:key_1`.
        """
        await self.edge.ledger.close()
        return await stored_meters(self.edge.settings.redis_url.get_secret_value())


async def stored_meters(redis_url: str) -> dict[str, Stored]:
    """Return what Valkey holds of all meters of the one tag."""
    found: dict[str, Stored] = {}
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        async for name in redis.scan_iter("sg:{all}:*"):
            kind, _, rest = name.removeprefix("sg:{all}:").partition(":")
            if kind not in {"sum", "cap"}:
                continue
            fields: dict[Any, Any] = await redis.hgetall(name)
            base = int(fields.pop("b", 0))
            fields.pop("t", None)
            pairs = [tuple(map(int, record.split())) for record in fields.values()]
            short = f"{kind}:{rest}"
            if kind == "sum":
                short = _PERIOD_START.sub("", short)
            found[short] = Stored(base + sum(s for s, _ in pairs), sum(h for _, h in pairs), len(pairs))
    return found
