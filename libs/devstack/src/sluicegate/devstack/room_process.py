"""One room as a process of its own, for tests that kill, stop or multiply it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM

import httpx

from sluicegate.devstack.servers.ports import LOOPBACK, free_port
from sluicegate.devstack.servers.process import ChildProcess, spawn
from sluicegate.devstack.waiting import until


class RoomProcess:
    """`python -m sluicegate.<room>` with its internal port on a free one."""

    def __init__(self, room: str, environment: Mapping[str, str], log_path: Path) -> None:
        """`environment` is added to that of the tests; `room` is as in the import line."""
        self._room = room
        self._environment = environment
        self._log_path = log_path
        self._process: ChildProcess | None = None
        self.port = 0

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Start it; main thread only."""
        self.port = free_port(None)
        variable = f"SLUICEGATE_{self._room.upper()}_INTERNAL_PORT"
        self._process = spawn(
            [sys.executable, "-m", f"sluicegate.{self._room}"],
            log_path=self._log_path,
            env={**os.environ, **self._environment, variable: str(self.port)},
        )

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()

    def stop(self, deadline_s: float = 30) -> int | None:
        """SIGTERM; return the exit status."""
        return self.process.stop(SIGTERM, deadline_s=deadline_s)

    async def stop_gently(self, deadline_s: float = 30) -> int | None:
        """The same, with the loop running meanwhile."""
        self.process.signal(SIGTERM)
        await until(lambda: not self.process.is_running, f"{self._room} ended", deadline_s=deadline_s)
        return self.process.exit_status()

    async def get(self, path: str) -> httpx.Response:
        """Ask the internal port."""
        async with httpx.AsyncClient() as client:
            return await client.get(f"http://{LOOPBACK}:{self.port}{path}")

    async def until_ready(self, deadline_s: float = 60) -> None:
        """Wait for /readyz."""
        await until(lambda: self._readiness(200), f"{self._room} ready", deadline_s=deadline_s)

    async def until_unready(self, deadline_s: float = 60) -> None:
        """Wait until /readyz refuses, alive all the same."""
        await until(lambda: self._readiness(503), f"{self._room} unready", deadline_s=deadline_s)

    async def _readiness(self, wanted: int) -> bool:
        assert self.process.is_running, self.process.log_tail()
        try:
            return (await self.get("/readyz")).status_code == wanted
        except (TimeoutError, httpx.HTTPError):
            return False
