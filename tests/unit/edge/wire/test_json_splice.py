"""Members of a JSON object are found and changed, and no other byte is."""

import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.edge.wire.json_splice import Member, members, replace, replace_in_parts, string_span


class Pairs(list[Any]):
    """An object as pairs, so that names may be repeated."""


DECOYS = [
    "model",
    '"model"',
    'say "model": "x"',
    "{",
    "}",
    "[,]",
    ":",
    "\\",
    '\\"',
    "\\\\",
    "\u2028",
    "é",
    "😀",
    "\n",
    "/",
]
texts = st.sampled_from(DECOYS) | st.text(st.characters(codec="utf-8"), max_size=6)
names = st.sampled_from(["model", "Model", "models", "stream_options", ""]) | texts
values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=3).map(Pairs),
    max_leaves=8,
)
blanks = st.text(" \t\r\n", max_size=2)


@st.composite
def rendered_texts(draw: st.DrawFn, text: str) -> str:
    """A JSON string, with some characters escaped that need not be."""
    plain = json.dumps(text, ensure_ascii=draw(st.booleans()))
    if not draw(st.booleans()):
        return plain
    out = []
    for character in text:
        if character in string.ascii_letters + "_" and draw(st.booleans()):
            out.append(f"\\u{ord(character):04x}" if draw(st.booleans()) else f"\\u{ord(character):04X}")
        else:
            out.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return '"' + "".join(out) + '"'


@st.composite
def rendered(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, str):
        return draw(rendered_texts(value))
    if isinstance(value, Pairs):
        return draw(rendered_objects(value))[0]
    if isinstance(value, list):
        inner = [draw(blanks) + draw(rendered(item)) + draw(blanks) for item in value]
        return "[" + ",".join(inner) + "]"
    return json.dumps(value)


@st.composite
def rendered_objects(draw: st.DrawFn, pairs: Pairs) -> tuple[str, list[Member]]:
    """An object in some spelling, and where its members' values stand (in characters)."""
    out, found = "{", []
    for number, (name, value) in enumerate(pairs):
        out += ("," if number else "") + draw(blanks) + draw(rendered_texts(name)) + draw(blanks) + ":" + draw(blanks)
        start = len(out)
        out += draw(rendered(value))
        found.append(Member(name, start, len(out)))
        out += draw(blanks)
    return out + draw(blanks) + "}", found


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[Member]]:
    pairs = Pairs(draw(st.lists(st.tuples(names, values), max_size=5)))
    text, found = draw(rendered_objects(pairs))
    before, after = draw(blanks), draw(blanks)

    def in_bytes(at: int) -> int:
        return len((before + text[:at]).encode())

    return (before + text + after).encode(), [Member(m.name, in_bytes(m.start), in_bytes(m.end)) for m in found]


@given(bodies())
def test_members_are_found_where_they_stand(case: tuple[bytes, list[Member]]) -> None:
    body, expected = case
    assert members(body) == expected


@given(bodies())
@example((b'{"a":"model","mode\\u006c":"x"}', [Member("a", 5, 12), Member("model", 26, 29)]))
def test_string_is_found_when_it_is_the_only_member_of_its_name(case: tuple[bytes, list[Member]]) -> None:
    body, found = case
    spans = [(member.start, member.end) for member in found if member.name == "model"]
    # The edge asks only once the body was decoded, with a string as its model.
    if not spans or any(body[start : start + 1] != b'"' for start, _ in spans):
        return
    assert string_span(body, b"model") == (spans[0] if len(spans) == 1 else None)


@given(bodies(), st.text(st.characters(codec="utf-8"), max_size=5))
def test_replace_changes_no_other_byte(case: tuple[bytes, list[Member]], text: str) -> None:
    body, found = case
    value = msgspec.json.encode(text)
    changed = [member for member in found if member.name == "model"]
    out = replace(body, [(member.start, member.end, value) for member in changed])
    decoded = json.loads(out, object_pairs_hook=Pairs)
    expected = [(n, text if n == "model" else v) for n, v in json.loads(body, object_pairs_hook=Pairs)]
    assert decoded == Pairs(expected)
    at_in = at_out = 0
    for member in changed:
        kept = member.start - at_in
        assert out[at_out : at_out + kept] == body[at_in : member.start]
        at_in, at_out = member.end, at_out + kept + len(value)
    assert out[at_out:] == body[at_in:]


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(0, 40), max_size=4))
def test_replace_in_parts_is_replace(body: bytes, cuts: list[int], bounds: list[int]) -> None:
    ends = sorted({min(bound, len(body)) for bound in bounds})
    changes = [(start, end, b"<%d>" % start) for start, end in zip(ends[::2], ends[1::2], strict=False)]
    places = sorted(min(cut, len(body)) for cut in cuts)
    parts = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    assert b"".join(replace_in_parts(parts, changes)) == replace(body, changes)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"x"}', b"x"),
        (b'{ "model" :\n"x" }', b"x"),
        (b'{"a":{"model":"y"},"model":"x"}', b"x"),
        (b'{"a":["model"],"model":"x"}', b"x"),
        (b'{"a":"\\"model\\":\\"y\\"","model":"x"}', b"x"),
        (b'{"\\u006dodel":"x","a":{"model":"y"}}', b"x"),
        (b'{"model":"a\\"b"}', b'a\\"b'),
        (b'{"model":"","Model":"y"}', b""),
    ],
)
def test_string_is_found_beside_decoys(body: bytes, expected: bytes) -> None:
    span = string_span(body, b"model")
    assert span is not None
    assert body[span[0] : span[1]] == b'"' + expected + b'"'


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"x","model":"x"}',
        b'{"model":"x","\\u006dodel":"y"}',
        b'{"mode\\u006C":"x","model":"y"}',
        b'{"model":"x","a":{"model":"z"},"model":"y"}',
    ],
)
def test_string_is_not_found_when_its_name_stands_there_twice(body: bytes) -> None:
    assert string_span(body, b"model") is None
