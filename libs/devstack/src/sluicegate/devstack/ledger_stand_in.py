"""A meter store without a server, for tests of what a process does: it grants from plain numbers and keeps all calls.

What the script does is not repeated here; tests of both together use the real one.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from sluicegate.devstack.ledger_simulation.virtual_loop import VirtualLoop
from sluicegate.ledger.store import Answer, Audit, Call, Line, Reply, Seed, StoreError

P = ParamSpec("P")


class LoopClock:
    """The running loop's time, and what was added to it by hand."""

    def __init__(self) -> None:
        self.ahead_s = 100.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a loop whose clock jumps to the next timer: an hour of sleep takes no time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()  # type: ignore[abstract]
        loop.run(test(*args, **kwargs))

    return run


class StandInStore:
    """Knows one process. `elsewhere`: what others hold or have spent of a meter; absent: nothing."""

    def __init__(self) -> None:
        self.clock_ms: Callable[[], int] = lambda: int(asyncio.get_running_loop().time() * 1000) + 1_000_000
        self.calls: list[Call] = []
        self.seeds: list[Seed] = []
        self.elsewhere: dict[str, int] = {}
        self.spent_elsewhere: dict[str, int] = {}
        self.missing: set[str] = set()
        self.replies: list[Reply | StoreError] = []  # what the next calls get instead
        self.before_reply: Callable[[], Awaitable[None]] | None = None
        self.is_away = False

    async def sync(self, tag: str, call: Call) -> Reply:  # noqa: ARG002 (there is one)
        self.calls.append(call)
        if self.before_reply is not None:
            await self.before_reply()
        if self.is_away:
            raise StoreError("away")
        if self.replies:
            reply = self.replies.pop(0)
            if isinstance(reply, StoreError):
                raise reply
            return reply
        return Reply("OK", self.clock_ms(), [self._answer(line) for line in call.lines])

    def _answer(self, line: Line) -> Answer:
        if line.name in self.missing:
            return Answer("MISSING", 0, 0, 0, 1)
        spent = line.settled + self.spent_elsewhere.get(line.name, 0)
        room = line.limit - spent - line.hold - self.elsewhere.get(line.name, 0)
        grant = 0 if line.leaves else max(0, min(line.need, room))
        extra = 0 if line.leaves else max(0, min(line.want, (room - grant) // 2))
        return Answer("OK", grant + extra, spent, room - grant - extra, 1)

    def lines_of(self, name: str) -> list[Line]:
        """Return what was said of one meter so far."""
        return [line for call in self.calls for line in call.lines if line.name == name]

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> None:  # noqa: ARG002
        if self.is_away:
            raise StoreError("away")
        self.seeds += seeds
        for seed in seeds:
            self.missing.discard(seed.name)
            self.spent_elsewhere[seed.name] = seed.spent_nano_usd

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        raise NotImplementedError("nobody audits a stand-in")

    async def now_ms(self, tag: str) -> int:  # noqa: ARG002
        return self.clock_ms()

    async def close(self) -> None:
        """There is nothing to close."""
