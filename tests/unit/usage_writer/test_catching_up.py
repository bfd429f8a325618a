"""Whether usage is stored: asked of NATS once for all who ask."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.usage_writer.catching_up import CatchingUp


class Stream:
    """The two calls of JetStream, counted."""

    def __init__(self) -> None:
        self.last = 10
        self.stored = 10
        self.calls = 0
        self.error: Exception | None = None

    async def get_last_msg(self, stream: str, subject: str) -> Any:
        self.calls += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(seq=self.last)

    async def consumer_info(self, stream: str, durable: str) -> Any:
        self.calls += 1
        await asyncio.sleep(0)
        return SimpleNamespace(ack_floor=SimpleNamespace(stream_seq=self.stored))


def catching_up(stream: Stream, within_s: float = 5.0) -> CatchingUp:
    return CatchingUp(stream, within_s=within_s)  # type: ignore[arg-type]


async def test_all_who_ask_at_once_share_one_look() -> None:
    stream = Stream()
    asked = catching_up(stream)
    assert await asyncio.gather(*(asked.has_caught_up() for _ in range(500))) == [True] * 500
    assert stream.calls == 2


async def test_who_asks_later_waits_for_what_came_meanwhile() -> None:
    stream = Stream()
    stream.stored = 9
    asked = catching_up(stream)
    early = asyncio.create_task(asked.has_caught_up())
    while stream.calls < 2:
        await asyncio.sleep(0)
    stream.last = 11
    late = asyncio.create_task(asked.has_caught_up())
    await asyncio.sleep(0)
    stream.stored = 10
    assert await early
    assert not late.done()
    stream.stored = 11
    assert await late


async def test_answer_is_no_when_the_writer_stays_behind() -> None:
    stream = Stream()
    stream.stored = 9
    assert not await catching_up(stream, within_s=0.01).has_caught_up()


async def test_error_reaches_everybody_and_the_next_question_is_looked_for_anew() -> None:
    stream = Stream()
    stream.error = OSError("away")
    asked = catching_up(stream)
    outcomes = await asyncio.gather(*(asked.has_caught_up() for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError] * 3
    stream.error = None
    assert await asked.has_caught_up()


async def test_one_who_leaves_does_not_disturb_the_others() -> None:
    stream = Stream()
    stream.stored = 9
    asked = catching_up(stream)
    leaving = asyncio.create_task(asked.has_caught_up())
    staying = asyncio.create_task(asked.has_caught_up())
    while stream.calls < 2:
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    stream.stored = 10
    assert await staying
