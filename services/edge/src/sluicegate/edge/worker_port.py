"""The worker's side of its supervisor: a Unix socket that answers, and an end that follows the supervisor's.

One line in, one line of JSON out: `ping` and `drain` answer a `WorkerState`, `snapshot` the worker's
numbers. The socket is private to the user (its folder is 0700) and is no API.
"""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicegate.edge.metrics import Metrics

PING: Final = b"ping"
DRAIN: Final = b"drain"
SNAPSHOT: Final = b"snapshot"
ORPHAN_GRACE_S: Final = 5.0

_PARENT_POLL_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
_encode = msgspec.json.Encoder().encode


class Readiness(NamedTuple):
    """Whether the worker takes requests, and what is to be said about it (also when it does)."""

    is_ready: bool
    detail: str = ""


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself. `draining`: it has been told that it will be stopped."""

    pid: int
    ready: bool
    detail: str
    draining: bool = False


class _Port:
    def __init__(self, metrics: Metrics, readiness: Callable[[], Readiness], on_drain: Callable[[], None]) -> None:
        self._metrics = metrics
        self._readiness = readiness
        self._on_drain = on_drain
        self._is_draining = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = self._answer(line.strip())
                if answer is None:
                    break
                writer.write(answer + b"\n")
                await writer.drain()
        except (OSError, ValueError):  # the supervisor left, or a line without end
            pass
        finally:
            writer.close()

    def _answer(self, command: bytes) -> bytes | None:
        if command == SNAPSHOT:
            return _encode(self._metrics.snapshot())
        if command == DRAIN and not self._is_draining:
            self._is_draining = True
            self._on_drain()
        if command in {PING, DRAIN}:
            readiness = self._readiness()
            return _encode(
                WorkerState(
                    pid=os.getpid(),
                    ready=readiness.is_ready and not self._is_draining,
                    detail=readiness.detail,
                    draining=self._is_draining,
                )
            )
        return None


@asynccontextmanager
async def serve_worker_port(
    path: Path, metrics: Metrics, readiness: Callable[[], Readiness], on_drain: Callable[[], None]
) -> AsyncIterator[None]:
    """Answer the supervisor at `path` while the context is open: keep it open to the worker's very end.

    `on_drain` is called once, when a stop was announced: requests are still to be served, but clients
    should be told to connect elsewhere. The stop itself comes as SIGTERM.
    """
    port = _Port(metrics, readiness, on_drain)
    server = await asyncio.start_unix_server(port.serve, path)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - at the end, and one syscall


def follow_supervisor(supervisor_pid: int, grace_s: float = ORPHAN_GRACE_S) -> None:
    """End this process when its supervisor ends: SIGTERM at once, SIGKILL after `grace_s`. Main thread only.

    Otherwise a worker whose supervisor was killed would keep the port, adopted by init. The kernel's
    signal may come before a handler is there or to a loop that hangs, so a thread watches as well.
    """
    is_signalled = _ask_for_death_signal(signal.SIGTERM)
    watch = threading.Thread(
        target=_watch_parent, args=(supervisor_pid, grace_s, is_signalled), name="follow-supervisor", daemon=True
    )
    if os.getppid() != supervisor_pid:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)
    watch.start()


def _ask_for_death_signal(number: signal.Signals) -> bool:
    if sys.platform != "linux":
        return False
    status: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return status == 0


def _watch_parent(supervisor_pid: int, grace_s: float, is_signalled: bool) -> None:
    while os.getppid() == supervisor_pid:
        time.sleep(_PARENT_POLL_S)
    if not is_signalled:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)
