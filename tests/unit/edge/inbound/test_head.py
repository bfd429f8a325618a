"""What a head says, and which reads are known to be the last head again."""

import pytest

from sluicegate.edge.inbound.head import KnownHead, RequestHead, credential_of, learn
from sluicegate.edge.inbound.paths import CHAT

URL = b"/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\nContent-Length: 3\r\nx-api-key: k\r\n\r\n"


def _head(**headers: bytes) -> RequestHead:
    return RequestHead({name.replace("_", "-").encode(): value for name, value in headers.items()}, CHAT)


def _learnt(head: bytes = HEAD, length: bytes = b"3", url: bytes = URL) -> KnownHead | None:
    return learn(_head(content_length=length), url, head + b"abc")


@pytest.mark.parametrize("body", [b"", b"a", b"abc", b"a" * 70_000])
def test_head_is_known_again_when_only_its_length_differs(body: bytes) -> None:
    known = _learnt()
    assert known is not None
    read = HEAD.replace(b"Length: 3", b"Length: %d" % len(body)) + body
    assert read[known.body_start(read) :] == body


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(HEAD + b"ab", id="the body is not whole"),
        pytest.param(HEAD + b"abcP", id="something follows"),
        pytest.param(HEAD[:-1], id="the head is not whole"),
        pytest.param(HEAD.replace(b": 3", b": 03") + b"abc", id="a length written otherwise"),
        pytest.param(HEAD.replace(b": 3", b": +3") + b"abc", id="a signed length"),
        pytest.param(HEAD.replace(b": 3", b": ") + b"", id="no length"),
        pytest.param(HEAD.replace(b": 3", b": 3, 3") + b"abc", id="two lengths in one"),
        pytest.param(HEAD.replace(b"x-api-key: k", b"x-api-key: K") + b"abc", id="another key"),
        pytest.param(HEAD.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n") + b"abc", id="one more header"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_head_is_parsed_when_a_read_is_anything_else(read: bytes) -> None:
    known = _learnt()
    assert known is not None
    assert known.body_start(read) == 0


@pytest.mark.parametrize(
    ("head", "length", "url"),
    [
        pytest.param(HEAD.replace(b"x-api-key: k", b"content-length: 3"), b"3", URL, id="two lengths"),
        pytest.param(HEAD.replace(b"x-api-key: k", b"transfer-encoding: chunked"), b"3", URL, id="chunks"),
        pytest.param(HEAD.replace(b"Content-Length: 3\r\n", b""), b"", URL, id="no length"),
        pytest.param(HEAD.replace(b": 3", b": 03"), b"3", URL, id="a length written oddly"),
        pytest.param(b"\r\n" + HEAD, b"3", URL, id="a blank line before it"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\n\r\n" + HEAD, b"3", URL, id="another request before it"),
        pytest.param(HEAD, b"3", b"/chat/completions", id="another target"),
        pytest.param(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"), b"3", URL, id="HTTP/1.0"),
        pytest.param(HEAD.replace(b": k", b": " + b"k" * 5_000), b"3", URL, id="a large head"),
        pytest.param(HEAD.replace(b"\r\n", b"\n"), b"3", URL, id="bare line feeds"),
    ],
)
def test_head_is_not_learnt_when_another_length_could_change_more_than_the_end(
    head: bytes, length: bytes, url: bytes
) -> None:
    assert _learnt(head, length, url) is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({b"authorization": b"Bearer k"}, b"k"),
        ({b"authorization": b"bearer   k "}, b"k"),
        ({b"x-api-key": b"k"}, b"k"),
        ({b"api-key": b"k"}, b"k"),
        ({b"authorization": b"Bearer k", b"x-api-key": b"other"}, b"k"),
        ({b"authorization": b"Basic eA==", b"api-key": b"k"}, b"k"),
        ({b"authorization": b"Bearer ", b"x-api-key": b"k"}, b"k"),
        ({b"x-api-key": b"", b"api-key": b"k"}, b"k"),
        ({}, b""),
        ({b"authorization": b""}, b""),
        ({b"authorization": b"Bearer"}, b""),
        ({b"authorization": b"k"}, b""),
    ],
)
def test_key_is_found_wherever_an_sdk_puts_it(headers: dict[bytes, bytes], expected: bytes) -> None:
    assert credential_of(headers) == expected


def test_head_passes_on_only_what_providers_may_see() -> None:
    head = _head(authorization=b"Bearer k", cookie=b"c", openai_beta=b"b", idempotency_key=b"i", accept_encoding=b"br")
    assert head.passed == b"idempotency-key: i\r\nopenai-beta: b\r\n"


@pytest.mark.parametrize(
    ("value", "expected"), [(b"00-a-b-01", "00-a-b-01"), (b"", None), (b"\xff", None), (b"0" * 56, None)]
)
def test_traceparent_is_kept_when_it_can_be_one(value: bytes, expected: str | None) -> None:
    assert _head(traceparent=value).traceparent == expected
