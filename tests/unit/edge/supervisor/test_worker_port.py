"""The worker's answers to its supervisor."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.edge.metrics import Metrics, Snapshot
from sluicegate.edge.worker_port import Readiness, WorkerState, serve_worker_port


class Worker:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = Metrics()
        self.readiness = Readiness(is_ready=True, detail="fine")
        self.drains = 0

    def on_drain(self) -> None:
        self.drains += 1

    async def ask(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(line)
        answer = await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        return answer

    async def state(self, command: bytes = b"ping\n") -> WorkerState:
        return msgspec.json.decode(await self.ask(command), type=WorkerState)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(tmp_path / "w.sock")
    async with serve_worker_port(worker.path, worker.metrics, lambda: worker.readiness, worker.on_drain):
        yield worker
    assert not worker.path.exists()


async def test_ping_says_what_the_worker_says_of_itself(worker: Worker) -> None:
    assert await worker.state() == WorkerState(pid=os.getpid(), ready=True, detail="fine")
    worker.readiness = Readiness(is_ready=False, detail="mirror: not read yet")
    assert await worker.state() == WorkerState(pid=os.getpid(), ready=False, detail="mirror: not read yet")


async def test_drain_is_told_once_and_ends_readiness(worker: Worker) -> None:
    assert (await worker.state(b"drain\n")).draining
    assert (await worker.state(b"drain\n")).draining
    assert worker.drains == 1
    assert await worker.state() == WorkerState(pid=os.getpid(), ready=False, detail="fine", draining=True)


async def test_snapshot_holds_the_numbers_of_now(worker: Worker) -> None:
    worker.metrics.in_flight = 3
    snapshot = msgspec.json.decode(await worker.ask(b"snapshot\n"), type=Snapshot)
    assert snapshot.per_worker["in_flight_requests"] == 3


@pytest.mark.parametrize("line", [b"nonsense\n", b"\n", b"x" * 200_000 + b"\n"])
async def test_connection_is_closed_and_the_port_lives_when_a_line_is_not_understood(
    worker: Worker, line: bytes
) -> None:
    try:
        answer = await worker.ask(line)
    except ConnectionError:
        answer = b""
    assert answer == b""
    assert (await worker.state()).ready


async def test_one_connection_may_ask_many_times(worker: Worker) -> None:
    reader, writer = await asyncio.open_unix_connection(worker.path)
    for _ in range(3):
        writer.write(b"ping\n")
        assert b'"ready":true' in await reader.readline()
    writer.close()
