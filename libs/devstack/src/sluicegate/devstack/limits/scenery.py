"""Tenants, teams, keys, budgets and a model with a round price, made through the admin API."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx

from sluicegate.contracts.catalogue import Scope
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until
from sluicegate.ledger.meters import ONE_TAG, sum_name
from sluicegate.ledger.periods import period_of

# A token of output costs a tenth of a cent, one of input nothing: sums of money are sums of `max_tokens`.
NANO_USD_PER_TOKEN: Final = 1_000_000
_PRICE: Final = {"input_usd_per_million": "0", "output_usd_per_million": "1000"}
# Ends more rarely than any other, so hardly ever during a run.
_PERIOD: Final = "year"

Record = dict[str, Any]


class Budget(NamedTuple):
    """A budget and the name of its present meter."""

    id: str
    meter: str


class Key(NamedTuple):
    """A key and what it hangs from."""

    key: str
    id: str
    team: str
    department: str
    tenant: str


class Scenery:
    """Makes records, and waits with each until every edge knows it."""

    def __init__(self, stack: Stack, admin: httpx.AsyncClient) -> None:
        self._stack = stack
        self._admin = admin

    async def model(self, provider_url: str | None = None) -> str:
        """Make a model of the stack's provider, or of a new one at that address; return its alias."""
        name = f"limits-{secrets.token_hex(4)}"
        if provider_url is None:
            provider = (await self._get("providers"))[0]["id"]
        else:
            provider = (await self._make("providers", name=name, base_url=f"{provider_url}/v1"))["id"]
        model = await self._make("models", provider=provider, name=name, prices=[_PRICE])
        await self._make("routes", alias=name, targets=[{"model": model["id"]}])
        return name

    async def until_heard(self) -> None:
        """Wait until changes are known to be everywhere again: for a few seconds a dead edge is waited for in vain."""
        tenant = (await self._get("tenants"))[0]["id"]

        async def heard() -> bool:
            answer = await self._admin.post("departments", json={"tenant": tenant, "name": secrets.token_hex(4)})
            return bool(answer.raise_for_status().json()["propagated"])

        await until(heard, "every edge hears of changes", every_s=0.5)

    async def department(self, **limits: int) -> Record:
        """Make a department of the first tenant."""
        tenant = (await self._get("tenants"))[0]["id"]
        return await self._make("departments", tenant=tenant, name=secrets.token_hex(4), limits=limits)

    async def team(self, department: Record, **limits: int) -> Record:
        """Make a team of a department."""
        return await self._make(
            "teams",
            tenant=department["tenant"],
            department=department["id"],
            name=secrets.token_hex(4),
            limits=limits,
        )

    async def key(self, team: Record | None = None, **limits: int) -> Key:
        """Make a key of a team, or with a team and department of its own."""
        if team is None:
            team = await self.team(await self.department())
        made = await self._make("keys", team=team["id"], name=secrets.token_hex(4), limits=limits)
        return Key(
            key=made["key"], id=made["id"], team=team["id"], department=team["department"], tenant=team["tenant"]
        )

    async def budget(self, scope: Scope, scope_id: str, tokens: int) -> Budget:
        """Make a budget for so many tokens of output."""
        made = await self._make(
            "budgets",
            name=secrets.token_hex(4),
            scope=scope,
            scope_id=scope_id,
            limit_usd=f"{tokens / 1000:.3f}",
            period=_PERIOD,
        )
        start_us, _ = period_of(_PERIOD, "UTC", 0, time.time_ns() // 1000)
        return Budget(made["id"], sum_name(ONE_TAG, made["id"], scope_id, start_us))

    async def _get(self, nouns: str) -> list[Record]:
        answer = await self._admin.get(nouns)
        return list(answer.raise_for_status().json()["data"])

    async def _make(self, nouns: str, **fields: Any) -> Record:
        answer = await self._admin.post(nouns, json=fields)
        if answer.status_code != 201:
            raise RuntimeError(f"POST /api/{nouns} answered {answer.status_code}: {answer.text[:500]}")
        made: Record = answer.json()
        if not made["propagated"]:
            raise RuntimeError(f"not every edge knows of the new record in {nouns}")
        return made


@asynccontextmanager
async def scenery(stack: Stack) -> AsyncIterator[Scenery]:
    """Makes records of this stack."""
    async with httpx.AsyncClient(
        base_url=f"{stack.admin_url}/api/", headers=stack.admin_headers, timeout=30, trust_env=False
    ) as admin:
        yield Scenery(stack, admin)
