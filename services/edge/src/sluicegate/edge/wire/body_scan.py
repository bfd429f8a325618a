"""Read the top level of a large JSON object while it arrives, so that no one step of it takes long.

Rule: what is small in a large body (the model's name, limits, options) is captured, what is large is only
passed over; the body itself is never put together.

Theory: outside of strings only brackets change the depth, and inside only a quote that is not escaped ends
it. So one regular expression passes over everything between brackets, over short strings, and over objects
and arrays that hold nothing nested: Python runs once per long string and once per pair of brackets that
holds others, not once per token. A long string is passed by one search for its quote. The expressions are
unrolled: each byte can be matched in one way only, so giving up on a bracket costs no more than trying it.
(Possessive repeats would say the same, and match wrongly before Python 3.11.5.)

Mechanics: the scan is a few words of state (depth, in a string, behind a backslash, what the top level
expects next) that survive the end of a piece. UTF-8 is checked as it arrives. `;base64,` begins a span
that lasts to its quote and counts as an image.

Limits: up to 15 ms a MiB for what people send, 370 at worst (brackets in brackets in brackets). Inside the
members only strings and brackets are understood. Other faults in there are the provider's to refuse; a
small body is checked whole (`phases.classify`).
"""

import codecs
import re
from typing import Final, Literal, NamedTuple

import msgspec

_CAPTURED_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 1_000
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,\]} \t\r\n]*")
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*("?)', re.DOTALL)
_RUN: Final = rb'[^"\[\]{}]*'
_SHORT_STRING: Final = rb'"[^"\\]{0,200}(?:\\.[^"\\]{0,200}){0,16}"'
_FLAT: Final = rb"%b(?:%b%b)*" % (_RUN, _SHORT_STRING, _RUN)
_NOTHING_NESTED: Final = re.compile(rb"%b(?:(?:\{%b\}|\[%b\])%b)*" % (_FLAT, _FLAT, _FLAT, _FLAT), re.DOTALL)
_BASE64: Final = b";base64,"
_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COLON, _COMMA = b'"\\{}:,'
_OPENING: Final = frozenset(b"{[")
_new_decoder = codecs.getincrementaldecoder("utf-8")
_decode_text: Final = msgspec.json.Decoder(str).decode

State = Literal["begin", "first name", "name", "colon", "value", "scalar", "nested", "comma", "end"]


class BodyScanError(ValueError):
    """The body is not a JSON object in UTF-8; the text says why."""


class ScannedMember(NamedTuple):
    """A member of the top level: where its value stands, and the value itself if it is small."""

    name: str
    start: int
    end: int
    value: bytes | None
    first_byte: int


class BodyScan:
    """The scan of one body. `feed` every piece in order, then `finish`."""

    __slots__ = (
        "_base64_tail",
        "_captured",
        "_captured_bytes",
        "_decoder",
        "_depth",
        "_first_byte",
        "_is_escaped",
        "_is_in_base64",
        "_is_in_string",
        "_name",
        "_start",
        "_state",
        "base64_bytes",
        "images",
        "members",
        "size",
    )

    def __init__(self) -> None:
        self.members: list[ScannedMember] = []
        self.size = 0
        self.images = 0
        self.base64_bytes = 0
        self._state: State = "begin"
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._name = ""
        self._start = 0
        self._first_byte = 0
        self._captured: list[bytes] = []
        self._captured_bytes = 0
        self._decoder = _new_decoder()
        self._is_in_base64 = False
        self._base64_tail = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body. BodyScanError: it cannot become a JSON object any more."""
        self._check_text(piece)
        self._count_base64(piece)
        at, end = 0, len(piece)
        while at < end:
            if self._is_in_string:
                at = self._pass_string(piece, at)
            elif self._state == "nested":
                at = self._pass_nested(piece, at)
            elif self._state == "scalar":
                at = self._pass_scalar(piece, at)
            else:
                at = self._pass_top(piece, at)
        self.size += end

    def finish(self) -> None:
        """The body has ended. BodyScanError: in the middle."""
        if self._state != "end":
            raise BodyScanError("it is truncated")
        self._check_text(b"", is_last=True)

    def skeleton(self) -> bytes:
        """Return the object with its large values emptied: small enough to decode at once."""
        return b"{%b}" % b",".join(
            [msgspec.json.encode(member.name) + b":" + _value_or_stand_in(member) for member in self.members]
        )

    # Positions are in the piece; `self.size` is where the piece begins in the body.

    def _pass_top(self, piece: bytes, at: int) -> int:
        blank = _BLANK.match(piece, at)
        at = at if blank is None else blank.end()
        if at == len(piece):
            return at
        byte, state = piece[at], self._state
        if state == "value":
            return self._begin_value(byte, at)
        if byte == _QUOTE and state in {"first name", "name"}:
            self._is_in_string = True
            self._start_capture()
        elif byte == _COLON and state == "colon":
            self._state = "value"
        elif byte == _COMMA and state == "comma":
            self._state = "name"
        elif byte == _CLOSE and state in {"first name", "comma"}:
            self._state = "end"
        elif byte == _OPEN and state == "begin":
            self._state = "first name"
        else:
            raise BodyScanError(f"byte {self.size + at} stands where it must not")
        return at + 1

    def _begin_value(self, byte: int, at: int) -> int:
        self._start, self._first_byte = self.size + at, byte
        self._start_capture()
        if byte != _QUOTE and byte not in _OPENING:
            self._state = "scalar"
            return at
        self._captured.append(bytes((byte,)))
        if byte == _QUOTE:
            self._is_in_string = True
        else:
            self._state, self._depth = "nested", 1
        return at + 1

    def _pass_string(self, piece: bytes, at: int) -> int:
        begin = at
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        quote = piece.find(b'"', at)
        if quote < 0:
            end = len(piece)
            self._is_escaped = _ends_escaping(piece, at)
        elif quote == at or piece[quote - 1] != _BACKSLASH:
            end = quote + 1
            self._is_in_string = False
        else:
            match = _REST_OF_STRING.match(piece, at)
            if match is not None and match.group(1):
                end = match.end()
                self._is_in_string = False
            else:
                end = len(piece)
                self._is_escaped = _ends_escaping(piece, at)
        self._capture(piece, begin, end)
        if not self._is_in_string and self._state != "nested":
            self._end_string(end)
        return end

    def _end_string(self, end: int) -> None:
        if self._state == "value":
            self._end_member(end)
            return
        try:
            self._name = _decode_text(b'"' + b"".join(self._captured))
        except msgspec.DecodeError as error:
            raise BodyScanError(str(error)) from error
        self._state = "colon"

    def _pass_nested(self, piece: bytes, at: int) -> int:
        match = _NOTHING_NESTED.match(piece, at)
        end = at if match is None else match.end()
        if end < len(piece):
            byte = piece[end]
            end += 1
            if byte == _QUOTE:
                self._is_in_string = True
            elif byte in _OPENING:
                self._depth += 1
            else:
                self._depth -= 1
            if self._depth > _MAX_DEPTH:
                raise BodyScanError("it is nested too deeply")
        self._capture(piece, at, end)
        if not self._depth:
            self._end_member(end)
        return end

    def _pass_scalar(self, piece: bytes, at: int) -> int:
        match = _SCALAR.match(piece, at)
        end = at if match is None else match.end()
        self._capture(piece, at, end)
        if end < len(piece):
            if not self._captured_bytes:
                raise BodyScanError(f"a value is missing at byte {self.size + at}")
            self._end_member(end)
        return end

    def _end_member(self, end: int) -> None:
        value = b"".join(self._captured) if self._captured_bytes <= _CAPTURED_BYTES else None
        self.members.append(ScannedMember(self._name, self._start, self.size + end, value, self._first_byte))
        self._captured.clear()
        self._state = "comma"

    def _start_capture(self) -> None:
        self._captured.clear()
        self._captured_bytes = 0

    def _capture(self, piece: bytes, at: int, end: int) -> None:
        self._captured_bytes += end - at
        if self._captured_bytes <= _CAPTURED_BYTES:
            self._captured.append(piece[at:end])

    def _check_text(self, piece: bytes, *, is_last: bool = False) -> None:
        if piece.isascii() and not self._decoder.getstate()[0] and not is_last:
            return
        try:
            self._decoder.decode(piece, final=is_last)
        except UnicodeDecodeError as error:
            raise BodyScanError(f"it is not UTF-8: {error.reason} near byte {self.size}") from error

    def _count_base64(self, piece: bytes) -> None:
        if self._is_in_base64:
            at = piece.find(b'"')
            if at < 0:
                self.base64_bytes += len(piece)
                return
            self.base64_bytes += at
            self._is_in_base64 = False
            piece = piece[at:]
        text = self._base64_tail + piece
        at = text.find(_BASE64)
        while at >= 0:
            self.images += 1
            self.base64_bytes += len(_BASE64)
            start = at + len(_BASE64)
            end = text.find(b'"', start)
            if end < 0:
                self.base64_bytes += len(text) - start
                self._is_in_base64 = True
                self._base64_tail = b""
                return
            self.base64_bytes += end - start
            at = text.find(_BASE64, end)
        self._base64_tail = text[-(len(_BASE64) - 1) :]


def _ends_escaping(piece: bytes, at: int) -> bool:
    """Tell whether the piece ends behind a backslash that is not escaped itself; the string goes back to `at`."""
    end = last = len(piece)
    while last > at and piece[last - 1] == _BACKSLASH:
        last -= 1
    return (end - last) % 2 == 1


def _value_or_stand_in(member: ScannedMember) -> bytes:
    if member.value is not None:
        return member.value
    if member.first_byte in _OPENING:
        return b"[]" if member.first_byte == b"["[0] else b"{}"
    return b'"%b"' % (b"x" * _MAX_DEPTH) if member.first_byte == _QUOTE else b"0"
