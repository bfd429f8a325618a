"""The JSON of fake answers: completions, chunks, usage, errors, the model list. No framing, no I/O.

Identifiers and times are constant, so that two answers to one request are the same bytes.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from sluicegate.devstack.fake_provider.knobs import Knobs

Json = dict[str, Any]

_ID: Final = "chatcmpl-fake0000000000000000000000"
_CREATED: Final = 1_700_000_000
_WORDS: Final = ("Water", " finds", " its", " own", " level", ",", " says", " the", " sluice", " keeper", ".")
_AWKWARD: Final = (
    "a\u2028b",
    "c\u2029d",
    "e\u0085f",
    "\x0b\x0c\x1c\x1d\x1e",
    "\U0001f9ea\u200d\U0001f525",
    'q"\\',
    "\r\n\n",
    "data: [DONE]",
)
_SURROGATES: Final = (msgspec.Raw(b'"\\ud83d"'), msgspec.Raw(b'"\\ude00"'))
_TOOL_ARGUMENTS: Final = ('{"city": ', '"Pa', 'ris"}')


def words(knobs: Knobs) -> tuple[Any, ...]:
    """The words one answer cycles through; raw JSON where Python text cannot hold them."""
    if knobs.words == "@surrogates":
        return _SURROGATES
    chosen = _AWKWARD if knobs.words == "@awkward" else tuple(knobs.words.split("|")) if knobs.words else _WORDS
    return tuple(word.ljust(knobs.word_bytes, ".") for word in chosen)


def word_count(knobs: Knobs) -> int:
    """How many words the answer has: one for each event that is neither role-only nor the finish."""
    silent_first = knobs.events > 1 and knobs.first == "role"
    return max(knobs.events - (knobs.events > 1) - silent_first, 0)


def usage(knobs: Knobs, completion_tokens: int | None = None) -> Json:
    """OpenAI's usage object; cumulative shapes pass the tokens so far."""
    if completion_tokens is None:
        fixed = knobs.completion_tokens
        completion_tokens = fixed if fixed >= 0 else word_count(knobs)
    return {
        "prompt_tokens": knobs.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": knobs.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": knobs.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": knobs.reasoning_tokens},
    }


def chunks(knobs: Knobs, model: str) -> Iterator[Json]:
    """The events of a stream that have choices, in order, before usage is added."""
    if knobs.prompt_filter:
        yield _chunk(model, [], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}])
    deltas = _tool_deltas(knobs.tools) if knobs.tools else _word_deltas(knobs)
    for delta, finish_reason in deltas:
        yield _chunk(model, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


def usage_chunk(knobs: Knobs, model: str) -> Json:
    """The last event of a stream that was asked for usage."""
    return _chunk(model, [], usage=usage(knobs))


def completion(knobs: Knobs, model: str) -> Json:
    """A whole answer; its words are those of the stream."""
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    finish_reason = "stop"
    if knobs.tools:
        finish_reason = "tool_calls"
        message["tool_calls"] = [_tool_call(index, "".join(_TOOL_ARGUMENTS)) for index in range(knobs.tools)]
    else:
        message["content"] = _text(knobs)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    answer = {"id": _ID, "object": "chat.completion", "created": _CREATED, "model": model, "choices": [choice]}
    if knobs.usage == "only_null":
        answer["usage"] = None
    elif knobs.usage != "none":
        answer["usage"] = usage(knobs)
    return answer


def error(status: int, message: str, code: str | None = None, param: str | None = None) -> Json:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def models() -> Json:
    """`GET /v1/models`."""
    names = ("fake-gpt", "fake-gpt-mini")
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": _CREATED, "owned_by": "sluicegate"} for name in names],
    }


def _chunk(model: str, choices: list[Json], **more: Any) -> Json:
    head = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    return {**head, "system_fingerprint": "fp_fake", "choices": choices, **more}


def _word_deltas(knobs: Knobs) -> Iterator[tuple[Json, str | None]]:
    vocabulary = words(knobs)
    if knobs.events == 1:
        yield {"role": "assistant", "content": vocabulary[0]}, "stop"
        return
    count = word_count(knobs)
    position = 0
    if knobs.first == "role":
        yield {"role": "assistant", "content": "", "refusal": None}, None
    elif count:
        yield {"role": "assistant", "content": vocabulary[0]}, None
        position = 1
    for index in range(position, count):
        yield {"content": vocabulary[index % len(vocabulary)]}, None
    yield {}, "stop"


def _tool_deltas(tools: int) -> Iterator[tuple[Json, str | None]]:
    yield {"role": "assistant", "content": None, "refusal": None}, None
    for index in range(tools):
        yield {"tool_calls": [{"index": index, **_tool_call(index, "")}]}, None
    for part in _TOOL_ARGUMENTS:
        for index in range(tools):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}, None
    yield {}, "tool_calls"


def _tool_call(index: int, arguments: str) -> Json:
    return {"id": f"call_fake{index}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def _text(knobs: Knobs) -> Any:
    vocabulary = words(knobs)
    parts = [vocabulary[index % len(vocabulary)] for index in range(max(word_count(knobs), 1))]
    if isinstance(parts[0], msgspec.Raw):
        return msgspec.Raw(b'"' + b"".join(bytes(part)[1:-1] for part in parts) + b'"')
    return "".join(parts)
