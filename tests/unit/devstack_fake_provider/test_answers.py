"""Plans as bytes: every event is valid for the SDK's own types, under every knob that keeps the answer whole."""

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sluicegate.devstack.fake_provider import answers, payloads
from sluicegate.devstack.fake_provider.answers import Chat, Ending, Plan
from sluicegate.devstack.fake_provider.knobs import DEFAULT, parse

WHOLE_STREAMS = [
    "",
    "events=1",
    "events=2",
    "events=2&first=content",
    "events=200",
    "first=content",
    "tools=1",
    "tools=3",
    "prompt_filter=1",
    "words=@awkward",
    "words=@surrogates",
    "words=uno|dos",
    "word_bytes=500",
    "framing=crlf",
    "framing=cr",
    "comments=1",
    "multiline=1",
    "id_lines=1",
    "usage=none",
    "usage=null",
    "usage=only_null",
    "usage=content",
    "usage=cumulative",
    "usage=always",
    "usage=groq",
    "chunks=whole",
    "length=none",
    "gzip=1",
    "gzip=1&length=none",
    "close=1",
    "early=103",
    "write=each",
    "write=bytes",
    "pace_ms=1&jitter_ms=1&ttft_ms=5",
    "head_ms=1",
]


def plan_of(text: str, *, wants_usage: bool = False) -> Plan:
    options = {"include_usage": msgspec.Raw(b"true")} if wants_usage else None
    return answers.stream(Chat("fake-gpt", stream=True, stream_options=options), "fake-gpt", parse(text))


def body_of(plan: Plan) -> bytes:
    """The stream's bytes without HTTP's chunks and without compression."""
    raw = b"".join(step.data for step in plan.steps())
    if plan.whole is not None:
        assert raw == plan.whole
    if b"transfer-encoding: chunked" in plan.head[1]:
        raw, rest = dechunked(raw)
        assert rest == b""
    if plan.knobs.gzip:
        unpacker = zlib.decompressobj(wbits=31)
        raw = unpacker.decompress(raw)
        assert unpacker.eof
    return raw


def dechunked(raw: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        body, raw = body + raw[:length], raw[length + 2 :]
        if length == 0:
            return body, raw


def events_of(body: bytes) -> list[str]:
    """The data of each event, by the letter of the SSE specification."""
    text = body.decode().replace("\r\n", "\n").replace("\r", "\n")
    events = []
    for block in text.split("\n\n"):
        data = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if data:
            events.append("\n".join(data))
    return events


def chunks_of(plan: Plan) -> list[ChatCompletionChunk]:
    *chunks, done = events_of(body_of(plan))
    assert done == "[DONE]"
    return [ChatCompletionChunk.model_validate(parse_json(chunk), strict=True) for chunk in chunks]


def joined(words: list[str]) -> str:
    """The words as one text; halves of a surrogate pair meet."""
    return "".join(words).encode("utf-16", "surrogatepass").decode("utf-16")


def parse_json(text: str) -> Any:
    """Python's own parser, because pydantic's refuses lone surrogates, which some providers send."""
    return json.loads(text)


@pytest.mark.parametrize("wants_usage", [False, True])
@pytest.mark.parametrize("text", WHOLE_STREAMS)
def test_stream_is_valid_for_the_sdk_under_every_knob(text: str, wants_usage: bool) -> None:
    chunks = chunks_of(plan_of(text, wants_usage=wants_usage))
    with_choices = [chunk for chunk in chunks if chunk.choices]
    knobs = parse(text)
    if not knobs.tools:
        assert len(with_choices) == knobs.events
    assert with_choices[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in with_choices[:-1]] == [None] * (len(with_choices) - 1)
    assert with_choices[-1].choices[0].finish_reason == ("tool_calls" if knobs.tools else "stop")


@pytest.mark.parametrize(
    "text", ["", "events=1", "first=content", "words=@awkward", "words=@surrogates", "word_bytes=40"]
)
def test_stream_says_what_the_json_answer_says(text: str) -> None:
    chunks = chunks_of(plan_of(text))
    streamed = joined([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices])
    encoded = msgspec.json.encode(payloads.completion(parse(text), "fake-gpt")).decode()
    whole = ChatCompletion.model_validate(parse_json(encoded), strict=True)
    assert streamed == whole.choices[0].message.content
    assert streamed


def test_tool_call_arguments_join_to_json_when_deltas_interleave() -> None:
    arguments = {0: "", 1: ""}
    order = []
    for chunk in chunks_of(plan_of("tools=2")):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            arguments[call.index] += call.function.arguments or ""
            order.append(call.index)
    assert {index: parse_json(text) for index, text in arguments.items()} == {
        0: {"city": "Paris"},
        1: {"city": "Paris"},
    }
    assert order == [0, 1] * 4


@pytest.mark.parametrize("text", ["", "tools=2", "usage=none", "usage=only_null"])
def test_completion_is_valid_for_the_sdk(text: str) -> None:
    encoded = msgspec.json.encode(payloads.completion(parse(text), "fake-gpt"))
    completion = ChatCompletion.model_validate_json(encoded, strict=True)
    assert (completion.usage is None) == (text in {"usage=none", "usage=only_null"})


def test_model_list_is_valid_for_the_sdk() -> None:
    for item in payloads.models()["data"]:
        Model.model_validate(item, strict=True)


@pytest.mark.parametrize(
    ("shape", "wants_usage", "expected"),
    [
        ("ask", False, []),
        ("ask", True, ["alone"]),
        ("none", True, []),
        ("null", False, ["null"] * 4),
        ("null", True, ["null"] * 4 + ["alone"]),
        ("only_null", True, ["null"] * 4),
        ("content", False, ["with content"]),
        ("cumulative", False, ["with content"] * 4),
        ("always", False, ["alone"]),
        ("groq", False, ["x_groq"]),
        ("groq", True, ["x_groq", "alone"]),
    ],
)
def test_usage_comes_in_the_shape_that_was_asked_for(shape: str, wants_usage: bool, expected: list[str]) -> None:
    found = []
    for text in events_of(body_of(plan_of(f"events=4&usage={shape}", wants_usage=wants_usage)))[:-1]:
        chunk = parse_json(text)
        if "x_groq" in chunk:
            found.append("x_groq")
        if "usage" in chunk:
            found.append("null" if chunk["usage"] is None else "with content" if chunk["choices"] else "alone")
    assert found == expected


def test_cumulative_usage_grows_event_by_event() -> None:
    chunks = chunks_of(plan_of("events=4&usage=cumulative"))
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [1, 2, 3, 4]


def test_plan_is_one_prebuilt_write_when_nothing_waits() -> None:
    assert plan_of("").whole is not None
    assert plan_of("pace_ms=1").whole is None
    assert plan_of("write=each").whole is None
    assert plan_of("events=100000").whole is None


def test_each_event_is_a_write_of_its_own_when_asked() -> None:
    steps = list(plan_of("events=5&write=each", wants_usage=True).steps())
    assert [step.events for step in steps] == [1, 2, 3, 4, 5]
    assert steps[-1].data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_raw_line_separators_stand_in_the_json_unescaped() -> None:
    body = body_of(plan_of("events=12&words=@awkward"))
    for character in ("\u2028", "\u2029", "\u0085", "\U0001f9ea"):
        assert character.encode() in body


@pytest.mark.parametrize(("text", "events"), [("cut_at=0", 0), ("cut_at=3", 3), ("cut_at=3&cut_mid=1", 3)])
def test_cut_stream_has_no_end(text: str, events: int) -> None:
    plan = plan_of(text)
    raw = b"".join(step.data for step in plan.steps())
    assert raw.count(b"\n\n") == events
    assert not raw.endswith(b"0\r\n\r\n")
    assert ("cut_mid" in text) == (raw.count(b"data: ") == events + 1)
    assert plan.ending is Ending.CLOSE


def test_error_frame_ends_a_stream_that_fails_midway() -> None:
    *chunks, error = events_of(body_of(plan_of("error_at=2&status=429&code=rate_limit_exceeded")))
    assert len(chunks) == 2
    assert parse_json(error)["error"]["code"] == "rate_limit_exceeded"


def test_gzip_document_unpacks_to_the_plain_one() -> None:
    content = payloads.completion(DEFAULT, "fake-gpt")
    plain = answers.document(200, content, DEFAULT).whole
    packed = answers.document(200, content, parse("gzip=1"))
    assert packed.whole is not None
    assert gzip.decompress(packed.whole) == plain
    assert b"content-encoding: gzip" in packed.head[1]


def test_refusal_names_its_status_and_retry_after() -> None:
    plan = answers.refusal(429, "no", parse("retry_after=2"), code="rate_limit_exceeded")
    assert plan.head[0].startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nretry-after: 2\r\n" in plan.head[1]
    assert plan.whole is not None
    assert parse_json(plan.whole.decode())["error"]["type"] == "rate_limit_error"
