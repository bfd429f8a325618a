"""`python -m sluicegate.edge`: the real supervisor over real workers and a real NATS."""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluicegate.bus.connection import connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.catalogue import META_COMPLETE
from sluicegate.contracts.subjects import BUCKETS
from sluicegate.devstack.servers.ports import free_port
from sluicegate.devstack.servers.process import ChildProcess, spawn
from sluicegate.runtime.key_ring import KeyRing

DEADLINE_S = 60.0


class Edge:
    def __init__(self, process: ChildProcess, internal_port: int) -> None:
        self.process = process
        self.internal_port = internal_port

    def ready(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.internal_port}/readyz", timeout=DEADLINE_S) as answer:
                report: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                report = json.load(error)
        except OSError:
            report = {"ready": False, "workers": []}
        return report

    def wait_until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(report := self.ready()):
            assert time.monotonic() < deadline, self.process.log_tail(40)
            time.sleep(0.05)
        return report


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(report: dict[str, Any]) -> set[int]:
    return {worker["pid"] for worker in report["workers"]}


@pytest.fixture
async def edge(nats_url: str, tmp_path: Path) -> AsyncIterator[Edge]:
    relay = await connect(nats_url, name="relay")
    await declare(relay.jetstream())
    for bucket in BUCKETS:
        await relay.jetstream().publish(f"$KV.{bucket.name}.{META_COMPLETE}", b'{"count":0,"at_us":0}')
    await relay.close()
    internal_port = free_port()
    environment = {
        **os.environ,
        "SLUICEGATE_NATS_URL": nats_url,
        "SLUICEGATE_REDIS_URL": "redis://127.0.0.1:1",
        "SLUICEGATE_KEY_RING": KeyRing.generate(),
        "SLUICEGATE_EDGE_HOST": "127.0.0.1",
        "SLUICEGATE_EDGE_INTERNAL_HOST": "127.0.0.1",
        "SLUICEGATE_EDGE_INTERNAL_PORT": str(internal_port),
        "SLUICEGATE_EDGE_STATE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "sluicegate.edge", "--workers", "2", "--port", "0"]
    edge = Edge(spawn(command, log_path=tmp_path / "edge.log", env=environment), internal_port)
    yield edge
    edge.process.kill()


def test_edge_gets_ready_replaces_a_killed_worker_and_stops_cleanly(edge: Edge) -> None:
    report = edge.wait_until(lambda report: report["ready"])
    before = pids(report)
    assert len(before) == 2
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{report['port']}/v1/models", timeout=DEADLINE_S)
    os.kill(min(before), signal.SIGKILL)
    after = pids(edge.wait_until(lambda report: report["ready"] and min(before) not in pids(report)))
    assert max(before) in after
    edge.process.signal(signal.SIGTERM)
    edge.wait_until(lambda _: not edge.process.is_running)
    assert edge.process.exit_status() == 0
    assert not any(map(is_running, after))


def test_edge_workers_end_when_the_supervisor_is_killed(edge: Edge) -> None:
    workers = pids(edge.wait_until(lambda report: report["ready"]))
    edge.process.signal(signal.SIGKILL)
    edge.wait_until(lambda _: not any(map(is_running, workers)))
