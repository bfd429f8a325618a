"""A client's connection: uvicorn's HTTP protocol, with data-plane requests taken over at the byte level.

Rule: requests of one connection are answered one after another, in the order they came, whoever answers
them. The client is never kept unread while its request runs, because only reading shows that it has gone;
FIN means gone.

Theory: the parser cannot be paused, so a pipelined request's callbacks fire while an earlier one is still
being answered. Each request therefore becomes an entry: an `Exchange` (ours), a uvicorn cycle (for the
ASGI app) or a refusal. One entry is current; the others wait in `_waiting`.

Mechanics: `on_headers_complete` decides who answers. Our own requests never reach uvicorn's cycle; for all
others the parent's callbacks run, and its `_start_asgi_task` is where they get in line (the app reads no
bodies: they are dropped here). Upgrades (h2c, WebSocket) are ignored as HTTP allows: the head is parsed
again without them, and the body follows. A client that takes no answers gets no next one worked out.
Where a connection ends while its client may still be sending, only our side is closed and what comes is
thrown away for a while: closing at once would reset the connection, and the answer could be lost with it.
Time limits are numbers that `inbound.deadlines` compares; uvicorn's own keep-alive timer is not used.

Limits: a client may have 64 requests or 1 MiB waiting; beyond that its connection ends after the answers
that are due. Head size and count, body size and the bytes buffered by the process are bounded by settings;
a head that does not end is noticed with the first read after the one it began in.
uvicorn's minor version is pinned, and a test names every internal that is used here.
"""

import asyncio
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sluicegate.contracts.ids import uuid7_text
from sluicegate.edge.edge import Edge
from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.head import KnownHead, RequestHead, learn
from sluicegate.edge.inbound.paths import CHAT, DATA_PLANE, deployment_of
from sluicegate.edge.inbound.responses import CONTINUE, render_refusal
from sluicegate.edge.phases import order
from sluicegate.edge.phases.classify import LARGE_BODY_BYTES
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.refuse import cancel, refuse
from sluicegate.runtime.logs import get_logger

_MAX_WAITING: Final = 64
_MAX_WAITING_BYTES: Final = 1024 * 1024
_MAX_HEADS_LEARNT: Final = 8
_SMALL_BODY_BYTES: Final = 64 * 1024
_LINGER_S: Final = 2.0
_LINGER_LONGEST_S: Final = 30.0
_WRITE_HIGH_BYTES: Final = 256 * 1024
_WRITE_LOW_BYTES: Final = 64 * 1024
_TURN_BYTES: Final = 1024 * 1024
_BODY_BYTES_PER_S: Final = 32 * 1024
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})
_log = get_logger(__name__)

Entry = Exchange | tuple[RequestResponseCycle, Any] | Refusal


class EdgeProtocol(HttpToolsProtocol):
    """One client connection. `deadline` is in loop time; 0: nothing is due."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        edge: Edge = app_state["edge"]
        self.edge = edge
        self._settings = edge.settings
        self._current: Entry | None = None
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._receiving: Exchange | None = None
        self._new_head: RequestHead | None = None
        self._is_first_head = False
        self._known_head: KnownHead | None = None
        self._heads_to_learn = _MAX_HEADS_LEARNT
        self._known_bytes = min(_SMALL_BODY_BYTES, edge.settings.max_body_bytes)
        self._known_room_bytes = edge.settings.max_buffered_bytes - self._known_bytes
        self._is_app_body_open = False
        self._is_in_head = False
        self._is_closing = False
        self._is_broken = False
        self._read_bytes = 0
        self._head_bytes = 0
        self._unsent_bytes = 0
        self._body_started = 0.0
        self._turn_bytes = 0
        self._linger_ends = 0.0
        self.deadline = 0.0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the parent
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES, low=_WRITE_LOW_BYTES)
        self.edge.metrics.connections += 1
        self.edge.metrics.open_connections += 1
        self.deadline = self.loop.time() + self._settings.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.edge.metrics.open_connections -= 1
        self._gone()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        self._gone()

    def _gone(self) -> None:
        """The client has gone: its running request ends, what it had sent ahead is forgotten."""
        self._is_closing = self._is_broken = True
        self._forget_waiting()
        self._receiving = None
        current, self._current = self._current, None
        if isinstance(current, Exchange):
            cancel(current)
            self.edge.release_body(current)

    def _forget_waiting(self) -> None:
        for entry in self._waiting:
            if isinstance(entry, Exchange):
                self.edge.release_body(entry)
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            if self._linger_ends:
                self.deadline = min(self.loop.time() + _LINGER_S, self._linger_ends)
            return
        known = self._known_head
        is_between_requests = not (self._is_in_head or self._is_app_body_open or self._receiving)
        if known is not None and is_between_requests and len(data) <= self._known_bytes and self._has_room():
            start = known.body_start(data)
            if start:
                self._take_known(known, data[start:])
                return
        self._read_bytes = len(data)
        self._new_head = None
        self._is_first_head = is_between_requests
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                self._refuse_connection(Refusal("invalid_request", "This is no tunnel.", closes=True))
            else:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_connection(Refusal("invalid_request", "This is not a valid HTTP/1.1 request.", closes=True))
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._settings.max_header_bytes:
                self._refuse_connection(self._head_too_large())
        self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Know the head of this read again; a connection whose heads keep differing is not worth it."""
        # Taken: an upgrade's head was fed as other bytes than these, and is learnt under those.
        head, self._new_head = self._new_head, None
        if head is not None and self._heads_to_learn:
            self._heads_to_learn -= 1
            self._known_head = learn(head, self.url, data)

    def _has_room(self) -> bool:
        """Tell whether nothing is being answered, and a small body is no matter."""
        return self._is_free() and self.edge.buffered_bytes <= self._known_room_bytes

    def _take_known(self, known: KnownHead, body: bytes) -> None:
        """Run a request whose head is known and whose body is whole, and so small that no limit is near."""
        exchange = self._current = Exchange(self.edge, self, known.head, expected_bytes=len(body))
        exchange.is_whole = True
        exchange.received_bytes = exchange.held_bytes = len(body)
        exchange.parts.append(body)
        self.edge.buffered_bytes += len(body)
        self.deadline = 0.0
        order.begin(exchange)
        if not exchange.is_settled:
            order.run(exchange)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on without the upgrade: parse the head again without it, then what followed."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = [token for token in tokens if token.lower() not in _UPGRADE_HEADERS]
                lines.append(b"connection: " + b", ".join(kept))
            elif name not in _UPGRADE_HEADERS:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        self._refuse_connection(Refusal("invalid_request", msg, closes=True))

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._is_broken:
            return
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._is_in_head = True
        # Below zero as long as the head's first read lasts, which may hold other requests before it.
        self._head_bytes = -self._read_bytes
        self._receiving = None
        self._is_app_body_open = False
        if self._current is None:
            self.deadline = self.loop.time() + self._settings.header_timeout_s

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        # Bytes are learnt as the head that they are, not as one that follows them: another caller's, perhaps.
        is_first, self._is_first_head = self._is_first_head, False
        if self._is_broken or self.parser.should_upgrade():
            return
        try:
            self._begin_message(is_first=is_first)
        except Refusal as refusal:
            self._refuse_connection(refusal)
        except Exception:  # noqa: BLE001 - httptools would hide it in an error of its own
            _log.exception("a request head could not be handled")
            self._refuse_connection(Refusal("internal_error", "The gateway failed on this request.", closes=True))

    def _begin_message(self, *, is_first: bool) -> None:
        headers, settings = self.headers, self._settings
        if len(headers) > settings.max_headers:
            raise Refusal("headers_too_large", f"More than {settings.max_headers} headers.", closes=True)
        if self._head_bytes >= 0 or self._read_bytes > settings.max_header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > settings.max_header_bytes:
                raise self._head_too_large()
        fields = dict(headers)
        version = self.parser.get_http_version()
        is_http10 = version == "1.0"
        if not is_http10:
            if version != "1.1":
                raise Refusal("invalid_request", "Only HTTP/1.1 and HTTP/1.0 are spoken here.", closes=True)
            if b"host" not in fields:
                raise Refusal("invalid_request", "The request has no `host` header.", closes=True)
        if b"transfer-encoding" in fields:
            self._check_coding()
        path, _, query = self.url.partition(b"?")
        if not path.startswith(b"/") or b"#" in self.url:
            path, query = self._parsed_target()
        endpoint, deployment = None, None
        if self.parser.get_method() == b"POST":
            endpoint = DATA_PLANE.get(path)
            if endpoint is None:
                deployment = deployment_of(path)
        if endpoint is None and deployment is None:
            self._begin_asgi()
            return
        # Azure's query is not the provider's.
        head = RequestHead(fields, endpoint or CHAT, b"" if deployment else query, deployment)
        is_chunked = b"transfer-encoding" in fields
        expected_bytes = None if is_chunked else int(fields.get(b"content-length", b"0"))
        keeps_alive = self.parser.should_keep_alive() and not is_http10
        if is_first and keeps_alive and b"expect" not in fields:
            self._new_head = head
        self._receive(
            Exchange(self.edge, self, head, expected_bytes=expected_bytes, keeps_alive=keeps_alive, is_http10=is_http10)
        )

    def _receive(self, exchange: Exchange) -> None:
        """The head is whole: the body follows."""
        self._receiving = exchange
        self._body_started = self.loop.time()
        if self._is_free():
            self._start(exchange)
        else:
            self._line_up(exchange)

    def _check_coding(self) -> None:
        codings = b",".join(value for name, value in self.headers if name == b"transfer-encoding")
        if codings.strip().lower() != b"chunked":
            raise Refusal("not_implemented", "Only the transfer encoding `chunked` is known.", closes=True)

    def _parsed_target(self) -> tuple[bytes, bytes]:
        try:
            parsed = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            raise Refusal("invalid_request", "The request target is not a path or a URL.", closes=True) from None
        if not parsed.path or not parsed.path.startswith(b"/"):
            raise Refusal("invalid_request", "The request target has no path.", closes=True)
        return parsed.path, parsed.query or b""

    def _begin_asgi(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        # The parent queues a request behind the cycle it knows of; that is done here.
        self.cycle = None  # type: ignore[assignment]  # as in the parent's __init__
        super().on_headers_complete()
        self._is_app_body_open = True

    def on_body(self, body: bytes) -> None:
        exchange = self._receiving
        if exchange is None or exchange.is_settled:
            return
        exchange.received_bytes += len(body)
        exchange.held_bytes += len(body)
        exchange.parts.append(body)
        self.edge.buffered_bytes += len(body)
        if exchange is not self._current:
            self._waiting_bytes += len(body)
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                self._stop_reading_ahead()
        elif exchange.received_bytes > self._settings.max_body_bytes:
            refuse(exchange, self._body_too_large())
        elif self.edge.buffered_bytes > self._settings.max_buffered_bytes:
            refuse(exchange, Refusal("gateway_overloaded", "Too many large requests at once. Try again."))
        elif exchange.received_bytes > LARGE_BODY_BYTES:
            order.look_ahead(exchange, body)
            self._turn_bytes += len(body)
            if self._turn_bytes > _TURN_BYTES:
                self._yield_the_loop()

    def _yield_the_loop(self) -> None:
        """Read on in the loop's next turn: libuv reads a fast sender up to 32 times in one."""
        self._turn_bytes = 0
        self.transport.pause_reading()
        self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def on_message_complete(self) -> None:
        self._is_app_body_open = False
        exchange, self._receiving = self._receiving, None
        if exchange is None:
            return
        exchange.is_whole = True
        if exchange is self._current:
            self.deadline = 0.0
            if exchange.is_settled:
                self._current = None
                self._next(keeps_alive=exchange.keeps_alive)
            else:
                order.run(exchange)

    # Requests, one after another

    def _is_free(self) -> bool:
        """Tell whether the next request may start: nothing is being answered, and the client takes answers."""
        return self._current is None and not self.flow.write_paused

    def _start(self, exchange: Exchange) -> None:
        """The exchange is current: authenticate it, and run it once its body is there."""
        self._current = exchange
        order.begin(exchange)
        if exchange.is_settled:
            return
        expected_bytes = exchange.received_bytes if exchange.expected_bytes is None else exchange.expected_bytes
        if expected_bytes > self._settings.max_body_bytes:
            refuse(exchange, self._body_too_large())
        elif exchange.is_whole:
            order.run(exchange)
        else:
            self.deadline = self._body_started + self._settings.body_timeout_s
            expects = exchange.head.headers.get(b"expect", b"").lower() == b"100-continue"
            if expects and not exchange.parts and not exchange.is_http10:
                self.transport.write(CONTINUE)

    def _line_up(self, entry: Entry) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._stop_reading_ahead()
        else:
            self._waiting.append(entry)

    def _stop_reading_ahead(self) -> None:
        """The client sends far ahead: what it sent is answered as far as it is whole, then the connection ends."""
        self._refuse_connection(Refusal("invalid_request", "Too much was sent ahead of its answers.", closes=True))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_free():
            self._current = (cycle, app)
            self.deadline = 0.0
            super()._start_asgi_task(cycle, app)
        else:
            self._line_up((cycle, app))

    def on_response_complete(self) -> None:
        """An answer of the ASGI app is out."""
        if isinstance(self._current, tuple):
            keeps_alive = self._current[0].keep_alive
            self._current = None
            self.server_state.total_requests += 1
            self._next(keeps_alive=keeps_alive)

    def _next(self, *, keeps_alive: bool) -> None:
        if self.transport.is_closing():
            return
        if not keeps_alive or self._is_closing:
            self._close()
            return
        while self._waiting and self._is_free():
            entry = self._waiting.popleft()
            if isinstance(entry, Exchange):
                self._waiting_bytes -= entry.received_bytes
                self._start(entry)
            elif isinstance(entry, Refusal):
                self._refuse_now(entry)
            else:
                self._start_asgi_task(*entry)
        if self._current is None and not self._is_closing:
            settings = self._settings
            timeout_s = settings.header_timeout_s if self._is_in_head else settings.keep_alive_timeout_s
            self.deadline = self.loop.time() + timeout_s

    # The client, as phases see it

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    def write(self, data: bytes) -> None:
        """Send bytes of the current answer."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def finish(self, exchange: Exchange, data: bytes) -> None:
        """Send the last bytes of the current answer; then the next request, or the end."""
        if exchange is not self._current:
            return
        if data:
            self.write(data)
        if exchange.is_whole:
            self._current = None
            self.server_state.total_requests += 1
            self._next(keeps_alive=exchange.keeps_alive)
        elif exchange.keeps_alive:
            self.deadline = self.loop.time() + self._settings.header_timeout_s
        else:
            self._linger()

    def refuse_body(self, exchange: Exchange) -> None:
        """The answer comes before the request is whole. A small rest is read, a large one ends the connection."""
        self.edge.release_body(exchange)
        is_small = exchange.expected_bytes is not None and exchange.expected_bytes <= _SMALL_BODY_BYTES
        if not is_small or b"expect" in exchange.head.headers:
            exchange.keeps_alive = False

    def abort(self) -> None:
        """Cut the connection: the client takes nothing."""
        self.transport.abort()

    # Ends

    def shutdown(self) -> None:
        """The server stops: idle connections close, the others after their current answer."""
        self.edge.is_draining = True
        if self._current is None:
            if not self._is_in_head:
                self._close()
            return
        self._forget_waiting()
        if self._receiving is not self._current:
            self._receiving = None
            self._is_broken = True
        if isinstance(self._current, tuple):
            self._current[0].keep_alive = False
        elif isinstance(self._current, Exchange):
            self._current.keeps_alive = False

    def expire(self, now: float) -> None:
        """A deadline has passed while the client was sending, idle, lingering, or taking its last answer."""
        current, receiving = self._current, self._receiving
        unsent_bytes = self.transport.get_write_buffer_size()
        if current is None and unsent_bytes > 0 and unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self.deadline = now + self._settings.write_timeout_s
        elif self._is_closing:
            self.transport.abort()
        elif current is None:
            if self._is_in_head:
                self._refuse_connection(Refusal("request_timeout", "The request head took too long.", closes=True))
            else:
                self._close()
        elif isinstance(current, Exchange) and receiving is current:
            allowed_s = self._settings.body_timeout_s + current.received_bytes / _BODY_BYTES_PER_S
            if current.is_settled:
                self._close()
            elif now < self._body_started + allowed_s:
                self.deadline = self._body_started + allowed_s
            else:
                refuse(current, Refusal("request_timeout", "The request body took too long.", closes=True))
        else:
            self.deadline = 0.0

    def _close(self) -> None:
        """Close once everything has been sent; `expire` cuts a client that does not take it."""
        self._is_closing = self._is_broken = True
        self.deadline = self.loop.time() + self._settings.write_timeout_s
        if not self.transport.is_closing():
            self.transport.close()

    def _linger(self) -> None:
        """Close our side; what the client still sends is thrown away until it closes too."""
        self._is_closing = self._is_broken = True
        self._current = self._receiving = None
        self._forget_waiting()
        if not self.transport.can_write_eof():
            self._close()
        elif not self.transport.is_closing():
            self.transport.write_eof()
            now = self.loop.time()
            self.deadline, self._linger_ends = now + _LINGER_S, now + _LINGER_LONGEST_S

    def _refuse_connection(self, refusal: Refusal) -> None:
        """Answer what cannot be a request, behind the answers that are due, and end the connection."""
        self._is_in_head = False
        if self._is_broken:
            return
        self._is_broken = True
        receiving, self._receiving = self._receiving, None
        if self._is_app_body_open:
            # The app answers, or has answered, without having read the body: that answer stands.
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self._close()
        elif receiving is not None and receiving is self._current:
            if receiving.is_settled:
                self._linger()
            else:
                refuse(receiving, refusal)
        else:
            if receiving is not None and receiving in self._waiting:
                self._waiting.remove(receiving)
                self.edge.release_body(receiving)
            if self._is_free():
                self._refuse_now(refusal)
            else:
                self._waiting.append(refusal)

    def _refuse_now(self, refusal: Refusal) -> None:
        self.edge.metrics.count_request("none", refusal.status, "rejected")
        self.write(render_refusal(refusal, "openai", uuid7_text(), self.edge.date, keep_alive=False))
        self._linger()

    def _head_too_large(self) -> Refusal:
        limit = self._settings.max_header_bytes
        return Refusal("headers_too_large", f"The request head is larger than {limit} bytes.", closes=True)

    def _body_too_large(self) -> Refusal:
        limit = self._settings.max_body_bytes
        return Refusal("request_too_large", f"The body is larger than {limit} bytes.", closes=True)

    # Back-pressure

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self._current, Exchange) and self._current.relay is not None:
            self._current.relay.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if isinstance(self._current, Exchange) and self._current.relay is not None:
            self._current.relay.resume()
        elif self._current is None and self._waiting:
            self._next(keeps_alive=True)
