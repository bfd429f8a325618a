"""The end of an edge: clients are told, open answers run on, and what is cut at the limit has its record."""

import asyncio
import contextlib

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.raw_http import RawClient, chat, get

GATED = "gate_at=2&write=each&events=5"


async def begin_stream(edge: EdgeUnderTest, provider: FakeProvider, client: RawClient, knobs: str = GATED) -> None:
    client.send(chat(knobs, key=edge.key, stream=True))
    await client.until(b"Water")


async def stop(edge: EdgeUnderTest) -> None:
    """Begin the stop as SIGTERM does, and wait until nothing listens."""
    edge.server.should_exit = True
    await until(lambda: edge.edge.is_draining)
    with contextlib.suppress(ConnectionError):
        await until_refused(edge)


async def until_refused(edge: EdgeUnderTest) -> None:
    while True:
        async with edge.client():
            await asyncio.sleep(0.01)


async def test_clients_are_told_to_leave_once_a_stop_is_announced(edge: EdgeUnderTest) -> None:
    """Readiness goes off first; requests are still served, each as the last of its connection."""
    edge.edge.is_draining = True
    for request in (
        chat(key=edge.key),
        chat(key=edge.key, stream=True),
        chat("status=422", key=edge.key),
        chat("status=500", key=edge.key),
        chat(key="sgk_wrong"),
        get("/v1/models", key=edge.key),
        get("/nowhere"),
    ):
        async with edge.client() as client:
            response = await client.ask(request)
            assert response.header("connection") == "close"
            assert await client.is_closed_by_peer()


@pytest.mark.parametrize("edge_settings", [{"shutdown_timeout_s": 20}])
async def test_open_streams_run_on_when_the_server_stops(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as busy, edge.client() as idle, edge.client() as half:
        await begin_stream(edge, provider, busy)
        assert (await idle.ask(get("/v1/models", key=edge.key))).status == 200
        half.send(chat(key=edge.key)[:40])
        await until(lambda: edge.edge.metrics.open_connections == 3)
        await stop(edge)
        assert await idle.is_closed_by_peer()
        # A request that was half sent is answered, as the last one.
        half.send(chat(key=edge.key)[40:])
        response = await half.read_response()
        assert (response.status, response.header("connection")) == (200, "close")
        assert await half.is_closed_by_peer()
        assert edge.server.started
        provider.release()
        assert (await busy.until(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await busy.is_closed_by_peer()
    assert [record.outcome for record in edge.records] == ["success"] * 3


@pytest.mark.parametrize("edge_settings", [{"shutdown_timeout_s": 20}])
async def test_requests_sent_ahead_are_not_begun_when_the_server_stops(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with edge.client() as client:
        client.send(chat("gate_at=2&write=each", key=edge.key, stream=True) + chat(key=edge.key) * 3)
        await client.until(b"Water")
        await stop(edge)
        provider.release()
        await client.until(b"0\r\n\r\n")
        assert await client.is_closed_by_peer()
    assert len(edge.records) == 1
    assert edge.edge.buffered_bytes == 0


@pytest.mark.parametrize("edge_settings", [{"shutdown_timeout_s": 1}])
async def test_what_is_open_at_the_limit_ends_with_a_frame_and_a_record(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with edge.client() as streaming, edge.client() as waiting, edge.client() as half, edge.client() as opening:
        await begin_stream(edge, provider, streaming)
        waiting.send(chat("silence=request", key=edge.key))
        half.send(chat(key=edge.key)[:-5])
        edge.put_provider("prv_2", max_connections=1)
        edge.put_model("other", providers=("prv_2",))
        opening.send(chat("silence=request", key=edge.key, model="other"))
        await until(lambda: provider.calls.total == 3 and len(edge.edge.open_exchanges) == 4)
        edge.server.should_exit = True
        frames = await streaming.until(b"0\r\n\r\n")
        assert b'"code":"stream_interrupted"' in frames
        assert frames.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        for client in (waiting, half, opening):
            response = await client.read_response()
            assert (response.status, response.code) == (503, "gateway_overloaded")
            assert response.header("connection") == "close"
            assert response.header("retry-after") == "1"
        await until(lambda: provider.calls.open == 0, 2)
    records = {record.outcome: record for record in edge.records}
    assert sorted(record.outcome for record in edge.records) == [
        "interrupted", "interrupted", "rejected", "stream_interrupted",
    ]  # fmt: skip
    assert records["interrupted"].input_tokens > 0
    assert records["stream_interrupted"].output_tokens > 0
    assert not edge.edge.open_exchanges
    assert edge.edge.metrics.in_flight == 0


@pytest.mark.parametrize("edge_settings", [{"shutdown_timeout_s": 20}])
async def test_stop_is_quick_when_nothing_is_open(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        assert (await client.ask(chat(key=edge.key))).status == 200
        edge.server.should_exit = True
        assert await client.is_closed_by_peer()
    await until(edge._sweep.done)
