"""The database goes and comes; the process starts without anybody and stops when asked."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sluicegate.devstack.servers import PostgresServer
from sluicegate.devstack.servers.ports import free_port
from sluicegate.devstack.waiting import until
from sluicegate.store.migrations import migrate

from .conftest import KEY_RING, TOKEN, StartAdmin, unique


async def test_requests_are_503_while_the_database_is_away(
    start_admin: StartAdmin, own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    dsn = server.create_database("away")
    migrate(dsn)
    admin = await start_admin(dsn=dsn, wait=False)
    tenant = await admin.make("tenants", name=unique("tenant"))
    await until(lambda: admin.admin.health.is_ready, "readiness")
    server.stop()
    for answer in (
        await admin.client.get(f"/api/tenants/{tenant['id']}"),
        await admin.client.post("/api/tenants", json={"name": "x"}),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "database_unavailable"
    await until(lambda: not admin.admin.health.is_ready, "unreadiness")
    server.start()
    await until(lambda: admin.admin.health.is_ready, "readiness")
    assert (await admin.client.get(f"/api/tenants/{tenant['id']}")).status_code == 200


async def test_requests_are_503_when_the_database_is_not_migrated(
    start_admin: StartAdmin, empty_postgres_dsn: str
) -> None:
    admin = await start_admin(dsn=empty_postgres_dsn, wait=False)
    answer = await admin.client.get("/api/tenants")
    assert answer.status_code == 503
    assert "sluicegate migrate" in answer.json()["error"]["advice"]
    await until(lambda: "migrated" in admin.admin.health.report()["parts"]["postgres"]["detail"], "the reason")


class Process:
    """`python -m sluicegate.admin` on ports of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.port, self.internal_port = free_port(), free_port()
        self.log = folder / "admin.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "sluicegate.admin"],
                env={
                    "PATH": os.environ["PATH"],
                    "SLUICEGATE_ADMIN_PORT": str(self.port),
                    "SLUICEGATE_ADMIN_INTERNAL_PORT": str(self.internal_port),
                    "SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN": TOKEN,
                    "SLUICEGATE_KEY_RING": KEY_RING,
                    **environment,
                },
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, *, internal: bool = False) -> httpx2.Response | None:
        """Return the answer, None while nobody listens."""
        url = f"http://127.0.0.1:{self.internal_port if internal else self.port}{path}"
        try:
            return httpx2.get(url, headers={"authorization": f"Bearer {TOKEN}"})
        except httpx2.TransportError:
            return None


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(**environment: str) -> Process:
        started.append(Process(tmp_path, **environment))
        return started[-1]

    yield start
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


async def answers(process: Process, path: str, status: int, *, internal: bool = False) -> httpx2.Response:
    def found() -> Any:
        assert process.popen.poll() is None, process.log.read_text()
        answer = process.get(path, internal=internal)
        return answer if answer is not None and answer.status_code == status else None

    answer: httpx2.Response = await until(found, f"{path} with {status}", deadline_s=30)
    return answer


async def test_process_serves_and_stops_when_asked(
    start_process: Callable[..., Process], postgres_dsn: str, nats_url: str
) -> None:
    process = start_process(SLUICEGATE_POSTGRES_DSN=postgres_dsn, SLUICEGATE_NATS_URL=nats_url)
    await answers(process, "/readyz", 200, internal=True)
    await answers(process, "/api/tenants", 200)
    assert b"sluicegate_admin_outbox_rows 0.0" in (await answers(process, "/metrics", 200, internal=True)).content
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=30) == 0
    assert TOKEN not in process.log.read_text()


async def test_process_lives_when_everybody_is_away(start_process: Callable[..., Process]) -> None:
    process = start_process(
        SLUICEGATE_POSTGRES_DSN="postgresql://u:p@127.0.0.1:9/x", SLUICEGATE_NATS_URL="nats://u:p@127.0.0.1:9"
    )
    await answers(process, "/livez", 200, internal=True)
    await answers(process, "/readyz", 503, internal=True)
    await answers(process, "/api/tenants", 503)
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=30) == 0


def test_process_refuses_to_start_when_the_token_is_short(
    start_process: Callable[..., Process], postgres_dsn: str, nats_url: str
) -> None:
    process = start_process(
        SLUICEGATE_POSTGRES_DSN=postgres_dsn,
        SLUICEGATE_NATS_URL=nats_url,
        SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN="short",
    )
    assert process.popen.wait(timeout=30) == 2
    assert "SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN: must have at least 32 characters" in process.log.read_text()


def test_process_says_so_when_its_port_is_taken(
    start_process: Callable[..., Process], postgres_dsn: str, nats_url: str
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start_process(
            SLUICEGATE_POSTGRES_DSN=postgres_dsn,
            SLUICEGATE_NATS_URL=nats_url,
            SLUICEGATE_ADMIN_PORT=str(taken.getsockname()[1]),
        )
        assert process.popen.wait(timeout=30) == 1
    assert "Cannot listen" in process.log.read_text()
