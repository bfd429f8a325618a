"""An admin service in this process, over real servers, and edges that only listen."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest
from pydantic import SecretStr

from sluicegate.admin.background import run_together, stop
from sluicegate.admin.config import AdminSettings
from sluicegate.admin.projection import edges
from sluicegate.admin.wiring import Admin, running
from sluicegate.bus.connection import Connection, connect
from sluicegate.contracts import subjects
from sluicegate.contracts.facts import InvalidationApplied
from sluicegate.devstack.waiting import until
from sluicegate.runtime.key_ring import KeyRing

TOKEN = "t" * 40
KEY_RING = KeyRing.generate()

StartAdmin = Callable[..., Awaitable["Running"]]
StartEdge = Callable[..., Awaitable["SimulatedEdge"]]


@dataclass
class Running:
    """An admin service and a client that may do everything."""

    admin: Admin
    client: httpx2.AsyncClient

    async def make(self, path: str, **body: Any) -> dict[str, Any]:
        """Create a record and return the answer."""
        answer = await self.client.post(f"/api/{path}", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def make_team(self) -> dict[str, Any]:
        """Make a team in a tenant of its own."""
        tenant = await self.make("tenants", name=unique("tenant"))
        return await self.make("teams", tenant=tenant["id"], name="Search")

    async def make_model(self, **provider: Any) -> dict[str, Any]:
        """Make a model of a provider of its own."""
        owner = await self.make("providers", name=unique("provider"), base_url="http://127.0.0.1:9/v1", **provider)
        return await self.make("models", provider=owner["id"], name="m-1")


class SimulatedEdge:
    """Watches both buckets and announces how far it got, as an edge does; `hold` makes it stop listening."""

    def __init__(self, connection: Connection) -> None:
        self.name = secrets.token_hex(8)
        self.applied = {"keys": 0, "catalogue": 0}
        self.entries: dict[str, dict[str, bytes]] = {"keys": {}, "catalogue": {}}
        self._connection = connection
        self._flowing = asyncio.Event()
        self._flowing.set()

    def hold(self) -> None:
        self._flowing.clear()

    async def follow(self, name: str, bucket: str) -> None:
        watcher: Any = await (await self._connection.jetstream().key_value(bucket)).watchall()
        while True:
            update = await watcher.updates(timeout=3600)
            await self._flowing.wait()
            if update is None:
                continue
            if update.operation is None:
                self.entries[name][update.key] = update.value
            else:
                self.entries[name].pop(update.key, None)
            self.applied[name] = update.revision
            await self.announce()

    async def announce(self) -> None:
        message = InvalidationApplied(
            edge=self.name, keys_sequence=self.applied["keys"], catalogue_sequence=self.applied["catalogue"], at_us=0
        )
        await self._connection.publish(f"{subjects.INVALIDATION_APPLIED}.{self.name}", msgspec.json.encode(message))

    async def repeat(self) -> None:
        while True:
            await self.announce()
            await asyncio.sleep(0.5)


def unique(text: str) -> str:
    return f"{text} {secrets.token_hex(4)}"


@asynccontextmanager
async def open_admin(postgres_dsn: str, nats_url: str) -> AsyncIterator[Running]:
    settings = AdminSettings(
        postgres_dsn=SecretStr(postgres_dsn),
        nats_url=SecretStr(nats_url),
        key_ring=SecretStr(KEY_RING),
        bootstrap_token=SecretStr(TOKEN),
    )
    async with (
        running(settings) as admin,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=admin.app),
            base_url="http://admin",
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=30,
        ) as client,
    ):
        yield Running(admin, client)


@pytest.fixture(autouse=True)
def _listened_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers need not wait until an edge could have announced itself."""
    monkeypatch.setattr(edges, "LEARNING_S", 0.0)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def start_admin(stack: AsyncExitStack, postgres_dsn: str, nats_url: str) -> StartAdmin:
    """Start admin services; each is up to date with the buckets when it is returned."""

    async def start(*, dsn: str = postgres_dsn, url: str = nats_url, wait: bool = True) -> Running:
        started: AbstractAsyncContextManager[Running] = open_admin(dsn, url)
        one = await stack.enter_async_context(started)
        if wait:
            await until(lambda: one.admin.comparison.finished_count, "the first comparison")
        return one

    return start


@pytest.fixture
async def admin(start_admin: StartAdmin) -> Running:
    return await start_admin()


@pytest.fixture
async def start_edge(stack: AsyncExitStack, nats_url: str) -> StartEdge:
    """Start edges; needs the buckets to be there."""

    async def start(url: str = nats_url) -> SimulatedEdge:
        connection = await connect(url, name="edge")
        edge = SimulatedEdge(connection)
        following = asyncio.create_task(
            run_together(
                edge.follow("keys", subjects.KEYS_BUCKET.name),
                edge.follow("catalogue", subjects.CATALOGUE_BUCKET.name),
                edge.repeat(),
            )
        )

        async def leave() -> None:
            await stop([following])
            await connection.close()

        stack.push_async_callback(leave)
        return edge

    return start


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[Connection]:
    connection = await connect(nats_url, name="test")
    yield connection
    await connection.close()


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()
