"""Rates over more than a minute: what was let in at first, at the limit, and when all of it had come back."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from sluicegate.devstack.limits.calls import Answer, Caller, at_once, at_pace, chat, codes, served
from sluicegate.devstack.limits.records import most_within, records
from sluicegate.devstack.limits.scenery import scenery
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until

# A request is admitted up to 50 ms after it began, and only the beginning is recorded.
WINDOW_S: Final = 59.9
# A minute, the half second to which it is rounded up, and time for leases to move to where they are needed.
_COMES_BACK_AFTER_S: Final = 62.0
_TOKENS_EACH: Final = 1_000


@dataclass(frozen=True)
class Minutes:
    """Two minutes of a rate. Counts are of requests or tokens, as the limit is."""

    limit: int
    first_minute: int
    second_minute: int
    most_in_a_minute: int
    codes: set[str]
    retry_after_s: list[int]


async def minutes_of_requests(stack: Stack, *, limit: int = 40) -> Minutes:
    """Send three times the limit at once, go on at a pace, and again when the first minute is over."""
    async with scenery(stack) as made:
        key = await made.key(requests_per_minute=limit)
        return await _minutes(stack, key.key, key.id, chat(await made.model()), limit, unit=1)


async def minutes_of_tokens(stack: Stack, *, calls: int = 20) -> Minutes:
    """Do the same with tokens, of which each request reserves a few more than it uses: its estimated input."""
    limit = calls * _TOKENS_EACH + _TOKENS_EACH // 2
    async with scenery(stack) as made:
        key = await made.key(tokens_per_minute=limit)
        fake = f"prompt_tokens=0&completion_tokens={_TOKENS_EACH}"
        body = chat(await made.model(), max_tokens=_TOKENS_EACH, fake=fake)
        return await _minutes(stack, key.key, key.id, body, limit, unit=_TOKENS_EACH)


async def _minutes(stack: Stack, key: str, key_id: str, body: bytes, limit: int, *, unit: int) -> Minutes:
    caller = Caller(stack.edge_url)
    calls = limit // unit
    started_s = time.monotonic()

    async def call() -> Answer:
        return await caller.call(key, body)

    async def once_all_is_used() -> list[Answer]:
        """What is leased to a worker that gets no calls goes to another as soon as that one is known to be short."""
        return [*await at_once(3 * calls, call), *await at_pace(4.0, [call] * 40)]

    first = await once_all_is_used()
    end_s = max(answer.ended_s for answer in first if answer.is_served)
    await asyncio.sleep(max(0.0, end_s + _COMES_BACK_AFTER_S - time.monotonic()))
    second = await once_all_is_used()
    refused = [answer for answer in [*first, *second] if not answer.is_served]
    async with records(stack) as recorded:

        async def all_recorded() -> list[float] | None:
            found = await recorded.starts_s(key_id)
            return found if len(found) == served(first) + served(second) else None

        starts_s: list[float] = await until(all_recorded, f"all requests since {started_s:.0f} are recorded")
    return Minutes(
        limit=limit,
        first_minute=served(first) * unit,
        second_minute=served(second) * unit,
        most_in_a_minute=most_within(starts_s, WINDOW_S) * unit,
        codes=codes(refused),
        retry_after_s=[int(answer.headers["retry-after"]) for answer in refused],
    )
