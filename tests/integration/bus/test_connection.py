"""The connection against real servers: it comes back, it waits, it never closes for good."""

import asyncio
from collections.abc import Callable

import pytest
from nats.aio.msg import Msg
from nats.errors import SlowConsumerError

from sluicegate.bus.connection import Connection, connect
from sluicegate.devstack.servers import NatsServer


async def until(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_connection_comes_back_and_tells_when_server_restarts(own_nats: Callable[[], NatsServer]) -> None:
    server = own_nats()
    told: list[str] = []
    connection = await connect(server.url, name="test", on_reconnected=lambda: told.append("again"))
    assert told == []
    server.kill()
    await until(lambda: not connection.is_connected)
    server.start()
    await until(lambda: told == ["again"])
    assert connection.is_connected
    await connection.close()


async def test_first_connection_waits_when_server_is_away(own_nats: Callable[[], NatsServer]) -> None:
    server = own_nats()
    server.stop()
    told: list[str] = []
    connection = Connection("test")
    connection.on_connected(lambda: told.append("first"))
    opening = asyncio.create_task(connection.open(server.url))
    await asyncio.sleep(0.3)
    assert not opening.done()
    server.start()
    await asyncio.wait_for(opening, 20)
    assert told == ["first"]
    await connection.close()


async def test_waiting_for_first_connection_ends_when_cancelled(own_nats: Callable[[], NatsServer]) -> None:
    server = own_nats()
    server.stop()
    opening = asyncio.create_task(connect(server.url, name="test"))
    await asyncio.sleep(0.1)
    opening.cancel()
    results = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)


async def test_connection_reconnects_when_server_answers_with_an_error() -> None:
    """nats-py would close the client for good on any `-ERR` that it does not know."""
    greeted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greeted
        greeted += 1
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
                if greeted == 1:
                    writer.write(b"-ERR 'Maximum Connections Exceeded'\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    told: list[str] = []
    connection = await connect(f"nats://127.0.0.1:{port}", name="test", on_reconnected=lambda: told.append("again"))
    await until(lambda: told == ["again"])
    assert connection.is_connected
    await connection.close()
    server.close()


async def test_error_listener_hears_of_a_slow_consumer(nats_url: str) -> None:
    errors: list[Exception] = []
    connection = await connect(nats_url, name="test")
    connection.on_error(errors.append)
    is_blocked = asyncio.Event()

    async def block(_: object) -> None:
        await is_blocked.wait()

    await connection.subscribe("flood", cb=block, pending_msgs_limit=2)
    for _ in range(10):
        await connection.publish("flood", b"x")
    await until(lambda: any(isinstance(error, SlowConsumerError) for error in errors))
    is_blocked.set()
    await connection.close()


async def test_cancellation_is_not_swallowed_when_it_meets_the_answer(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` before Python 3.12 returns the answer and forgets the cancellation."""
    connection = await connect(nats_url, name="test")
    take_answer = connection._request_sub_callback

    async def take_answer_and_cancel(message: Msg) -> None:
        await take_answer(message)
        asking.cancel()

    monkeypatch.setattr(connection, "_request_sub_callback", take_answer_and_cancel)
    asking = asyncio.create_task(connection.request("$JS.API.INFO", timeout=10))
    await asyncio.wait([asking], timeout=10)
    assert asking.cancelled()
    await connection.close()
