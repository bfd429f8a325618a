"""The loads: busy keys far from their limits, a mixed population, a team at its budget, a team at its rate."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from benchmarks.limits.counting import counted
from sluicegate.devstack.limits.calls import Answer, Caller, at_pace, chat, served
from sluicegate.devstack.limits.meter_readings import meter_readings, watched
from sluicegate.devstack.limits.minutes import WINDOW_S
from sluicegate.devstack.limits.records import Records, most_within, records
from sluicegate.devstack.limits.scenery import NANO_USD_PER_TOKEN, Budget, Key, Record, Scenery, scenery
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until

_FAR: Final = {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000, "open_requests": 100_000}
_FAR_TOKENS: Final = 1_000_000_000
_CONNECTIONS: Final = 64
_RESERVED_TOKENS: Final = 200
_USED_TOKENS: Final = 100
_SMALL: Final = f"prompt_tokens=0&completion_tokens={_USED_TOKENS}"
_NEAR: Final = 0.8

Result = dict[str, Any]
Call = Callable[[], Awaitable[Answer]]


class Load(Protocol):
    """One load and its figures."""

    async def run(self, stack: Stack) -> Result: ...


class BusyKeys(NamedTuple):
    """Keys that are all called more than once a second, with 12 meters each."""

    keys: int = 20
    rate_per_s: float = 400.0
    warm_up_s: float = 8.0
    seconds: float = 25.0

    async def run(self, stack: Stack) -> Result:
        async with scenery(stack) as made:
            model = await made.model()
            department = await _bound_department(made)
            teams = [await _bound_team(made, department) for _ in range(max(1, self.keys // 4))]
            keys = [await _bound_key(made, teams[number % len(teams)]) for number in range(self.keys)]
        body = chat(model, max_tokens=_RESERVED_TOKENS, fake=_SMALL)
        choice = random.Random(1)
        weights = _zipf(self.keys)

        def calls(caller: Caller, seconds: float) -> list[Call]:
            chosen = choice.choices(keys, cum_weights=weights, k=int(self.rate_per_s * seconds))
            return [_call(caller, key, body) for key in chosen]

        slowest = self.rate_per_s / self.keys / weights[-1]
        found = await _far(stack, self.rate_per_s, calls, self.warm_up_s, self.seconds)
        return {"keys": self.keys, "meters_a_key": 12, "slowest_key_per_minute": round(60 * slowest), **found}


class MixedPopulation(NamedTuple):
    """2 000 meters, most of them of keys that are rarely called."""

    keys: int = 485
    rate_per_s: float = 200.0
    warm_up_s: float = 20.0
    seconds: float = 60.0

    async def run(self, stack: Stack) -> Result:
        choice = random.Random(2)
        async with scenery(stack) as made:
            model = await made.model()
            department = await made.department()
            teams = [await made.team(department) for _ in range(self.keys // 8)]
            await _in_groups(made.budget("team", team["id"], _FAR_TOKENS) for team in teams)
            keys = await _in_groups(_bound_key(made, teams[number % len(teams)]) for number in range(self.keys))

        def body() -> bytes:
            reserved = choice.randint(200, 2_000)
            used = int(reserved * choice.uniform(0.2, 1.0))
            return chat(model, max_tokens=reserved, fake=f"prompt_tokens=0&completion_tokens={used}&ttft_ms=100")

        def calls(caller: Caller, seconds: float) -> list[Call]:
            chosen = choice.choices(keys, cum_weights=_zipf(self.keys), k=int(self.rate_per_s * seconds))
            return [_call(caller, key, body()) for key in chosen]

        found = await _far(stack, self.rate_per_s, calls, self.warm_up_s, self.seconds)
        return {"keys": self.keys, "meters": 4 * self.keys + len(teams), **found}


class NearBudget(NamedTuple):
    """A team's budget for so many requests, run up to its end and beyond. Counted from four fifths on."""

    requests: int = 3_000
    rate_per_s: float = 200.0
    seconds: float = 20.0

    async def run(self, stack: Stack) -> Result:
        async with scenery(stack) as made:
            model = await made.model()
            keys, budget = await _team_with(made, budget_tokens=self.requests * _USED_TOKENS)
        await _begin(stack, keys, model, budget)
        body = chat(model, max_tokens=_RESERVED_TOKENS, fake=_SMALL)
        with watched(stack.redis_url, budget.meter) as peaks:
            found, all_answers = await _near(stack, keys, body, self.rate_per_s, self.seconds, self.requests)
        limit = self.requests * _USED_TOKENS * NANO_USD_PER_TOKEN
        spent = served(all_answers) * _USED_TOKENS * NANO_USD_PER_TOKEN
        recorded = await _recorded_team(stack, keys[0], served(all_answers) + len(keys))
        return {
            **found,
            "limit_nano_usd": limit,
            "spent_nano_usd": spent,
            "most_taken_nano_usd": peaks.most_taken[budget.meter],
            "is_exact": recorded == spent
            and max(spent, peaks.most_taken[budget.meter]) <= limit
            # Less than a request needs is left over.
            and spent > limit - _RESERVED_TOKENS * NANO_USD_PER_TOKEN,
        }


class NearRate(NamedTuple):
    """A team's requests per minute, called faster than that for longer than that. Counted from four fifths on."""

    limit: int = 3_000
    rate_per_s: float = 80.0
    seconds: float = 78.0

    async def run(self, stack: Stack) -> Result:
        async with scenery(stack) as made:
            model = await made.model()
            keys, _ = await _team_with(made, requests_per_minute=self.limit)
        body = chat(model, max_tokens=_RESERVED_TOKENS, fake=_SMALL)
        found, all_answers = await _near(stack, keys, body, self.rate_per_s, self.seconds, self.limit)
        count = served(all_answers)
        async with records(stack) as recorded:

            async def starts() -> list[float] | None:
                times = sorted([at for key in keys for at in await recorded.starts_s(key.id)])
                return times if len(times) == count else None

            starts_s: list[float] = await until(starts, "all requests are recorded")
        most = most_within(starts_s, WINDOW_S)
        return {**found, "limit": self.limit, "most_in_a_minute": most, "is_exact": most == self.limit}


async def _far(
    stack: Stack,
    rate_per_s: float,
    calls: Callable[[Caller, float], Sequence[Call]],
    warm_up_s: float,
    seconds: float,
) -> Result:
    caller = Caller(stack.edge_url, kept=_CONNECTIONS)
    await caller.open_kept()
    async with meter_readings(stack.redis_url) as meters:
        await at_pace(rate_per_s, calls(caller, warm_up_s))  # budgets are seeded, leases have found their size
        async with counted(stack, meters) as found:
            found.answers = await at_pace(rate_per_s, calls(caller, seconds))
    await caller.close()
    return {"rate_per_s": rate_per_s, "seconds": seconds, **found.as_json()}


async def _near(
    stack: Stack, keys: Sequence[Key], body: bytes, rate_per_s: float, seconds: float, requests: int
) -> tuple[Result, list[Answer]]:
    """Call up to four fifths of the limit, then count; also return all answers."""
    caller = Caller(stack.edge_url, kept=_CONNECTIONS)
    await caller.open_kept()
    calls = [_call(caller, key, body) for key in itertools.islice(itertools.cycle(keys), int(rate_per_s * seconds))]
    far = int(requests * _NEAR)
    async with meter_readings(stack.redis_url) as meters:
        answers = await at_pace(rate_per_s, calls[:far])
        async with counted(stack, meters) as found:
            found.answers = await at_pace(rate_per_s, calls[far:])
    await caller.close()
    return {"rate_per_s": rate_per_s, **found.as_json()}, [*answers, *found.answers]


async def _begin(stack: Stack, keys: Sequence[Key], model: str, budget: Budget) -> None:
    """Make free calls until the budget has a meter: what was spent before is asked for, and that takes a moment."""
    free = chat(model, max_tokens=1, fake="prompt_tokens=0&completion_tokens=0")
    caller = Caller(stack.edge_url)
    async with meter_readings(stack.redis_url) as meters:
        for key in keys:
            await caller.call(key.key, free)
        await until(lambda: meters.client.hexists(budget.meter, "b"), "the budget's meter has a base")
    async with records(stack) as recorded:
        await until(lambda: _all_served(recorded, keys), "the free calls are recorded")


async def _all_served(recorded: Records, keys: Sequence[Key]) -> bool:
    return all([(await recorded.of(key.id)).served == 1 for key in keys])


def _call(caller: Caller, key: Key, body: bytes) -> Call:
    return lambda: caller.call(key.key, body)


def _zipf(count: int) -> list[float]:
    return list(itertools.accumulate(1 / (rank + 1) for rank in range(count)))


async def _in_groups(making: Any, size: int = 8) -> list[Any]:
    """Make records a few at a time."""
    made: list[Any] = []
    waiting = list(making)
    for start in range(0, len(waiting), size):
        made += await asyncio.gather(*waiting[start : start + size])
    return made


async def _bound_department(made: Scenery) -> Record:
    department = await made.department(**_FAR)
    await made.budget("department", department["id"], _FAR_TOKENS)
    return department


async def _bound_team(made: Scenery, department: Record) -> Record:
    team = await made.team(department, **_FAR)
    await made.budget("team", team["id"], _FAR_TOKENS)
    return team


async def _bound_key(made: Scenery, team: Record) -> Key:
    key = await made.key(team, **_FAR)
    await made.budget("key", key.id, _FAR_TOKENS)
    return key


async def _team_with(
    made: Scenery, *, budget_tokens: int = _FAR_TOKENS, requests_per_minute: int = _FAR["requests_per_minute"]
) -> tuple[list[Key], Budget]:
    """Make a team with a near limit, and everything else on it, its department and its four keys far away."""
    department = await _bound_department(made)
    team = await made.team(department, **(_FAR | {"requests_per_minute": requests_per_minute}))
    budget = await made.budget("team", team["id"], budget_tokens)
    return [await _bound_key(made, team) for _ in range(4)], budget


async def _recorded_team(stack: Stack, key: Key, calls: int) -> int:
    async with records(stack) as recorded:

        async def cost() -> int | None:
            found = await recorded.of(key.team, "team")
            return found.cost_nano_usd if found.served == calls else None

        spent: int = await until(cost, "all requests are recorded")
    return spent
