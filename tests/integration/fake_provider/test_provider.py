"""The provider over real sockets: order, failures, and what it tells about its calls."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest

from sluicegate.devstack.fake_provider.server import FakeProvider, running


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with running() as provider:
        yield provider


class Client:
    """Raw bytes in, raw bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, text: str, *, stream: bool = True, headers: str = "", **more: Any) -> None:
        self.writer.write(request({"model": f"fake-gpt?{text}", "stream": stream, **more}, headers))

    async def until(self, ending: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(ending), 10)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 10)

    async def document(self) -> tuple[bytes, Any]:
        head = await self.until(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, json.loads(await asyncio.wait_for(self.reader.readexactly(length), 10))

    async def ask(self, method: str, target: str) -> Any:
        self.writer.write(f"{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        return (await self.document())[1]


def request(content: dict[str, Any], headers: str = "") -> bytes:
    body = json.dumps(content).encode()
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body
    )


@pytest.fixture
async def connect(provider: FakeProvider) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    opened: list[Client] = []

    async def connect_one() -> Client:
        opened.append(Client(*await asyncio.open_connection("127.0.0.1", provider.port)))
        return opened[-1]

    yield connect_one
    for client in opened:
        client.writer.close()


async def eventually(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


Connect = Callable[[], Awaitable[Client]]
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


async def test_sdk_reads_streams_documents_and_the_model_list(provider: FakeProvider) -> None:
    async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
        stream = await client.chat.completions.create(
            model="fake-gpt?events=5&words=a|b|c", messages=[], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(model="fake-gpt", messages=[], extra_body={"fake": "words=x|y"})
        models = [model.id async for model in client.models.list()]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "abc"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert whole.choices[0].message.content == "xyxyxyxyxy"
    assert "fake-gpt" in models


async def test_pipelined_requests_are_answered_in_order_when_the_first_is_slow(connect: Connect) -> None:
    client = await connect()
    client.send("write=each&pace_ms=5&words=first")
    client.send("words=second")
    client.send("words=third", stream=False)
    assert b"first" in await client.until(_END)
    assert b"second" in await client.until(_END)
    assert (await client.document())[1]["choices"][0]["message"]["content"].startswith("third")


async def test_headers_set_knobs(connect: Connect) -> None:
    client = await connect()
    client.send("events=12", headers="x-fake-events: 3\r\nX-Fake-Words: w\r\n")
    assert (await client.until(_END)).count(b"data: {") == 3


async def test_unknown_knob_is_a_400_that_names_it(connect: Connect) -> None:
    client = await connect()
    client.send("evnts=3")
    head, content = await client.document()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "evnts" in content["error"]["message"]


async def test_gate_holds_the_stream_until_it_is_released(connect: Connect, provider: FakeProvider) -> None:
    client, control = await connect(), await connect()
    client.send("events=6&gate_at=2")
    assert (await client.until(b'"Water"},"logprobs":null,"finish_reason":null}]}\n\n\r\n')).count(b"data: ") == 2
    await eventually(lambda: provider.calls.recent[-1].events_sent == 2)
    assert (await control.ask("POST", "/_fake/release"))["open"] == 1
    assert (await client.until(_END)).count(b"data: {") == 4


async def test_call_is_cancelled_when_the_caller_leaves_a_silent_answer(
    connect: Connect, provider: FakeProvider
) -> None:
    for silence in ("silence=request", "silence=head", "silence_at=2"):
        client = await connect()
        client.send(silence)
        if silence != "silence=request":
            await client.until(b"\r\n\r\n")
        await eventually(lambda: provider.calls.open == 1)
        client.writer.close()
        await eventually(lambda: provider.calls.recent[-1].state == "cancelled")
    assert provider.calls.as_json()["cancelled"] == 3
    assert provider.calls.open == 0


@pytest.mark.parametrize(
    ("text", "events"), [("cut_at=2", 2), ("cut_at=2&write=each", 2), ("cut_at=0", 0), ("cut_at=3&cut_mid=1", 4)]
)
async def test_connection_ends_after_event_k_when_cut(
    connect: Connect, provider: FakeProvider, text: str, events: int
) -> None:
    client = await connect()
    client.send(text)
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"data: ") == events
    assert provider.calls.recent[-1].state == "cut"


async def test_connection_is_reset_when_the_cut_says_so(connect: Connect) -> None:
    client = await connect()
    client.send("cut_at=2&cut=rst&write=each&pace_ms=1")
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_connection_ends_without_a_byte_when_the_head_is_cut(connect: Connect) -> None:
    client = await connect()
    client.send("cut_head=1")
    assert await client.rest() == b""


async def test_kept_connection_is_closed_on_the_next_request_when_it_drops(
    connect: Connect, provider: FakeProvider
) -> None:
    client = await connect()
    client.send("drop_next=1")
    await client.until(_END)
    client.send("")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await client.until(_END)
    assert provider.calls.total == 1


async def test_garbage_is_not_http(connect: Connect) -> None:
    client = await connect()
    client.send("garbage=http")
    assert not (await client.rest()).startswith(b"HTTP/")


@pytest.mark.parametrize("text", ["close=1", "length=none", "length=none&pace_ms=1", "garbage=truncated"])
async def test_answer_ends_with_the_close_when_asked(connect: Connect, text: str) -> None:
    client = await connect()
    client.send(text)
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"connection: close\r\n" in answer) == (text != "garbage=truncated")


async def test_first_calls_fail_and_later_ones_succeed(connect: Connect) -> None:
    client = await connect()
    statuses = []
    for _ in range(4):
        client.send("fail_first=2&status=503&retry_after=1", stream=False)
        statuses.append((await client.document())[0].split()[1])
    assert statuses == [b"503", b"503", b"200", b"200"]


@pytest.mark.parametrize("status", [300, 302, 307, 400, 429, 500, 599])
@pytest.mark.parametrize("stream", [True, False])
async def test_status_is_the_one_that_was_asked_for(connect: Connect, status: int, stream: bool) -> None:
    client = await connect()
    client.send(f"status={status}", stream=stream)
    head, _ = await client.document()
    assert head.startswith(b"HTTP/1.1 %d " % status)


async def test_stream_options_are_refused_when_the_provider_does_not_know_them(connect: Connect) -> None:
    client = await connect()
    client.send("reject_stream_options=1", stream_options={"include_usage": True})
    head, content = await client.document()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert content["error"]["param"] == "stream_options"
    client.send("reject_stream_options=1")
    await client.until(_END)


async def test_records_hold_the_bytes_that_arrived(connect: Connect) -> None:
    client, control = await connect(), await connect()
    big = {"model": "fake-gpt", "text": "é" * 50_000}
    client.writer.write(request(big, "X-Mixed-Case: Value\r\n"))
    await client.document()
    record = (await control.ask("GET", "/_fake/requests?last=1"))["requests"][0]
    sent = json.dumps(big).encode()
    assert record["body_bytes"] == len(sent)
    assert record["body_sha256"] == hashlib.sha256(sent).hexdigest()
    assert ["x-mixed-case", "Value"] in record["headers"]
    assert (record["state"], record["status"], record["target"]) == ("done", 200, "/v1/chat/completions")


async def test_reset_forgets_calls_and_late_ends_of_old_calls(connect: Connect, provider: FakeProvider) -> None:
    client, control = await connect(), await connect()
    client.send("silence=request")
    await eventually(lambda: provider.calls.open == 1)
    assert (await control.ask("POST", "/_fake/reset"))["calls"] == 0
    client.writer.close()
    await eventually(lambda: provider.calls.connections_open == 1)
    stats = await control.ask("GET", "/_fake/stats")
    assert (stats["calls"], stats["open"], stats["cancelled"]) == (0, 0, 0)


async def test_sending_stops_when_the_reader_does_not_read(connect: Connect, provider: FakeProvider) -> None:
    client = await connect()
    client.send("events=100000&word_bytes=1000&write=each")
    await client.until(b"\r\n\r\n")
    transport = client.writer.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    seen = -1
    while seen != provider.calls.recent[-1].events_sent:
        seen = provider.calls.recent[-1].events_sent
        await asyncio.sleep(0.2)
    assert 0 < seen < 50_000
    transport.resume_reading()
    while b"[DONE]" not in await asyncio.wait_for(client.reader.read(1 << 20), 10):
        pass
    assert provider.calls.recent[-1].events_sent == 100_000


async def test_expect_continue_is_answered_before_the_body(connect: Connect) -> None:
    client = await connect()
    body = b'{"model":"fake-gpt"}'
    client.writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(body)
    assert (await client.document())[0].startswith(b"HTTP/1.1 200 OK")


async def test_early_answer_precedes_the_real_one(connect: Connect) -> None:
    client = await connect()
    client.send("early=103")
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 ")
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_malformed_request_is_a_400_and_the_end(connect: Connect) -> None:
    client = await connect()
    client.writer.write(b"BROKEN\r\n\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_unknown_path_is_a_404(connect: Connect) -> None:
    client = await connect()
    assert (await client.ask("GET", "/v1/files"))["error"]["code"] == "not_found"
