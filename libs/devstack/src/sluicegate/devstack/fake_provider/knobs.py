"""What a fake answer looks like: every knob, its default, and how one request sets it. No I/O here.

A request sets knobs in three places, the later one winning:

    model name     "fake-gpt?events=200&pace_ms=20"
    body field     {"fake": "events=200&pace_ms=20"}     passes through any gateway that keeps unknown fields
    headers        x-fake-events: 200                     only for callers that reach the provider directly
"""

from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl

import msgspec

NEVER: Final = -1
_HEADER_PREFIX: Final = b"x-fake-"

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
EventIndex = Annotated[int, msgspec.Meta(ge=NEVER, le=10_000_000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]

UsageShape = Literal["ask", "none", "null", "only_null", "content", "cumulative", "always", "groq"]


class UnknownKnobError(ValueError):
    """The request names a knob that does not exist, or a value that it cannot have."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer's behaviour. `k` in the `*_at` knobs counts events already sent; -1 is never."""

    # Content.
    events: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 12
    """JSON events with choices: a role, words, a finish reason. Usage, errors and [DONE] come on top."""
    words: str = ""
    """Words separated by `|`; `@awkward` and `@surrogates` are ready-made sets."""
    word_bytes: Count = 0
    """Pads every word to this many bytes."""
    first: Literal["role", "content"] = "role"
    tools: Count = 0
    """Number of parallel tool calls to answer with, instead of words."""
    prompt_filter: bool = False
    """Starts with an event whose choices are empty, as Azure does."""

    # Time. One write for everything, one for each event, or one for each byte.
    write: Literal["once", "each", "bytes"] = "once"
    ttft_ms: Milliseconds = 0
    pace_ms: Milliseconds = 0
    jitter_ms: Milliseconds = 0
    head_ms: Milliseconds = 0
    """Pause between the status line and the rest of the head."""
    head_first: bool = False
    """Sends the head before the wait for the first event, not with it."""

    # SSE framing.
    framing: Literal["lf", "crlf", "cr"] = "lf"
    comments: bool = False
    multiline: bool = False
    """Pretty-printed JSON over several `data:` lines of one event."""
    id_lines: bool = False
    """Adds `id:` and `event:` lines to each event."""
    done: bool = True

    # Usage.
    usage: UsageShape = "ask"
    prompt_tokens: Count = 11
    completion_tokens: EventIndex = NEVER
    """-1: as many as there were words."""
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0

    # HTTP.
    chunks: Literal["each", "whole"] = "each"
    """One HTTP chunk for each event, or one for each write."""
    length: Literal["known", "none"] = "known"
    """none: neither content-length nor chunks, the end is the close."""
    close: bool = False
    early: Literal[0, 100, 103] = 0
    gzip: bool = False
    drop_next: bool = False
    """Keeps the connection, then closes it without a word when the next request arrives."""
    drop_idle: bool = False
    """Closes the connection right after the answer, without having announced it."""

    # Refusals.
    status: Annotated[int, msgspec.Meta(ge=300, le=599)] = 200
    code: str = ""
    retry_after: str = ""
    fail_first: Count = 0
    """Refuses only the first N calls made with these very knobs."""
    reject_stream_options: bool = False

    # Failures.
    error_at: EventIndex = NEVER
    """Sends an error frame after event k, and ends."""
    cut_at: EventIndex = NEVER
    """Closes the connection after event k."""
    cut_mid: bool = False
    """Half of the next event goes out before the cut."""
    cut: Literal["fin", "rst"] = "fin"
    cut_head: bool = False
    """Closes the connection before the first byte of an answer."""
    silence: Literal["", "request", "head"] = ""
    """Never answers, or sends a head and nothing more."""
    silence_at: EventIndex = NEVER
    gate_at: EventIndex = NEVER
    """Waits after event k until `POST /_fake/release`."""
    garbage: Literal["", "http", "json", "truncated", "event"] = ""


DEFAULT: Final = Knobs()
FIELDS: Final = frozenset(Knobs.__struct_fields__)


def split_model(model: str) -> tuple[str, str]:
    """`name?knobs` → (name, knobs)."""
    name, _, text = model.partition("?")
    return name, text


def parse(*texts: str, headers: list[tuple[bytes, bytes]] | None = None) -> Knobs:
    """Knobs from query-string texts and `x-fake-*` headers, later ones winning. Raises UnknownKnobError."""
    values: dict[str, str] = {}
    for text in texts:
        values.update(parse_qsl(text, keep_blank_values=True))
    for name, value in headers or ():
        if name.startswith(_HEADER_PREFIX):
            values[name[len(_HEADER_PREFIX) :].decode("latin-1").replace("-", "_")] = value.decode()
    if not values:
        return DEFAULT
    try:
        return msgspec.convert(values, Knobs, strict=False)
    except msgspec.ValidationError as error:
        raise UnknownKnobError(str(error)) from error
