"""From knobs to bytes: the plan of one answer, as a head and a row of writes with pauses. No I/O here.

A plan is made once for each distinct request and kept; a plan without pauses is one prebuilt write, which is what
makes the provider fast enough to measure a gateway against.
"""

import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from sluicegate.devstack.fake_provider import payloads
from sluicegate.devstack.fake_provider.knobs import NEVER, Knobs
from sluicegate.devstack.fake_provider.payloads import Json

_PREBUILT_EVENTS: Final = 2_000
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 408: "Request Timeout",
    409: "Conflict", 413: "Payload Too Large", 429: "Too Many Requests", 500: "Internal Server Error",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
_NEWLINES: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_EARLY: Final = {
    100: b"HTTP/1.1 100 Continue\r\n\r\n",
    103: b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n",
}
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Ending(Enum):
    """What becomes of the connection after the last write."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"


class Step(NamedTuple):
    """One write, after a pause. `events` is how many events have gone out once it is written."""

    pause_ms: float
    data: bytes
    events: int
    is_gate: bool = False


class Plan(NamedTuple):
    """A whole answer. The call's number goes between the two parts of the head, as its `x-request-id`."""

    status: int
    head: tuple[bytes, bytes]
    steps: Callable[[], Iterator[Step]]
    ending: Ending
    knobs: Knobs
    whole: bytes | None = None
    """Everything after the head, when it needs no pause."""
    events: int = 0


class Chat(msgspec.Struct, frozen=True):
    """What the provider reads of a chat request."""

    model: str
    stream: bool | None = False
    stream_options: dict[str, msgspec.Raw] | None = None
    fake: str = ""

    @property
    def wants_usage(self) -> bool:
        """Whether `stream_options.include_usage` is set."""
        return bytes((self.stream_options or {}).get("include_usage", b"false")) == b"true"


def refusal(status: int, message: str, knobs: Knobs, *, code: str | None = None, param: str | None = None) -> Plan:
    """An error answer, with `retry-after` if the knobs name one."""
    extra = f"retry-after: {knobs.retry_after}\r\n".encode() if knobs.retry_after else b""
    return document(status, payloads.error(status, message, code, param), knobs, extra)


def document(status: int, content: Json, knobs: Knobs, extra: bytes = b"") -> Plan:
    """An answer that is one JSON document."""
    body = msgspec.json.encode(content)
    if knobs.garbage == "json":
        body = b"<html>this is not JSON</html>"
    if knobs.gzip:
        body = _gzip(body)
    framing = b"content-length: %d\r\n" % len(body) if knobs.length == "known" else b""
    head = _head(status, b"application/json", framing + extra, knobs)
    cut = knobs.cut_at != NEVER or knobs.garbage == "truncated"
    sent = body[: len(body) // 2] if cut else body
    pause_ms = knobs.ttft_ms

    def steps() -> Iterator[Step]:
        if knobs.write == "bytes":
            yield Step(pause_ms, sent[:1], 0)
            yield from (Step(knobs.pace_ms, sent[at : at + 1], 0) for at in range(1, len(sent)))
        else:
            yield Step(pause_ms, sent, 0)

    ending = _ending(knobs, is_cut=cut)
    is_instant = knobs.write != "bytes" and not _has_pauses(knobs)
    return Plan(status, head, steps, ending, knobs, sent if is_instant else None)


def stream(chat: Chat, model: str, knobs: Knobs) -> Plan:
    """An answer that is a stream of events."""
    framing = b"transfer-encoding: chunked\r\n" if knobs.length == "known" else b""
    head = _head(200, b"text/event-stream; charset=utf-8", framing + b"cache-control: no-cache\r\n", knobs)
    is_cut = knobs.cut_at != NEVER

    def steps() -> Iterator[Step]:
        frames = _limited(_frames(chat, model, knobs), knobs)
        return _writes(_enveloped(frames, knobs, is_cut=is_cut), knobs)

    whole = None
    events = 0
    if not _has_pauses(knobs) and knobs.events <= _PREBUILT_EVENTS:
        made = list(steps())
        whole = b"".join(step.data for step in made)
        events = made[-1].events if made else 0
    return Plan(200, head, steps, _ending(knobs, is_cut=is_cut), knobs, whole, events)


def garbage(knobs: Knobs) -> Plan:
    """Bytes that are not HTTP."""
    return Plan(0, (b"\x16\x03\x01 this is not HTTP ", b"\r\n\r\n"), lambda: iter(()), Ending.CLOSE, knobs, b"")


def nothing(knobs: Knobs) -> Plan:
    """No answer at all: silence, or a cut before the first byte."""
    ending = Ending.HANG if knobs.silence else Ending.RESET if knobs.cut == "rst" else Ending.CLOSE
    return Plan(0, (b"", b""), lambda: iter(()), ending, knobs)


def sends_head_first(knobs: Knobs) -> bool:
    """Whether the head leaves before the first event is due."""
    return knobs.head_first or knobs.head_ms > 0 or knobs.silence == "head" or 0 in {knobs.gate_at, knobs.silence_at}


def _has_pauses(knobs: Knobs) -> bool:
    return knobs.ttft_ms > 0 or knobs.silence_at != NEVER or sends_head_first(knobs) or _is_one_by_one(knobs)


def _is_one_by_one(knobs: Knobs) -> bool:
    """Whether events leave in writes of their own."""
    return knobs.write != "once" or knobs.pace_ms > 0 or knobs.jitter_ms > 0 or knobs.gate_at != NEVER


def _ending(knobs: Knobs, *, is_cut: bool) -> Ending:
    if is_cut and knobs.cut == "rst":
        return Ending.RESET
    if knobs.silence or knobs.silence_at != NEVER:
        return Ending.HANG
    if is_cut or knobs.close or knobs.drop_idle or knobs.length == "none" or knobs.garbage == "truncated":
        return Ending.CLOSE
    return Ending.KEEP


def _head(status: int, content_type: bytes, extra: bytes, knobs: Knobs) -> tuple[bytes, bytes]:
    reason = _REASONS.get(status, "Unknown").encode()
    first = _EARLY.get(knobs.early, b"") + b"HTTP/1.1 %d %b\r\n" % (status, reason)
    says_close = knobs.close or knobs.length == "none"
    rest = b"content-type: " + content_type + b"\r\n" + extra
    rest += b"content-encoding: gzip\r\n" if knobs.gzip else b""
    rest += b"connection: close\r\n" if says_close else b""
    return first + b"x-request-id: fake-", b"\r\n" + rest + b"openai-processing-ms: 1\r\n\r\n"


class _Frame(NamedTuple):
    data: bytes
    is_event: bool


def _frames(chat: Chat, model: str, knobs: Knobs) -> Iterator[_Frame]:
    """Every SSE frame of an undisturbed stream, [DONE] included."""
    newline = _NEWLINES[knobs.framing]
    comment = b": keep-alive" + newline + newline if knobs.comments else b""
    shape = knobs.usage
    last = knobs.events - 1
    for index, payload in enumerate(payloads.chunks(knobs, model)):
        if shape in {"null", "only_null"}:
            payload["usage"] = None
        elif shape == "cumulative":
            payload["usage"] = payloads.usage(knobs, index + 1)
        elif shape == "content" and index == max(last - 1, 0):
            payload["usage"] = payloads.usage(knobs)
        elif shape == "groq" and index == last:
            payload["x_groq"] = {"id": "req_fake", "usage": payloads.usage(knobs)}
        data = _frame(msgspec.json.encode(payload), knobs, newline, index)
        if knobs.garbage == "event" and index == 1:
            data = b"data: {this is not JSON" + newline + newline
        yield _Frame(comment + data, is_event=True)
    if shape == "always" or (chat.wants_usage and shape in {"ask", "null", "groq"}):
        yield _Frame(
            _frame(msgspec.json.encode(payloads.usage_chunk(knobs, model)), knobs, newline, last + 1), is_event=False
        )
    if knobs.done:
        yield _Frame(b"data: [DONE]" + newline + newline, is_event=False)


def _frame(text: bytes, knobs: Knobs, newline: bytes, index: int) -> bytes:
    lines = msgspec.json.format(text, indent=2).split(b"\n") if knobs.multiline else [text]
    named = b"id: %d%bevent: message%b" % (index, newline, newline) if knobs.id_lines else b""
    return named + b"".join(b"data: " + line + newline for line in lines) + newline


def _limited(frames: Iterator[_Frame], knobs: Knobs) -> Iterator[_Frame]:
    """The frames up to the knobs' failure, if they ask for one."""
    stops = (knobs.cut_at, knobs.error_at, knobs.silence_at, 0 if knobs.silence == "head" else NEVER)
    stop = min((at for at in stops if at != NEVER), default=None)
    if stop is None:
        yield from frames
        return
    sent = 0
    for frame in frames:
        if sent >= stop:
            if stop == knobs.error_at:
                yield _Frame(_error_frame(knobs), is_event=False)
            elif stop == knobs.cut_at and knobs.cut_mid:
                yield _Frame(frame.data[: len(frame.data) // 2], is_event=False)
            return
        yield frame
        sent += frame.is_event


def _error_frame(knobs: Knobs) -> bytes:
    status = knobs.status if knobs.status >= 400 else 500
    newline = _NEWLINES[knobs.framing]
    content = payloads.error(status, "The fake provider failed on request.", knobs.code or None)
    return b"data: " + msgspec.json.encode(content) + newline + newline


def _enveloped(frames: Iterator[_Frame], knobs: Knobs, *, is_cut: bool) -> Iterator[_Frame]:
    """Compressed and put into HTTP chunks, as the knobs say."""
    packer = zlib.compressobj(wbits=31) if knobs.gzip else None
    is_chunked = knobs.length == "known" and (knobs.chunks == "each" or _is_one_by_one(knobs))
    collected = bytearray()
    for frame in frames:
        data = frame.data
        if packer:
            data = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        if is_chunked:
            yield _Frame(_chunk(data), frame.is_event)
        elif knobs.length == "none":
            yield _Frame(data, frame.is_event)
        else:
            collected += data
    rest = packer.flush() if packer and not is_cut else b""
    if collected:
        yield _Frame(_chunk(bytes(collected) + rest), is_event=False)
        rest = b""
    if rest:
        yield _Frame(rest if knobs.length == "none" else _chunk(rest), is_event=False)
    hangs = knobs.silence == "head" or knobs.silence_at != NEVER
    if knobs.length == "known" and not is_cut and not hangs:
        yield _Frame(_LAST_CHUNK, is_event=False)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _writes(frames: Iterator[_Frame], knobs: Knobs) -> Iterator[Step]:
    """The frames as writes. What is no event (usage, [DONE], the last chunk) leaves with the event before it."""
    sent = 0
    pending: list[bytes] = []
    one_by_one = _is_one_by_one(knobs)
    for frame in frames:
        if frame.is_event and pending and one_by_one:
            yield from _step(b"".join(pending), sent, knobs)
            pending.clear()
        if frame.is_event:
            sent += 1
        pending.append(frame.data)
    if pending:
        yield from _step(b"".join(pending), sent, knobs)


def _step(data: bytes, sent: int, knobs: Knobs) -> Iterator[Step]:
    is_first = sent <= 1 or not _is_one_by_one(knobs)
    pause_ms = knobs.ttft_ms if is_first else knobs.pace_ms
    is_gate = knobs.gate_at != NEVER and sent == knobs.gate_at + 1
    if knobs.write == "bytes":
        yield Step(pause_ms, data[:1], sent, is_gate)
        yield from (Step(0, data[at : at + 1], sent) for at in range(1, len(data)))
    else:
        yield Step(pause_ms, data, sent, is_gate)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(body) + packer.flush()
