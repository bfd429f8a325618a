"""Many calls at once on one budget: how much of it they spend, and what is left when they have settled."""

import asyncio
from dataclasses import dataclass

from sluicegate.devstack.limits.calls import Answer, Caller, at_once, chat, patiently, served
from sluicegate.devstack.limits.edge_numbers import metric
from sluicegate.devstack.limits.meter_readings import MeterReadings, Reading, meter_readings, watched
from sluicegate.devstack.limits.records import Recorded, Records, records
from sluicegate.devstack.limits.scenery import NANO_USD_PER_TOKEN, Budget, Key, scenery
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until

# Longer than a burst takes to be sent, so that all of it is open at the same time.
_ANSWER_AFTER_MS = 100


@dataclass(frozen=True)
class Burst:
    """What came of it. `afterwards`: of clients that come again as long as they are told to.

    `policy_served`: calls that all of the stack let through meanwhile without a lease, because Valkey took longer than
    50 ms (a machine with too much to do); with the policy `closed` there are none.
    """

    limit: int
    at_once: list[Answer]
    afterwards: list[Answer]
    samples: int
    most_taken: int
    meter: Reading
    recorded: Recorded
    policy_served: int

    @property
    def served(self) -> int:
        return served(self.at_once) + served(self.afterwards)


@dataclass(frozen=True)
class Spending:
    """A budget for so many tokens, and calls that may use `reserved` of them and use `used`."""

    limit: int
    reserved: int
    used: int
    calls_at_once: int = 200
    patient_clients: int = 1


async def burst(stack: Stack, spending: Spending) -> Burst:
    """Spend a new budget. A free call comes first: what was spent before is asked for, and that takes a moment."""
    async with scenery(stack) as made, meter_readings(stack.redis_url) as meters, records(stack) as recorded:
        model = await made.model()
        key = await made.key()
        budget = await made.budget("key", key.id, spending.limit)
        caller = Caller(stack.edge_url)
        await _begin(caller, key, model, meters, budget)
        knobs = f"prompt_tokens=0&completion_tokens={spending.used}"
        policy_served = await metric(stack, "limits_policy_served_total")
        slow = chat(model, max_tokens=spending.reserved, fake=f"{knobs}&ttft_ms={_ANSWER_AFTER_MS}")
        quick = chat(model, max_tokens=spending.reserved, fake=knobs)
        with watched(stack.redis_url, budget.meter) as peaks:
            first = await at_once(spending.calls_at_once, lambda: caller.call(key.key, slow))
            clients = [
                patiently(lambda: caller.call(key.key, quick), most=1_000_000) for _ in range(spending.patient_clients)
            ]
            later = [answer for answers in await asyncio.gather(*clients) for answer in answers]
        meter, truth = await until_equal(meters, recorded, budget, key)
        return Burst(
            limit=spending.limit * NANO_USD_PER_TOKEN,
            at_once=first,
            afterwards=later,
            samples=peaks.samples,
            most_taken=peaks.most_taken[budget.meter],
            meter=meter,
            recorded=truth,
            policy_served=int(await metric(stack, "limits_policy_served_total") - policy_served),
        )


async def _begin(caller: Caller, key: Key, model: str, meters: MeterReadings, budget: Budget) -> None:
    free = chat(model, max_tokens=1, fake="prompt_tokens=0&completion_tokens=0")
    await patiently(lambda: caller.call(key.key, free), most=1)
    await until(lambda: meters.client.hexists(budget.meter, "b"), "the budget's meter has a base")


async def until_equal(
    meters: MeterReadings, recorded: Records, budget: Budget, key: Key, *, deadline_s: float = 30
) -> tuple[Reading, Recorded]:
    """Wait until the meter says what the records say; return both."""

    async def both() -> tuple[Reading, Recorded] | None:
        (meter,) = await meters.read(budget.meter)
        truth = await recorded.of(key.id)
        return (meter, truth) if meter.spent == truth.cost_nano_usd else None

    found: tuple[Reading, Recorded] = await until(
        both, "the meter equals the records", deadline_s=deadline_s, every_s=0.25
    )
    return found
