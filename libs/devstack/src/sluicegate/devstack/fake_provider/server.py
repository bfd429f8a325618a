"""The provider as a server, in a process of its own or inside a test's loop, and its `/_fake/…` control paths."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sluicegate.devstack.fake_provider.calls import Calls
from sluicegate.devstack.fake_provider.protocol import ProviderProtocol


class FakeProvider:
    """What the connections share. Control paths are not counted as calls."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.connections: set[ProviderProtocol] = set()
        self.url = ""
        self.port = 0

    def control(self, method: bytes, target: bytes) -> dict[str, Any]:
        """Answers `/_fake/stats`, `/_fake/requests?last=N`, and POST `/_fake/reset` and `/_fake/release`."""
        parts = urlsplit(target.decode("latin-1"))
        if parts.path == "/_fake/requests":
            last = int(parse_qs(parts.query).get("last", ["100"])[0])
            return {"requests": [call.as_json() for call in list(self.calls.recent)[-last:]]}
        if parts.path == "/_fake/reset" and method == b"POST":
            self.calls.reset()
        elif parts.path == "/_fake/release" and method == b"POST":
            self.release()
        return self.calls.as_json()

    def release(self) -> None:
        """Opens every gate that an answer waits at."""
        for connection in list(self.connections):
            connection.release()


@asynccontextmanager
async def running(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[FakeProvider]:
    """A provider that listens for the length of the block; port 0 takes a free one."""
    provider = FakeProvider()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ProviderProtocol(provider, loop), host, port, backlog=1024)
    provider.port = server.sockets[0].getsockname()[1]
    provider.url = f"http://{host}:{provider.port}"
    try:
        yield provider
    finally:
        server.close()
        for connection in list(provider.connections):
            connection.abort()
