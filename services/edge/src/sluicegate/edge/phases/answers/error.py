"""An answer that is not 2xx: kept until it is whole, then judged.

400 about the `stream_options` that we added    asked once more, without them
another 4xx that blames the request             the client's to see, as it is; ends the chain
429                                             the next target; 429 if there is none
401, 403, 404, 408, 409, 3xx, 5xx               the next target; 502 that names the last one

So nothing of it leaves before all of it is there.
"""

from typing import TYPE_CHECKING, Final

from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.responses import STATUS_LINES
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.phases.settle import estimated_usage, settle

if TYPE_CHECKING:
    from sluicegate.edge.phases.relay import Relay

_MAX_BYTES: Final = 1024 * 1024
# They say that our configuration or the provider is at fault, not the request.
_NOT_THE_CLIENTS_FAULT: Final = frozenset({401, 403, 404, 408, 409, 429})


class ErrorAnswer:
    """One error of a provider."""

    __slots__ = ("_bytes", "_connection", "_parts", "_relay")

    def __init__(self, relay: "Relay", connection: ProviderConnection) -> None:
        self._relay = relay
        self._connection = connection
        self._parts: list[bytes] = []
        self._bytes = 0

    def take(self, data: bytes, *, is_end: bool) -> None:
        """Keep what one read brought, and judge it when it is whole."""
        self._parts.append(data)
        self._bytes += len(data)
        if is_end:
            self._judge(b"".join(self._parts))
        elif self._bytes > _MAX_BYTES:
            self.lose("sent an error without end")

    def lose(self, reason: str) -> None:
        self._fail("provider_error", reason)

    def expire(self) -> None:
        self._fail("provider_timeout", "did not finish its answer in time")

    def cancel(self) -> None:
        self._relay.end_cancelled(self._connection.status, estimated_usage(self._relay.exchange, 0), "partial")

    def stop(self) -> None:
        self._relay.end_stopped(estimated_usage(self._relay.exchange, 0), "partial")

    def break_off(self, reason: str) -> None:
        raise AssertionError(f"an error leaves whole or not at all: {reason}")

    def _judge(self, body: bytes) -> None:
        status, relay = self._connection.status, self._relay
        if status == 400 and relay.asks_for_usage and b"stream_options" in body:
            relay.ask_without_usage(status)
        elif status == 429:
            retry_after_s = _whole_seconds(self._connection.headers.get(b"retry-after"))
            self._fail("provider_rate_limited", "refused: too many requests", retry_after_s)
        elif 400 <= status < 500 and status not in _NOT_THE_CLIENTS_FAULT:
            self._pass(body)
        else:
            self._fail("provider_error", f"answered {status}")

    def _fail(self, code: str, what: str, retry_after_s: int | None = None) -> None:
        refusal = Refusal(code, f"{self._relay.name} {what}.", retry_after_s=retry_after_s)
        self._relay.fail_attempt(refusal, self._connection.status)

    def _pass(self, body: bytes) -> None:
        relay, connection = self._relay, self._connection
        exchange = relay.exchange
        relay.note_attempt(connection.status)
        settle(exchange, outcome="rejected", status=connection.status)
        exchange.has_answer_begun = True
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[connection.status],
            connection.headers.get(b"content-type", b"application/json"),
            len(body),
            relay.common_headers(connection.headers),
        )
        exchange.client.finish(exchange, head + body)
        relay.release()


def _whole_seconds(value: bytes | None) -> int | None:
    """Return a `retry-after` of whole seconds; None where it is a date or nothing."""
    if value is None or not value.isdigit() or len(value) > 6:
        return None
    return int(value)
