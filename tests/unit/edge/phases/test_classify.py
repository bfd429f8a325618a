"""What is read of a request, and what its input is estimated at."""

import pytest

from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.classify import TOKENS_PER_IMAGE, decode_chat, estimate_input_tokens


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 0),
        (b"12345678", 2),
        (b"123456789", 3),
        (b'"data:image/png;base64,' + b"A" * 4_000 + b'"', TOKENS_PER_IMAGE + 4),
        (b'"x;base64,AA","y;base64,BB"', 2 * TOKENS_PER_IMAGE + 2),
    ],
)
def test_input_is_a_quarter_of_its_bytes_and_images_count_the_same(body: bytes, expected: int) -> None:
    assert estimate_input_tokens(body) == expected


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"[]", "invalid_json", None),
        (b'{"model":1}', "invalid_request", "model"),
        (b'{"stream_options":{"include_usage":1}}', "invalid_request", "stream_options.include_usage"),
        (b'{"a":"\xff"}', "invalid_json", None),
        (b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "invalid_json", None),
        (b'{"max_tokens":1e400}', "invalid_request", "max_tokens"),
    ],
)
def test_refusal_names_the_field(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(Refusal) as raised:
        decode_chat(body)
    assert (raised.value.code, raised.value.param) == (code, param)


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (rb"\ud83d", rb"\ud83d"),
        (rb"\ud83d and more text behind it", rb"\ud83d"),
        (rb"\uDE00 first", rb"\uDE00"),
        (rb"\ud83d\u0041", rb"\ud83d"),
        (rb"\ud83d\ud83d\ude00", rb"\ud83d"),
        (rb"\ud83d\ude00 whole, then \ud83c", rb"\ud83c"),
        (rb"\\ud83d is no escape, but \ud83c", rb"\ud83c"),
    ],
)
def test_refusal_names_the_escape_when_half_of_a_surrogate_pair_stands_alone(text: bytes, half: bytes) -> None:
    with pytest.raises(Refusal, match="half of a surrogate pair") as raised:
        decode_chat(b'{"model":"demo","messages":[{"role":"user","content":"%b"}]}' % text)
    assert f"`{half.decode()}`" in raised.value.message
    assert raised.value.code == "invalid_json"


def test_refusal_is_the_decoders_when_surrogates_are_in_pairs() -> None:
    with pytest.raises(Refusal, match="truncated"):
        decode_chat(rb'{"model":"demo","messages":["\ud83d\ude00 \\ud83d"')
