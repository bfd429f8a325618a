"""Processes of a measurement: starting, pinning, families, CPU clocks."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGTERM

import psutil

from sluicegate.devstack.load.driver import cpu_seconds
from sluicegate.devstack.servers.ports import listens
from sluicegate.devstack.servers.process import ChildProcess, spawn


def family(pid: int) -> list[int]:
    """The process and all its descendants that live."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def listener(port: int) -> int | None:
    """The process that listens on a local port, if it may be seen."""
    with suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    return None


def pin(pids: Iterable[int], core: int) -> None:
    """Keeps every thread of the processes on one core."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def listening(argv: list[str], port: int, *, log: Path, family_size: int = 1) -> Iterator[ChildProcess]:
    """A server that ends with the block, once its own family listens on the port and is as large as it will be."""
    child = spawn(argv, log_path=log)
    try:
        end_s = time.monotonic() + 10
        while listens(child.pid, port) is False or len(child.family()) < family_size:
            if not child.is_running or time.monotonic() > end_s:
                raise RuntimeError(f"{argv[0]} {child.death()} and does not listen on {port}: {child.log_tail()}")
            time.sleep(0.02)
        yield child
    finally:
        child.stop(SIGTERM, deadline_s=10)


def settle(pids: list[int], timeout_s: float = 10) -> bool:
    """Waits until the processes together use less than a tenth of a core; False if they never do."""
    end_s = time.monotonic() + timeout_s
    while pids and time.monotonic() < end_s:
        before_s = total_cpu_seconds(pids)
        time.sleep(0.15)
        if total_cpu_seconds(pids) - before_s < 0.015:
            return True
    return not pids


def total_cpu_seconds(pids: list[int]) -> float:
    """CPU time of the processes that still live."""
    total_s = 0.0
    for pid in pids:
        with suppress(OSError):
            total_s += cpu_seconds(pid)
    return total_s


def machine_busy_seconds() -> float:
    """CPU time of everything on the machine; what a hypervisor took for others counts as busy."""
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)
