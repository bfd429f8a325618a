"""Limits on what a client may take of the edge: time, memory, requests sent ahead."""

import asyncio
import hashlib
import json
from typing import Any

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.raw_http import chat, get, post

MIB = 1024 * 1024


@pytest.mark.parametrize("edge_settings", [{"header_timeout_s": 0.3, "keep_alive_timeout_s": 30}])
@pytest.mark.parametrize("is_first", [True, False])
async def test_slow_head_is_refused(edge: EdgeUnderTest, is_first: bool) -> None:
    async with edge.client() as client:
        if not is_first:
            assert (await client.ask(chat(key=edge.key))).status == 200
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\n")
        dripping = asyncio.create_task(drip(client.writer, b"x-a: 1\r\n"))
        response = await client.read_response()
        dripping.cancel()
        assert (response.status, response.code) == (408, "request_timeout")
        assert response.header("connection") == "close"
        assert await client.is_closed_by_peer()


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    while not writer.is_closing():
        writer.write(data)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("edge_settings", [{"header_timeout_s": 0.3}])
async def test_connection_without_a_request_is_closed(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        assert await client.is_closed_by_peer()


@pytest.mark.parametrize("edge_settings", [{"keep_alive_timeout_s": 0.3}])
async def test_idle_connection_is_closed_and_a_busy_one_is_not(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        response = await client.ask(chat("ttft_ms=1500", key=edge.key))
        assert response.status == 200
        assert (await client.ask(get("/v1/models", key=edge.key))).status == 200
        assert await client.is_closed_by_peer()


@pytest.mark.parametrize("edge_settings", [{"body_timeout_s": 0.3}])
async def test_slow_body_is_refused(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat(key=edge.key)[:-5])
        response = await client.read_response()
        assert (response.status, response.code) == (408, "request_timeout")
        assert await client.is_closed_by_peer()
    assert provider.calls.total == 0
    assert [(record.outcome, record.status) for record in edge.records] == [("rejected", 408)]
    assert edge.edge.buffered_bytes == 0


@pytest.mark.parametrize("edge_settings", [{"body_timeout_s": 0.3}])
async def test_slow_body_is_taken_when_it_is_large_enough_for_its_time(edge: EdgeUnderTest) -> None:
    request = chat(key=edge.key, padding="x" * 256 * 1024)
    async with edge.client() as client:
        client.send(request[:-1])
        # A second more for each 32 KiB that has come.
        await asyncio.sleep(1.0)
        client.send(request[-1:])
        assert (await client.read_response()).status == 200


@pytest.mark.parametrize("edge_settings", [{"max_body_bytes": 100_000}])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_answer_to_a_large_body_arrives_while_it_is_being_sent(edge: EdgeUnderTest, is_chunked: bool) -> None:
    """The connection is not reset under a client that has not looked for an answer yet."""
    body = b"x" * 3 * MIB
    request = post(None, key=edge.key, body=body)
    if is_chunked:
        head = request[: -len(body)].replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
        request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with edge.client() as client:
        for at in range(0, len(request), 100_000):
            client.send(request[at : at + 100_000])
            await client.writer.drain()
            await asyncio.sleep(0.001)
        response = await client.read_response()
        assert (response.status, response.code) == (413, "request_too_large")
        assert await client.is_closed_by_peer()
    assert edge.records[0].status == 413


@pytest.mark.parametrize("edge_settings", [{"max_header_bytes": 8_192}])
async def test_head_without_end_is_refused_while_it_is_being_sent(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: e\r\nx: ")
        for _ in range(50):
            client.send(b"a" * 20_000)
            await asyncio.sleep(0.001)
        response = await client.read_response()
        assert (response.status, response.code) == (431, "headers_too_large")
        assert await client.is_closed_by_peer()


@pytest.mark.parametrize("edge_settings", [{"max_header_bytes": 8_192}])
async def test_bodies_before_a_head_do_not_count_as_its_size(edge: EdgeUnderTest) -> None:
    """One read brings a large body and the first half of the next head."""
    client = edge.memory_client()
    large = chat(key=edge.key, padding="x" * 50_000)
    following = chat(key=edge.key)
    client.send(large + following[:60])
    assert (await client.read_response()).status == 200
    client.send(following[60:])
    assert (await client.read_response()).status == 200


@pytest.mark.parametrize("edge_settings", [{"max_buffered_bytes": 3 * MIB}])
async def test_large_bodies_are_refused_when_too_many_are_held(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    large = chat("silence=request", key=edge.key, padding="x" * 2 * MIB)
    async with edge.client() as first, edge.client() as second:
        first.send(large)
        await until(lambda: provider.calls.total == 1)
        response = await second.ask(large)
        assert (response.status, response.code) == (503, "gateway_overloaded")
        assert response.header("retry-after") == "1"
        async with edge.client() as small:
            assert (await small.ask(chat(key=edge.key))).status == 200
        first.close()
        await until(lambda: edge.edge.buffered_bytes == 0)


@pytest.mark.parametrize("edge_settings", [{"max_buffered_bytes": 3 * MIB}])
async def test_large_body_is_let_go_when_its_answer_has_begun(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("gate_at=2&write=each", key=edge.key, stream=True, padding="x" * 2 * MIB))
        await client.until(b"Water")
        assert edge.edge.buffered_bytes == 0
        provider.release()
        await client.until(b"[DONE]")
    record = await edge.record()
    assert record.outcome == "success"


async def test_requests_sent_ahead_are_answered_in_order_and_bounded(edge: EdgeUnderTest) -> None:
    client = edge.memory_client()
    client.send(b"".join(chat(f"words=w{number}", key=edge.key) for number in range(100)))
    for number in range(65):
        response = await client.read_response()
        assert response.json["choices"][0]["message"]["content"].startswith(f"w{number}")
    response = await client.read_response()
    assert (response.status, response.code) == (400, "invalid_request")
    assert await client.is_closed_by_peer()
    await until(lambda: edge.edge.buffered_bytes == 0)
    assert len(edge.records) == 65


async def test_bytes_sent_ahead_are_bounded(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("gate_at=1&write=each", key=edge.key, stream=True))
        await until(lambda: provider.calls.total == 1)
        client.send(chat(key=edge.key, padding="x" * 4 * MIB))
        await asyncio.sleep(0.1)
        assert edge.edge.buffered_bytes < 2 * MIB
        provider.release()
        assert (await client.read_response()).frames[-1] == "[DONE]"
        assert (await client.read_response()).code == "invalid_request"
        assert await client.is_closed_by_peer()
    assert edge.edge.buffered_bytes == 0


@pytest.mark.parametrize("edge_settings", [{"max_body_bytes": 2_048}])
async def test_body_sent_ahead_is_refused_when_it_is_too_large(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    body = b"x" * 3_000
    head = post(None, key=edge.key, body=body)[: -len(body)]
    head = head.replace(b"content-length: 3000", b"transfer-encoding: chunked")
    client = edge.memory_client()
    client.send(chat("ttft_ms=50", key=edge.key) + head + b"bb8\r\n" + body + b"\r\n0\r\n\r\n")
    assert (await client.read_response()).status == 200
    assert (await client.read_response()).status == 413
    assert provider.calls.total == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_body_of_34_mib_passes_as_it_is(edge: EdgeUnderTest, provider: FakeProvider, stream: bool) -> None:
    request = chat(key=edge.key, padding="x" * (34 * MIB - 200), stream=stream)
    async with edge.client() as client:
        response = await client.ask(request)
        assert response.status == 200
        assert (await client.ask(chat(key=edge.key))).status == 200
    body = request[request.index(b"\r\n\r\n") + 4 :]
    name = b'"fake-gpt","stream_options":{"include_usage":true}' if stream else b'"fake-gpt"'
    assert provider.calls.recent[0].digest == hashlib.sha256(body.replace(b'"demo"', name, 1)).hexdigest()
    # Both requests went over one connection.
    assert provider.calls.connections_total == 1
    assert edge.edge.buffered_bytes == 0


@pytest.mark.parametrize("is_large", [True, False])
async def test_large_body_is_understood_as_a_small_one(
    edge: EdgeUnderTest, provider: FakeProvider, is_large: bool
) -> None:
    """The same requests, with and without a megabyte of padding in them."""
    padding = "é" * (MIB // 2 if is_large else 1)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}
    asked = {"include_usage": True, "x": 1}
    good: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": [image]}], "padding": padding}
    async with edge.client() as client:
        response = await client.ask(post({**good, "stream": True, "stream_options": asked}, key=edge.key))
        assert any('"usage":{' in frame for frame in response.frames)
        response = await client.ask(post({**good, "stream": True, "stream_options": {"x": 1}}, key=edge.key))
        assert not any('"usage":{' in frame for frame in response.frames)
        estimate = edge.journal.admissions[0].input_tokens
        assert abs(estimate - (1_600 + len(json.dumps(good)) // 4 - 1_000)) < 40
        for fields, code, param in (
            ({"model": None}, "invalid_request", "model"),
            ({"model": "none"}, "model_not_found", "model"),
            ({"messages": {}}, "invalid_request", "messages"),
            ({"max_tokens": 0}, "invalid_request", "max_tokens"),
            ({"stream": "x"}, "invalid_request", "stream"),
        ):
            response = await client.ask(post({**good, **fields}, key=edge.key))
            assert (response.code, response.json["error"]["param"]) == (code, param)
        twice = post(None, key=edge.key, body=b'{"model":"demo",' + json.dumps(good).encode()[1:])
        assert (await client.ask(twice)).code == "invalid_request"
    for text in (b"[1]", b'{"model":"demo","messages":[]', b'{"messages":"\xff'):
        async with edge.client() as client:
            body = text + (b" " * MIB if is_large else b"")
            assert (await client.ask(post(None, key=edge.key, body=body))).code == "invalid_json"
    assert provider.calls.total == 2


async def test_cut_bodies_are_those_of_the_client(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    content: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "é\u2028" * 2_000}]}
    request = post(content, key=edge.key)
    async with edge.client() as client:
        for at in range(0, len(request), 1_009):
            client.send(request[at : at + 1_009])
            await asyncio.sleep(0.001)
        assert (await client.read_response()).status == 200
    assert json.loads(provider.calls.recent[0].body) == {**content, "model": "fake-gpt"}
