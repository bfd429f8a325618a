"""What reaches the client of what a provider sends, and what reaches the provider of what a client sends."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sluicegate.devstack.edge_process import PROVIDER_SECRET, EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.raw_http import Response, chat, post

WORDS = "Water finds its own level, says the sluice keeper"


def chunks_of(response: Response) -> list[ChatCompletionChunk]:
    """The frames of a stream, each valid for the SDK, up to its `[DONE]`."""
    assert response.frames[-1] == "[DONE]"
    frames = [frame for frame in response.frames[:-1] if not frame.startswith(":")]
    return [ChatCompletionChunk.model_validate_json(frame, strict=True) for frame in frames]


def text_of(response: Response) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks_of(response) for choice in chunk.choices)


def sdk(edge: EdgeUnderTest) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{edge.port}/v1", api_key=edge.key, max_retries=0)


async def ask(edge: EdgeUnderTest, knobs: str = "", **more: Any) -> Response:
    async with edge.client() as client:
        return await client.ask(chat(knobs, key=edge.key, **more))


# What the provider gets.


async def test_body_reaches_the_provider_but_for_model_and_stream_options(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    body = (
        b'{ "z":1e400, "model" : "demo" ,"messages":[{"role":"user","content":"\\u00e9 \xc3\xa9 \\"model\\": 1"}],'
        b'"stream":true,\n"tools":[{"model":"x"}], "unknown":{"b":[1,2.50,0.1e1]} }'
    )
    async with edge.client() as client:
        assert (await client.ask(post(None, key=edge.key, body=body))).status == 200
    sent = provider.calls.recent[0].body
    asked = b'"fake-gpt","stream_options":{"include_usage":true}'
    assert sent == body.replace(b'"demo"', asked)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include_usage": True}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None, "other": 1}, {"include_usage": True, "other": 1}),
        ({}, {"include_usage": True}),
        (None, {"include_usage": True}),
    ],
)
async def test_usage_is_asked_for_and_shown_only_to_who_asked(
    edge: EdgeUnderTest, provider: FakeProvider, options: object, expected: object
) -> None:
    response = await ask(edge, stream=True, stream_options=options)
    assert json.loads(provider.calls.recent[0].body)["stream_options"] == expected
    has_asked = bool(options and options.get("include_usage"))  # type: ignore[attr-defined]
    assert any(chunk.usage for chunk in chunks_of(response)) is has_asked
    assert edge.records[0].usage_source == "provider"


async def test_stream_options_are_not_sent_when_not_streamed_or_not_supported(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    await ask(edge)
    edge.put_provider(supports_stream_options=False)
    response = await ask(edge, stream=True)
    assert all(b"stream_options" not in call.body for call in provider.calls.recent)
    assert text_of(response) == WORDS
    record = edge.records[1]
    assert (record.usage_source, record.output_tokens) == ("estimated", -(-len(WORDS) // 4))
    assert record.input_tokens == edge.journal.admissions[1].input_tokens


async def test_only_useful_headers_reach_the_provider(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    passed = "idempotency-key: 7\r\nopenai-beta: b\r\nopenai-organization: o\r\nx-client-request-id: c\r\n"
    kept = "cookie: a=b\r\naccept-encoding: gzip\r\nx-stainless-os: Linux\r\nx-forwarded-for: 1\r\nte: trailers\r\n"
    await ask(edge, headers=passed + kept)
    call = provider.calls.recent[0]
    headers = dict(call.headers)
    assert len(headers) == len(call.headers)
    assert headers.pop(b"host") == edge.provider_url.removeprefix("http://").encode()
    assert headers.pop(b"authorization") == b"Bearer " + PROVIDER_SECRET
    assert headers.pop(b"content-length") == str(len(call.body)).encode()
    assert headers == {
        b"user-agent": b"sluicegate",
        b"accept": b"*/*",
        b"accept-encoding": b"identity",
        b"content-type": b"application/json",
        b"idempotency-key": b"7",
        b"openai-beta": b"b",
        b"openai-organization": b"o",
        b"x-client-request-id": b"c",
    }


async def test_query_reaches_the_provider(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    await ask(edge, path="/openai/v1/chat/completions?a=1&b=%20")
    assert provider.calls.recent[0].target == b"/v1/chat/completions?a=1&b=%20"


@pytest.mark.parametrize("padding", ["", "x" * 400_000], ids=["small", "large"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"model":"gpt-4","messages":[]', b'{"model":%b,"messages":[]'),
        (b'{"model":"","messages":[]', b'{"model":%b,"messages":[]'),
        (b' { "messages":[]', b' {"model":%b, "messages":[]'),
        (b'{"messages":[{"model":"x"}]', b'{"model":%b,"messages":[{"model":"x"}]'),
        (b'{"mode\\u006c":"fake-gpt","messages":[]', b'{"mode\\u006c":%b,"messages":[]'),
    ],
)
async def test_model_of_an_azure_path_wins(
    edge: EdgeUnderTest, provider: FakeProvider, before: bytes, after: bytes, padding: str, stream: bool
) -> None:
    edge.put_model("fake-gpt")
    more = b',"padding":"%b","stream":%b}' % (padding.encode(), b"true" if stream else b"false")
    path = "/openai/deployments/fake-gpt/chat/completions?api-version=2026-01-01"
    async with edge.client() as client:
        assert (await client.ask(post(None, key=edge.key, body=before + more, path=path))).status == 200
    value = b'"fake-gpt","stream_options":{"include_usage":true}' if stream else b'"fake-gpt"'
    call = provider.calls.recent[0]
    expected = (after % value) + more
    assert call.length == len(expected)
    assert call.body == expected[: len(call.body)]
    assert call.target == b"/v1/chat/completions"
    assert edge.records[0].requested_model == "fake-gpt"


async def test_azure_sdk_talks_through(edge: EdgeUnderTest) -> None:
    url = f"http://127.0.0.1:{edge.port}"
    async with openai.AsyncAzureOpenAI(azure_endpoint=url, api_key=edge.key, api_version="2026-01-01") as client:
        answer = await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}])
    assert answer.choices[0].message.content == WORDS


# What the client gets.


async def test_document_passes_with_its_cost_and_ids_of_our_own(edge: EdgeUnderTest) -> None:
    response = await ask(edge, "cached_tokens=4&reasoning_tokens=2")
    completion = ChatCompletion.model_validate_json(response.body, strict=True)
    assert completion.choices[0].message.content == WORDS
    assert completion.model == "fake-gpt"
    record = edge.records[0]
    assert response.header("x-request-id") == record.request_id
    assert record.upstream_request_id == "fake-1"
    assert response.header("x-sluicegate-provider") == "fake"
    assert response.header("x-sluicegate-model") == "fake-gpt"
    assert response.header("x-sluicegate-fallbacks") is None
    assert response.header("openai-processing-ms") == "1"
    assert response.header("x-sluicegate-cost-usd") == "0.000041000"
    assert record.cost_nano_usd == 41_000
    assert (record.outcome, record.status, record.usage_source) == ("success", 200, "provider")
    assert (record.input_tokens, record.cached_input_tokens) == (11, 4)
    assert (record.output_tokens, record.reasoning_tokens) == (10, 2)
    assert (record.attempts, record.fallbacks) == ((), 0)
    assert record.first_token_us is not None
    assert record.provider_us is not None


async def test_stream_passes_and_has_its_times(edge: EdgeUnderTest) -> None:
    response = await ask(edge, stream=True)
    assert text_of(response) == WORDS
    assert response.header("content-type") == "text/event-stream; charset=utf-8"
    record = edge.records[0]
    assert response.header("x-request-id") == record.request_id
    assert (record.outcome, record.streamed, record.usage_source) == ("success", True, "provider")
    assert record.first_token_us is not None
    assert record.provider_us is not None
    assert 0 <= record.first_token_us <= record.duration_us


@pytest.mark.parametrize("framing", ["lf", "crlf", "cr"])
@pytest.mark.parametrize("write", ["once", "each", "bytes"])
async def test_stream_is_understood_in_any_framing(edge: EdgeUnderTest, framing: str, write: str) -> None:
    response = await ask(edge, f"framing={framing}&write={write}&comments=1&words=@awkward&id_lines=1", stream=True)
    async with sdk(edge) as client:
        text = ""
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_body={"fake": f"framing={framing}&write={write}&comments=1&words=@awkward&id_lines=1"},
        )
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert "a\u2028b" in text
    assert "data: [DONE]" in text
    assert b"id: " not in response.body
    assert [record.usage_source for record in edge.records] == ["provider", "provider"]


@pytest.mark.parametrize(
    ("shape", "source", "tokens"),
    [
        ("ask", "provider", (11, 10)),
        ("null", "provider", (11, 10)),
        ("content", "provider", (11, 10)),
        ("always", "provider", (11, 10)),
        ("groq", "provider", (11, 10)),
        ("cumulative", "provider", (11, 12)),
        ("none", "estimated", None),
        ("only_null", "estimated", None),
    ],
)
async def test_usage_is_recorded_in_any_shape(
    edge: EdgeUnderTest, shape: str, source: str, tokens: tuple[int, int] | None
) -> None:
    response = await ask(edge, f"usage={shape}", stream=True)
    assert text_of(response) == WORDS
    record = edge.records[0]
    assert record.usage_source == source
    expected = tokens or (edge.journal.admissions[0].input_tokens, -(-len(WORDS) // 4))
    assert (record.input_tokens, record.output_tokens) == expected
    assert record.cost_nano_usd == expected[0] * 1_000 + expected[1] * 3_000


async def test_events_of_several_data_lines_and_tools_pass(edge: EdgeUnderTest) -> None:
    response = await ask(edge, "multiline=1&tools=2&prompt_filter=1", stream=True)
    assert response.body.count(b'"arguments"') > 2
    assert edge.records[0].usage_source == "provider"


async def test_first_event_leaves_at_once(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    """The provider waits behind each event until it is let on, so nothing can be held back."""
    async with edge.client() as client:
        client.send(chat("events=3&gate_at=1&first=content&words=one|two", key=edge.key, stream=True))
        await client.until(b'"content":"one"')
        assert provider.calls.recent[0].events_sent == 1
        provider.release()
        await client.until(b"[DONE]")


async def test_events_that_arrive_together_leave_in_one_chunk(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        client.send(chat("events=12&write=once", key=edge.key, stream=True))
        await client.read_head()
        chunk = await client.read_chunk()
        assert chunk.count(b"\n\n") == 13
        assert await client.read_chunk() == b""


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "knobs",
    ["early=100", "early=103", "close=1", "gzip=1", "length=none", "write=bytes", "head_ms=5", "chunks=whole", "length=none&gzip=1&close=1"],
)  # fmt: skip
async def test_answer_is_whole_in_any_http_form(edge: EdgeUnderTest, knobs: str, stream: bool) -> None:
    async with edge.client() as client:
        for number in range(2):
            response = await client.ask(chat(knobs, key=edge.key, stream=stream))
            assert response.status == 200
            assert response.header("content-encoding") is None
            text = (
                text_of(response)
                if stream
                else ChatCompletion.model_validate_json(response.body).choices[0].message.content
            )
            assert text == WORDS
            assert edge.records[number].outcome == "success"
            assert edge.records[number].usage_source == "provider"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("knobs", ["word_bytes=300000", "word_bytes=1200000", "word_bytes=1200000&length=none"])
async def test_large_document_passes(edge: EdgeUnderTest, knobs: str, version: str) -> None:
    async with edge.client() as client:
        request = chat(knobs, key=edge.key)
        response = await client.ask(request.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
    content = ChatCompletion.model_validate_json(response.body).choices[0].message.content
    assert content is not None
    assert len(content) > 2_000_000
    record = edge.records[0]
    assert (record.outcome, record.usage_source) == ("success", "provider")
    assert (record.input_tokens, record.output_tokens) == (11, 10)


async def test_many_choices_of_connection_are_used_again(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        for number in range(20):
            assert (await client.ask(chat(key=edge.key, stream=number % 2 == 0))).status == 200
    assert provider.calls.connections_total == 1


async def test_connections_are_limited_and_waited_for(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    edge.put_provider(max_connections=2)
    responses = await asyncio.gather(*(ask(edge, "ttft_ms=5") for _ in range(12)))
    assert [response.status for response in responses] == [200] * 12
    assert provider.calls.connections_total == 2


async def test_slow_reader_pauses_the_provider_and_loses_nothing(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    """64 MB would pass; while the client reads nothing, only what buffers hold is taken from the provider."""
    async with edge.client() as client:
        transport: Any = client.writer.transport
        transport.pause_reading()
        client.send(chat("events=64&word_bytes=1000000&write=each", key=edge.key, stream=True))
        await until(lambda: provider.calls.total == 1)
        call = provider.calls.recent[0]
        sent = -1
        while sent != call.events_sent:
            sent = call.events_sent
            await asyncio.sleep(0.2)
        assert 0 < sent < 40
        transport.resume_reading()
        response = await client.read_response()
    assert len(text_of(response)) >= 62 * 1_000_000
    assert (await edge.record()).outcome == "success"


@pytest.mark.parametrize("edge_settings", [{"write_timeout_s": 0.3}])
async def test_client_that_reads_nothing_is_given_up(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        transport: Any = client.writer.transport
        transport.pause_reading()
        client.send(chat("events=64&word_bytes=1000000&write=each", key=edge.key, stream=True))
        record = await edge.record()
        assert (record.outcome, record.status) == ("client_cancelled", 499)
        await until(lambda: provider.calls.recent[0].state == "cancelled")
        await until(lambda: edge.edge.metrics.open_connections == 0)


@pytest.mark.parametrize("edge_settings", [{"write_timeout_s": 0.3, "keep_alive_timeout_s": 0.3}])
async def test_client_that_does_not_take_its_document_is_given_up(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        transport: Any = client.writer.transport
        transport.pause_reading()
        # Two answers of 7 MB: more than the kernel's buffers hold.
        client.send(chat("word_bytes=700000", key=edge.key) * 3)
        await until(lambda: edge.edge.metrics.open_connections == 0)
        assert all(record.outcome == "success" for record in edge.records)


async def test_no_next_answer_is_worked_out_when_the_client_takes_none(edge: EdgeUnderTest) -> None:
    async with edge.client() as client:
        transport: Any = client.writer.transport
        transport.pause_reading()
        client.send(chat("word_bytes=700000", key=edge.key) * 5)
        count = -1
        while count != len(edge.records):
            count = len(edge.records)
            await asyncio.sleep(0.2)
        assert 0 < count < 5
        transport.resume_reading()
        for _ in range(5):
            assert (await client.read_response()).status == 200
        assert len(edge.records) == 5
