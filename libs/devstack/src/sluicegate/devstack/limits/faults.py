"""Budgets while something breaks under load: an edge is killed, Valkey stops, Valkey forgets everything."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

from sluicegate.devstack import faults
from sluicegate.devstack.limits.calls import Answer, Caller, at_once, at_pace, chat, patiently, served
from sluicegate.devstack.limits.edge_numbers import metric, metric_by_worker
from sluicegate.devstack.limits.meter_readings import MeterReadings, Reading, meter_readings
from sluicegate.devstack.limits.records import Records, records
from sluicegate.devstack.limits.scenery import NANO_USD_PER_TOKEN, Budget, Key, Scenery, scenery
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until

_FAR: Final = 1_000_000
_TOKENS: Final = 100
_RATE_PER_S: Final = 40.0
_FAR_RATE: Final = 1_000_000


@dataclass(frozen=True)
class Compared:
    """A budget's meter and what the records say, in nano-USD."""

    scope: str
    meter: Reading
    recorded: int


@dataclass
class Recovery:
    """What came of a fault. `equal_after_s`: from the fault until each meter was what the records say."""

    answers: list[Answer] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    equal_after_s: float = 0.0
    most_above_the_truth: int = 0
    limits_up_again: bool = False
    policy_served: int = 0
    detail: str = ""


class _Bound:
    """A key with budgets and rates on itself, its team and its department, all far away."""

    def __init__(self, key: Key, budgets: dict[str, Budget]) -> None:
        self.key = key
        self.budgets = budgets

    @classmethod
    async def make(cls, made: Scenery) -> "_Bound":
        limits = {"requests_per_minute": _FAR_RATE, "tokens_per_minute": 1000 * _FAR_RATE, "open_requests": _FAR_RATE}
        department = await made.department(**limits)
        key = await made.key(await made.team(department, **limits), **limits)
        return cls(
            key,
            {
                "key": await made.budget("key", key.id, _FAR),
                "team": await made.budget("team", key.team, _FAR),
                "department": await made.budget("department", key.department, _FAR),
            },
        )

    async def compared(self, meters: MeterReadings, recorded: Records) -> list[Compared]:
        readings = await meters.read(*(budget.meter for budget in self.budgets.values()))
        truth = (await recorded.of(self.key.id)).cost_nano_usd
        return [Compared(scope, reading, truth) for scope, reading in zip(self.budgets, readings, strict=True)]

    async def until_equal(self, meters: MeterReadings, recorded: Records, deadline_s: float) -> list[Compared]:
        async def equal() -> list[Compared] | None:
            compared = await self.compared(meters, recorded)
            return compared if all(one.meter.spent == one.recorded for one in compared) else None

        found: list[Compared] = await until(equal, "the meters equal the records", deadline_s=deadline_s, every_s=0.5)
        return found


def _body(model: str, *, lasts_ms: int = 0) -> bytes:
    fake = f"prompt_tokens=0&completion_tokens={_TOKENS}&ttft_ms={lasts_ms}"
    return chat(model, max_tokens=2 * _TOKENS, fake=fake)


async def killed_edge(
    stack: Stack, *, deadline_s: float = 150, when_calm: Callable[[], None] = lambda: None
) -> Recovery:
    """Kill a worker that has leases and open requests; the others and the one that follows it go on.

    `when_calm` is called when nothing will be disturbed any more: only the meters are waited for then.
    """
    recovery = Recovery()
    async with scenery(stack) as made, meter_readings(stack.redis_url) as meters, records(stack) as recorded:
        model = await made.model()
        bound = await _Bound.make(made)
        caller = Caller(stack.edge_url)
        body = _body(model, lasts_ms=500)
        load = asyncio.create_task(at_pace(_RATE_PER_S, [lambda: caller.call(bound.key.key, body)] * 160))
        await asyncio.sleep(2)
        faults.kill([stack.reload().processes["edge"][0]])
        killed_s = time.monotonic()
        recovery.answers = await load
        await until(lambda: _is_whole(stack), "the worker is replaced", every_s=0.25)
        await made.until_heard()
        when_calm()
        recovery.compared = await bound.until_equal(meters, recorded, deadline_s)
        recovery.equal_after_s = time.monotonic() - killed_s
    return recovery


async def valkey_away(stack: Stack, *, away_s: float = 13.0) -> Recovery:
    """Stop Valkey for longer than leases are valid, under load."""
    recovery = Recovery()
    async with scenery(stack) as made, meter_readings(stack.redis_url) as meters, records(stack) as recorded:
        model = await made.model()
        bound = await _Bound.make(made)
        caller = Caller(stack.edge_url)
        body = _body(model)
        before = await metric(stack, "limits_policy_served_total")
        await at_pace(_RATE_PER_S, [lambda: caller.call(bound.key.key, body)] * 40)
        load = asyncio.create_task(
            at_pace(_RATE_PER_S, [lambda: caller.call(bound.key.key, body)] * int(_RATE_PER_S * (away_s + 3)))
        )
        with faults.paused(stack.reload().processes["valkey"]):
            await asyncio.sleep(away_s)
            recovery.detail = await _limits_detail(stack)
        back_s = time.monotonic()
        recovery.answers = await load
        recovery.policy_served = int(await metric(stack, "limits_policy_served_total") - before)
        await until(lambda: _is_up(stack), "every worker has its limits' store again", every_s=0.1)
        recovery.limits_up_again = True
        recovery.compared = await bound.until_equal(meters, recorded, 120)
        recovery.equal_after_s = time.monotonic() - back_s
    return recovery


@dataclass(frozen=True)
class Flushed:
    """What came of a store that forgot everything, far from limits and at one."""

    far: Recovery
    limit: int
    spent_before: int
    spent: int
    policy_served: int


async def flushed_valkey(stack: Stack) -> Flushed:
    """Flush under load: a budget far away, and one half of which is spent."""
    far = Recovery()
    async with scenery(stack) as made, meter_readings(stack.redis_url) as meters, records(stack) as recorded:
        model = await made.model()
        bound = await _Bound.make(made)
        near = await made.key()
        near_budget = await made.budget("key", near.id, 10_000)
        caller = Caller(stack.edge_url)
        each = chat(model, max_tokens=1_000, fake="prompt_tokens=0&completion_tokens=1000&ttft_ms=50")
        half = await patiently(lambda: caller.call(near.key, each), most=5)
        body = _body(model)
        sent = 0

        def one() -> Awaitable[Answer]:
            nonlocal sent
            sent += 1
            return caller.call(bound.key.key, body)

        load = asyncio.create_task(at_pace(_RATE_PER_S, [one] * 240))
        await asyncio.sleep(2)
        await meters.client.flushall()
        flushed_s = time.monotonic()
        while not load.done():
            readings = await meters.read(*(budget.meter for budget in bound.budgets.values()))
            most_true = sent * _TOKENS * NANO_USD_PER_TOKEN
            far.most_above_the_truth = max(far.most_above_the_truth, *(one.spent - most_true for one in readings))
            await asyncio.sleep(0.01)
        far.answers = await load
        before = await metric(stack, "limits_policy_served_total")
        rest = await at_once(100, lambda: caller.call(near.key, each))
        rest += await patiently(lambda: caller.call(near.key, each), most=100)
        policy_served = int(await metric(stack, "limits_policy_served_total") - before)
        far.compared = await bound.until_equal(meters, recorded, 120)
        far.equal_after_s = time.monotonic() - flushed_s
        spent = await _recorded_once(recorded, near, served(half) + served(rest))
        return Flushed(
            far=far,
            limit=10_000 * NANO_USD_PER_TOKEN,
            spent_before=served(half) * 1_000 * NANO_USD_PER_TOKEN,
            spent=max(spent, (await meters.read(near_budget.meter))[0].spent),
            policy_served=policy_served,
        )


async def _recorded_once(recorded: Records, key: Key, calls: int) -> int:
    async def cost() -> int | None:
        found = await recorded.of(key.id)
        return found.cost_nano_usd if found.served == calls else None

    spent: int = await until(cost, "every answered request is recorded")
    return spent


async def _is_up(stack: Stack) -> bool:
    found = await metric_by_worker(stack, "limits_store_up")
    return len(found) == len(stack.processes["edge"]) and all(found)


async def _limits_detail(stack: Stack) -> str:
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        return (await client.get(f"{stack.edge_internal_url}/readyz")).text


async def _is_whole(stack: Stack) -> bool:
    try:
        ready = await metric_by_worker(stack, "worker_ready")
    except httpx.TransportError:
        return False
    return len(ready) == len(stack.processes["edge"]) and all(ready)
