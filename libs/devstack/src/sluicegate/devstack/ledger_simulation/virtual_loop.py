"""An asyncio loop without a selector: when nothing is ready, its clock jumps to the next timer.

It has no I/O. What a real machine does to a process is done to an `Owner`: callbacks scheduled in its context are held
back while it is paused (its timers run late, all at once, as after SIGSTOP or a suspended machine) and dropped once it
is dead (as after `kill -9`: no `finally`, no `close`). What was ready when the pause began still runs, so a pause falls
between two loop turns and never into one.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple

# Turns without the clock moving on: a callback that schedules itself again for ever is a bug in what is simulated.
_MAX_TURNS_AT_ONE_INSTANT = 2_000_000

_OWNER: ContextVar["Owner | None"] = ContextVar("owner", default=None)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Owner:
    """A process on the loop."""

    __slots__ = ("_held", "_loop", "context", "is_dead", "is_paused")

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self.is_paused = False
        self.is_dead = False
        self.context = Context()
        self.context.run(_OWNER.set, self)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of this process."""
        return self._loop.create_task(coroutine, context=self.context)

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Run what came due meanwhile, in the order in which it came due."""
        self.is_paused = False
        self._loop.make_ready(self._held)
        self._held = []

    def kill(self) -> None:
        self.is_dead = True
        self._held = []
        self._loop.bury()


class VirtualLoop(asyncio.AbstractEventLoop):
    """What asyncio's tasks, futures, sleeps and time-outs need, and no more."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._is_running = False
        self._errors: list[dict[str, Any]] = []
        self._graveyard: set[asyncio.Task[Any]] = set()

    # --- running ---

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run to the coroutine's end and return its result; the first unhandled error of any callback is raised."""
        events._set_running_loop(self)  # noqa: SLF001 (asyncio has no public way for a foreign loop)
        self._is_running = True
        try:
            task: asyncio.Task[Result] = self.create_task(coroutine)
            turns = 0
            while not task.done():
                if self._errors:
                    break
                if self._ready:
                    turns += 1
                    if turns > _MAX_TURNS_AT_ONE_INSTANT:
                        raise RuntimeError("the simulated program spins without letting time pass")
                    self._run_one(self._ready.popleft())
                else:
                    turns = 0
                    self._advance()
            for error in self._errors:
                raise error.get("exception") or RuntimeError(error["message"])
            return task.result()
        finally:
            self._is_running = False
            events._set_running_loop(None)  # noqa: SLF001
            self._forget()

    def make_ready(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _run_one(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        owner = _owner(handle)
        if owner is None or not owner.is_dead:
            handle._run()  # noqa: SLF001

    def _advance(self) -> None:
        if not self._timers:
            raise RuntimeError("the simulated program waits for nothing")
        when_s = self._timers[0][0]
        self._now_s = max(self._now_s, when_s)
        while self._timers and self._timers[0][0] <= self._now_s:
            handle = heapq.heappop(self._timers)[2]
            if handle.cancelled():
                continue
            owner = _owner(handle)
            if owner is not None and owner.is_paused:
                owner.hold(handle)
            else:
                self._ready.append(handle)

    def bury(self) -> None:
        """Keep what is pending now: collected early, a dead process's coroutine would run its `finally`."""
        self._graveyard |= asyncio.all_tasks(self)

    def _forget(self) -> None:
        """Drop what is left without complaint: tasks of killed processes are pending for ever."""
        self.bury()
        for task in self._graveyard:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        self._ready.clear()
        self._timers.clear()

    # --- what asyncio calls ---

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + max(delay, 0.0), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap; it is skipped when its time comes."""


def _owner(handle: asyncio.Handle) -> Owner | None:
    return handle._context.get(_OWNER)  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001
