"""One edge and one fake provider per test, on uvloop as in production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from sluicegate.devstack.edge_process import EdgeUnderTest, running_edge
from sluicegate.devstack.fake_provider.server import FakeProvider, running


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
async def edge(provider: FakeProvider, edge_settings: dict[str, Any]) -> AsyncIterator[EdgeUnderTest]:
    async with running_edge(provider.url, **edge_settings) as edge:
        yield edge
