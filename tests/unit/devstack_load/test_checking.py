"""The driver's judgement of answers."""

import pytest

from sluicegate.devstack.fake_provider import answers, payloads
from sluicegate.devstack.fake_provider.answers import Chat, Plan
from sluicegate.devstack.fake_provider.knobs import parse
from sluicegate.devstack.load.checking import Checker, Partial, WrongAnswerError


def written(plan: Plan) -> bytes:
    return plan.head[0] + b"1" + plan.head[1] + b"".join(step.data for step in plan.steps())


def stream(text: str = "events=4") -> bytes:
    return written(answers.stream(Chat("fake-gpt", stream=True), "fake-gpt", parse(text)))


def document(text: str = "") -> bytes:
    knobs = parse(text)
    return written(answers.document(200, payloads.completion(knobs, "fake-gpt"), knobs))


def test_right_answer_is_known_by_comparison_once_it_was_checked() -> None:
    checker = Checker("stream", 4)
    assert not checker.is_known(stream())
    assert checker.check(stream())
    assert checker.is_known(stream().replace(b"fake-1", b"fake-77"))
    assert len(checker.digests) == 1


def test_known_body_is_not_enough_when_the_framing_header_differs() -> None:
    checker = Checker("json", 1)
    assert checker.check(document())
    start = document().find(b"content-length: ")
    lying = document()[:start] + b"content-length: 9" + document()[start + 17 :]
    assert not checker.is_known(lying)
    assert not checker.check(lying)
    with pytest.raises(WrongAnswerError, match="closed before the end"):
        checker.check(lying, is_closed=True)


@pytest.mark.parametrize("whole", [stream(), document()], ids=["stream", "json"])
def test_answer_is_complete_only_with_its_last_byte_when_split_anywhere(whole: bytes) -> None:
    checker = Checker("stream" if b"event-stream" in whole else "json", 4)
    for at in range(1, len(whole)):
        partial = Partial()
        assert not (partial.add(whole[:at]) and checker.check(partial.data))
        assert partial.add(whole[at:])
        assert checker.check(partial.data)


def test_answer_is_complete_with_its_last_byte_when_it_comes_byte_by_byte() -> None:
    partial = Partial()
    whole = stream()
    verdicts = [partial.add(whole[at : at + 1]) for at in range(len(whole))]
    assert verdicts[-1]
    assert partial.data == whole


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream("events=5"), "5 events, not 4"),
        (stream("events=4&done=0"), "end of the stream"),
        (stream("events=4&garbage=event"), "JSON"),
        (stream("events=4&comments=1"), "framing of an event"),
        (stream("events=4").replace(b"chat.completion.chunk", b"chat.completion.chonk"), "shape of an event"),
        (stream("events=4").replace(b'"finish_reason":"stop"', b'"finish_reason":null  '), "4 events, not 4"),
        (stream("events=4").replace(b"text/event-stream", b"application/jsonx"), "content type of a stream"),
        (stream("events=4") + b"HTTP/1.1 200 OK\r\n", "bytes behind the answer"),
        (stream("events=4").replace(b"200 OK", b"500 OK"), "status 500: no error object"),
        (b"\x16\x03\x01\r\n\r\n", "malformed HTTP"),
    ],
)
def test_wrong_stream_is_refused_with_its_reason(answer: bytes, reason: str) -> None:
    with pytest.raises(WrongAnswerError, match=f"^{reason}$"):
        Checker("stream", 4).check(answer)


def test_wrong_document_is_refused_with_its_reason() -> None:
    refusal = written(answers.refusal(429, "no", parse(""), code="rate_limit_exceeded"))
    with pytest.raises(WrongAnswerError, match=r"^status 429: rate_limit_exceeded$"):
        Checker("json", 1).check(refusal)
    with pytest.raises(WrongAnswerError, match=r"^shape of the completion$"):
        Checker("json", 1).check(document("usage=only_null"))
    with pytest.raises(WrongAnswerError, match=r"^JSON$"):
        Checker("json", 1).check(document("garbage=json"))


def test_close_ends_an_answer_only_when_it_has_no_length() -> None:
    checker = Checker("json", 1)
    assert checker.check(document("length=none"), is_closed=True)
    with pytest.raises(WrongAnswerError, match="closed before the end"):
        checker.check(document()[:-1], is_closed=True)


def test_early_hints_before_an_answer_are_passed_over() -> None:
    assert Checker("json", 1).check(document("early=103"))
