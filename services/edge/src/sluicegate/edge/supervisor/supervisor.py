"""The supervisor: N workers on one port, one internal port, and the order in which all of it stops.

It is light on purpose: no catalogue, no bus, no journal, so that nothing but a bug of its own can hurt it.

The order of a stop (SIGTERM or SIGINT): readiness goes off and the workers are told; `drain_delay_s` passes,
in which load balancers look elsewhere; the workers get SIGTERM, take no new requests, and their open ones
run on for `shutdown_timeout_s`; what is left then is killed. A second SIGINT skips the waiting. Liveness
stays on throughout: a stop is no reason to be restarted.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.supervisor.answers import EdgeHealth, EdgeMetrics
from sluicegate.edge.supervisor.folder import private_folder
from sluicegate.edge.supervisor.ports import PortTakenError, reserve
from sluicegate.edge.supervisor.slot import WorkerLimits, WorkerSlot
from sluicegate.runtime.health import internal_app, serve_internal
from sluicegate.runtime.logs import get_logger

WORKER_COMMAND: Final = (sys.executable, "-m", "sluicegate.edge.worker")
EXIT_FORCED: Final = 130
# What a worker needs after its last request: to flush its journal and to say goodbye.
_END_GRACE_S: Final = 5.0
_log = get_logger(__name__)


class _Signals:
    """SIGTERM and SIGINT ask for a stop; a SIGINT after that asks for it now."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        (self.force if self.stop.is_set() else self.stop).set()


async def supervise(settings: EdgeSettings, command: Sequence[str] = WORKER_COMMAND) -> int:
    """Run the edge until it is told to stop; return the exit status.

    `command` is the program of a worker. Raises `PortTakenError` before anything was started.
    """
    signals = _Signals()
    with private_folder() as folder, reserve(settings.host, settings.port) as reserved:
        port: int = reserved.getsockname()[1]
        slots = _make_slots(settings, command, port, folder)
        health = EdgeHealth(slots, port)
        async with AsyncExitStack() as stack:
            internal_port = await _serve_internal(stack, settings, health, EdgeMetrics(slots))
            _log.info("edge started", port=port, internal_port=internal_port, workers=len(slots))
            return await _run(settings, slots, health, signals)


async def _serve_internal(
    stack: AsyncExitStack, settings: EdgeSettings, health: EdgeHealth, metrics: EdgeMetrics
) -> int:
    host, port = settings.internal_host, settings.internal_port
    try:
        return await stack.enter_async_context(serve_internal(internal_app(health, metrics), host, port))
    except OSError as error:
        raise PortTakenError(f"internal port {port} on {host} cannot be bound: {error.strerror}") from error


async def _run(settings: EdgeSettings, slots: Sequence[WorkerSlot], health: EdgeHealth, signals: _Signals) -> int:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(slot.run(), name=f"worker-{slot.index}") for slot in slots]
        await signals.stop.wait()
        health.is_draining = True
        _log.info("edge stops", drain_delay_s=settings.drain_delay_s, shutdown_timeout_s=settings.shutdown_timeout_s)
        await asyncio.gather(*(slot.drain() for slot in slots))
        await _wait_for(signals.force, settings.drain_delay_s)
        for slot in slots:
            slot.stop()
        ended = asyncio.gather(*running)
        forced = tasks.create_task(signals.force.wait())
        first: set[asyncio.Future[Any]] = {ended, forced}
        await asyncio.wait(
            first,
            timeout=settings.shutdown_timeout_s + _END_GRACE_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        forced.cancel()
        if not ended.done():
            _log.warning("workers did not end in time, killing them", pids=[slot.pid for slot in slots if slot.pid])
            for slot in slots:
                slot.kill()
    _log.info("edge stopped")
    return EXIT_FORCED if signals.force.is_set() else 0


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


def _make_slots(settings: EdgeSettings, command: Sequence[str], port: int, folder: Path) -> list[WorkerSlot]:
    limits = WorkerLimits(settings.worker_hang_timeout_s, settings.worker_start_timeout_s)
    # The workers read the same environment; what the command line or the system chose is said to them there.
    environment = {**os.environ, "SLUICEGATE_EDGE_PORT": str(port), "SLUICEGATE_EDGE_WORKERS": str(settings.workers)}
    return [WorkerSlot(index, command, environment, folder, limits) for index in range(settings.workers)]
