"""Split a byte stream into server-sent events, exactly, whatever its line ends. No JSON in here.

Rule (WHATWG, "Server-sent events"): a line ends with LF, CRLF or CR, and a blank line ends an event.
Nothing else ends a line: U+2028, U+0085 and their kin stay inside the data, so `str.splitlines()`
is never used. A CR at the end of one read may be the first half of a CRLF, so the byte after it
decides; until then it is held back.
"""

import re
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Cuts bytes into whole events, each with its own line ends; concatenated they are the input."""

    __slots__ = ("_held", "_line_start", "_scanned")

    def __init__(self) -> None:
        self._held = b""
        self._scanned = 0
        self._line_start = 0

    @property
    def held(self) -> bytes:
        """The bytes of the event that has not ended yet."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, each with the blank line that ends it."""
        held = self._held + data if self._held else data
        events: list[bytes] = []
        start, line_start = 0, self._line_start
        for match in _LINE_END.finditer(held, self._scanned):
            if match.end() == len(held) and match.group() == b"\r":
                break
            if match.start() == line_start:
                events.append(held[start : match.end()])
                start = match.end()
            line_start = match.end()
        self._held = held[start:]
        self._line_start = line_start - start
        # Behind the last line end nothing ends a line, but a CR at the very end is looked at again.
        self._scanned = len(self._held) - 1 if self._held.endswith(b"\r") else len(self._held)
        return events

    def close(self) -> bytes:
        """Return what is left when the stream ends: an event without its blank line, or nothing."""
        rest, self._held = self._held, b""
        self._scanned = self._line_start = 0
        return rest


def split_events(events: bytes) -> list[bytes]:
    """Cut whole events apart. Without a CR that is one search for blank lines."""
    if b"\r" in events:
        return EventSplitter().feed(events)
    return [event + b"\n\n" for event in events.split(b"\n\n") if event]


def event_lines(event: bytes) -> list[bytes]:
    """Return the lines of one event without their ends; the blank line is left out."""
    return [line for line in _LINE_END.split(event) if line]


def event_data(event: bytes) -> bytes | None:
    """Return the data of an event: its `data:` lines joined with LF. None: it has none."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and b"\r" not in event and event.count(b"\n") == 2:
        return event[6:-2]
    data: list[bytes] = []
    for line in event_lines(event):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            data.append(b"")
    return b"\n".join(data) if data else None


def only_comments(event: bytes) -> bytes:
    """Return an event without data as far as it is comments; an `event:` line alone is an event to some SDKs."""
    lines = event_lines(event)
    comments = [line for line in lines if line.startswith(b":")]
    if len(comments) == len(lines):
        return event if lines else b""
    return b"\n".join([*comments, b"", b""]) if comments else b""


def without_fields(event: bytes) -> bytes:
    """Return the event without its `id` and `retry` lines.

    A lone `retry:` line, or a comment behind any `id:`, makes the openai SDK decode an empty event.
    """
    kept: list[bytes] = []
    start = 0
    for match in _LINE_END.finditer(event):
        line = event[start : match.start()]
        if not (line.startswith((b"id:", b"retry:")) or line in (b"id", b"retry")):
            kept.append(event[start : match.end()])
        start = match.end()
    out = b"".join(kept)
    return out if _LINE_END.sub(b"", out) else b""
