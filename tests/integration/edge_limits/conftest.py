"""One edge, one fake provider and an emptied Valkey per test, on uvloop as in production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from sluicegate.devstack.edge_process import EdgeUnderTest, running_edge
from sluicegate.devstack.fake_provider.server import FakeProvider, running
from sluicegate.devstack.limited_edge import LimitedEdge
from sluicegate.devstack.servers import ValkeyServer
from sluicegate.ledger import ledger


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def edge_settings() -> dict[str, Any]:
    """Settings of the edge; a test overrides them with `@pytest.mark.parametrize`."""
    return {}


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with running() as provider:
        yield provider


@pytest.fixture
def store_url(valkey_server: ValkeyServer) -> str:
    """Valkey, emptied for this test: ids may be those of another test."""
    valkey_server.flush()
    return valkey_server.url


@pytest.fixture
def store_wait_s() -> float:
    """How long requests wait for the store. Long, because a busy machine is no slow store; some tests override it."""
    return 5.0


@pytest.fixture(autouse=True)
def patience(store_wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "WAIT_S", store_wait_s)


@pytest.fixture
async def edge(provider: FakeProvider, store_url: str, edge_settings: dict[str, Any]) -> AsyncIterator[EdgeUnderTest]:
    async with running_edge(provider.url, redis_url=store_url, **edge_settings) as edge:
        yield edge


@pytest.fixture
def limited(edge: EdgeUnderTest) -> LimitedEdge:
    """The edge, with a key below everything that can be limited."""
    return LimitedEdge(edge)
