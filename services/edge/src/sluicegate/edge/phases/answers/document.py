"""An answer in one piece: kept until it is whole, because its cost goes into a header, then one write.

What is no JSON object is no answer, whatever its status: another target may do better.
Above 8 MiB it passes as it comes, without that header; the usage is then looked for in its last bytes.
If such a document breaks off, the client's own parser tells: the last chunk is missing.
"""

import time
from typing import TYPE_CHECKING, Final

from sluicegate.contracts.usage import UsageSource
from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.responses import CHUNKED, LAST_CHUNK, STATUS_LINES, as_chunk
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.phases.settle import estimated_usage, settle
from sluicegate.edge.wire.usage import (
    TokenUsage,
    is_json_object,
    may_be_json_object,
    text_bytes_of_document,
    tokens_of_bytes,
    usage_at_the_end,
    usage_of_document,
)

if TYPE_CHECKING:
    from sluicegate.edge.phases.relay import Relay

_KEPT_BYTES: Final = 8 * 1024 * 1024
_TAIL_BYTES: Final = 16 * 1024
_NOT_JSON: Final = "sent an answer that is not JSON"


class DocumentAnswer:
    """One answer in one piece."""

    __slots__ = ("_bytes", "_connection", "_exchange", "_parts", "_relay")

    def __init__(self, relay: "Relay", connection: ProviderConnection) -> None:
        self._relay = relay
        self._exchange = relay.exchange
        self._connection = connection
        self._parts: list[bytes] = []
        self._bytes = 0

    def take(self, data: bytes, *, is_end: bool) -> None:
        """Keep what one read brought, or pass it once it is too much to keep."""
        self._bytes += len(data)
        if self._exchange.has_answer_begun:
            self._pass(data, is_end=is_end)
            return
        self._parts.append(data)
        if is_end:
            self._complete()
        elif self._bytes > _KEPT_BYTES:
            self._begin_passing()

    def lose(self, reason: str) -> None:
        if self._exchange.has_answer_begun:
            self.break_off(reason)
        else:
            self._relay.fail_attempt(
                Refusal("provider_error", f"{self._relay.name} {reason}."), self._connection.status
            )

    def expire(self) -> None:
        if self._exchange.has_answer_begun:
            self.break_off("sent nothing for too long")
        else:
            refusal = Refusal("provider_timeout", f"{self._relay.name} sent nothing for too long.")
            self._relay.fail_attempt(refusal, self._connection.status)

    def cancel(self) -> None:
        self._relay.end_cancelled(self._connection.status, self._partial_usage(), "partial")

    def stop(self) -> None:
        if self._exchange.has_answer_begun:
            self.break_off("was still answering when the gateway had to stop")
        else:
            self._relay.end_stopped(self._partial_usage(), "partial")

    def break_off(self, reason: str) -> None:  # noqa: ARG002 - a document has no place for a reason
        exchange = self._exchange
        self._relay.note_attempt(self._connection.status)
        settle(
            exchange,
            outcome="stream_interrupted",
            status=self._connection.status,
            error_code="stream_interrupted",
            usage=self._partial_usage(),
            usage_source="partial",
        )
        self._relay.close()
        exchange.client.abort()

    def _complete(self) -> None:
        exchange, connection, relay = self._exchange, self._connection, self._relay
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if not connection.has_length and not body.rstrip().endswith((b"}", b"]")):
            self.lose("closed the connection in the middle of its answer")
            return
        source: UsageSource = "provider"
        usage = usage_of_document(body)
        if usage is None:
            if not is_json_object(body):
                self.lose(_NOT_JSON)
                return
            source = "estimated"
            usage = estimated_usage(exchange, tokens_of_bytes(text_bytes_of_document(body)))
        exchange.first_token_ns = relay.first_byte_ns
        relay.note_attempt(connection.status)
        cost = settle(exchange, outcome="success", status=connection.status, usage=usage, usage_source=source)
        framing = b"content-length: %d\r\n" % len(body)
        if cost is not None:
            framing += b"x-sluicegate-cost-usd: %d.%09d\r\n" % divmod(cost, 1_000_000_000)
        exchange.client.finish(exchange, self._head(framing) + body)
        relay.release()

    def _begin_passing(self) -> None:
        exchange = self._exchange
        body = b"".join(self._parts)
        if not may_be_json_object(body):
            self.lose(_NOT_JSON)
            return
        exchange.first_token_ns = time.monotonic_ns()
        self._parts = [body[-_TAIL_BYTES:]]
        head = self._head(b"" if exchange.is_http10 else CHUNKED)
        exchange.client.write(head + self._framed(body))
        self._relay.commit()

    def _pass(self, data: bytes, *, is_end: bool) -> None:
        exchange, relay = self._exchange, self._relay
        self._parts = [(self._parts[0] + data)[-_TAIL_BYTES:]]
        if not is_end:
            exchange.client.write(self._framed(data))
            return
        relay.note_attempt(self._connection.status)
        source: UsageSource = "provider"
        usage = usage_at_the_end(self._parts[0])
        if usage is None:
            usage, source = self._partial_usage(), "estimated"
        settle(exchange, outcome="success", status=self._connection.status, usage=usage, usage_source=source)
        exchange.client.finish(exchange, self._framed(data) + (b"" if exchange.is_http10 else LAST_CHUNK))
        relay.release()

    def _partial_usage(self) -> TokenUsage:
        return estimated_usage(self._exchange, tokens_of_bytes(self._bytes))

    def _framed(self, data: bytes) -> bytes:
        return data if self._exchange.is_http10 else as_chunk(data)

    def _head(self, framing: bytes) -> bytes:
        self._exchange.has_answer_begun = True
        connection = self._connection
        content_type = connection.headers.get(b"content-type", b"application/json")
        return b"".join(
            (
                STATUS_LINES[connection.status],
                b"content-type: ",
                content_type,
                b"\r\n",
                framing,
                self._relay.common_headers(connection.headers),
                b"\r\n",
            )
        )
