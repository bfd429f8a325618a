"""One place for a worker: starts a process in it, pings it, ends it when it hangs, replaces it when it is gone.

`SO_REUSEPORT` keeps sending clients to a worker that hangs, so a silent one is killed: a killed worker
costs its open streams, a hung one every client that the kernel gives it. A busy one is not silent: it
answers late, so a ping is waited for as long as a worker may be silent, and not asked again meanwhile.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from sluicegate.edge.metrics import Snapshot, merge
from sluicegate.edge.worker_port import DRAIN, PING, SNAPSHOT, WorkerState
from sluicegate.runtime.logs import get_logger

PING_EVERY_S: Final = 1.0
# Silent for this long, it is shown as not ready; asked again at last, it gets no more than this.
_PING_TIMEOUT_S: Final = 1.0
_STARTING_PING_EVERY_S: Final = 0.1
# A supervisor that was itself stopped for a while finds every worker silent, once: ask again before killing.
_MIN_MISSES: Final = 2
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 10.0
# A worker that lived this long did not die of its start: the next one comes at once.
_STABLE_AFTER_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024

Answer = TypeVar("Answer", WorkerState, Snapshot)
EndReason = Literal["exited", "hung", "not_started"]
_log = get_logger(__name__)


class WorkerLimits(NamedTuple):
    """How long a worker may be silent before it counts as hung: in life, and until its first answer."""

    hang_timeout_s: float
    start_timeout_s: float


class WorkerSlot:
    """Keeps one worker running (`run`) until `stop`. `state` is None while none has answered."""

    def __init__(
        self, index: int, command: Sequence[str], environment: Mapping[str, str], folder: Path, limits: WorkerLimits
    ) -> None:
        """`folder`: where the worker's control socket goes."""
        self.index = index
        self.state: WorkerState | None = None
        self.ended: dict[EndReason, int] = {}
        self.snapshot: Snapshot | None = None
        # What workers that ended had counted, as far as it was asked for: sums never go back.
        self.retired = Snapshot()
        self._command = command
        self._environment = environment
        self._folder = folder
        self._limits = limits
        self._lives = 0
        self._socket = folder
        self._process: asyncio.subprocess.Process | None = None
        self._end_reason: EndReason = "exited"
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The worker's process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def restarts(self) -> int:
        """How many workers ended here without being asked to."""
        return sum(self.ended.values())

    async def run(self) -> None:
        """Keep a worker running; returns when it has ended after `stop`."""
        retry_s = _RETRY_FIRST_S
        while not self._stopping.is_set():
            started_s = time.monotonic()
            try:
                status: int | str = await self._live()
            except OSError as error:
                status = f"not started: {error}"
            if self._stopping.is_set():
                return
            self.ended[self._end_reason] = self.ended.get(self._end_reason, 0) + 1
            if time.monotonic() - started_s > _STABLE_AFTER_S:
                retry_s = _RETRY_FIRST_S
            _log.error("worker ended", worker=self.index, status=status, reason=self._end_reason, next_in_s=retry_s)
            try:
                async with asyncio.timeout(retry_s):
                    await self._stopping.wait()
            except TimeoutError:
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    async def drain(self) -> None:
        """Tell the worker that it will be stopped soon."""
        await self._ask(DRAIN, WorkerState, _PING_TIMEOUT_S)

    def stop(self) -> None:
        """Ask the worker to end, and start no other."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker now, whatever it does."""
        self._signal(signal.SIGKILL)

    async def refresh_snapshot(self, timeout_s: float) -> bool:
        """Ask for the worker's numbers; False: it did not answer, and the last ones stand."""
        process = self._process
        snapshot = await self._ask(SNAPSHOT, Snapshot, timeout_s)
        if snapshot is None or process is not self._process:
            return False
        self.snapshot = snapshot
        return True

    async def _live(self) -> int:
        """Run one worker to its end and return its exit status."""
        self._lives += 1
        self._socket = self._folder / f"{self.index}-{self._lives}.sock"
        self._end_reason = "exited"
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            env={
                **self._environment,
                "SLUICEGATE_EDGE_WORKER_INDEX": str(self.index),
                "SLUICEGATE_EDGE_CONTROL_SOCKET": str(self._socket),
                "SLUICEGATE_EDGE_SUPERVISOR_PID": str(os.getpid()),
            },
            # Ctrl-C in a terminal goes to the whole group: the order of stopping is the supervisor's.
            start_new_session=True,
        )
        self._process = process
        _log.info("worker started", worker=self.index, pid=process.pid)
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        watching = asyncio.create_task(self._watch(), name=f"watch-worker-{self.index}")
        try:
            return await process.wait()
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            watching.cancel()
            self._process, self.state = None, None
            if self.snapshot is not None:
                self.retired, self.snapshot = merge((self.retired, self.snapshot)), None

    async def _watch(self) -> None:
        """Ping until the worker is to stop or has been silent for too long: then kill it."""
        heard_s, misses, is_started = time.monotonic(), 0, False
        while not self._stopping.is_set():
            limit_s = self._limits.hang_timeout_s if is_started else self._limits.start_timeout_s
            left_s = heard_s + limit_s - time.monotonic()
            state = await self._ping(max(left_s, _PING_TIMEOUT_S))
            if state is not None:
                self.state, heard_s, misses, is_started = state, time.monotonic(), 0, True
            else:
                misses += 1
                self._mark_silent()
                silent_s = time.monotonic() - heard_s
                if misses >= _MIN_MISSES and silent_s >= limit_s and not self._stopping.is_set():
                    self._end_reason = "hung" if is_started else "not_started"
                    _log.error("worker is silent, killing it", worker=self.index, pid=self.pid, silent_s=silent_s)
                    self.kill()
                    return
            is_settled = self.state is not None and (self.state.ready or misses > 0)
            await asyncio.sleep(PING_EVERY_S if is_settled else _STARTING_PING_EVERY_S)

    async def _ping(self, timeout_s: float) -> WorkerState | None:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask(PING, WorkerState, timeout_s))
            if not (await asyncio.wait({asking}, timeout=_PING_TIMEOUT_S))[0]:
                self._mark_silent()
        return asking.result()

    def _mark_silent(self) -> None:
        if self.state is not None:
            self.state = msgspec.structs.replace(self.state, ready=False, detail="does not answer")

    async def _ask(self, command: bytes, kind: type[Answer], timeout_s: float) -> Answer | None:
        """Return the worker's answer, or None when none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=_MAX_ANSWER_BYTES)
                try:
                    writer.write(command + b"\n")
                    return msgspec.json.decode(await reader.readline(), type=kind)
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
