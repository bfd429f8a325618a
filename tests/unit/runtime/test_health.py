"""The internal port: live while the loop answers, ready when all parts are."""

import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from sluicegate.runtime.health import Health, internal_app, serve_internal


@pytest.fixture
def health() -> Health:
    return Health("nats", "postgres")


@pytest.fixture
async def client(health: Health) -> AsyncIterator[httpx.AsyncClient]:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", registry=registry).inc(3)
    async with (
        serve_internal(internal_app(health, registry), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


async def test_process_is_live_when_no_part_is_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/livez")).status_code == 200


async def test_process_is_ready_when_all_parts_are(client: httpx.AsyncClient, health: Health) -> None:
    assert (await client.get("/readyz")).status_code == 503
    health.set_ready("nats", True)
    assert (await client.get("/readyz")).status_code == 503
    health.set_ready("postgres", True)
    assert (await client.get("/readyz")).status_code == 200
    health.set_ready("nats", False, "reconnecting")
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["nats"] == {"ready": False, "detail": "reconnecting"}


def test_process_is_ready_when_the_missing_part_is_forgotten(health: Health) -> None:
    health.set_ready("nats", True)
    health.forget("postgres")
    assert health.is_ready


async def test_metrics_are_rendered(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert "requests_total 3.0" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


async def test_metrics_may_come_from_a_coroutine(health: Health) -> None:
    async def render() -> bytes:
        return b"own 1\n"

    async with (
        serve_internal(internal_app(health, render), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.get("/metrics")).content == b"own 1\n"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/livez", 405), ("HEAD", "/livez", 200)]
)
async def test_other_requests_are_refused(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    assert (await client.request(method, path)).status_code == status


async def test_serving_fails_when_the_port_is_taken(health: Health) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with serve_internal(internal_app(health, CollectorRegistry()), "127.0.0.1", taken.getsockname()[1]):
                pass


async def test_port_is_free_again_when_the_context_ends(health: Health) -> None:
    async with serve_internal(internal_app(health, CollectorRegistry()), "127.0.0.1", 0) as port:
        pass
    async with serve_internal(internal_app(health, CollectorRegistry()), "127.0.0.1", port) as again:
        assert again == port
