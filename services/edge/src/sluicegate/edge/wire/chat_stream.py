"""Scan a streamed chat answer while it passes: usage, text, `[DONE]`, errors. Bytes are not rebuilt.

Rule: whole events leave as they came, in the order they came, and only four things are ever taken
out: the usage-only chunk that we asked for and the client did not, `id:`/`retry:` lines and events
without data (they break the openai SDK), and whatever follows `[DONE]`.

Theory: JSON strings cannot hold a raw line end, so in a stream without CR two LFs always end an event, and
a marker such as `"usage"` (quotes included) found in the bytes is a real key or value, because inside a
string its quotes would be escaped. So one read costs one look at its line ends and one search for usage,
and only an event that is not plain, or holds usage, is looked at more closely. An error that does not stand
at the start of its event is looked for at `[DONE]`, and only behind the last choice that said why it ended.
A stream with a CR anywhere goes, from there on, through the exact splitter of `wire.sse`.

Text is counted only if no output is reported: passed events are kept by reference up to 64 KiB, and
beyond that their text is counted and they are let go.

Limits: an event of more than 4 MiB ends the scan as an error, because it would have to be held.
"""

import re
from typing import Any, Final, Literal

import msgspec

from sluicegate.edge.wire.sse import EventSplitter, event_data, only_comments, split_events, without_fields
from sluicegate.edge.wire.usage import (
    TokenUsage,
    merge_usage,
    read_envelope,
    text_bytes_of_document,
    tokens_of_bytes,
)

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
_KEPT_BYTES: Final = 64 * 1024
_NULL_USAGE: Final = re.compile(rb'"usage"\s*:\s*null')
_FINISHED: Final = re.compile(rb'"finish_reason"\s*:\s*"')
# What a plain event begins with, and the end of a line behind which no plain event begins.
_PLAIN_STARTS: Final = (b"data: {", b"data:{")
_ERROR_STARTS: Final = (b'data: {"error"', b'data:{"error"')
_ODD_LINE: Final = re.compile(rb'\n(?!\n|\Z|data: ?\{(?!"error"))')
_SENTINEL: Final = b"\n\ndata: [DONE]\n\n"

State = Literal["open", "done", "too_large"]


class ChatStreamScan:
    """The scan of one stream. `feed` gives what may leave now; the attributes say what was seen."""

    __slots__ = (
        "_drops_usage_chunk",
        "_kept",
        "_kept_bytes",
        "_splitter",
        "_tail",
        "_tail_bytes",
        "_text_bytes",
        "has_error",
        "is_finished",
        "state",
        "usage",
    )

    def __init__(self, *, drops_usage_chunk: bool) -> None:
        self.state: State = "open"
        self.usage: TokenUsage | None = None
        self.has_error = False
        self.is_finished = False
        self._drops_usage_chunk = drops_usage_chunk
        # Parts of the event that has not ended yet; none of them is empty.
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._splitter: EventSplitter | None = None
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._text_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Take what one read brought; return the whole events that may leave, in one piece."""
        if self.state != "open" or not data:
            return b""
        if self._splitter is not None or b"\r" in data:
            return self._feed_exactly(data)
        if self._tail:
            # Only what is new can end an event: a large one that comes in many reads is joined once.
            if b"\n\n" not in self._tail[-1][-1:] + data:
                self._hold(data)
                return b""
            data = self._take_tail() + data
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._hold(data)
            return b""
        if end != len(data):
            self._hold(data[end:])
            data = data[:end]
        return self._checked(self._pass(data))

    def close(self) -> bytes:
        """The provider's body has ended: return the events that only lacked their blank line."""
        self._count_kept()
        rest = self._take_tail()
        if self._splitter is not None:
            rest = self._splitter.close()
        event = rest.rstrip(b"\r\n") + b"\n\n"
        data = event_data(event)
        if self.state != "open" or data is None or (data != b"[DONE]" and read_envelope(data) is None):
            # Half an event does not leave.
            return b""
        return self._pass_event(event)

    def estimated_output_tokens(self) -> int:
        """Estimate the output from the bytes of text that have passed."""
        self._count_kept()
        return tokens_of_bytes(self._text_bytes)

    def _hold(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        if self._tail_bytes > MAX_EVENT_BYTES:
            self.state = "too_large"

    def _take_tail(self) -> bytes:
        tail = b"".join(self._tail)
        self._tail.clear()
        self._tail_bytes = 0
        return tail

    def _feed_exactly(self, data: bytes) -> bytes:
        splitter = self._splitter
        if splitter is None:
            splitter = self._splitter = EventSplitter()
            data = self._take_tail() + data
        out = b"".join([self._pass_event(event) for event in splitter.feed(data) if self.state == "open"])
        if self.state == "open" and len(splitter.held) > MAX_EVENT_BYTES:
            self.state = "too_large"
        return self._checked(out)

    def _checked(self, out: bytes) -> bytes:
        """At the stream's end look for an error in what is kept of it: behind the last reason that a choice gave."""
        if self.state == "done":
            kept = b"".join(self._kept)
            start = _last_reason_end(kept)
            if kept.find(b'"error"', start) >= 0:
                self.has_error = self.has_error or any(map(_is_error_event, split_events(kept[start:])))
        return out

    def _pass(self, data: bytes) -> bytes:
        """Pass whole LF events: as they are, but for the few that hold a marker."""
        odd = _ODD_LINE.search(data)
        if odd is not None or not data.startswith(_PLAIN_STARTS) or data.startswith(_ERROR_STARTS):
            if odd is None or not _is_plain_to_the_end(data, odd.start()):
                return self._pass_each(data)
            self.state = "done"
        usage = data.find(b'"usage"')
        if usage >= 0:
            data = self._pass_usage(data, usage)
        self._keep(data)
        return data

    def _pass_each(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        start = 0
        while start < len(data) and self.state == "open":
            end = data.find(b"\n\n", start) + 2
            if end == 1:
                # A blank line too many stands at the end.
                break
            parts.append(self._pass_event(data[start:end]))
            start = end
        return b"".join(parts)

    def _pass_usage(self, data: bytes, at: int) -> bytes:
        """Look into the events that hold usage other than null; the first of them is at `at`."""
        while at >= 0:
            null = _NULL_USAGE.match(data, at)
            if null is not None:
                at = data.find(b'"usage"', null.end())
                continue
            start = data.rfind(b"\n\n", 0, at)
            start = 0 if start < 0 else start + 2
            end = data.find(b"\n\n", at) + 2
            event = data[start:end]
            content = event_data(event)
            passed = event if content is None else self._look_into(event, content)
            if passed is not event:
                data = data[:start] + passed + data[end:]
                end = start + len(passed)
            at = data.find(b'"usage"', end)
        return data

    def _pass_event(self, event: bytes) -> bytes:
        """Look at one event, with its blank line; return it, changed where the rule says so."""
        if b"id" in event or b"retry" in event:
            event = without_fields(event)
        data = event_data(event)
        if data is None:
            return only_comments(event)
        if data == b"[DONE]":
            self.state = "done"
            return event
        if b'"error"' in data or b'"usage"' in data:
            event = self._look_into(event, data)
        self._keep(event)
        return event

    def _look_into(self, event: bytes, data: bytes) -> bytes:
        chunk = read_envelope(data)
        if chunk is None:
            return event
        self.has_error = self.has_error or chunk.has_error
        reported = chunk.reported
        if reported is None:
            return event
        self.usage = merge_usage(self.usage, reported)
        if chunk.choices or self.has_error:
            return event
        if self._drops_usage_chunk:
            return b""
        if chunk.choices is msgspec.UNSET:
            # A usage chunk without choices: SDKs read `choices` of every chunk.
            return event.replace(b"{", b'{"choices":[],', 1)
        return event

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > _KEPT_BYTES:
            if self.usage is None or not self.usage.output:
                self._count_kept()
            else:
                self._kept, self._kept_bytes = [data], len(data)

    def _count_kept(self) -> None:
        if not self._kept:
            return
        for event in split_events(b"".join(self._kept)):
            data = event_data(event)
            if data is not None:
                self._text_bytes += text_bytes_of_document(data)
                self.is_finished = self.is_finished or _FINISHED.search(data) is not None
                self.has_error = self.has_error or _is_error(data)
        self._kept.clear()
        self._kept_bytes = 0

    def has_finish_reason(self) -> bool:
        """Tell whether a choice said why it ended: all content is there, `[DONE]` or not."""
        self._count_kept()
        return self.is_finished


def _last_reason_end(data: bytes) -> int:
    """Return where the last choice that ended for a reason of its own says it: before it all went well. 0: none"""
    reason = _FINISHED.match(data, max(data.rfind(b'"finish_reason"'), 0))
    return 0 if reason is None or data.startswith(b'error"', reason.end()) else reason.end()


def _is_plain_to_the_end(data: bytes, odd: int) -> bool:
    """Tell whether the first odd line is `[DONE]`, at the end, and the events before it begin plainly."""
    return (
        odd == len(data) - len(_SENTINEL) + 1
        and data.endswith(_SENTINEL)
        and data.startswith(_PLAIN_STARTS)
        and not data.startswith(_ERROR_STARTS)
    )


def _is_error_event(event: bytes) -> bool:
    return _is_error(event_data(event) or b"")


def _is_error(data: bytes) -> bool:
    chunk = read_envelope(data) if b'"error"' in data else None
    return chunk is not None and chunk.has_error


class _OpeningChoice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _OpeningChunk(msgspec.Struct):
    choices: list[_OpeningChoice] | None = None


_decode_opening: Final = msgspec.json.Decoder(_OpeningChunk).decode


def is_preamble(events: bytes) -> bool:
    """Tell whether whole events say nothing yet: roles, empty content, comments."""
    splitter = EventSplitter()
    for event in splitter.feed(events):
        data = event_data(event)
        if data is None:
            continue
        try:
            chunk = _decode_opening(data)
        except (msgspec.DecodeError, RecursionError):
            return False
        for choice in chunk.choices or ():
            if choice.finish_reason or any(value for name, value in (choice.delta or {}).items() if name != "role"):
                return False
    return True
