"""Processes of a measurement: starting, pinning, families, CPU clocks."""

import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sluicegate.devstack.load.driver import cpu_seconds


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    """Keeps every thread of the processes on one core. A single-core machine is left as it is."""
    if os.cpu_count() == 1:
        return
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def spawned(argv: list[str], *, log: Path, stdin: int | None = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """A child that ends with the block; its error output goes to a file."""
    with log.open("wb") as errors:
        child = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def await_listener(port: int, child: subprocess.Popen[bytes], log: Path, timeout_s: float = 10) -> None:
    """Returns when something answers on the port; raises with the child's own words when it ended first."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if child.poll() is not None:
            raise RuntimeError(f"{child.args!r} ended with {child.returncode}: {log.read_text()[-2000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port} after {timeout_s} s: {log.read_text()[-2000:]}")


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
