"""Plays one plan on a transport: pauses by the loop's clock, and no further than the socket's buffer allows."""

import asyncio
import random
from collections.abc import Callable, Iterator

from sluicegate.devstack.fake_provider.answers import Ending, Plan, Step, sends_head_first
from sluicegate.devstack.fake_provider.calls import Call


class Playback:
    """One answer on its way out. `finished` is called once, when the last byte was written; never after `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        plan: Plan,
        call: Call,
        finished: Callable[[Plan, Call], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._plan = plan
        self._call = call
        self._finished = finished
        self._steps: Iterator[Step] = plan.steps()
        self._next: Step | None = None
        self._head = b""
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0
        self._is_paused = False
        self._is_stopped = False
        self._random = random.Random(call.number)
        self.is_gated = False

    def start(self) -> None:
        """Begin; the first bytes leave at once unless the plan says otherwise."""
        before, after = self._plan.head
        knobs = self._plan.knobs
        self._due_s = self._loop.time()
        self._head = b"%b%d%b" % (before, self._call.number, after) if before else b""
        if sends_head_first(knobs) and self._head:
            self._send_head(knobs.head_ms)
        else:
            self._advance()

    def stop(self) -> None:
        """The connection is gone."""
        self._is_stopped = True
        if self._timer:
            self._timer.cancel()

    def pause(self) -> None:
        """The socket's buffer is full."""
        self._is_paused = True

    def resume(self) -> None:
        """The socket's buffer has room again."""
        if self._is_paused:
            self._is_paused = False
            if self._timer is None and not self.is_gated and not self._is_stopped:
                self._write_next()

    def release(self) -> None:
        """Opens the gate, if the answer waits at one."""
        if self.is_gated:
            self.is_gated = False
            self._write_next()

    def _send_head(self, head_ms: float) -> None:
        head, self._head = self._head, b""
        if head_ms:
            line, _, rest = head.partition(b"\r\n")
            self._transport.write(line + b"\r\n")
            self._wait(head_ms, lambda: self._send_rest(rest))
        else:
            self._send_rest(head)

    def _send_rest(self, rest: bytes) -> None:
        self._timer = None
        self._transport.write(rest)
        self._advance()

    def _advance(self) -> None:
        step = next(self._steps, None)
        if step is None:
            if self._plan.ending is not Ending.HANG:
                self._finished(self._plan, self._call)
            return
        self._next = step
        jitter_ms = self._plan.knobs.jitter_ms
        pause_ms = step.pause_ms + (self._random.uniform(-jitter_ms, jitter_ms) if jitter_ms else 0)
        if step.is_gate:
            self.is_gated = True
        else:
            self._wait(max(pause_ms, 0), self._write_next)

    def _wait(self, pause_ms: float, then: Callable[[], None]) -> None:
        """Zero still gives the loop a turn, so that two writes stay two writes."""
        if pause_ms:
            self._due_s = max(self._due_s + pause_ms / 1000, self._loop.time())
            self._timer = self._loop.call_at(self._due_s, then)
        elif self._call.events_sent or self._plan.knobs.write == "bytes":
            self._timer = self._loop.call_soon(then)
        else:
            then()

    def _write_next(self) -> None:
        self._timer = None
        step = self._next
        if self._is_paused or self._is_stopped or step is None:
            return
        self._next = None
        self._transport.write(self._head + step.data if self._head else step.data)
        self._head = b""
        self._call.events_sent = step.events
        self._advance()
