"""Kept connections to one provider's origin, and the opening of new ones.

An idle connection is taken in the same loop turn; only opening one waits. The newest idle one is taken
first, so that a quiet pool shrinks to what is needed.
"""

import asyncio
import ssl
from collections import deque
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from sluicegate.edge.errors import EdgeError
from sluicegate.edge.outbound.connection import ProviderConnection

IDLE_S: Final = 55.0
DRAIN_S: Final = 1.0
_WRITE_HIGH_BYTES: Final = 1024 * 1024


class Origin(NamedTuple):
    """Where a pool connects to."""

    host: str
    port: int
    is_tls: bool


class PoolError(EdgeError):
    """No connection could be had; the text says why."""

    def __init__(self, reason: str, *, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout


def split_base_url(base_url: str) -> tuple[Origin, str, str]:
    """Return origin, `host` header and path prefix of a provider's base URL. ValueError: it is not one."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http or https URL: {base_url!r}")
    is_tls = parts.scheme == "https"
    origin = Origin(parts.hostname, parts.port or (443 if is_tls else 80), is_tls)
    host = parts.netloc.rpartition("@")[2]
    return origin, host, parts.path.rstrip("/")


class Pool:
    """The connections of one origin, at most `max_connections` of them."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, max_connections: int) -> None:
        self.origin = origin
        self.max_connections = max_connections
        self._tls = tls
        self._idle: deque[ProviderConnection] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._open_ones: set[ProviderConnection] = set()
        self._opening = 0
        self._loop = asyncio.get_running_loop()

    def take_idle(self) -> ProviderConnection | None:
        """Return an idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed and not connection.transport.is_closing():
                return connection
        return None

    async def open(self, timeout_s: float) -> ProviderConnection:
        """Open a connection, waiting for a free place first. PoolError: none within the time, or refused."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open()
        except TimeoutError:
            raise PoolError("no connection in time", is_timeout=True) from None
        except (OSError, UnicodeError) as error:
            raise PoolError(f"no connection ({error})") from error

    def give_back(self, connection: ProviderConnection) -> None:
        """Keep a connection that can be used again."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._waiters:
            self._wake()

    def adopt(self, connection: ProviderConnection) -> None:
        """Count a connection in."""
        self._open_ones.add(connection)

    def drain(self, connection: ProviderConnection) -> None:
        """Close a connection whose answer does not end soon."""
        self._loop.call_later(DRAIN_S, self._end_drain, connection, connection.uses)

    def _end_drain(self, connection: ProviderConnection, use: int) -> None:
        if connection.uses == use and connection.is_draining:
            connection.close()

    def forget(self, connection: ProviderConnection) -> None:
        """Count a closed connection out."""
        self._open_ones.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake()

    def close_idle(self, before: float) -> None:
        """Close connections that have been idle since before that loop time."""
        while self._idle and self._idle[0].idle_since < before:
            self._idle[0].close()

    @property
    def is_unused(self) -> bool:
        """Whether the pool holds no connection and nobody waits."""
        return not (self._open_ones or self._opening or self._waiters)

    async def _open(self) -> ProviderConnection:
        while len(self._open_ones) + self._opening >= self.max_connections:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            idle = self.take_idle()
            if idle is not None:
                return idle
        self._opening += 1
        try:
            transport, connection = await self._loop.create_connection(
                lambda: ProviderConnection(self, self._loop),
                self.origin.host,
                self.origin.port,
                ssl=self._tls,
                server_hostname=self.origin.host if self._tls else None,
            )
        except BaseException:
            self._wake()
            raise
        finally:
            self._opening -= 1
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        return connection

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class Pools:
    """All pools of a process, by origin."""

    def __init__(self) -> None:
        self._pools: dict[tuple[Origin, int], Pool] = {}
        self._tls: ssl.SSLContext | None = None

    def pool_of(self, origin: Origin, max_connections: int) -> Pool:
        """Return the pool of an origin; made on first use."""
        pool = self._pools.get((origin, max_connections))
        if pool is None:
            if origin.is_tls and self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            pool = Pool(origin, self._tls if origin.is_tls else None, max_connections)
            self._pools[origin, max_connections] = pool
        return pool

    def close_idle(self, before: float) -> None:
        """Close connections idle since before that loop time, and drop pools that nothing uses."""
        for place, pool in list(self._pools.items()):
            pool.close_idle(before)
            if pool.is_unused and len(self._pools) > 256:
                del self._pools[place]
