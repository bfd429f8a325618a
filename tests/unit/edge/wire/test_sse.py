"""The splitter against a slow reading of the rule, on random bytes in random pieces."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.edge.wire.sse import EventSplitter, event_data, event_lines, only_comments, without_fields

# Line ends, everything that other splitters take for one, and what events are made of.
PIECES = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n",
    "\u2028".encode(), "\u2029".encode(), "\u0085".encode(), b"\x0b", b"\x0c", b"\x1c\x1d\x1e", b"\x85",
    b"data: ", b"data:", b"data", b"id: 7", b"retry: 9", b"event: x", b": note", b"x", b"[DONE]", b'{"a":1}', b" ", b":",
]  # fmt: skip
streams = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return stream, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def events_by_the_rule(stream: bytes) -> list[bytes]:
    """Split as the standard says, knowing the whole stream."""
    events, event = [], b""
    lines = re.split(rb"(\r\n|\n|\r)", stream)
    for text, end in zip(lines[::2], [*lines[1::2], b""], strict=True):
        event += text + end
        if not text and end:
            events.append(event)
            event = b""
    return [*events, event]


@given(cut_streams())
@example((b"data: 1\r\r\ndata: 2\r\n\r\n", [b"data: 1\r", b"\r\ndata: 2\r\n\r", b"\n"]))
def test_events_are_those_of_the_rule_when_cut_anywhere(case: tuple[bytes, list[bytes]]) -> None:
    stream, reads = case
    splitter = EventSplitter()
    events = [event for read in reads for event in splitter.feed(read)]
    rest = splitter.close()
    *expected, expected_rest = events_by_the_rule(stream)
    # A CR at the very end may still become a CRLF, so its event stays in the rest.
    if events != expected:
        assert stream.endswith(b"\r")
        assert [*events, rest] == [*expected, *([expected_rest] if expected_rest else [])]
    else:
        assert rest == expected_rest
    assert b"".join(events) + rest == stream


@given(cut_streams())
def test_event_leaves_with_the_byte_that_ends_it(case: tuple[bytes, list[bytes]]) -> None:
    stream, _ = case
    splitter = EventSplitter()
    for at in range(len(stream)):
        sent = splitter.feed(stream[at : at + 1])
        # Only a CR waits for what follows it.
        if stream[at : at + 1] == b"\n":
            assert events_by_the_rule(splitter.held)[:-1] == []
        if sent and stream[at : at + 1] != b"\n":
            assert stream[at - 1 : at] == b"\r"


@given(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))
def test_data_is_that_of_the_rule(event: bytes) -> None:
    values = []
    for line in re.split(rb"\r\n|\n|\r", event):
        name, colon, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" ") if colon else b"")
    assert event_data(event) == (b"\n".join(values) if values else None)


def test_data_lines_are_joined_when_an_event_has_several() -> None:
    assert event_data(b'data: {\ndata: "a": 1\ndata: }\n\n') == b'{\n"a": 1\n}'


def test_odd_characters_stay_when_they_end_lines_elsewhere() -> None:
    text = '{"a":"x\u2028y\u2029z\u0085\x0b\x0c"}'.encode()
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + text + b"\n\n") == [b"data: " + text + b"\n\n"]
    assert event_data(b"data: " + text + b"\n\n") == text


@given(streams)
def test_without_fields_takes_out_nothing_else(event: bytes) -> None:
    def is_taken(line: bytes) -> bool:
        return line.partition(b":")[0] in {b"id", b"retry"}

    kept = [line for line in event_lines(event) if not is_taken(line)]
    terminated = event if event.endswith((b"\n", b"\r")) else event + b"\n"
    assert event_lines(without_fields(terminated)) == kept


def test_event_vanishes_when_it_was_only_an_id_or_a_retry() -> None:
    assert without_fields(b"id: 1\nretry: 5\n\n") == b""
    assert without_fields(b"id: 1\r\ndata: x\r\n\r\n") == b"data: x\r\n\r\n"
    assert without_fields(b"idea: 1\ndata: x\n\n") == b"idea: 1\ndata: x\n\n"


def test_comments_stay_when_an_event_has_no_data() -> None:
    assert only_comments(b": a\n: b\n\n") == b": a\n: b\n\n"
    assert only_comments(b"event: ping\n\n") == b""
    assert only_comments(b": a\r\nevent: ping\r\n\r\n") == b": a\n\n"
    assert only_comments(b"\n") == b""
