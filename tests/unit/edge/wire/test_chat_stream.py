"""The scan of a stream: what passes, what is taken out, what is seen, wherever reads are cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.edge.wire.chat_stream import MAX_EVENT_BYTES, ChatStreamScan, is_preamble
from sluicegate.edge.wire.sse import EventSplitter, event_data, event_lines
from sluicegate.edge.wire.usage import TokenUsage

USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def event(content: object, end: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + end + end


DONE = b"data: [DONE]\n\n"
USAGE_CHUNK = {"choices": [], "usage": USAGE}
HELLO = event(chunk("Hello")) + event(chunk(" world")) + event(chunk(None, "stop"))

contents = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"usage"', 'say "error" twice', "data: [DONE]", "[DONE]\n", "a\u2028b\u0085c\x0b\x0c", "\r\n\n", '{"usage":1}']
)
usages: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(-5, 50), "completion_tokens": st.integers(-5, 50)}
) | st.sampled_from([None, {}, [], "x", 3, {"prompt_tokens": "11"}, {"completion_tokens": 2.0}, USAGE])
chunks = st.one_of(
    st.builds(chunk, contents),
    st.builds(chunk, contents, st.just("stop"), usage=usages),
    st.builds(lambda usage: {"choices": [], "usage": usage}, usages),
    st.builds(lambda usage: {"usage": usage}, usages),
    st.builds(lambda usage: chunk("x", x_groq={"usage": usage}), usages),
    st.sampled_from([{"error": {"message": "no"}}, {"error": None, "choices": []}, [], "text", {"choices": None}]),
)
events = chunks.map(event) | st.sampled_from(
    [
        DONE, b"data:[DONE]\n\n", b": note\n\n", b"\n", b"id: 1\ndata: {}\n\n", b"retry: 3\n\n", b"event: ping\n\n",
        b"event: x\ndata: {}\n\n", b": a\nevent: x\n\n", b"data: [DONE]\ndata: 1\n\n", b"data: [DONE] \n\n", b"data\n\n",
        b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n', b"data: not json\n\n",
        b"data: [DONE]x\n\n", b"x[DONE]\n\n", b": [DONE]\n\n", b"hello\n\n", b"identity: 1\n\n",
    ]
)  # fmt: skip


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    stream = b"".join(draw(st.lists(events, max_size=8))) + draw(st.sampled_from([b"", b"data: [DONE]", b"data: {}\n"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def scanned(reads: list[bytes], *, drops: bool, exactly: bool = False) -> tuple[ChatStreamScan, bytes]:
    scan = ChatStreamScan(drops_usage_chunk=drops)
    if exactly:
        scan._splitter = EventSplitter()
    out = b"".join([scan.feed(read) for read in reads])
    return scan, out + scan.close()


def read_events(stream: bytes) -> list[list[bytes]]:
    """Return the events that are any: an event of unknown fields alone means nothing to anybody."""
    splitter = EventSplitter()
    found = [event_lines(e) for e in [*splitter.feed(stream), splitter.close()]]
    return [lines for lines in found if any(line.startswith((b"data", b":")) for line in lines)]


def counts(usage: TokenUsage | None) -> tuple[int, ...] | None:
    return None if usage is None else (usage.input, usage.cached_input, usage.output, usage.reasoning)


@given(cut_streams(), st.booleans())
def test_fast_path_sees_and_passes_what_the_exact_path_does(reads: list[bytes], drops: bool) -> None:
    fast, fast_out = scanned(reads, drops=drops)
    exact, exact_out = scanned([b"".join(reads)], drops=drops, exactly=True)
    assert read_events(fast_out) == read_events(exact_out)
    assert (fast.state, fast.has_error, counts(fast.usage)) == (exact.state, exact.has_error, counts(exact.usage))
    assert fast.estimated_output_tokens() == exact.estimated_output_tokens()
    assert fast.has_finish_reason() == exact.has_finish_reason()


@given(cut_streams())
def test_whole_events_only_are_passed(reads: list[bytes]) -> None:
    scan = ChatStreamScan(drops_usage_chunk=True)
    for read in reads:
        out = scan.feed(read)
        assert not out or out.endswith(b"\n\n")


@given(st.lists(st.builds(chunk, contents).map(event) | st.just(b": note\n\n"), min_size=1, max_size=6))
def test_plain_events_pass_as_they_are(parts: list[bytes]) -> None:
    stream = b"".join(parts) + DONE
    for size in (1, 7, len(stream)):
        scan, out = scanned([stream[at : at + size] for at in range(0, len(stream), size)], drops=True)
        assert out == stream
        assert scan.state == "done"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_stream_is_understood_when_cut_anywhere_and_ended_anyhow(end: bytes) -> None:
    content = chunk("a\u2028b\u2029c\u0085d\x0be")
    stream = event(content, end) + event(chunk(None, "stop"), end) + event(USAGE_CHUNK, end)
    stream = b": hi" + end + end + b"id: 1" + end + stream + b"data: [DONE]" + end + end
    for offset in range(len(stream) + 1):
        scan, out = scanned([stream[:offset], stream[offset:]], drops=True)
        found = [event_data(b"\n".join(lines)) for lines in read_events(out)]
        assert [json.loads(data) for data in found if data and data != b"[DONE]"] == [content, chunk(None, "stop")]
        assert found[-1] == b"[DONE]"
        assert b"id: 1" not in out
        assert scan.state == "done"
        assert counts(scan.usage) == (11, 0, 7, 0)


def test_usage_chunk_is_taken_out_only_when_we_asked_for_it() -> None:
    stream = HELLO + event(USAGE_CHUNK) + DONE
    assert scanned([stream], drops=True)[1] == HELLO + DONE
    assert scanned([stream], drops=False)[1] == stream


def test_usage_counts_and_passes_when_it_stands_on_a_content_chunk() -> None:
    stream = event(chunk("Hello", usage=USAGE)) + DONE
    scan, out = scanned([stream], drops=True)
    assert out == stream
    assert counts(scan.usage) == (11, 0, 7, 0)


def test_usage_is_overwritten_and_never_added_when_it_is_cumulative() -> None:
    stream = b"".join(event(chunk("x", usage={"prompt_tokens": 11, "completion_tokens": n})) for n in range(1, 8))
    scan, _ = scanned([stream + event(USAGE_CHUNK) + DONE], drops=True)
    assert counts(scan.usage) == (11, 0, 7, 0)


@pytest.mark.parametrize("usage", [None, {}, [], "none", 5, {"prompt_tokens": None}, {"prompt_tokens": -1}])
def test_usage_is_none_when_nothing_is_reported(usage: object) -> None:
    stream = event(chunk("Hello, world", usage=usage)) + DONE
    scan, out = scanned([stream], drops=True)
    assert out == stream
    assert scan.usage is None
    assert scan.estimated_output_tokens() == 3


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 11.0, "completion_tokens": "7"}, {**USAGE, "prompt_tokens_details": []}]
)
def test_odd_usage_chunk_is_read_and_taken_out_as_any_other(usage: object) -> None:
    scan, out = scanned([HELLO + event({"choices": [], "usage": usage}) + DONE], drops=True)
    assert out == HELLO + DONE
    assert counts(scan.usage) == (11, 0, 7, 0)


def test_groq_usage_is_read_once_when_both_places_have_it() -> None:
    stream = event(chunk(None, "stop", x_groq={"usage": USAGE})) + event(USAGE_CHUNK) + DONE
    scan, out = scanned([stream], drops=True)
    assert counts(scan.usage) == (11, 0, 7, 0)
    assert out.count(b"completion_tokens") == 1


def test_usage_chunk_gets_choices_when_it_has_none() -> None:
    _, out = scanned([event({"usage": USAGE}) + DONE], drops=False)
    assert json.loads(event_data(read_events(out)[0][0] + b"\n\n") or b"") == {"choices": [], "usage": USAGE}


def test_done_ends_the_stream_and_nothing_behind_it_passes() -> None:
    scan, out = scanned([HELLO + DONE + HELLO], drops=False)
    assert out == HELLO + DONE
    assert scan.state == "done"


@pytest.mark.parametrize(
    "text",
    [b"data: [DONE] \n\n", b"data: [DONE]x\n\n", b"data: x[DONE]\n\n", b": [DONE]\n\n", b"data: [DONE]\ndata: x\n\n"],
)
def test_done_counts_only_when_it_is_the_whole_data(text: bytes) -> None:
    scan, out = scanned([text, HELLO], drops=False)
    assert scan.state == "open"
    assert out == text + HELLO


def test_done_counts_when_the_body_ends_without_its_blank_line() -> None:
    scan, out = scanned([HELLO + b"data: [DONE]"], drops=False)
    assert scan.state == "done"
    assert out == HELLO + DONE


@pytest.mark.parametrize("rest", [b'data: {"choices":[{"de', b"data: [DO", b"da", b": no", b"data: 1"])
def test_half_an_event_does_not_pass_when_the_body_ends(rest: bytes) -> None:
    scan, out = scanned([HELLO + rest], drops=False)
    assert out == HELLO
    assert scan.state == "open"


def test_whole_event_passes_when_only_its_blank_line_is_missing() -> None:
    assert scanned([HELLO, event(chunk("!")).rstrip()], drops=False)[1] == HELLO + event(chunk("!"))


def test_error_is_seen_only_when_it_is_one() -> None:
    assert scanned([event({"error": {"message": "x"}})], drops=False)[0].has_error
    assert not scanned([event(chunk('"error"', error=None))], drops=False)[0].has_error
    assert not scanned([event(chunk("x", note={"error": 1}))], drops=False)[0].has_error


def test_blank_lines_end_nothing_when_there_are_too_many() -> None:
    scan, out = scanned([b"\n\n\n" + HELLO + b"\n\n\nretry: 3\n\n\n", b"\n" + DONE], drops=False)
    assert read_events(out) == read_events(HELLO + DONE)
    assert scan.state == "done"


def test_event_of_no_data_is_left_out() -> None:
    assert scanned([b"event: ping\n\n" + HELLO], drops=False)[1] == HELLO
    assert scanned([b"retry: 3\n\n" + HELLO], drops=False)[1] == HELLO
    named = b"event: message\n" + HELLO
    assert scanned([named], drops=False)[1] == named


def test_scan_ends_when_an_event_is_too_large_to_hold() -> None:
    scan = ChatStreamScan(drops_usage_chunk=False)
    for _ in range(5):
        scan.feed(b"x" * (MAX_EVENT_BYTES // 4 + 1))
    assert scan.state == "too_large"
    exact = ChatStreamScan(drops_usage_chunk=False)
    exact.feed(b"\r\n")
    for _ in range(5):
        exact.feed(b"x" * (MAX_EVENT_BYTES // 4 + 1))
    assert exact.state == "too_large"


def test_text_is_estimated_from_all_that_passed_when_it_is_long() -> None:
    part = b"".join(event(chunk("word " * 20)) for _ in range(100))
    scan, _ = scanned([part] * 20, drops=True)
    assert scan.estimated_output_tokens() == 20 * 100 * 100 // 4


def test_text_is_estimated_when_usage_names_no_output_before_it() -> None:
    first = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}})
    scan, _ = scanned([first, *[event(chunk("w" * 1000))] * 100], drops=True)
    assert scan.estimated_output_tokens() == 25_000


def test_surrogate_halves_pass_when_they_come_in_events_of_their_own() -> None:
    stream = b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\ndata: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n'
    scan, out = scanned([stream + DONE], drops=True)
    assert out == stream + DONE
    assert scan.state == "done"


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", True),
        (b": note\n\n", True),
        (event({"choices": []}), True),
        (event({"choices": [{"delta": {"role": "assistant", "content": "", "refusal": None}}]}), True),
        (event({"choices": [{"delta": {"role": "assistant", "content": "H"}}]}), False),
        (event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}), False),
        (event({"choices": [{"delta": {}, "finish_reason": "stop"}]}), False),
        (b"data: not json\n\n", False),
    ],
)
def test_preamble_is_what_says_nothing_yet(stream: bytes, expected: bool) -> None:
    assert is_preamble(stream) is expected


def test_error_behind_other_members_is_seen_when_usage_and_done_follow_in_one_read() -> None:
    broken = event({**chunk("half"), "error": {"message": "overloaded", "code": 502}})
    usage = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
    scan, _ = scanned([event(chunk("a")) + broken + usage + b"data: [DONE]\n\n"], drops=True)
    assert scan.state == "done"
    assert scan.has_error


_STOP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
_LATE_ERROR = event({"id": "1", "error": {"message": "overloaded"}})
_USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([event(chunk("a")), _LATE_ERROR, _USAGE], True, id="no choice ended"),
        pytest.param([_STOP, _LATE_ERROR, _USAGE], True, id="behind the end of a choice, where others may lack theirs"),
        pytest.param([_STOP, event(chunk("b", error=None)), _LATE_ERROR, _USAGE], True, id="in another choice"),
        pytest.param([event(chunk("a", error=None)), _STOP, event({"choices": [], "error": None})], False, id="null"),
        pytest.param(
            [event({"choices": [{"finish_reason": "error"}], "error": {"code": 1}}), _USAGE], True, id="reason"
        ),
    ],
)
@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("in_one_read", [False, True])
def test_error_behind_other_members_is_seen_at_done_when_no_choice_ends_well_after_it(
    events: list[bytes], expected: bool, exactly: bool, in_one_read: bool
) -> None:
    """Without `close`, which looks at everything: a stream that ends with `[DONE]` is not closed."""
    scan = ChatStreamScan(drops_usage_chunk=True)
    if exactly:
        scan._splitter = EventSplitter()
    stream = [*events, b"data: [DONE]\n\n"]
    for read in [b"".join(stream)] if in_one_read else stream:
        scan.feed(read)
    assert scan.state == "done"
    assert scan.has_error is expected
