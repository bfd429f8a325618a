"""The scan of a large body finds what a decoder finds, wherever it is cut."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.edge.wire import body_scan
from sluicegate.edge.wire.body_scan import BodyScan, BodyScanError
from sluicegate.edge.wire.json_splice import members

texts = st.sampled_from(
    ["model", '"', "\\", '\\"', "[{", "}]", ",", ":", "é", "😀", "\u2028", "\n", ";base64,AAAA"]
) | st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.sampled_from(["model", "stream", "messages"]) | texts, values, max_size=5)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    indent = draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()), indent=indent)
    return draw(st.sampled_from([b"", b" \r\n"])) + text.encode() + draw(st.sampled_from([b"", b"\t \n"]))


def cut(draw: st.DrawFn, body: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=6)))
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@st.composite
def cut_bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    body = draw(bodies())
    return body, cut(draw, body)


@st.composite
def broken_bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    body = bytearray(draw(bodies()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"{", b"}", b'"', b"\\", b",", b":", b"\xff", b"[", b"1"])
        )
    return bytes(body), cut(draw, bytes(body))


def scan(pieces: list[bytes]) -> BodyScan:
    found = BodyScan()
    for piece in pieces:
        found.feed(piece)
    found.finish()
    return found


@given(cut_bodies())
def test_members_are_those_of_the_walk(case: tuple[bytes, list[bytes]]) -> None:
    body, pieces = case
    found = scan(pieces)
    assert [(m.name, m.start, m.end) for m in found.members] == members(body)
    assert all(member.value == body[member.start : member.end] for member in found.members)
    assert json.loads(found.skeleton()) == json.loads(body)
    assert found.size == len(body)


@given(broken_bodies())
def test_nothing_is_refused_that_a_decoder_takes(case: tuple[bytes, list[bytes]]) -> None:
    body, pieces = case
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    try:
        found = scan(pieces)
    except BodyScanError:
        assert decoded is None
        return
    # What is broken inside a member is the provider's to refuse; the decoder sees it in the skeleton.
    if decoded is not None:
        assert json.loads(found.skeleton()) == decoded


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"[]", b'"x"', b"1", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{"a" 1}', b'{"a":,"b":1}', b"{1:2}",
     b'{"a":1}}', b'{"a":1}{}', b"{,}", b'{"a":[}', b'{"a":"\xff"}', b'{"a":"\xc3', b"{}\xc3", b"\xef\xbb\xbf{}", b'{"\\x":1}'],
)  # fmt: skip
def test_what_is_no_object_is_refused_when_cut_anywhere(body: bytes) -> None:
    for at in range(len(body) + 1):
        with pytest.raises(BodyScanError):
            scan([body[:at], body[at:]])


def test_large_values_are_emptied_and_small_ones_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_scan, "_CAPTURED_BYTES", 10)
    body = b'{"model":"m","messages":[1,2,3,4,5,6],"x":{"y":"01234567"},"s":"0123456789","n":12345678901}'
    for at in range(len(body) + 1):
        found = scan([body[:at], body[at:]])
        assert json.loads(found.skeleton()) == {"model": "m", "messages": [], "x": {}, "s": "x" * 1_000, "n": 0}


def test_depth_is_bounded() -> None:
    scan([b'{"a":' + b"[" * 999 + b"]" * 999 + b"}"])
    with pytest.raises(BodyScanError):
        scan([b'{"a":' + b"[" * 1_003 + b"]" * 1_003 + b"}"])


def test_names_are_found_when_they_are_repeated_and_escaped() -> None:
    found = scan([b'{"model":"a","mode\\u006c":"b","x":1}'])
    assert [(member.name, member.value) for member in found.members] == [
        ("model", b'"a"'),
        ("model", b'"b"'),
        ("x", b"1"),
    ]


def test_base64_is_counted_when_cut_anywhere() -> None:
    body = b'{"a":"data:image/png;base64,AAAABBBB","b":"no;base64","c":["x;base64,","y;base64,CC"]}'
    for at in range(len(body) + 1):
        for also in (at, min(at + 5, len(body))):
            found = scan([body[:at], body[at:also], body[also:]])
            assert (found.images, found.base64_bytes) == (3, 10 + 3 * 8), (at, also)
