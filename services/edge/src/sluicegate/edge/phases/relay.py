"""Carry the request to a provider and its answer back, and see to it that the exchange ends once.

Rule: until the first byte of an answer has left, another target may be tried; after it, never. A
completed answer is settled before its last bytes are written, in the same loop turn. Whole SSE events
pass as they arrive: what one read brought leaves in one write, and no timer holds anything back.

Mechanics: the relay is the reader of a provider connection. The first read decides what the answer is:

    text/event-stream   events pass through the scan, chunked to the client; ends at [DONE]
    another 2xx         kept until it is whole (its cost goes into a header), then one write; above
                        8 MiB it passes as it comes, without that header
    anything else       kept until it is whole, then judged: passed on, tried elsewhere, or 502

The client going away closes the provider's connection at once, unless all content has passed and only
the usage is missing: that is waited for, half a second at most. A client that reads slowly pauses the
provider's socket; its idle time then does not count.

Deadlines are a number that a sweep compares four times a second (`inbound.deadlines`): no timer per request.
"""

import time
from asyncio import Task
from typing import Final, Literal

from sluicegate.contracts.usage import UsageSource
from sluicegate.edge.errors import Refusal, error_body
from sluicegate.edge.inbound.responses import CLOSE, LAST_CHUNK, STATUS_LINES
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.outbound.pool import PoolError
from sluicegate.edge.outbound.request import chat_body, request_head
from sluicegate.edge.phases.classify import estimate_input_tokens
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.refuse import fail, refuse
from sluicegate.edge.phases.settle import clean_text, settle
from sluicegate.edge.wire.chat_stream import ChatStreamScan
from sluicegate.edge.wire.usage import (
    TokenUsage,
    text_bytes_of_document,
    tokens_of_bytes,
    usage_at_the_end,
    usage_of_document,
)

_DOCUMENT_BYTES: Final = 8 * 1024 * 1024
_ERROR_BYTES: Final = 1024 * 1024
_TAIL_BYTES: Final = 16 * 1024
_LINGER_S: Final = 0.5
_DONE_EVENT: Final = b"data: [DONE]\n\n"
_STREAM_HEAD: Final = (
    STATUS_LINES[200] + b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
)
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_PASSED_ANSWER_HEADERS: Final = (b"openai-processing-ms", b"openai-version")
# Answers that say that the configuration or the provider is at fault, not the request.
_NOT_THE_CLIENTS_FAULT: Final = frozenset({401, 403, 404, 408, 409, 429})

Mode = Literal["opening", "stream", "document", "passing", "error", "lingering", "over"]


class Relay:
    """The relay of one exchange. `deadline` is in loop time."""

    __slots__ = (
        "_answer_bytes",
        "_asks_for_usage",
        "_attempt_ns",
        "_connection",
        "_exchange",
        "_failure",
        "_first_byte_ns",
        "_has_retried_idle",
        "_head_sent",
        "_is_chunked",
        "_loop_time",
        "_mode",
        "_opening",
        "_parts",
        "_paused_since",
        "_place",
        "_scan",
        "_target",
        "_total_deadline",
        "deadline",
        "may_ask_for_usage",
    )

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loop_time = exchange.edge.loop.time
        self._mode: Mode = "opening"
        self._place = 0
        self._target: Target = exchange.targets[0]
        self._connection: ProviderConnection | None = None
        self._opening: Task[None] | None = None
        self._has_retried_idle = False
        self._asks_for_usage = False
        self._head_sent = False
        self._is_chunked = False
        self._parts: list[bytes] = []
        self._answer_bytes = 0
        self._scan: ChatStreamScan | None = None
        self._failure: Refusal | None = None
        self._attempt_ns = 0
        self._first_byte_ns = 0
        self._paused_since = 0.0
        self._total_deadline = 0.0
        self.deadline = 0.0
        self.may_ask_for_usage = True

    @property
    def has_answered(self) -> bool:
        """Whether any byte of an answer has left."""
        return self._head_sent

    # Attempts

    def start(self) -> None:
        """Try the target whose turn it is."""
        exchange = self._exchange
        self._target = exchange.target = exchange.targets[self._place]
        self._mode = "opening"
        self._attempt_ns = time.monotonic_ns()
        self._first_byte_ns = 0
        connection = self._target.pool.take_idle()
        if connection is not None:
            self._send(connection)
        else:
            self._open()

    def _open(self) -> None:
        self.deadline = self._loop_time() + self._target.connect_timeout_s + 1
        self._opening = self._exchange.edge.loop.create_task(self._open_and_send())

    async def _open_and_send(self) -> None:
        try:
            connection = await self._target.pool.open(self._target.connect_timeout_s)
        except PoolError as error:
            self._opening = None
            self._fail_attempt(None, Refusal("provider_error", f"{self._name()} cannot be reached: {error}."))
            return
        self._opening = None
        if self._mode == "over":
            self._target.pool.give_back(connection)
            return
        try:
            self._send(connection)
        except Refusal as refusal:
            connection.close()
            self._end_refused(refusal)

    def _send(self, connection: ProviderConnection) -> None:
        exchange, target, chat = self._exchange, self._target, self._exchange.chat
        if chat is None:
            raise RuntimeError("relay comes after classify")
        self._asks_for_usage = (
            chat.stream is True
            and not chat.asks_for_usage
            and target.supports_stream_options
            and self.may_ask_for_usage
        )
        try:
            body = chat_body(exchange.body, chat, target, asks_for_usage=self._asks_for_usage)
        except Refusal:
            target.pool.give_back(connection)
            raise
        head = request_head(target, exchange.endpoint.provider_path, exchange.query, exchange.head, len(body))
        now = self._loop_time()
        self.deadline = now + target.first_byte_timeout_s
        self._total_deadline = now + target.total_timeout_s
        self._connection = connection
        connection.send(self, head + body)

    def _fail_attempt(self, status: int | None, refusal: Refusal) -> None:
        """This target has failed before anything was sent to the client: try the next, or answer."""
        self._note_attempt(status)
        self._drop_connection()
        self._parts.clear()
        self._answer_bytes = 0
        self._scan = None
        if self._failure is None or refusal.code != "provider_rate_limited":
            self._failure = refusal
        self._place += 1
        if self._place < len(self._exchange.targets) and not self._exchange.edge.is_stopping:
            self.may_ask_for_usage = True
            self._has_retried_idle = False
            try:
                self.start()
            except Refusal as again:
                self._end_refused(again)
            return
        failure = self._failure
        if len(self._exchange.targets) > 1 and failure.code != "provider_rate_limited":
            failure = Refusal("all_providers_failed", f"Every target failed. The last one: {failure.message}")
        self._end_refused(failure)

    def _end_refused(self, refusal: Refusal) -> None:
        self._over()
        refuse(self._exchange, refusal)

    def _note_attempt(self, status: int | None) -> None:
        exchange, now_ns = self._exchange, time.monotonic_ns()
        exchange.provider_ns += now_ns - self._attempt_ns
        started = exchange.started_ns
        exchange.attempts.append(
            (
                self._target.provider_id,
                status,
                (self._attempt_ns - started) // 1000,
                (self._first_byte_ns - started) // 1000 if self._first_byte_ns else None,
                (now_ns - started) // 1000,
            )
        )
        exchange.edge.metrics.count_attempt(self._target.provider_id, status)

    # The provider's side

    def on_read(self, connection: ProviderConnection, data: bytes, *, is_end: bool) -> None:
        """Take what one read brought."""
        try:
            if self._mode == "opening":
                self._open_answer(connection)
            if not self._paused_since:
                self.deadline = min(self._loop_time() + self._target.idle_timeout_s, self._total_deadline)
            if self._mode == "stream":
                self._pass_events(data, is_end=is_end)
            elif self._mode == "document":
                self._keep_document(data, is_end=is_end)
            elif self._mode == "passing":
                self._pass_document(data, is_end=is_end)
            elif self._mode == "error":
                self._keep_error(data, is_end=is_end)
            elif self._mode == "lingering":
                self._linger(data, is_end=is_end)
        except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
            self._over()
            fail(self._exchange)

    def on_lost(self, connection: ProviderConnection, reason: str) -> None:
        """The provider's connection broke before the answer's end."""
        self._connection = None
        if self._mode == "opening" and connection.uses > 1 and not connection.has_bytes and not self._has_retried_idle:
            # It died while it was idle, and the request never reached anybody.
            self._has_retried_idle = True
            self._open()
        elif self._mode in ("opening", "document", "error"):
            self._fail_attempt(connection.status or None, Refusal("provider_error", f"{self._name()} sent {reason}."))
        elif self._mode == "stream":
            self._end_events_early(reason)
        elif self._mode == "passing":
            self._end_document_early()
        elif self._mode == "lingering":
            self._settle_cancelled()

    def _open_answer(self, connection: ProviderConnection) -> None:
        self._first_byte_ns = time.monotonic_ns()
        headers, exchange = connection.headers, self._exchange
        upstream_id = headers.get(b"x-request-id")
        if upstream_id is not None:
            exchange.upstream_request_id = clean_text(upstream_id.decode("latin-1"))
        if not 200 <= connection.status < 300:
            self._mode = "error"
        elif headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._mode = "stream"
            self._scan = ChatStreamScan(drops_usage_chunk=self._asks_for_usage)
        else:
            self._mode = "document"

    # Streams

    def _pass_events(self, data: bytes, *, is_end: bool) -> None:
        scan = self._scan
        if scan is None:
            raise RuntimeError("a stream has a scan")
        out = scan.feed(data)
        if scan.state == "open":
            if is_end:
                self._end_events(out + scan.close())
            elif out:
                self._write_events(out)
        elif scan.state == "done":
            self._complete_events(out)
        else:
            self._break_events(out, "an event that is too large")

    def _end_events(self, out: bytes) -> None:
        """The body has ended well without `[DONE]`: complete if the answer said that it was finished."""
        scan = self._scan
        if scan is not None and (scan.state == "done" or (scan.has_finish_reason() and not scan.has_error)):
            self._complete_events(out if scan.state == "done" else out + _DONE_EVENT)
        else:
            self._break_events(out, "a stream without an end")

    def _end_events_early(self, reason: str) -> None:
        scan = self._scan
        out = b"" if scan is None else scan.close()
        if scan is not None and scan.state == "done":
            self._complete_events(out)
        elif scan is not None and scan.has_finish_reason() and scan.usage is not None and not scan.has_error:
            self._complete_events(out + _DONE_EVENT)
        else:
            # What is left of a broken connection may be half an event: it does not leave.
            self._break_events(b"", reason)

    def _complete_events(self, out: bytes) -> None:
        scan, connection = self._scan, self._connection
        self._note_attempt(200)
        usage, source = self._usage(is_complete=True)
        if scan is not None and scan.has_error:
            settle(
                self._exchange,
                outcome="stream_interrupted",
                status=200,
                error_code="stream_interrupted",
                usage=usage,
                usage_source="partial" if source == "estimated" else source,
            )
        else:
            settle(self._exchange, outcome="success", status=200, usage=usage, usage_source=source)
        self._connection = None
        self._mode = "over"
        self._finish_events(out)
        if connection is not None:
            connection.detach()

    def _break_events(self, out: bytes, reason: str) -> None:
        scan = self._scan
        self._note_attempt(200)
        usage, source = self._usage(is_complete=False)
        settle(
            self._exchange,
            outcome="stream_interrupted",
            status=200,
            error_code="stream_interrupted",
            usage=usage,
            usage_source=source,
        )
        if scan is None or not scan.has_error:
            error = error_body(
                self._exchange.endpoint.dialect,
                self._exchange.request_id,
                code="stream_interrupted",
                type_="upstream_stream_error",
                message=f"The answer broke off: {self._name()} sent {reason}.",
            )
            out += b"data: " + error + b"\n\n"
        self._over()
        self._finish_events(out + _DONE_EVENT)

    def _write_events(self, out: bytes) -> None:
        exchange = self._exchange
        if not self._head_sent:
            exchange.first_token_ns = time.monotonic_ns()
            exchange.client.write(self._stream_head() + self._chunk(out))
        else:
            exchange.client.write(self._chunk(out))

    def _finish_events(self, out: bytes) -> None:
        exchange = self._exchange
        parts = b"" if self._head_sent else self._stream_head()
        parts += self._chunk(out)
        if self._is_chunked:
            parts += LAST_CHUNK
        exchange.client.finish(exchange, parts)

    def _stream_head(self) -> bytes:
        self._head_sent = True
        exchange = self._exchange
        if exchange.is_http10:
            return _STREAM_HEAD + self._common_headers() + b"\r\n"
        self._is_chunked = True
        return _STREAM_HEAD + _CHUNKED + self._common_headers() + b"\r\n"

    def _chunk(self, out: bytes) -> bytes:
        if not out or not self._is_chunked:
            return out
        return b"%x\r\n%b\r\n" % (len(out), out)

    # Documents

    def _keep_document(self, data: bytes, *, is_end: bool) -> None:
        self._parts.append(data)
        self._answer_bytes += len(data)
        if is_end:
            self._complete_document()
        elif self._answer_bytes > _DOCUMENT_BYTES:
            self._mode = "passing"
            self._exchange.first_token_ns = time.monotonic_ns()
            body = b"".join(self._parts)
            self._parts = [body[-_TAIL_BYTES:]]
            head = self._document_head(None)
            self._exchange.client.write(head + self._chunk(body))

    def _complete_document(self) -> None:
        exchange, connection = self._exchange, self._connection
        if connection is None:
            raise RuntimeError("a document has a connection")
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._note_attempt(connection.status)
        exchange.first_token_ns = self._first_byte_ns
        usage, source = self._document_usage(body)
        cost = settle(exchange, outcome="success", status=connection.status, usage=usage, usage_source=source)
        head = self._document_head(len(body), connection, cost)
        self._connection = None
        self._mode = "over"
        exchange.client.finish(exchange, head + body)
        connection.detach()

    def _document_usage(self, body: bytes) -> tuple[TokenUsage, UsageSource]:
        usage = usage_of_document(body)
        if usage is not None:
            return usage, "provider"
        usage = TokenUsage()
        usage.input = estimate_input_tokens(self._exchange.body)
        usage.output = tokens_of_bytes(text_bytes_of_document(body))
        return usage, "estimated"

    def _pass_document(self, data: bytes, *, is_end: bool) -> None:
        self._answer_bytes += len(data)
        self._parts = [(self._parts[0] + data)[-_TAIL_BYTES:]]
        if not is_end:
            self._exchange.client.write(self._chunk(data))
            return
        connection = self._connection
        self._note_attempt(200)
        usage, source = usage_at_the_end(self._parts[0]), "provider"
        if usage is None:
            usage, source = TokenUsage(), "estimated"
            usage.input = estimate_input_tokens(self._exchange.body)
            usage.output = tokens_of_bytes(self._answer_bytes)
        settle(self._exchange, outcome="success", status=200, usage=usage, usage_source=source)  # type: ignore[arg-type]
        self._connection = None
        self._mode = "over"
        self._exchange.client.finish(self._exchange, self._chunk(data) + (LAST_CHUNK if self._is_chunked else b""))
        if connection is not None:
            connection.detach()

    def _end_document_early(self) -> None:
        """A large document broke off: without its last chunk the client's own parser tells that it did."""
        self._note_attempt(200)
        usage = TokenUsage()
        usage.input = estimate_input_tokens(self._exchange.body)
        usage.output = tokens_of_bytes(self._answer_bytes)
        settle(
            self._exchange,
            outcome="stream_interrupted",
            status=200,
            error_code="stream_interrupted",
            usage=usage,
            usage_source="partial",
        )
        self._over()
        self._exchange.keeps_alive = False
        self._exchange.client.finish(self._exchange, b"")

    def _document_head(
        self, length: int | None, connection: ProviderConnection | None = None, cost: int | None = None
    ) -> bytes:
        self._head_sent = True
        connection = connection or self._connection
        status = 200 if connection is None else connection.status
        content_type = (
            b"application/json" if connection is None else connection.headers.get(b"content-type", b"application/json")
        )
        head = STATUS_LINES[status] + b"content-type: " + content_type + b"\r\n"
        if length is not None:
            head += b"content-length: %d\r\n" % length
        elif not self._exchange.is_http10:
            self._is_chunked = True
            head += _CHUNKED
        if cost is not None:
            head += b"x-sluicegate-cost-usd: %d.%09d\r\n" % divmod(cost, 1_000_000_000)
        return head + self._common_headers(connection) + b"\r\n"

    # Errors of the provider

    def _keep_error(self, data: bytes, *, is_end: bool) -> None:
        connection = self._connection
        if connection is None:
            raise RuntimeError("an error has a connection")
        self._parts.append(data)
        self._answer_bytes += len(data)
        if is_end:
            self._judge(connection, b"".join(self._parts))
        elif self._answer_bytes > _ERROR_BYTES:
            self._fail_attempt(
                connection.status, Refusal("provider_error", f"{self._name()} sent an error without end.")
            )

    def _judge(self, connection: ProviderConnection, body: bytes) -> None:
        """A whole error answer is there: ours to mend, the next target's turn, or the client's to see."""
        status = connection.status
        if status == 400 and self._asks_for_usage and b"stream_options" in body:
            self._note_attempt(status)
            self._connection = None
            connection.detach()
            self._parts.clear()
            self._answer_bytes = 0
            self.may_ask_for_usage = False
            self.start()
        elif 400 <= status < 500 and status not in _NOT_THE_CLIENTS_FAULT:
            self._pass_error(connection, body)
        elif status == 429:
            self._detach(connection)
            self._fail_attempt(
                status,
                Refusal(
                    "provider_rate_limited",
                    f"{self._name()} refused: too many requests.",
                    retry_after_s=_whole_seconds(connection.headers.get(b"retry-after")),
                ),
            )
        else:
            self._detach(connection)
            self._fail_attempt(status, Refusal("provider_error", f"{self._name()} answered {status}."))

    def _pass_error(self, connection: ProviderConnection, body: bytes) -> None:
        exchange = self._exchange
        self._note_attempt(connection.status)
        settle(exchange, outcome="rejected", status=connection.status)
        head = self._document_head(len(body), connection)
        self._connection = None
        self._mode = "over"
        exchange.client.finish(exchange, head + body)
        connection.detach()

    def _detach(self, connection: ProviderConnection) -> None:
        self._connection = None
        connection.detach()

    # The client's side

    def pause(self) -> None:
        """The client takes no more for now."""
        if not self._paused_since and self._mode in ("stream", "passing"):
            self._paused_since = self._loop_time()
            self.deadline = self._paused_since + self._exchange.edge.settings.write_timeout_s
            if self._connection is not None:
                self._connection.pause()

    def resume(self) -> None:
        """The client takes bytes again."""
        if self._paused_since:
            self._paused_since = 0.0
            self.deadline = min(self._loop_time() + self._target.idle_timeout_s, self._total_deadline)
            if self._connection is not None:
                self._connection.resume()

    def cancel(self) -> None:
        """The client has gone."""
        scan = self._scan
        if self._mode == "over":
            return
        if self._mode == "stream" and scan is not None and scan.usage is None and scan.has_finish_reason():
            self._mode = "lingering"
            self.deadline = self._loop_time() + _LINGER_S
            if self._connection is not None:
                self._connection.resume()
            return
        self._settle_cancelled()

    def _linger(self, data: bytes, *, is_end: bool) -> None:
        scan = self._scan
        if scan is not None:
            scan.feed(data)
            if scan.state == "open" and scan.usage is None and not is_end:
                return
        self._settle_cancelled()

    def _settle_cancelled(self) -> None:
        was_sent = self._connection is not None or self._mode == "lingering"
        self._note_attempt(None if self._mode == "opening" else 200)
        if was_sent or self._head_sent:
            usage, source = self._usage(is_complete=False)
            settle(
                self._exchange,
                outcome="client_cancelled",
                status=499,
                error_code="client_closed",
                usage=usage,
                usage_source=source,
            )
        else:
            settle(self._exchange, outcome="client_cancelled", status=499, error_code="client_closed")
        self._over()

    def expire(self) -> None:
        """A deadline has passed."""
        if self._mode == "lingering":
            self._settle_cancelled()
        elif self._paused_since:
            self._settle_cancelled()
            self._exchange.keeps_alive = False
            self._exchange.client.abort()
        elif self._mode == "stream":
            self._drop_connection()
            self._break_events(b"", "nothing for too long")
        elif self._mode == "passing":
            self._drop_connection()
            self._end_document_early()
        elif self._mode != "over":
            self._fail_attempt(None, Refusal("provider_timeout", f"{self._name()} did not answer in time."))

    def stop(self) -> None:
        """The process ends now."""
        if self._mode == "stream":
            self._drop_connection()
            self._break_events(b"", "no end before the gateway had to stop")
        elif self._mode == "passing":
            self._drop_connection()
            self._end_document_early()
        elif self._mode == "lingering":
            self._settle_cancelled()
        elif self._mode != "over":
            self._note_attempt(None)
            self._end_refused(Refusal("gateway_overloaded", "The gateway is stopping. Try again."))

    # Shared

    def _usage(self, *, is_complete: bool) -> tuple[TokenUsage, UsageSource]:
        """Return what the provider reported, or an estimate from the bytes that passed."""
        scan = self._scan
        if scan is not None and scan.usage is not None:
            return scan.usage, "provider" if is_complete or self._mode == "lingering" else "partial"
        usage = TokenUsage()
        usage.input = estimate_input_tokens(self._exchange.body)
        usage.output = (
            scan.estimated_output_tokens()
            if scan is not None
            else tokens_of_bytes(text_bytes_of_document(b"".join(self._parts)))
        )
        return usage, "estimated" if is_complete else "partial"

    def _common_headers(self, connection: ProviderConnection | None = None) -> bytes:
        exchange = self._exchange
        parts = [b"x-request-id: ", exchange.request_id.encode(), b"\r\n", self._target.labels, exchange.edge.date]
        if self._place:
            parts.append(b"x-sluicegate-fallbacks: %d\r\n" % self._place)
        connection = connection or self._connection
        if connection is not None:
            for name in _PASSED_ANSWER_HEADERS:
                value = connection.headers.get(name)
                if value is not None:
                    parts += [name, b": ", value, b"\r\n"]
        if exchange.edge.is_draining:
            exchange.keeps_alive = False
        if not exchange.keeps_alive:
            parts.append(CLOSE)
        return b"".join(parts)

    def _name(self) -> str:
        return f"{self._target.provider_name}/{self._target.model_name}"

    def _drop_connection(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _over(self) -> None:
        self._drop_connection()
        self._mode = "over"


def _whole_seconds(value: bytes | None) -> int | None:
    """Return a `retry-after` of whole seconds; None where it is a date or nothing."""
    if value is None or not value.isdigit() or len(value) > 6:
        return None
    return int(value)
