"""A database of each test's own, endpoints in it as admin makes them, and budget-alert in this process."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sluicegate.budget_alert.addresses import Resolver
from sluicegate.budget_alert.config import AlertSettings
from sluicegate.budget_alert.delivering import Deliveries
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.budget_alert.sender import Sender
from sluicegate.budget_alert.wiring import run
from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import declare
from sluicegate.contracts.ids import new_id
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.servers import NatsServer, PostgresServer
from sluicegate.devstack.webhook_receiver import WebhookReceiver
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.store.pool import Pool, close_pool, open_pool

KEY_RING = KeyRing.generate()


@pytest.fixture
def dsn(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = f"alerts_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    pool = await open_pool(dsn, application_name="test", max_size=8)
    yield pool
    await close_pool(pool)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as server:
        yield server


@pytest.fixture
def add_secret(database: Any) -> Callable[..., Awaitable[str]]:
    """Gives an endpoint a secret, valid for ever or until `expires_in_s`; returns it as it would be shown."""

    async def add(endpoint: str, expires_in_s: float | None = None) -> str:
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        sealed = KeyRing.parse(KEY_RING).seal(secret.encode(), endpoint.encode())
        await database.execute(
            """
            INSERT INTO webhook_secrets (id, endpoint, secret_key_id, secret_nonce, secret_ciphertext, expires_at)
            VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
            """,
            new_id("whs"),
            endpoint,
            sealed.key_id,
            sealed.nonce,
            sealed.ciphertext,
            expires_in_s,
        )
        return secret

    return add


@pytest.fixture
def add_tenant(database: Any) -> Callable[[str], Awaitable[None]]:
    async def add(tenant: str) -> None:
        await database.execute(
            "INSERT INTO tenants (id, name, enabled) VALUES ($1, $1, true) ON CONFLICT DO NOTHING", tenant
        )

    return add


@pytest.fixture
def add_endpoint(database: Any, add_secret: Any, add_tenant: Any) -> Callable[..., Awaitable[tuple[str, str]]]:
    """Makes an endpoint; returns its id and secret."""

    async def add(
        url: str,
        *,
        tenant: str | None = None,
        form: str = "json",
        enabled: bool = True,
        allows_private: bool = True,
    ) -> tuple[str, str]:
        if tenant is not None:
            await add_tenant(tenant)
        endpoint = new_id("whk")
        await database.execute(
            """
            INSERT INTO webhook_endpoints (id, tenant, name, url, format, enabled, allow_private_addresses)
            VALUES ($1, $2, $1, $3, $4, $5, $6)
            """,
            endpoint,
            tenant,
            url,
            form,
            enabled,
            allows_private,
        )
        return endpoint, await add_secret(endpoint)

    return add


@pytest.fixture
def let_pass(database: Any) -> Callable[[float], Awaitable[None]]:
    """Lets time pass for deliveries, leases and circuits, which all know it from the database."""

    async def shift(seconds: float) -> None:
        await database.execute(
            """
            UPDATE deliveries
            SET next_attempt_at = next_attempt_at - make_interval(secs => $1),
                claimed_until = claimed_until - make_interval(secs => $1),
                expires_at = expires_at - make_interval(secs => $1)
            """,
            seconds,
        )
        await database.execute(
            "UPDATE endpoint_circuits SET open_until = open_until - make_interval(secs => $1)", seconds
        )

    return shift


@pytest.fixture
async def start_delivering(pool: Pool) -> AsyncIterator[Callable[..., Deliveries]]:
    """Starts the deliveries of one process; several calls stand for several processes."""
    running: list[tuple[Deliveries, asyncio.Task[None]]] = []
    resolver = Resolver()

    def start(*, total_timeout_s: float = 5.0, at_once: int = 50, per_endpoint: int = 4) -> Deliveries:
        deliveries = Deliveries(
            pool,
            Sender(resolver, total_timeout_s=total_timeout_s),
            KeyRing.parse(KEY_RING),
            Metrics(),
            at_once=at_once,
            per_endpoint=per_endpoint,
        )
        running.append((deliveries, asyncio.create_task(deliveries.run())))
        return deliveries

    yield start
    for deliveries, task in running:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await deliveries.drain()
    resolver.close()


@pytest.fixture
def nats(own_nats: Callable[[], NatsServer]) -> NatsServer:
    return own_nats()


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Connection]:
    connection = await connect(nats.url, name="test")
    await declare(connection.jetstream(), buckets=())
    yield connection
    await connection.close()


@pytest.fixture
async def start_room(nats: NatsServer, dsn: str, redis_url: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Starts budget-alert in this process; returns what stops it."""
    running: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def start(**changes: Any) -> Callable[[], Awaitable[None]]:
        values: dict[str, Any] = {
            "nats_url": nats.url,
            "postgres_dsn": dsn,
            "redis_url": redis_url,
            "key_ring": KEY_RING,
            "internal_port": 0,
        }
        stop = asyncio.Event()
        task = asyncio.create_task(run(AlertSettings(**(values | changes)), stop))
        running.append((stop, task))

        async def end() -> None:
            stop.set()
            await task

        return end

    yield start
    for stop, task in running:
        stop.set()
        await task


@pytest.fixture
def new_room(nats: NatsServer, dsn: str, redis_url: str, tmp_path: Path) -> Iterator[Callable[..., RoomProcess]]:
    """Makes budget-alerts that are processes of their own; `dsn` may be another one."""
    made: list[RoomProcess] = []

    def new(postgres_dsn: str = dsn) -> RoomProcess:
        environment = {
            "SLUICEGATE_NATS_URL": nats.url,
            "SLUICEGATE_POSTGRES_DSN": postgres_dsn,
            "SLUICEGATE_REDIS_URL": redis_url,
            "SLUICEGATE_KEY_RING": KEY_RING,
        }
        room = RoomProcess("budget_alert", environment, tmp_path / f"room-{len(made)}.log")
        made.append(room)
        return room

    yield new
    for room in made:
        if room.process.is_running:
            room.kill()
