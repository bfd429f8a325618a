"""Faults for tests: links that are cut, slow or dead, and processes that are killed or frozen.

Embedded servers break by their own methods (`kill`, `pause`, `resume`, `restart`, `wipe`).
"""

import asyncio
import contextlib
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import psutil

from sluicegate.devstack.servers.process import await_stopped

_CHUNK_BYTES = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultyLink:
    """A TCP proxy in front of one server.

    `hold()` is a network that lost its way: connections stay open (new ones are taken, too), nothing moves, and after
    `release()` all of it arrives. `cut()` resets what is open; `refuse()` also lets nobody in until `accept()`.
    `delay_s` is added in each direction, without changing the order.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_refusing = False
        self.delay_s = 0.0
        self.connection_count = 0
        self.port = 0

    def url(self, url: str) -> str:
        """The same URL through this link."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}").geturl()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def cut(self) -> None:
        """Reset every open connection, both ends."""
        for writer in tuple(self._writers):
            _reset(writer)

    def refuse(self) -> None:
        """Cut, and reset every new connection at once."""
        self._is_refusing = True
        self.cut()

    def accept(self) -> None:
        self._is_refusing = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self._is_refusing:
                return
            self.connection_count += 1
            await self._is_open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(self._carry(reader, far_writer))
                    directions.create_task(self._carry(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                _reset(far_writer)
        except* (OSError, RuntimeError, asyncio.CancelledError):
            pass  # uvloop's closed transports raise RuntimeError
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            _reset(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: bytes leave `delay_s` after they came, the end of the stream as well."""
        clock = asyncio.get_running_loop().time
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

        async def take_in() -> None:
            while True:
                data = await reader.read(_CHUNK_BYTES)
                await queue.put((clock() + self.delay_s, data))
                if not data:
                    return

        taking = asyncio.create_task(take_in())
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - clock()))
                await self._is_open.wait()
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
        finally:
            taking.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await taking


@asynccontextmanager
async def faulty_link(url: str) -> AsyncIterator[FaultyLink]:
    """A link to the server of `url`; clients use `link.url(url)`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    link = FaultyLink(parts.hostname, parts.port)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()


def kill(pids: Iterable[int]) -> None:
    """`kill -9`, and wait until they are gone."""
    processes = list(_existing(pids))
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


@contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """SIGSTOP while the context lasts."""
    processes = list(_existing(pids))
    _signal_all(processes, signal.SIGSTOP)
    await_stopped(processes)
    try:
        yield
    finally:
        _signal_all(processes, signal.SIGCONT)


def _existing(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a dead peer does: FIN would be a polite end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() != -1:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
