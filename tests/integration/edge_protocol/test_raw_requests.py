"""What the edge answers to raw bytes: one table, over a socket as it is, and cut in two at every offset.

A row is a name, the bytes, the answers, and what becomes of the connection. Where it is kept, the next
request on it must work; where it is closed, the end must come at once and not by a time limit.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

import pytest
import pytest_asyncio

from sluicegate.contracts.keys import new_key
from sluicegate.devstack.edge_process import EdgeUnderTest, running_edge, until
from sluicegate.devstack.fake_provider.server import running
from sluicegate.devstack.raw_http import RawClient, Response

Answer = tuple[int, str | None]
Fate = Literal["kept", "closed"]

KEY = new_key()
UNKNOWN_KEY = new_key()
CHAT = b'{"model":"demo","messages":[]}'
SETTINGS = {"max_header_bytes": 8_192, "max_headers": 40, "max_body_bytes": 8_192, "max_buffered_bytes": 65_536}

OK: Answer = (200, None)
CONTINUE: Answer = (100, None)


class Case(NamedTuple):
    name: str
    request: bytes
    answers: tuple[Answer, ...]
    fate: Fate = "kept"


def chat(
    body: bytes = CHAT,
    *headers: str,
    key: str | None = f"authorization: Bearer {KEY}",
    line: str = "POST /v1/chat/completions HTTP/1.1",
    host: str | None = "host: edge",
    length: str | None = "",
) -> bytes:
    """A chat request; `length=None` leaves out the content-length."""
    lines = [line, host, key, *headers]
    if length is not None:
        lines.append(f"content-length: {length or len(body)}")
    return "\r\n".join([line for line in lines if line is not None] + ["", ""]).encode() + body


def plain(line: str, *headers: str, key: str | None = f"authorization: Bearer {KEY}") -> bytes:
    """A request without a body."""
    return chat(b"", *headers, key=key, line=line, length=None)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", key: str | None = f"authorization: Bearer {KEY}") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
    return chat(body, "transfer-encoding: chunked", key=key, length=None)


def fields(**values: object) -> bytes:
    return chat(json.dumps({"model": "demo", "messages": [], **values}).encode())


MODELS = plain("GET /v1/models HTTP/1.1")
BAD_JSON: Answer = (400, "invalid_json")
BAD: Answer = (400, "invalid_request")
NO_KEY: Answer = (401, "missing_key")
BAD_KEY: Answer = (401, "invalid_key")
NOT_FOUND: Answer = (404, "not_found")
UNSERVED: Answer = (404, "endpoint_not_supported")
WRONG_METHOD: Answer = (405, "method_not_allowed")
WRONG_MEDIA: Answer = (415, "unsupported_media_type")
TOO_LARGE: Answer = (413, "request_too_large")
HEAD_TOO_LARGE: Answer = (431, "headers_too_large")
UNKNOWN_CODING: Answer = (501, "not_implemented")
H2C = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")

CASES = [
    # Good requests, in all the forms they may have.
    Case("plain", chat(), (OK,)),
    Case("streamed", fields(stream=True), (OK,)),
    Case("no content type", chat(CHAT), (OK,)),
    Case("json with charset", chat(CHAT, "content-type: application/json; charset=utf-8"), (OK,)),
    Case("identity encoding", chat(CHAT, "content-encoding: identity"), (OK,)),
    Case("upper-case names", chat(CHAT, key=f"AUTHORIZATION: BEARER {KEY}", host="HOST: EDGE"), (OK,)),
    Case("underscores in a header name", chat(CHAT, "x_custom_header: 1", "user_id: 2"), (OK,)),
    Case("header without a value", chat(CHAT, "x-empty:"), (OK,)),
    Case("raw utf-8 in a header", chat(CHAT, "x-name: Jürgen"), (OK,)),
    Case("empty lines before the request", b"\r\n\r\n" + chat(), (OK,)),
    Case("query string", chat(line="POST /v1/chat/completions?a=b&c=%20 HTTP/1.1"), (OK,)),
    Case("fragment", chat(line="POST /v1/chat/completions#here HTTP/1.1"), (OK,)),
    Case("path without v1", chat(line="POST /chat/completions HTTP/1.1"), (OK,)),
    Case("path under openai", chat(line="POST /openai/v1/chat/completions HTTP/1.1"), (OK,)),
    Case("azure", chat(line="POST /openai/deployments/demo/chat/completions?api-version=1 HTTP/1.1", key=f"api-key: {KEY}"), (OK,)),
    Case("azure without a model", chat(b' {"messages":[]}', line="POST /openai/deployments/de%6Do/chat/completions HTTP/1.1"), (OK,)),
    Case("azure with an unknown model", chat(line="POST /openai/deployments/x/chat/completions HTTP/1.1"), ((404, "model_not_found"),)),
    Case("azure without a deployment", chat(line="POST /openai/deployments//chat/completions HTTP/1.1"), (UNSERVED,)),
    Case("azure embeddings", chat(line="POST /openai/deployments/demo/embeddings HTTP/1.1"), (UNSERVED,)),
    Case("GET of azure", plain("GET /openai/deployments/demo/chat/completions HTTP/1.1"), (WRONG_METHOD,)),
    Case("absolute form", chat(line="POST http://edge/v1/chat/completions?x=1 HTTP/1.1"), (OK,)),
    Case("absolute form of the list", plain("GET http://edge:80/v1/models HTTP/1.1"), (OK,)),
    Case("white space around the body", chat(b" \r\n\t" + CHAT + b"\r\n "), (OK,)),
    Case("escaped member name", chat(b'{"\\u006dodel":"demo","messages":[]}'), (OK,)),
    Case("unknown fields", fields(made_up={"a": [1, 2.5, None]}), (OK,)),
    Case("deep but not too deep", chat(b'{"model":"demo","messages":[],"x":%b%b}' % (b"[" * 400, b"]" * 400)), (OK,)),
    Case("list of models", MODELS, (OK,)),
    Case("list of models with a body", chat(b"12345", line="GET /v1/models HTTP/1.1"), (OK,)),
    Case("one model", plain("GET /v1/models/demo HTTP/1.1"), (OK,)),
    # Where the key may stand.
    Case("x-api-key", chat(CHAT, key=f"x-api-key: {KEY}"), (OK,)),
    Case("api-key", chat(CHAT, key=f"api-key: {KEY}"), (OK,)),
    Case("basic authorization beside api-key", chat(CHAT, "authorization: Basic eA==", key=f"api-key: {KEY}"), (OK,)),
    Case("no key", chat(key=None), (NO_KEY,)),
    Case("empty key", chat(key="authorization: Bearer "), (NO_KEY,)),
    Case("basic authorization", chat(key="authorization: Basic eA=="), (NO_KEY,)),
    Case("unknown key", chat(key=f"authorization: Bearer {UNKNOWN_KEY}"), (BAD_KEY,)),
    Case("mistyped key", chat(key=f"authorization: Bearer {KEY[:-1]}_"), (BAD_KEY,)),
    Case("injection as key", chat(key="authorization: Bearer ' OR '1'='1' --"), (BAD_KEY,)),
    Case("unknown key, no body", chat(b"", key="x-api-key: x", length=None), (BAD_KEY,)),
    Case("unknown key, list", plain("GET /v1/models HTTP/1.1", key="x-api-key: x"), (BAD_KEY,)),
    Case("no key, chunked", chunked(CHAT, key=None), (NO_KEY,), "closed"),
    # Framing.
    Case("chunked", chunked(CHAT), (OK,)),
    Case("chunked by bytes", chunked(*(CHAT[i : i + 1] for i in range(len(CHAT)))), (OK,)),
    Case("chunked with trailers", chunked(CHAT, end=b"0\r\nx-sum: 1\r\n\r\n"), (OK,)),
    Case("chunk extension", chat(b"1e;a=b\r\n%b\r\n0\r\n\r\n" % CHAT, "transfer-encoding: chunked", length=None), (OK,)),
    Case("bad chunk size", chat(b"zz\r\n", "transfer-encoding: chunked", length=None), (BAD,), "closed"),
    Case("bad chunk end", chat(b"2\r\n{}xx0\r\n\r\n", "transfer-encoding: chunked", length=None), (BAD,), "closed"),
    Case("bad chunk, no key", chat(b"zz\r\n", "transfer-encoding: chunked", length=None, key=None), (NO_KEY,), "closed"),
    Case("gzip, chunked", chat(b"0\r\n\r\n", "transfer-encoding: gzip, chunked", length=None), (UNKNOWN_CODING,), "closed"),
    Case("gzip and chunked in two lines", chat(b"0\r\n\r\n", "transfer-encoding: gzip", "transfer-encoding: chunked", length=None), (UNKNOWN_CODING,), "closed"),
    Case("two lengths", chat(CHAT, "content-length: 5"), (BAD,), "closed"),
    Case("length and chunked", chat(b"0\r\n\r\n", "transfer-encoding: chunked"), (BAD,), "closed"),
    Case("negative length", chat(length="-1"), (BAD,), "closed"),
    Case("length that is no number", chat(length="many"), (BAD,), "closed"),
    Case("length beyond all numbers", chat(length="9" * 30), (BAD,), "closed"),
    Case("length too short", chat(CHAT, length="10"), (BAD_JSON, BAD), "closed"),
    Case("no length", chat(b"", length=None), (BAD_JSON,)),
    Case("connection: close", chat(CHAT, "connection: close"), (OK,), "closed"),
    Case("connection: close, streamed", chat(b'{"model":"demo","messages":[],"stream":true}', "connection: close"), (OK,), "closed"),
    Case("connection: close, list", plain("GET /v1/models HTTP/1.1", "connection: close"), (OK,), "closed"),
    Case("http/1.0", chat(line="POST /v1/chat/completions HTTP/1.0"), (OK,), "closed"),
    Case("http/1.0, streamed", chat(b'{"model":"demo","messages":[],"stream":true}', line="POST /v1/chat/completions HTTP/1.0"), (OK,), "closed"),
    Case("http/1.0 without host", chat(line="POST /v1/chat/completions HTTP/1.0", host=None), (OK,), "closed"),
    Case("http/1.0 with keep-alive", chat(CHAT, "connection: keep-alive", line="POST /v1/chat/completions HTTP/1.0"), (OK,), "closed"),
    Case("http/1.0 list", plain("GET /v1/models HTTP/1.0"), (OK,), "closed"),
    # Expect: 100-continue.
    Case("100-continue", chat(CHAT, "expect: 100-continue"), (CONTINUE, OK)),
    Case("100-continue, no key", chat(CHAT, "expect: 100-continue", key=None), (NO_KEY,), "closed"),
    Case("100-continue, too large", chat(b"", "expect: 100-continue", length="99999"), (TOO_LARGE,), "closed"),
    Case("100-continue, unknown path", chat(b"", "expect: 100-continue", line="POST /v1/nothing HTTP/1.1", length="5"), (NOT_FOUND,), "closed"),
    Case("100-continue of http/1.0", chat(CHAT, "expect: 100-continue", line="POST /v1/chat/completions HTTP/1.0"), (OK,), "closed"),
    # Upgrades are ignored.
    Case("h2c with a body", chat(CHAT, *H2C), (OK,)),
    Case("h2c with a chunked body", chat(b"1e\r\n%b\r\n0\r\n\r\n" % CHAT, *H2C, "transfer-encoding: chunked", length=None), (OK,)),
    Case("h2c without a body", plain("GET /v1/models HTTP/1.1", *H2C), (OK,)),
    Case("h2c, then another", chat(CHAT, *H2C) + chat(), (OK, OK)),
    Case("h2c and close", chat(CHAT, "connection: upgrade, close", "upgrade: h2c"), (OK,), "closed"),
    Case("h2c of http/1.0", chat(CHAT, *H2C, line="POST /v1/chat/completions HTTP/1.0", host=None), (OK,), "closed"),
    Case("websocket", plain("GET /v1/realtime HTTP/1.1", "connection: Upgrade", "upgrade: websocket", "sec-websocket-key: x"), (UNSERVED,)),
    # One after another.
    Case("two in one", chat() + chat(), (OK, OK)),
    Case("streamed, then plain", fields(stream=True) + chat(), (OK, OK)),
    Case("list, then chat", MODELS + chat(), (OK, OK)),
    Case("chat, then list", chat() + MODELS, (OK, OK)),
    Case("two lists and a chat", MODELS + MODELS + chat(), (OK, OK, OK)),
    Case("chat between lists", MODELS + chat() + MODELS, (OK, OK, OK)),
    Case("refused, then chat", chat(key=None) + chat(), (NO_KEY, OK)),
    Case("chat, refused, chat", chat() + chat(b"[]") + chat(), (OK, BAD_JSON, OK)),
    Case("unknown path with a body, then chat", chat(b"x" * 40, line="POST /nowhere HTTP/1.1") + chat(), (NOT_FOUND, OK)),
    Case("chat, then garbage", chat() + b"\x16\x03\x01\r\n\r\n", (OK, BAD), "closed"),
    Case("list, then garbage", MODELS + b"\x00\r\n\r\n", (OK, BAD), "closed"),
    Case("close, then another", chat(CHAT, "connection: close") + chat(), (OK,), "closed"),
    Case("chat, then too large", chat() + chat(b"x" * 9_000), (OK, TOO_LARGE), "closed"),
    # Paths and methods.
    Case("HEAD of the list", plain("HEAD /v1/models HTTP/1.1"), (OK,)),
    Case("HEAD of chat", plain("HEAD /v1/chat/completions HTTP/1.1"), ((405, None),)),
    Case("GET of chat", plain("GET /v1/chat/completions HTTP/1.1"), (WRONG_METHOD,)),
    Case("PUT of chat", chat(line="PUT /v1/chat/completions HTTP/1.1"), (WRONG_METHOD,)),
    Case("OPTIONS of chat", plain("OPTIONS /v1/chat/completions HTTP/1.1"), (WRONG_METHOD,)),
    Case("DELETE of a model", plain("DELETE /v1/models/demo HTTP/1.1"), (WRONG_METHOD,)),
    Case("POST of the list", chat(line="POST /v1/models HTTP/1.1"), (WRONG_METHOD,)),
    Case("OPTIONS *", plain("OPTIONS * HTTP/1.1"), (BAD,), "closed"),
    Case("CONNECT", b"CONNECT edge:443 HTTP/1.1\r\nhost: edge:443\r\n\r\n", (BAD,), "closed"),
    Case("unknown method", plain("BREW /v1/models HTTP/1.1"), (BAD,), "closed"),
    Case("root", plain("GET / HTTP/1.1"), (NOT_FOUND,)),
    Case("unknown path", chat(line="POST /v1/nothing HTTP/1.1"), (NOT_FOUND,)),
    Case("slash behind the path", chat(line="POST /v1/chat/completions/ HTTP/1.1"), (NOT_FOUND,)),
    Case("two slashes", chat(line="POST //v1/chat/completions HTTP/1.1"), (NOT_FOUND,)),
    Case("escaped slash", chat(line="POST /v1/chat%2Fcompletions HTTP/1.1"), (NOT_FOUND,)),
    Case("bad escape", plain("GET /v1/%ff%zz HTTP/1.1"), (NOT_FOUND,)),
    Case("embeddings", chat(line="POST /v1/embeddings HTTP/1.1"), (UNSERVED,)),
    Case("anthropic messages", chat(line="POST /v1/messages HTTP/1.1"), (UNSERVED,)),
    Case("unknown model asked for", plain("GET /v1/models/no/such HTTP/1.1"), ((404, "model_not_found"),)),
    Case("absolute form without a path", plain("GET http://edge HTTP/1.1"), (BAD,), "closed"),
    # What is no HTTP.
    Case("no host", chat(host=None), (BAD,), "closed"),
    Case("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (BAD,), "closed"),
    Case("http/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (BAD,), "closed"),
    Case("http/0.9", b"GET /v1/models\r\n\r\n", (BAD,), "closed"),
    Case("http/3.0", plain("GET /v1/models HTTP/3.0"), (BAD,), "closed"),
    Case("lower-case method", chat(line="post /v1/chat/completions HTTP/1.1"), (BAD,), "closed"),
    Case("space in the path", plain("GET /v1/ models HTTP/1.1"), (BAD,), "closed"),
    Case("non-ascii path", "GET /v1/modèles HTTP/1.1\r\nhost: edge\r\n\r\n".encode(), (BAD,), "closed"),
    Case("nul in a header", chat(CHAT, "x-nul: a\0b"), (BAD,), "closed"),
    Case("control byte in a header", chat(CHAT, "x-bell: a\x07b"), (BAD,), "closed"),
    Case("header without colon", chat(CHAT, "what is this"), (BAD,), "closed"),
    Case("space before the colon", chat(CHAT, "x-space : 1"), (BAD,), "closed"),
    Case("folded header", chat(CHAT, "x-folded: a\r\n b"), (BAD,), "closed"),
    Case("bare line feeds", chat().replace(b"\r\n", b"\n"), (BAD,), "closed"),
    Case("bare carriage returns", chat().replace(b"\r\n", b"\r"), (BAD,), "closed"),
    # Sizes.
    Case("too large", chat(b"x" * 9_000), (TOO_LARGE,), "closed"),
    Case("too large by its length", chat(b"", length="99999999"), (TOO_LARGE,), "closed"),
    Case("too large, chunked", chunked(b"x" * 5_000, b"x" * 5_000), (TOO_LARGE,), "closed"),
    Case("too large, no key", chat(b"", length="99999999", key=None), (NO_KEY,), "closed"),
    Case("many headers", chat(CHAT, *(f"x-{i}: 1" for i in range(40))), (HEAD_TOO_LARGE,), "closed"),
    Case("headers up to the limit", chat(CHAT, *(f"x-{i}: 1" for i in range(37))), (OK,)),
    Case("huge header", chat(CHAT, "x-huge: " + "a" * 9_000), (HEAD_TOO_LARGE,), "closed"),
    Case("huge heap of headers", chat(CHAT, *(f"x-same: {'a' * 300}" for _ in range(30))), (HEAD_TOO_LARGE,), "closed"),
    Case("huge path", plain(f"GET /v1/{'a' * 9_000} HTTP/1.1"), (HEAD_TOO_LARGE,), "closed"),
    Case("head up to the limit", chat(CHAT, "x-large: " + "a" * 7_000), (OK,)),
    # Media types.
    Case("text", chat(CHAT, "content-type: text/plain"), (WRONG_MEDIA,)),
    Case("form", chat(CHAT, "content-type: application/x-www-form-urlencoded"), (WRONG_MEDIA,)),
    Case("multipart", chat(CHAT, "content-type: multipart/form-data; boundary=x"), (WRONG_MEDIA,)),
    Case("gzip body", chat(CHAT, "content-encoding: gzip"), (WRONG_MEDIA,)),
    # JSON.
    Case("array", chat(b"[]"), (BAD_JSON,)),
    Case("string", chat(b'"demo"'), (BAD_JSON,)),
    Case("number", chat(b"1"), (BAD_JSON,)),
    Case("null", chat(b"null"), (BAD_JSON,)),
    Case("empty body", chat(b""), (BAD_JSON,)),
    Case("blank body", chat(b"   "), (BAD_JSON,)),
    Case("half an object", chat(CHAT[:-1]), (BAD_JSON,)),
    Case("two objects", chat(CHAT + CHAT), (BAD_JSON,)),
    Case("byte order mark", chat(b"\xef\xbb\xbf" + CHAT), (BAD_JSON,)),
    Case("utf-16", chat(CHAT.decode().encode("utf-16")), (BAD_JSON,)),
    Case("NaN", chat(b'{"model":"demo","messages":[],"temperature":NaN}'), (BAD_JSON,)),
    Case("single quotes", chat(CHAT.replace(b'"', b"'")), (BAD_JSON,)),
    Case("trailing comma", chat(b'{"model":"demo","messages":[],}'), (BAD_JSON,)),
    Case("bad utf-8", chat(b'{"model":"demo","messages":["\xff"]}'), (BAD_JSON,)),
    Case("bad utf-8 in the model", chat(b'{"model":"\xc3","messages":[]}'), (BAD_JSON,)),
    Case("lone surrogate", chat(b'{"model":"demo","messages":["\\ud83d"]}'), (BAD_JSON,)),
    Case("lone surrogate in the model", chat(b'{"model":"\\ud83d","messages":[]}'), (BAD_JSON,)),
    Case("raw control byte", chat(b'{"model":"demo","messages":["\x01"]}'), (BAD_JSON,)),
    Case("too deep", chat(b'{"model":"demo","messages":%b%b}' % (b"[" * 2_000, b"]" * 2_000)), (BAD_JSON,)),
    # Fields.
    Case("no model", chat(b'{"messages":[]}'), (BAD,)),
    Case("empty object", chat(b"{}"), (BAD,)),
    Case("model null", fields(model=None), (BAD,)),
    Case("model number", fields(model=4), (BAD,)),
    Case("model empty", fields(model=""), (BAD,)),
    Case("model too long", fields(model="m" * 257), (BAD,)),
    Case("model twice", chat(b'{"model":"demo","model":"demo","messages":[]}'), (BAD,)),
    Case("model twice, once escaped", chat(b'{"model":"demo","mode\\u006C":"demo","messages":[]}'), (BAD,)),
    Case("model twice, an unknown one last", chat(b'{"model":"demo","model":"nope","messages":[]}'), (BAD,)),
    Case("model twice, an unknown one first", chat(b'{"model":"nope","model":"demo","messages":[]}'), (BAD,)),
    Case("model twice, an unknown one escaped", chat(b'{"model":"demo","messages":[],"\\u006dodel":"nope"}'), (BAD,)),
    Case("unknown model", fields(model="no-such"), ((404, "model_not_found"),)),
    Case("model with a nul", fields(model="a\0b"), ((404, "model_not_found"),)),
    Case("no messages", chat(b'{"model":"demo"}'), (BAD,)),
    Case("messages null", fields(messages=None), (BAD,)),
    Case("messages object", fields(messages={}), (BAD,)),
    Case("stream string", fields(stream="true"), (BAD,)),
    Case("stream number", fields(stream=1), (BAD,)),
    Case("stream null", fields(stream=None), (OK,)),
    Case("stream options array", fields(stream=True, stream_options=[]), (BAD,)),
    Case("stream options null", fields(stream=True, stream_options=None), (OK,)),
    Case("stream options with a lone surrogate", chat(b'{"model":"demo","messages":[],"stream":true,"stream_options":{"x":"\\ud83d"}}'), (BAD_JSON,)),
    Case("include usage string", fields(stream=True, stream_options={"include_usage": "yes"}), (BAD,)),
    Case("max_tokens 0", fields(max_tokens=0), (BAD,)),
    Case("max_tokens negative", fields(max_tokens=-1), (BAD,)),
    Case("max_tokens string", fields(max_tokens="10"), (BAD,)),
    Case("max_tokens null", fields(max_tokens=None), (OK,)),
    Case("max_completion_tokens 0", fields(max_completion_tokens=0), (BAD,)),
    Case("n 0", fields(n=0), (BAD,)),
    Case("user number", fields(user=5), (BAD,)),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge() -> AsyncIterator[EdgeUnderTest]:
    async with running() as provider, running_edge(provider.url, **SETTINGS) as edge:
        edge.put_key(KEY)
        yield edge


def test_table_names_each_case_once() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 60


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_request_is_answered_as_the_table_says(edge: EdgeUnderTest, case: Case) -> None:
    async with edge.client() as client:
        client.send(case.request)
        await check(client, case)
    assert edge.edge.buffered_bytes == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_request_is_answered_the_same_when_cut_anywhere(edge: EdgeUnderTest, case: Case) -> None:
    size = len(case.request)
    # Large ones are large by padding: their start and end, and a few places between.
    offsets = (
        range(1, size) if size < 1_500 else [*range(1, 200), *range(200, size - 200, 997), *range(size - 200, size)]
    )
    for offset in offsets:
        client = edge.memory_client()
        client.send(case.request[:offset])
        await asyncio.sleep(0)
        client.send(case.request[offset:])
        await check(client, case, f"cut at {offset}")
        client.close()
    await until(lambda: edge.edge.metrics.in_flight == 0)
    assert edge.edge.buffered_bytes == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", [case for case in CASES if case.fate == "kept"], ids=lambda case: case.name)
async def test_request_is_answered_the_same_when_it_comes_again(edge: EdgeUnderTest, case: Case) -> None:
    """Heads are known again on a kept connection: whole, cut, and after another one."""
    client = edge.memory_client()
    for place in ("first", "again"):
        client.send(case.request)
        await check(client, case, place)
    half = len(case.request) // 2
    client.send(case.request[:half])
    await asyncio.sleep(0)
    client.send(case.request[half:])
    await check(client, case, "again, and cut")
    if case.answers[0] == CONTINUE:
        # Whoever waits for it does not send ahead.
        client.close()
        return
    client.send(case.request + case.request)
    for place in ("again, first of two", "again, second of two"):
        await check(client, case, place, goes_on=False)
    client.close()
    await until(lambda: edge.edge.metrics.in_flight == 0)
    assert edge.edge.buffered_bytes == 0


async def check(client: RawClient, case: Case, place: str = "whole", *, goes_on: bool = True) -> None:
    is_head = case.request.startswith(b"HEAD")
    responses = [await client.read_response(has_body=not is_head) for _ in case.answers]
    assert tuple((r.status, r.code) for r in responses) == case.answers, place
    for response in responses:
        check_form(response)
    if case.fate == "closed":
        assert await client.is_closed_by_peer(), f"{place}: more than {len(responses)} answers"
        assert responses[-1].header("connection") == "close", place
    else:
        assert responses[-1].header("connection") is None, place
    if case.fate == "kept" and goes_on:
        again = await client.ask(chat())
        assert again.status == 200, place


def check_form(response: Response) -> None:
    if response.status == 100:
        assert response.headers == []
        return
    assert response.header("x-request-id")
    assert response.header("date")
    assert response.header("server") is None
    if response.status == 405:
        assert response.header("allow")
    if response.status >= 400 and response.body:
        assert response.header("content-type") == "application/json"
        assert response.json.get("request_id", response.json["error"].get("request_id")) == response.header(
            "x-request-id"
        )
