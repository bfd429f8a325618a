"""How a request sets the knobs."""

import pytest

from sluicegate.devstack.fake_provider.knobs import DEFAULT, UnknownKnobError, parse, split_model


def test_knobs_are_the_default_when_a_request_names_none() -> None:
    assert parse(split_model("fake-gpt")[1], "") is DEFAULT


def test_model_name_sets_knobs_after_its_question_mark() -> None:
    name, text = split_model("any-model?events=200&pace_ms=20.5&comments=1")
    knobs = parse(text)
    assert (name, knobs.events, knobs.pace_ms, knobs.comments) == ("any-model", 200, 20.5, True)


def test_headers_win_over_the_body_and_the_body_over_the_model() -> None:
    headers = [(b"host", b"x"), (b"x-fake-ttft-ms", b"7")]
    knobs = parse("events=1&pace_ms=1&ttft_ms=1", "events=2&ttft_ms=2", headers=headers)
    assert (knobs.pace_ms, knobs.events, knobs.ttft_ms) == (1, 2, 7)


def test_words_keep_spaces_and_signs_when_they_are_percent_encoded() -> None:
    assert parse("words=a%26b%20c|d").words == "a&b c|d"


@pytest.mark.parametrize(
    "text", ["evnts=3", "events=0", "events=many", "usage=double", "pace_ms=-1", "status=99", "status=204"]
)
def test_knobs_are_refused_when_unknown_or_out_of_range(text: str) -> None:
    with pytest.raises(UnknownKnobError):
        parse(text)
