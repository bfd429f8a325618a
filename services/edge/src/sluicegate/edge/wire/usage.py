"""What a provider says of tokens, in OpenAI's form, read without trust.

Values of one field are overwritten by larger ones, never added: some providers report running totals
on every chunk. `"usage": null` is not usage.
"""

import json
import re
from typing import Any, Final

import msgspec

# No real answer has more; beyond it a number is garbage and is not counted.
_MAX_TOKENS: Final = 1_000_000_000
# Four bytes of text are about one token.
BYTES_PER_TOKEN: Final = 4


class TokenUsage:
    """Token counts of one answer, in OpenAI's meaning (input includes cached, output reasoning)."""

    __slots__ = ("cache_write_1h", "cache_write_5m", "cached_input", "input", "output", "reasoning")

    def __init__(self) -> None:
        self.input = 0
        self.cached_input = 0
        self.cache_write_5m = 0
        self.cache_write_1h = 0
        self.output = 0
        self.reasoning = 0


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """`usage` as OpenAI sends it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _GroqExtension(msgspec.Struct):
    usage: ReportedUsage | None = None


class Envelope(msgspec.Struct):
    """A JSON answer or chunk, as far as it tells of usage, of an error, and whether it holds any choice."""

    usage: ReportedUsage | None = None
    x_groq: _GroqExtension | None = None
    choices: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def has_error(self) -> bool:
        """Whether it tells of an error."""
        return isinstance(self.error, msgspec.Raw) and bytes(self.error) != b"null"

    @property
    def reported(self) -> ReportedUsage | None:
        """The usage, wherever it stands."""
        return self.usage or (self.x_groq.usage if self.x_groq is not None else None)


class _Document(msgspec.Struct):
    usage: ReportedUsage | None = None


_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_decode_document: Final = msgspec.json.Decoder(_Document).decode
_BEGIN: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
_lenient: Final = json.JSONDecoder()
_decode_any: Final = msgspec.json.Decoder().decode


def merge_usage(into: TokenUsage | None, reported: ReportedUsage) -> TokenUsage | None:
    """Overwrite field by field with what is larger. A report without any count is none: `into` comes back."""
    if not (_is_count(reported.prompt_tokens) or _is_count(reported.completion_tokens)):
        return into
    usage = into or TokenUsage()
    usage.input = _larger(usage.input, reported.prompt_tokens)
    usage.output = _larger(usage.output, reported.completion_tokens)
    if reported.prompt_tokens_details is not None:
        usage.cached_input = _larger(usage.cached_input, reported.prompt_tokens_details.cached_tokens)
    if reported.completion_tokens_details is not None:
        usage.reasoning = _larger(usage.reasoning, reported.completion_tokens_details.reasoning_tokens)
    return usage


def read_envelope(document: bytes) -> Envelope | None:
    """Read a JSON answer or chunk, fields of odd types included; None: it is no JSON object."""
    try:
        return _decode_envelope(document)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError):
        return None
    try:
        decoded = _decode_any(document)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _odd_envelope(decoded) if isinstance(decoded, dict) else None


def usage_of_document(document: bytes) -> TokenUsage | None:
    """Return the usage in a JSON answer; None: it reports none."""
    try:
        usage = _decode_document(document).usage
    except (msgspec.DecodeError, RecursionError):
        usage = None
    if usage is not None:
        return merge_usage(None, usage)
    envelope = read_envelope(document)
    reported = None if envelope is None else envelope.reported
    return None if reported is None else merge_usage(None, reported)


def is_json_object(document: bytes) -> bool:
    """Tell whether an answer is a JSON object, or so nearly one that a client's parser may take it.

    For answers that report no usage: halves of surrogate pairs, bad UTF-8 and deep nesting are left to the client.
    """
    if read_envelope(document) is not None:
        return True
    if not may_be_json_object(document):
        return False
    try:
        decoded = _lenient.decode(document.decode("utf-8", "replace").lstrip("\ufeff"))
    except ValueError:
        return False
    except RecursionError:
        return True
    return isinstance(decoded, dict)


def may_be_json_object(document: bytes) -> bool:
    """Tell whether a document begins as a JSON object does."""
    return _BEGIN.match(document) is not None


def usage_at_the_end(tail: bytes) -> TokenUsage | None:
    """Return the usage in the last bytes of a document that was too large to keep; None: none there."""
    at = tail.rfind(b'"usage"')
    colon = tail.find(b":", at)
    if at < 0 or colon < 0:
        return None
    try:
        reported, _ = _lenient.raw_decode(tail[colon + 1 :].decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    return usage_of_document(msgspec.json.encode({"usage": reported}))


def _odd_envelope(decoded: dict[str, Any]) -> Envelope:
    """Take what can be read where a field has a type that nobody promised (floats, strings, nulls)."""
    groq = decoded.get("x_groq")
    choices: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    if "choices" in decoded:
        choices = [msgspec.Raw(b"{}")] if decoded["choices"] else []
    return Envelope(
        usage=_odd_usage(decoded.get("usage")),
        x_groq=_GroqExtension(usage=_odd_usage(groq.get("usage"))) if isinstance(groq, dict) else None,
        choices=choices,
        error=msgspec.Raw(msgspec.json.encode(decoded["error"])) if "error" in decoded else msgspec.UNSET,
    )


def _odd_usage(reported: object) -> ReportedUsage | None:
    if not isinstance(reported, dict):
        return None
    return ReportedUsage(
        prompt_tokens=_whole(reported.get("prompt_tokens")),
        completion_tokens=_whole(reported.get("completion_tokens")),
        prompt_tokens_details=_InputDetails(
            cached_tokens=_whole(_within(reported, "prompt_tokens_details", "cached_tokens"))
        ),
        completion_tokens_details=_OutputDetails(
            reasoning_tokens=_whole(_within(reported, "completion_tokens_details", "reasoning_tokens"))
        ),
    )


def _within(reported: dict[str, Any], name: str, field: str) -> object:
    details = reported.get(name)
    return details.get(field) if isinstance(details, dict) else None


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 < value < _MAX_TOKENS:
        return None
    return int(value)


def _is_count(reported: int | None) -> bool:
    return reported is not None and 0 <= reported < _MAX_TOKENS


def _larger(known: int, reported: int | None) -> int:
    return reported if reported is not None and known < reported < _MAX_TOKENS else known


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode


def text_bytes_of_document(document: bytes) -> int:
    """Return how many bytes of text a JSON answer or chunk holds: content, refusal, reasoning, tool calls."""
    try:
        answer = _decode_answer(document)
    except (msgspec.DecodeError, RecursionError):
        return 0
    return sum(_text_bytes(choice.delta or choice.message) for choice in answer.choices or ())


def _text_bytes(text: _Text | None) -> int:
    if text is None:
        return 0
    total = 0
    for part in (text.content, text.refusal, text.reasoning or text.reasoning_content):
        if part:
            total += _bytes_of(part)
    for call in text.tool_calls or ():
        if call.function is not None:
            total += _bytes_of(call.function.arguments or "") + _bytes_of(call.function.name or "")
    return total


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def tokens_of_bytes(text_bytes: int) -> int:
    """Estimate tokens from bytes of text, rounded up."""
    return -(-text_bytes // BYTES_PER_TOKEN)
