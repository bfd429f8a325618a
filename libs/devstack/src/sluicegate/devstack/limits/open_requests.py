"""A limit of open requests under every way in which a request can end, seen from the provider."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Final

from sluicegate.devstack.fake_provider.server import FakeProvider, running
from sluicegate.devstack.limits.calls import Answer, Caller, at_once, chat, codes, served
from sluicegate.devstack.limits.scenery import Key, scenery
from sluicegate.devstack.stack_client import Stack

_AGAIN_AFTER_S: Final = 0.05
_LEAVES_AFTER_S: Final = 0.05
_ENDS: Final = (
    "ttft_ms=40",
    "ttft_ms=10000",  # the client leaves
    "ttft_ms=20&status=500",
    "ttft_ms=20&cut_head=true",
    "events=20&pace_ms=10&write=each",
    "events=2000&pace_ms=10&write=each",  # the client leaves
    "events=20&pace_ms=10&write=each&cut_at=5",
)


@dataclass(frozen=True)
class OpenRequests:
    """What came of it."""

    limit: int
    tried: int
    refused: int
    codes: set[str]
    most_at_provider: int
    open_again: int
    waited_s: float


async def open_requests(stack: Stack, *, limit: int = 10, clients: int = 40, calls_each: int = 7) -> OpenRequests:
    """Let many clients come again and again, then see how many requests may be open once all have ended."""
    async with running() as provider, scenery(stack) as made:
        model = await made.model(provider.url)
        key = await made.key(open_requests=limit)
        caller = Caller(stack.edge_url)
        answers = [
            answer
            for some in await asyncio.gather(
                *(_client(caller, key, model, start, calls_each) for start in range(clients))
            )
            for answer in some
        ]
        most = _most_open(provider)
        again, waited_s = await _all_again(caller, key, model, provider, limit)
        refusals = [answer for answer in answers if answer.status == 429]
        return OpenRequests(
            limit=limit,
            tried=len(answers),
            refused=len(refusals),
            codes=codes(refusals),
            most_at_provider=most,
            open_again=again,
            waited_s=waited_s,
        )


async def _client(caller: Caller, key: Key, model: str, start: int, calls: int) -> list[Answer]:
    """One client: each of its requests ends in another way; refused, it tries the same again."""
    answers = []
    for fake in itertools.islice(itertools.cycle(_ENDS), start, start + calls):
        body = chat(model, fake=fake, is_streamed="events" in fake)
        leaves = _LEAVES_AFTER_S if fake in {_ENDS[1], _ENDS[5]} else None
        while True:
            answer = await caller.call(key.key, body, leaves_after_s=leaves)
            answers.append(answer)
            if answer.status != 429:
                break
            await asyncio.sleep(_AGAIN_AFTER_S)
    return answers


def _most_open(provider: FakeProvider) -> int:
    """Return the most calls that the provider had open at once."""
    changes = [(call.started_s, 1) for call in provider.calls.recent]
    changes += [(call.ended_s, -1) for call in provider.calls.recent if call.ended_s is not None]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


async def _all_again(caller: Caller, key: Key, model: str, provider: FakeProvider, limit: int) -> tuple[int, float]:
    """Fill all slots with requests that stay open; return how many are, and how long that took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    body = chat(model, is_streamed=True, fake="events=3&write=each&gate_at=1")
    waiting: set[asyncio.Task[Answer]] = set()
    while len(waiting) < limit and loop.time() - started < 20:
        call = asyncio.ensure_future(caller.call(key.key, body))
        done, _ = await asyncio.wait({call}, timeout=0.1)
        if done:  # refused
            await asyncio.sleep(_AGAIN_AFTER_S)
        else:
            waiting.add(call)
    took_s = loop.time() - started
    is_open = len(waiting)
    beyond = served(await at_once(1, lambda: caller.call(key.key, chat(model))))
    provider.release()
    await asyncio.gather(*waiting)
    return is_open + beyond, took_s
