"""A provider that breaks, hangs, refuses or talks nonsense: what the client gets, and what the record says."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from sluicegate.contracts.catalogue import Route, Target
from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider, running
from sluicegate.devstack.raw_http import Response, chat
from sluicegate.edge.wire.chat_stream import ChatStreamScan


async def ask(edge: EdgeUnderTest, knobs: str = "", **more: Any) -> Response:
    async with edge.client() as client:
        return await client.ask(chat(knobs, key=edge.key, **more))


def error_of(response: Response) -> dict[str, Any]:
    """The error frame of a broken stream, which is the last one before `[DONE]`."""
    assert response.status == 200
    assert response.frames[-1] == "[DONE]"
    errors = [frame for frame in response.frames[:-1] if '"error"' in frame]
    assert errors == [response.frames[-2]]
    error: dict[str, Any] = json.loads(errors[0])["error"]
    return error


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A provider of the test's own making, one call per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"


def fixed(
    data: bytes, *, hangs: bool = False
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if hangs:
            await reader.read(1 << 20)
            await reader.read(1 << 20)

    return answer


# Streams that break.


@pytest.mark.parametrize("cut", ["fin", "rst"])
@pytest.mark.parametrize("middle", ["0", "1"])
@pytest.mark.parametrize("length", ["known", "none"])
async def test_stream_ends_with_an_error_frame_when_it_is_cut(
    edge: EdgeUnderTest, cut: str, middle: str, length: str
) -> None:
    knobs = f"write=each&events=9&words=fourfour&cut_at=4&cut={cut}&cut_mid={middle}&length={length}"
    async with edge.client() as client:
        response = await client.ask(chat(knobs, key=edge.key, stream=True))
        error = error_of(response)
        assert (error["type"], error["code"]) == ("upstream_stream_error", "stream_interrupted")
        assert error["request_id"] == response.header("x-request-id")
        # The client's own connection is whole, and goes on.
        assert (await client.ask(chat(key=edge.key))).status == 200
    whole = [ChatCompletionChunk.model_validate_json(frame) for frame in response.frames[:-2]]
    assert len(whole) in ({4} if cut == "fin" else {1, 2, 3, 4})
    record = edge.records[0]
    assert (record.outcome, record.status, record.error_code) == ("stream_interrupted", 200, "stream_interrupted")
    assert record.usage_source == "partial"
    assert record.output_tokens == (len(whole) - 1) * 2
    assert record.input_tokens > 0


async def test_error_frame_is_an_error_to_the_sdk(edge: EdgeUnderTest) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{edge.port}/v1", api_key=edge.key, max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_body={"fake": "write=each&cut_at=4"},
        )
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
    assert raised.value.code == "stream_interrupted"
    assert raised.value.type == "upstream_stream_error"


async def test_error_frame_of_the_provider_passes_and_ends_the_stream(edge: EdgeUnderTest) -> None:
    response = await ask(edge, "error_at=3&write=each&code=overloaded&status=529", stream=True)
    assert error_of(response)["code"] == "overloaded"
    record = edge.records[0]
    assert (record.outcome, record.error_code, record.usage_source) == (
        "stream_interrupted", "stream_interrupted", "partial",
    )  # fmt: skip


async def test_stream_is_whole_without_done_when_it_said_that_it_finished(edge: EdgeUnderTest) -> None:
    response = await ask(edge, "done=0", stream=True)
    assert response.frames[-1] == "[DONE]"
    assert (await edge.record()).outcome == "success"


async def test_stream_is_broken_without_done_when_it_did_not_finish(edge: EdgeUnderTest) -> None:
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    body = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(frame), frame)
    async with server(fixed(body)) as url:
        edge.put_provider(base_url=url)
        assert error_of(await ask(edge, stream=True))["code"] == "stream_interrupted"
    assert (await edge.record()).outcome == "stream_interrupted"


async def test_stream_ends_with_an_error_frame_when_the_gateway_has_a_fault(
    edge: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = ChatStreamScan.feed

    def broken(scan: ChatStreamScan, data: bytes) -> bytes:
        if b"own" in data:
            raise ValueError("a bug")
        return feed(scan, data)

    monkeypatch.setattr(ChatStreamScan, "feed", broken)
    async with edge.client() as client:
        response = await client.ask(chat("write=each", key=edge.key, stream=True))
        assert error_of(response)["code"] == "stream_interrupted"
        assert (await client.ask(chat(key=edge.key))).status == 200
    assert [record.outcome for record in edge.records] == ["stream_interrupted", "success"]


async def test_event_that_is_no_json_passes(edge: EdgeUnderTest) -> None:
    response = await ask(edge, "garbage=event", stream=True)
    assert "{this is not JSON" in response.frames
    assert edge.records[0].outcome == "success"


# Before anything has left: another status, or another target.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("knobs", "status", "code"),
    [
        ("status=500", 502, "provider_error"),
        ("status=503", 502, "provider_error"),
        ("status=529", 502, "provider_error"),
        ("status=401", 502, "provider_error"),
        ("status=403", 502, "provider_error"),
        ("status=404", 502, "provider_error"),
        ("status=408", 502, "provider_error"),
        ("status=409", 502, "provider_error"),
        ("status=429&retry_after=17", 429, "provider_rate_limited"),
        ("cut_head=1", 502, "provider_error"),
        ("cut_head=1&cut=rst", 502, "provider_error"),
        ("garbage=http", 502, "provider_error"),
        ("garbage=truncated", 502, "provider_error"),
        ("cut_at=0&write=each", 502, "provider_error"),
    ],
)
async def test_error_before_any_content_is_ours_and_names_the_target(
    edge: EdgeUnderTest, knobs: str, status: int, code: str, stream: bool
) -> None:
    async with edge.client() as client:
        response = await client.ask(chat(knobs, key=edge.key, stream=stream))
        assert (response.status, response.code) == (status, code)
        assert "fake/fake-gpt" in response.json["error"]["message"]
        assert response.header("retry-after") == ("17" if status == 429 else None)
        assert (await client.ask(chat(key=edge.key))).status == 200
    record = edge.records[0]
    assert (record.outcome, record.status, record.error_code) == ("provider_error", status, code)
    assert (record.usage_source, record.cost_nano_usd) == ("none", 0)
    assert record.provider == "prv_1"


@pytest.mark.parametrize("status", [400, 402, 413, 415, 422, 451])
async def test_error_that_blames_the_request_passes_as_it_is(
    edge: EdgeUnderTest, provider: FakeProvider, status: int
) -> None:
    response = await ask(edge, f"status={status}&code=of_theirs", stream=True)
    assert response.status == status
    assert response.json == {
        "error": {
            "message": "The fake provider refuses on request.",
            "type": response.json["error"]["type"],
            "param": None,
            "code": "of_theirs",
        }
    }
    assert response.header("x-request-id") == edge.records[0].request_id
    record = edge.records[0]
    assert (record.outcome, record.status, record.usage_source) == ("rejected", status, "none")
    assert provider.calls.total == 1


async def test_stream_options_are_left_out_when_the_provider_refuses_them(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    response = await ask(edge, "reject_stream_options=1", stream=True)
    assert response.status == 200
    assert ["stream_options" in json.loads(call.body) for call in provider.calls.recent] == [True, False]
    record = edge.records[0]
    assert (record.outcome, record.usage_source) == ("success", "estimated")
    assert [attempt.status for attempt in record.attempts] == [400, 200]
    assert record.fallbacks == 0


async def test_refused_stream_options_pass_when_the_client_sent_them(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    response = await ask(edge, "reject_stream_options=1", stream=True, stream_options={"include_usage": True})
    assert response.status == 400
    assert provider.calls.total == 1


@asynccontextmanager
async def second_target(edge: EdgeUnderTest) -> AsyncIterator[FakeProvider]:
    """A second provider behind the first one in the route; it knows no knobs of the first."""
    async with running() as second:
        edge.put_provider("prv_2", name="other", base_url=second.url + "/v1")
        edge.put_model("both", providers=("prv_1", "prv_2"))
        yield second


@pytest.mark.parametrize(
    ("fields", "attempts"),
    [
        ({"base_url": "http://127.0.0.1:1/v1"}, [None, 200]),
        ({"base_url": "http://no-such-host.invalid/v1"}, [None, 200]),
        ({"base_url": "http://" + "a" * 80 + "/v1"}, [None, 200]),
    ],
)
async def test_next_target_answers_when_the_first_cannot_be_reached(
    edge: EdgeUnderTest, fields: dict[str, Any], attempts: list[int | None]
) -> None:
    async with second_target(edge):
        edge.put_provider(**fields)
        response = await ask(edge, model="both", stream=True)
    assert response.status == 200
    assert response.header("x-sluicegate-provider") == "other"
    assert response.header("x-sluicegate-fallbacks") == "1"
    record = edge.records[0]
    assert [attempt.status for attempt in record.attempts] == attempts
    assert (record.provider, record.fallbacks, record.outcome) == ("prv_2", 1, "success")
    assert record.cost_nano_usd == 41_000


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"choices":[',
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"error":{"message":"no"}}\n\n',
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n',
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 19\r\n\r\n<html>Log in</html>",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 400_000,
        b"\r\n\r\n",
        b"",
    ],
    ids=lambda answer: repr(answer[:70]),
)  # fmt: skip
async def test_next_target_answers_when_the_first_breaks_before_content(
    edge: EdgeUnderTest, answer: bytes, stream: bool
) -> None:
    async with second_target(edge) as second, server(fixed(answer)) as url:
        edge.put_provider(base_url=url)
        response = await ask(edge, model="both", stream=stream)
        assert response.status == 200
        assert response.header("x-sluicegate-provider") == "other"
        assert b"finds" in response.body
        assert response.body.count(b'"role"') == 1
        assert second.calls.total == 1
    record = edge.records[0]
    assert (record.outcome, record.provider, record.fallbacks, len(record.attempts)) == ("success", "prv_2", 1, 2)
    assert record.cost_nano_usd == 41_000


def answered(body: bytes, content_type: str = "text/html") -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        answered(b"<html>Log in</html>"),
        answered(b"<html>{}</html>", "application/json"),
        answered(b'[{"choices":[]}]', "application/json"),
        answered(b'{"choices":[', "application/json"),
        answered(b'"ok"', "application/json"),
        answered(b"data: {}\n\n", "text/plain"),
        answered(b"", "application/json"),
        answered(b"<" + b" " * 9_000_000, "application/json"),
    ],
    ids=lambda answer: repr(answer[30:110]),
)
async def test_answer_that_is_no_json_object_is_the_providers_fault(
    edge: EdgeUnderTest, answer: bytes, stream: bool
) -> None:
    async with server(fixed(answer)) as url:
        edge.put_provider(base_url=url)
        response = await ask(edge, stream=stream)
    assert (response.status, response.code) == (502, "provider_error")
    assert "fake/fake-gpt sent an answer that is not JSON" in response.json["error"]["message"]
    record = await edge.record()
    assert (record.outcome, record.usage_source, record.cost_nano_usd) == ("provider_error", "none", 0)
    assert edge.edge.metrics.in_flight == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' \r\n{"choices": []}\n',
        b'\xef\xbb\xbf{"choices":[]}',
        rb'{"choices":[{"message":{"content":"\ud83d"}}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
        b'{"choices":[],"x":%b%b}' % (b"[" * 5_000, b"]" * 5_000),
    ],
    ids=lambda body: repr(body[:60]),
)
async def test_object_passes_as_it_is_when_it_reports_no_usage(edge: EdgeUnderTest, body: bytes, stream: bool) -> None:
    """A document for a request that asked for a stream too: some providers do not stream."""
    async with server(fixed(answered(body, "text/plain"))) as url:
        edge.put_provider(base_url=url)
        response = await ask(edge, stream=stream)
    assert (response.status, response.body) == (200, body)
    record = await edge.record()
    assert (record.outcome, record.usage_source) == ("success", "estimated")


async def test_no_other_target_is_tried_when_content_has_left(edge: EdgeUnderTest) -> None:
    async with second_target(edge) as second:
        response = await ask(edge, "cut_at=2&write=each", model="both", stream=True)
        assert error_of(response)["code"] == "stream_interrupted"
        assert second.calls.total == 0


async def test_no_other_target_is_tried_when_the_request_is_to_blame(edge: EdgeUnderTest) -> None:
    async with second_target(edge) as second:
        assert (await ask(edge, "status=422", model="both")).status == 422
        assert second.calls.total == 0


async def test_role_leaves_with_the_first_content_while_another_target_remains(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with second_target(edge), edge.client() as client:
        client.send(chat("gate_at=1&events=4&words=x", key=edge.key, model="both", stream=True))
        await until(lambda: provider.calls.total == 1 and provider.calls.recent[0].events_sent == 1)
        provider.release()
        response = await client.read_response()
        assert [json.loads(frame)["choices"][0]["delta"] for frame in response.frames[:-1]][:2] == [
            {"role": "assistant", "content": "", "refusal": None},
            {"content": "x"},
        ]
        assert response.header("x-sluicegate-fallbacks") is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (500, 500, (502, "all_providers_failed")),
        (429, 429, (429, "provider_rate_limited")),
        (429, 500, (502, "all_providers_failed")),
        (500, 429, (502, "all_providers_failed")),
    ],
)
async def test_last_word_is_a_refusal_when_every_target_fails(
    edge: EdgeUnderTest, first: int, second: int, expected: tuple[int, str]
) -> None:
    def refusing(status: int) -> bytes:
        return b"HTTP/1.1 %d X\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n" % status

    async with server(fixed(refusing(first))) as url, server(fixed(refusing(second))) as other:
        edge.put_provider("prv_1", base_url=url)
        edge.put_provider("prv_2", base_url=other)
        edge.put_model("both", providers=("prv_1", "prv_2"))
        response = await ask(edge, model="both")
    assert (response.status, response.code) == expected
    assert response.header("retry-after") == ("3" if expected[0] == 429 else None)
    record = edge.records[0]
    assert (record.outcome, len(record.attempts), record.cost_nano_usd) == ("provider_error", 2, 0)


# Silence.

QUICK = {"connect_timeout_ms": 300, "first_byte_timeout_ms": 300, "idle_timeout_ms": 300, "total_timeout_ms": 60_000}


@pytest.mark.parametrize(
    ("knobs", "fields", "stream"),
    [
        ("silence=request", {"first_byte_timeout_ms": 300}, True),
        ("silence=request", {"first_byte_timeout_ms": 300}, False),
        ("silence=head", {"idle_timeout_ms": 300}, True),
        ("head_ms=60000", {"first_byte_timeout_ms": 300}, True),
        ("write=bytes&pace_ms=10", {"total_timeout_ms": 300}, False),
    ],
)
async def test_silence_is_a_timeout_when_nothing_has_left(
    edge: EdgeUnderTest, provider: FakeProvider, knobs: str, fields: dict[str, Any], stream: bool
) -> None:
    edge.put_provider(**fields)
    response = await ask(edge, knobs, stream=stream)
    assert (response.status, response.code) == (504, "provider_timeout")
    record = edge.records[0]
    assert (record.outcome, record.status, record.error_code) == ("provider_error", 504, "provider_timeout")
    await until(lambda: provider.calls.recent[0].state == "cancelled", 1)


@pytest.mark.parametrize(
    ("knobs", "fields"),
    [
        ("silence_at=3&write=each", {"idle_timeout_ms": 300}),
        ("events=500&pace_ms=10", {"total_timeout_ms": 400}),
    ],
)
async def test_silence_breaks_the_stream_when_content_has_left(
    edge: EdgeUnderTest, provider: FakeProvider, knobs: str, fields: dict[str, Any]
) -> None:
    edge.put_provider(**fields)
    assert error_of(await ask(edge, knobs, stream=True))["code"] == "stream_interrupted"
    record = edge.records[0]
    assert (record.outcome, record.usage_source) == ("stream_interrupted", "partial")
    await until(lambda: provider.calls.recent[0].state == "cancelled", 1)


async def test_stream_may_last_longer_than_its_idle_time(edge: EdgeUnderTest) -> None:
    edge.put_provider(idle_timeout_ms=600)
    response = await ask(edge, "events=12&pace_ms=100", stream=True)
    assert response.frames[-1] == "[DONE]"
    assert edge.records[0].outcome == "success"


async def test_connecting_takes_no_longer_than_its_limit(edge: EdgeUnderTest) -> None:
    # A listener with a full backlog answers no SYN.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        edge.put_provider(base_url=f"http://127.0.0.1:{port}/v1", connect_timeout_ms=300)
        response = await ask(edge)
        for filler in fillers:
            filler.close()
    assert (response.status, response.code) == (504, "provider_timeout")
    assert edge.records[0].outcome == "provider_error"


# Kept connections.


@pytest.mark.parametrize("knobs", ["drop_next=1", "drop_idle=1", "close=1"])
@pytest.mark.parametrize("stream", [True, False])
async def test_connection_that_died_idle_is_replaced_unseen(
    edge: EdgeUnderTest, provider: FakeProvider, knobs: str, stream: bool
) -> None:
    for number in range(4):
        response = await ask(edge, knobs, stream=stream)
        assert response.status == 200
        assert edge.records[number].outcome == "success"
        assert edge.records[number].attempts == ()
    assert provider.calls.connections_total >= 4


async def test_connection_is_replaced_once_and_not_for_ever(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    assert (await ask(edge)).status == 200
    response = await ask(edge, "cut_head=1")
    assert (response.status, response.code) == (502, "provider_error")
    # The kept connection, and the one that replaced it.
    assert provider.calls.total == 3


async def test_bytes_on_an_idle_connection_end_it(edge: EdgeUnderTest) -> None:
    """What comes unasked must never be taken for the answer to the next request."""
    answered = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        text = b'{"number":%d}' % answered
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await reader.read(1 << 20)
        await reader.read(1 << 20)

    async with server(answer) as url:
        edge.put_provider(base_url=url)
        first = await ask(edge)
        await asyncio.sleep(0.15)
        second = await ask(edge)
    assert (first.json, second.json) == ({"number": 1}, {"number": 2})


async def test_body_behind_done_is_drained_or_cut(edge: EdgeUnderTest) -> None:
    """`[DONE]` ends the answer; a provider that goes on talking keeps no connection and no client."""
    endless = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"e\r\ndata: [DONE]\n\n\r\n"
    )
    async with server(fixed(endless, hangs=True)) as url:
        edge.put_provider(base_url=url)
        async with edge.client() as client:
            response = await client.ask(chat(key=edge.key, stream=True))
            assert response.body == b"data: [DONE]\n\n"
        pool = next(iter(edge.edge.pools._pools.values()))
        await until(lambda: all(pool.is_unused for pool in edge.edge.pools._pools.values()), 3)
        assert pool.take_idle() is None


async def test_route_without_usable_targets_says_so(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    edge.put(Route(id="rte_gone", name="gone", alias="gone", targets=(Target(model="mod_nowhere"),)))
    edge.put_provider("prv_off", enabled=False)
    edge.put_model("off", providers=("prv_off",))
    edge.put_provider("prv_bad", base_url="ftp://nowhere")
    edge.put_model("bad", providers=("prv_bad",))
    edge.put_provider("prv_sealed", credential=edge.key_ring.seal(b"x", b"another provider"))
    edge.put_model("sealed", providers=("prv_sealed",))
    edge.put_provider("prv_theirs", tenant="ten_other")
    edge.put_model("theirs", providers=("prv_theirs",))
    for model in ("gone", "off", "bad", "sealed", "theirs"):
        response = await ask(edge, model=model)
        assert (response.status, response.code) == (503, "no_provider_available"), model
        assert response.header("retry-after")
    assert provider.calls.total == 0
    assert [record.outcome for record in edge.records] == ["rejected"] * 5
