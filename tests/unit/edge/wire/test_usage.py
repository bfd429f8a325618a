"""Usage is read without trust: odd shapes never fail, and never count for more than they say."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.edge.wire.usage import (
    TokenUsage,
    read_envelope,
    text_bytes_of_document,
    tokens_of_bytes,
    usage_at_the_end,
    usage_of_document,
)

FIELDS = ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"]
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*FIELDS, "x"]), inner),
    max_leaves=6,
)
documents = st.dictionaries(
    st.sampled_from(["usage", "x_groq", "choices", "error", "id"]),
    json_values
    | st.fixed_dictionaries({"usage": json_values})
    | st.fixed_dictionaries(dict.fromkeys(FIELDS, json_values)),
)


def read(usage: Any, **more: Any) -> tuple[int, int, int, int] | None:
    found = usage_of_document(json.dumps({"choices": [], "usage": usage, **more}).encode())
    return None if found is None else (found.input, found.cached_input, found.output, found.reasoning)


@given(documents | json_values)
def test_any_json_is_read_without_a_fault(document: Any) -> None:
    text = json.dumps(document).encode()
    usage = usage_of_document(text)
    text_bytes_of_document(text)
    usage_at_the_end(text)
    if usage is not None:
        assert all(0 <= getattr(usage, name) < 1_000_000_000 for name in TokenUsage.__slots__)
    envelope = read_envelope(text)
    assert (envelope is not None) == isinstance(document, dict)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_a_fault(text: bytes) -> None:
    usage_of_document(text)
    text_bytes_of_document(text)
    usage_at_the_end(text)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 11, "completion_tokens": 7}, (11, 0, 7, 0)),
        ({"prompt_tokens": 11}, (11, 0, 0, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0, 0, 0)),
        ({"prompt_tokens": 11.0, "completion_tokens": 7.9}, (11, 0, 7, 0)),
        ({"prompt_tokens": "11", "completion_tokens": "many"}, (11, 0, 0, 0)),
        ({"prompt_tokens": 11, "completion_tokens": -7}, (11, 0, 0, 0)),
        ({"prompt_tokens": 11, "completion_tokens": True}, (11, 0, 0, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 10**30}, (11, 0, 0, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}, (11, 4, 7, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": None}, (11, 0, 7, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": "x"}, (11, 0, 7, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 5}}, (11, 0, 7, 5)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": "5"}}, (11, 0, 7, 5)),
        ({"total_tokens": 18}, None),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"prompt_tokens": -1, "completion_tokens": 10**30}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("18", None),
    ],
)  # fmt: skip
def test_usage_is_what_is_certain_of_it(usage: object, expected: tuple[int, int, int, int] | None) -> None:
    assert read(usage) == expected


def test_usage_of_groq_is_read_where_it_stands() -> None:
    assert read(None, x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 0, 4, 0)
    assert read(None, x_groq={"usage": {"prompt_tokens": "3", "completion_tokens": 4}}) == (3, 0, 4, 0)
    assert read({"prompt_tokens": 5}, x_groq={"usage": {"prompt_tokens": 3}}) == (5, 0, 0, 0)


def test_usage_is_read_when_other_fields_are_odd() -> None:
    assert read({"prompt_tokens": 5}, choices={"a": 1}, error=[], x_groq=7) == (5, 0, 0, 0)


def test_usage_is_found_at_the_end_of_a_large_document() -> None:
    tail = b'ntent":"\\"usage\\": 1"}}],"usage":{"prompt_tokens":9,"completion_tokens":2},"x":"\xc3'
    usage = usage_at_the_end(tail)
    assert usage is not None
    assert (usage.input, usage.output) == (9, 2)
    assert usage_at_the_end(b'"usage"') is None
    assert usage_at_the_end(b'"usage":{"prompt_tokens":9') is None
    assert usage_at_the_end(b"nothing here") is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"choices": [{"message": {"content": "héllo"}}]}, 6),
        ({"choices": [{"delta": {"content": "ab", "reasoning_content": "cd"}}]}, 4),
        ({"choices": [{"message": {"content": None, "refusal": "no"}}]}, 2),
        ({"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}, 3),
        ({"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}, 2),
        ({"choices": []}, 0),
        ({}, 0),
        ([], 0),
    ],
)
def test_text_is_counted_in_bytes(answer: object, expected: int) -> None:
    assert text_bytes_of_document(json.dumps(answer).encode()) == expected


def test_tokens_are_estimated_upwards() -> None:
    assert [tokens_of_bytes(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
