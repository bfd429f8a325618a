"""What lies between one process and the store: time, loss, and outages.

A call is a request on its way, an execution on the server at the instant of arrival, and a reply on its way back. Each
leg takes its own time, so a late request overtakes nothing but arrives after younger ones of the same process (which
gave up on it, closed the connection and sent anew), and a reply may be lost after its call was executed.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Reply = TypeVar("Reply")

TIMEOUT_S = 1.0
SLOW_LEG_S = (0.08, 0.12)
_USUAL_LEG_S = (0.0002, 0.002)


@dataclass
class Weather:
    """The state of the network, changed by faults while a run goes on. One for all processes."""

    is_down: bool = False
    leg_s: tuple[float, float] = _USUAL_LEG_S
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    late: float = 0.0  # the share of legs that take up to `latest_s`
    latest_s: float = 6.0


class Unreachable(ConnectionError):
    """The store refused the connection, or did not answer in time."""


class Link:
    """One process's way to the store."""

    def __init__(self, weather: Weather, random: Random) -> None:
        self.weather = weather
        self.is_cut = False  # this process alone cannot reach the store
        self.is_slow = False  # it alone is far away
        self._random = random

    async def call(self, execute: Callable[[], Reply]) -> Reply:
        """Have `execute` run on arrival and return what it returned, or raise `Unreachable` after a second."""
        loop = asyncio.get_running_loop()
        if self._is_down and self._random.random() < 0.5:
            await asyncio.sleep(self._leg_s())
            raise Unreachable("connection refused")
        reply: asyncio.Future[Reply] = loop.create_future()
        if self._random.random() >= self.weather.lost_requests:
            # In a context of its own: what is on the wire arrives, whatever becomes of the process that sent it.
            loop.call_later(self._leg_s(), self._arrive, execute, reply, copy_context(), context=Context())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await reply
        except TimeoutError:
            raise Unreachable("no answer within a second") from None

    def _arrive(self, execute: Callable[[], Reply], reply: asyncio.Future[Reply], caller: Context) -> None:
        if self._is_down:
            return
        result = execute()
        if self._random.random() >= self.weather.lost_replies:
            asyncio.get_running_loop().call_later(self._leg_s(), _deliver, reply, result, context=caller)

    @property
    def _is_down(self) -> bool:
        return self.is_cut or self.weather.is_down

    def _leg_s(self) -> float:
        weather = self.weather
        if self._random.random() < weather.late:
            return self._random.uniform(0, weather.latest_s)
        return self._random.uniform(*(SLOW_LEG_S if self.is_slow else weather.leg_s))


def _deliver(reply: asyncio.Future[Reply], result: Reply) -> None:
    if not reply.done():
        reply.set_result(result)
