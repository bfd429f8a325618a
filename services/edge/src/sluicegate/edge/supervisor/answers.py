"""What the internal port says for all workers: readiness and metrics.

Live: the supervisor answers, and goes on to while it drains. Ready: every worker takes requests, and no
stop was announced. Metrics: the sums of all workers, those that ended included, so that no counter of the
edge goes back when a worker is replaced; only what a dead worker counted after the last scrape is missing.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from sluicegate.edge.metrics import Labels, Number, Snapshot, merge, render
from sluicegate.edge.supervisor.slot import WorkerSlot
from sluicegate.runtime.health import Health

CACHE_S: Final = 1.0
_SNAPSHOT_TIMEOUT_S: Final = 0.5


class EdgeHealth(Health):
    """Readiness out of the workers' own words."""

    def __init__(self, slots: Sequence[WorkerSlot], port: int) -> None:
        """`port`: the data plane's, which may have been chosen by the system."""
        super().__init__()
        self.is_draining = False
        self._slots = slots
        self._port = port

    @property
    def is_ready(self) -> bool:
        """Whether all workers take requests and none is about to stop."""
        return not self.is_draining and all(slot.state is not None and slot.state.ready for slot in self._slots)

    def report(self) -> dict[str, Any]:
        """Return what `/readyz` shows; the development stack reads the pids."""
        return {
            "ready": self.is_ready,
            "draining": self.is_draining,
            "pid": os.getpid(),
            "port": self._port,
            "workers": [
                {
                    "index": slot.index,
                    "pid": slot.pid,
                    "ready": slot.state is not None and slot.state.ready and not self.is_draining,
                    "detail": slot.state.detail if slot.state is not None else "starting",
                    "restarts": slot.restarts,
                }
                for slot in self._slots
            ],
        }


class EdgeMetrics:
    """The text of `/metrics`, at most one scrape of the workers per `CACHE_S`."""

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        """Nothing is asked before the first call."""
        self._slots = slots
        self._scraping = asyncio.Lock()
        self._text = b""
        self._fresh_until_s = 0.0

    async def __call__(self) -> bytes:
        """Return the text; a worker that does not answer in time is marked, and its last sums stand."""
        async with self._scraping:
            if time.monotonic() >= self._fresh_until_s:
                self._text = await self._scrape()
                self._fresh_until_s = time.monotonic() + CACHE_S
            return self._text

    async def _scrape(self) -> bytes:
        answered = await asyncio.gather(*(slot.refresh_snapshot(_SNAPSHOT_TIMEOUT_S) for slot in self._slots))
        restarts: dict[Labels, Number] = {}
        snapshots: list[Snapshot] = []
        workers: dict[int, dict[str, Number]] = {}
        for slot, is_up in zip(self._slots, answered, strict=True):
            snapshots.append(slot.retired)
            if slot.snapshot is not None:
                snapshots.append(slot.snapshot)
            is_ready = slot.state is not None and slot.state.ready
            own = slot.snapshot.per_worker if is_up and slot.snapshot is not None else {}
            workers[slot.index] = {**own, "worker_up": int(is_up), "worker_ready": int(is_ready)}
            for reason, count in slot.ended.items():
                restarts[reason,] = restarts.get((reason,), 0) + count
        snapshots.append(Snapshot(counters={"worker_restarts_total": list(restarts.items())}))
        return render(merge(snapshots), workers)
