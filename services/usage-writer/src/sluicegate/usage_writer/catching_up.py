"""Tells whether all events that were there at a question are stored: one look for all who ask, not one for each.

After a flush every edge asks for every budget in use. Each question with looks of its own, twenty a second, would keep
the writer from writing, and so from ever catching up.
"""

import asyncio
from contextlib import suppress
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from sluicegate.contracts.subjects import USAGE_WRITER

_LOOK_AGAIN_S: Final = 0.05
_NO_STREAM: Final = 10059


async def last_sequence(js: JetStreamContext) -> int:
    """Return the sequence of the last usage event: of that subject, not of the stream, which others may share."""
    try:
        message = await js.get_last_msg(USAGE_WRITER.stream, USAGE_WRITER.filter_subject)
    except NotFoundError as error:
        if error.err_code == _NO_STREAM:
            raise
        return 0
    return message.seq or 0


class _Asker:
    __slots__ = ("answer", "deadline", "wanted")

    def __init__(self, answer: "asyncio.Future[bool]", deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline
        self.wanted: int | None = None  # the last event when it asked


class CatchingUp:
    """Looks for all who wait, as long as somebody does."""

    def __init__(self, js: JetStreamContext, *, within_s: float) -> None:
        self._js = js
        self._within_s = within_s
        self._askers: list[_Asker] = []
        self._asked = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def has_caught_up(self) -> bool:
        """Tell whether all events that are there now are stored, within a moment. Raises what NATS does."""
        loop = asyncio.get_running_loop()
        asker = _Asker(loop.create_future(), loop.time() + self._within_s)
        self._askers.append(asker)
        self._asked.set()
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look(), name="looks whether usage is stored")
        return await asker.answer

    async def _look(self) -> None:
        while self._askers:
            self._asked.clear()
            try:
                await self._answer_some()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is theirs who asked
                askers, self._askers = self._askers, []
                for asker in askers:
                    if not asker.answer.done():
                        asker.answer.set_exception(error)
            if self._askers:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await self._asked.wait()

    async def _answer_some(self) -> None:
        new = [asker for asker in self._askers if asker.wanted is None]
        if new:
            wanted = await last_sequence(self._js)
            for asker in new:
                asker.wanted = wanted
        info = await self._js.consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
        stored = 0 if info.ack_floor is None else info.ack_floor.stream_seq
        now = asyncio.get_running_loop().time()
        waiting = []
        for asker in self._askers:
            if asker.wanted is not None and (asker.wanted <= stored or asker.deadline <= now):
                if not asker.answer.done():
                    asker.answer.set_result(asker.wanted <= stored)
            elif not asker.answer.done():
                waiting.append(asker)
        self._askers = waiting
