"""Ends what an earlier stack left behind where the kernel did not (on macOS, or grandchildren)."""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from sluicegate.devstack.servers.embedded import write_secret


class ProcessRecord:
    """A file with the pid and creation time of every process, so that a reused pid is told apart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: list[list[float]] = []

    def write(self, pids: Iterable[int]) -> None:
        found: list[list[float]] = []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.Error):
                found.append([pid, psutil.Process(pid).create_time()])
        if found != self._written:
            self._written = found
            write_secret(self._path, json.dumps(found))

    def end_leftovers(self) -> int:
        """Kill what still runs of an earlier record; the number of processes killed."""
        if not self._path.exists():
            return 0
        killed = 0
        for pid, created in self._read():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == created:
                    process.kill()
                    process.wait(5)
                    killed += 1
        self._path.unlink()
        return killed

    def _read(self) -> list[tuple[int, float]]:
        """What was written; nothing if that cannot be told any more: the kernel has ended nearly all by itself."""
        try:
            return [(int(pid), float(created)) for pid, created in json.loads(self._path.read_text())]
        except (ValueError, TypeError):
            return []


def kill_session(leader: int) -> None:
    """Kill what is left of a dead process's session: workers whose supervisor is gone."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == leader:
                psutil.Process(pid).kill()
