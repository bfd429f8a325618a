"""The fault kit breaks links in the ways it says."""

import asyncio
import subprocess
from collections.abc import AsyncIterator

import psutil
import pytest

from sluicegate.devstack import faults
from sluicegate.devstack.faults import FaultyLink, faulty_link
from sluicegate.devstack.servers.process import is_alive


@pytest.fixture
async def link() -> AsyncIterator[FaultyLink]:
    """A link to an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with faulty_link(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
        yield link
    server.close()


async def _dial(link: FaultyLink) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", link.port)


async def test_link_carries_everything_in_order_when_nothing_is_wrong(link: FaultyLink) -> None:
    reader, writer = await _dial(link)
    data = bytes(range(256)) * 40_000
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    writer.write_eof()
    assert await reader.read() == b""
    assert link.connection_count == 1
    writer.close()


async def test_held_link_moves_nothing_until_it_is_released(link: FaultyLink) -> None:
    reader, writer = await _dial(link)
    link.hold()
    writer.write(b"late")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    link.release()
    assert await reader.readexactly(4) == b"late"
    writer.close()


async def test_cut_link_resets_what_is_open_and_takes_new_connections(link: FaultyLink) -> None:
    reader, writer = await _dial(link)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    link.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    reader, writer = await _dial(link)
    writer.write(b"y")
    assert await reader.readexactly(1) == b"y"


async def test_refusing_link_lets_nobody_in_until_it_accepts(link: FaultyLink) -> None:
    link.refuse()
    reader, writer = await _dial(link)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    link.accept()
    reader, writer = await _dial(link)
    writer.write(b"y")
    assert await reader.readexactly(1) == b"y"


async def test_slow_link_delays_and_keeps_the_order(link: FaultyLink) -> None:
    link.delay_s = 0.1
    reader, writer = await _dial(link)
    began = asyncio.get_running_loop().time()
    for part in (b"a", b"b", b"c"):
        writer.write(part)
        await asyncio.sleep(0.01)
    assert await reader.readexactly(3) == b"abc"
    assert asyncio.get_running_loop().time() - began >= 0.2
    writer.close()


def test_url_leads_through_the_link_and_keeps_the_login() -> None:
    link = FaultyLink("127.0.0.1", 1)
    link.port = 2
    assert link.url("nats://u:p@127.0.0.1:1") == "nats://u:p@127.0.0.1:2"
    assert link.url("redis://:p@127.0.0.1:1/0") == "redis://:p@127.0.0.1:2/0"


def test_paused_process_stands_still_while_the_context_lasts() -> None:
    with subprocess.Popen(["sleep", "20"]) as child:
        process = psutil.Process(child.pid)
        with faults.paused([child.pid]):
            assert process.status() == psutil.STATUS_STOPPED
        assert process.status() != psutil.STATUS_STOPPED
        faults.kill([child.pid])
        assert not is_alive(process)
