"""One edge process as its worker builds it, inside a test's own loop: real NATS, Valkey and journal.

`Configuration` is the part of admin that edges see: it writes their buckets.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import uvicorn

from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import declare
from sluicegate.contracts.catalogue import META_COMPLETE, CatalogueRecord, Key, MetaComplete
from sluicegate.contracts.keys import key_digest
from sluicegate.contracts.subjects import BUCKETS, CATALOGUE_BUCKET, KEYS_BUCKET
from sluicegate.devstack.edge_process import LoopServer, until
from sluicegate.devstack.raw_http import Response, connected
from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.edge import Edge
from sluicegate.edge.inbound.app import EdgeApp
from sluicegate.edge.inbound.deadlines import Timed
from sluicegate.edge.inbound.protocol import EdgeProtocol
from sluicegate.edge.wiring import EdgeProcess


class Configuration:
    """Writes records into the buckets, in admin's place."""

    def __init__(self, connection: Connection) -> None:
        self._js = connection.jetstream(timeout=5)

    async def declare(self) -> None:
        """Make streams and buckets, and say that the buckets are whole."""
        await declare(self._js)
        for bucket in BUCKETS:
            await self._put(bucket.name, META_COMPLETE, MetaComplete(count=0, at_us=0))

    async def put(self, *records: CatalogueRecord) -> None:
        """Put catalogue records."""
        for record in records:
            await self._put(CATALOGUE_BUCKET.name, f"{type(record).__name__.lower()}.{record.id}", record)

    async def put_key(self, text: str, record: Key) -> None:
        """Put a key."""
        await self._put(KEYS_BUCKET.name, key_digest(text.encode()), record)

    async def _put(self, bucket: str, name: str, record: msgspec.Struct) -> None:
        await self._js.publish(f"$KV.{bucket}.{name}", msgspec.json.encode(record))


class WiredEdge:
    """A running edge process."""

    def __init__(self, process: EdgeProcess, port: int) -> None:
        self.process = process
        self.port = port

    @property
    def edge(self) -> Edge:
        """What its connections share."""
        return cast(Edge, self.process.edge)

    async def ask(self, request: bytes) -> Response:
        """Send one request on a connection of its own and return the answer."""
        async with connected(self.port) as client:
            return await client.ask(request)

    def number(self, family: str) -> float:
        """Return a metric that has no labels."""
        snapshot = self.process.metrics.snapshot()
        if family in snapshot.per_worker:
            return snapshot.per_worker[family]
        [(_, number)] = snapshot.counters[family]
        return number


@asynccontextmanager
async def wired_edge(settings: EdgeSettings) -> AsyncIterator[WiredEdge]:
    """An edge process that listens on a free port for the length of the block."""
    process = EdgeProcess(settings, lambda: cast(set[Timed], server.server_state.connections))
    server = LoopServer(
        uvicorn.Config(
            EdgeApp(process.start, process.stop),
            http=EdgeProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        yield WiredEdge(process, listener.getsockname()[1])
    finally:
        server.should_exit = True
        for connection in list(server.server_state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()
        await serving
        process_edge = process.edge
        if process_edge is not None:
            process_edge.pools.close_idle(float("inf"))
