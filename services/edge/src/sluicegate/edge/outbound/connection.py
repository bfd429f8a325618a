"""One connection to a provider: HTTP/1.1 answers parsed from bytes, one call to the reader per read.

Rule: everything that one read brought is handed on in one piece, so that it can leave in one write.
Mechanics: httptools calls back for each part; parts are gathered and given to the reader when the
parser returns. `should_keep_alive()` is true only inside `on_message_complete`, so it is asked there.
1xx answers arrive as whole messages and are skipped. An answer without a length ends with EOF; over
TLS only a clean close brings `eof_received`, anything else is a truncated answer.
Limits: gzip and deflate are undone (once); other encodings are an error of the provider.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import httptools

_MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
_LARGE_READ_BYTES: Final = 64 * 1024
_MAX_HEAD_BYTES: Final = 256 * 1024
_TURN_BYTES: Final = 1024 * 1024


class AnswerReader(Protocol):
    """Whoever waits for the answer on a connection."""

    def on_read(self, connection: "ProviderConnection", data: bytes, *, is_end: bool) -> None:
        """Take the decoded body bytes of one read; status and headers stand in the connection."""

    def on_lost(self, connection: "ProviderConnection", reason: str) -> None:
        """The connection broke, or the answer made no sense, before its end; `reason` says what the provider did."""


class ConnectionOwner(Protocol):
    """The pool that a connection goes back to."""

    def adopt(self, connection: "ProviderConnection") -> None:
        """Count a connection that is open."""

    def give_back(self, connection: "ProviderConnection") -> None:
        """Take a connection whose answer was read whole and that can be used again."""

    def drain(self, connection: "ProviderConnection") -> None:
        """Bound the time of a connection whose answer is no longer read but has not ended."""

    def forget(self, connection: "ProviderConnection") -> None:
        """Drop a connection that is closed."""


class ProviderConnection(asyncio.Protocol):
    """A connection that carries one request and its answer at a time."""

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self._parts: list[bytes] = []
        # The parser takes its callbacks once, when it is made: headers and parts of a body cost no Python frame.
        self.on_body = self._parts.append
        self._head: dict[bytes, bytes] = {}
        self.on_header = self._head.__setitem__
        self._parser = httptools.HttpResponseParser(self)
        self._reader: AnswerReader | None = None
        self._inflater: zlib._Decompress | None = None
        self._problem: str | None = None
        self._head_bytes = 0
        self._is_informational = False
        self.has_length = False
        self._is_end = False
        self._keeps_alive = False
        self._is_paused = False
        self._is_full = False
        self._unsent: deque[bytes | memoryview] = deque()
        self.is_draining = False
        self.is_closed = False
        self.has_bytes = False
        self.uses = 0
        self.idle_since = 0.0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}

    # Called by whoever uses the connection

    def send(self, reader: AnswerReader, request: bytes) -> None:
        """Send one whole request; its answer goes to `reader`."""
        self._begin(reader)
        self.transport.write(request)

    def send_parts(self, reader: AnswerReader, request: Iterable[bytes | memoryview]) -> None:
        """Send one whole request that is too large for one step: some of it in each turn of the loop."""
        self._begin(reader)
        self._unsent.extend(request)
        self._send_some()

    def _send_some(self) -> None:
        room = _TURN_BYTES
        while self._unsent and room > 0 and not self._is_full and not self.is_closed:
            part = self._unsent.popleft()
            room -= len(part)
            self.transport.write(part)
        if self._unsent and not self._is_full and not self.is_closed:
            self._loop.call_soon(self._send_some)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._unsent:
            self._send_some()

    def _begin(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._is_end = self.has_bytes = False
        self._head_bytes = 0
        self.status = 0
        self.uses += 1

    def close(self) -> None:
        """Close at once and tell nobody: the reader has given up."""
        self._reader = None
        self._unsent.clear()
        if not self.is_closed:
            self.is_closed = True
            self._owner.forget(self)
            self.transport.abort()

    def detach(self) -> None:
        """The reader has all it needs: the connection goes back as soon as its answer has ended."""
        self._reader = None
        if self.is_closed:
            return
        if self._is_paused:
            self.resume()
        if not self._is_end:
            # `[DONE]` is often read before the last chunk of the body.
            self.is_draining = True
            self._owner.drain(self)
        elif self._keeps_alive and not self._unsent:
            self._owner.give_back(self)
        else:
            self.close()

    def pause(self) -> None:
        """Stop reading: the client takes no more for now."""
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            if not self.is_closed:
                self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream transport is all that connects here
        self._owner.adopt(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None and not self.is_draining:
            self.close()
            return
        self.has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("sent an answer that is not HTTP/1.1")
            return
        except httptools.HttpParserUpgrade:
            self._fail("sent an upgrade that nobody asked for")
            return
        if not self.status or self._is_informational:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._problem = "sent headers without end"
        if self._problem is not None:
            self._fail(self._problem)
        elif reader is None:
            self._drained()
        elif self.status:
            self._hand_on(reader)
        if len(data) >= _LARGE_READ_BYTES and not self._is_paused and not self.is_closed:
            # libuv reads a fast sender up to 32 times in one turn of the loop: let the others have theirs.
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._is_paused and not self.is_closed:
            self.transport.resume_reading()

    def eof_received(self) -> None:
        reader = self._reader
        if reader is not None and self.status and not self.has_length and not self._is_end:
            self._is_end = True
            self._keeps_alive = False
            self._hand_on(reader)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._owner.forget(self)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.on_lost(self, "broke the connection" if exc else "closed the connection too early")

    # httptools

    def on_message_begin(self) -> None:
        if self._is_end:
            self._problem = "sent more than one answer"
            return
        self._head.clear()
        self.has_length = False
        self._inflater = None

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_informational = status < 200
        if self._is_informational:
            return
        self.status = status
        headers = self.headers = {name.lower(): value for name, value in self._head.items()}
        self.has_length = b"content-length" in headers or b"transfer-encoding" in headers or status in (204, 304)
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding in (b"gzip", b"x-gzip"):
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        elif encoding == b"deflate":
            self._inflater = zlib.decompressobj()
        elif encoding != b"identity":
            self._problem = f"sent an answer in the encoding {encoding.decode('latin-1')!r}"

    def on_message_complete(self) -> None:
        if self._is_informational:
            return
        self._is_end = True
        self._keeps_alive = self._parser.should_keep_alive()

    def _drained(self) -> None:
        self._parts.clear()
        if self._is_end:
            self.is_draining = False
            self.detach()

    def _hand_on(self, reader: AnswerReader) -> None:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._inflater is None:
            reader.on_read(self, data, is_end=self._is_end)
        else:
            self._inflate(self._inflater, reader, data)

    def _inflate(self, inflater: "zlib._Decompress", reader: AnswerReader, data: bytes) -> None:
        try:
            data = inflater.decompress(data, _MAX_INFLATED_BYTES)
        except zlib.error:
            self._fail("sent an answer whose encoding is broken")
            return
        if inflater.unconsumed_tail:
            self._fail("sent an answer that inflates without end")
            return
        reader.on_read(self, data, is_end=self._is_end and inflater.eof)
        if self._is_end and not inflater.eof and self._reader is reader:
            self._fail("sent an answer whose encoding has no end")

    def _fail(self, reason: str) -> None:
        reader = self._reader
        self.close()
        if reader is not None:
            reader.on_lost(self, reason)
