"""A streamed answer: whole SSE events pass through a scan as they arrive, and it ends at `[DONE]`.

What one read brought leaves in one write, and no timer holds anything back. The head leaves with the
first events; a first event that only names a role waits while another target remains, because a provider
that breaks right behind it can then still be replaced. A stream that breaks later ends with one error
frame in the client's dialect, then `[DONE]`.

If the client goes away when all content has passed and only the usage is missing, that is waited for,
half a second at most.
"""

import time
from typing import TYPE_CHECKING, Final

from sluicegate.contracts.usage import UsageSource
from sluicegate.edge.errors import Refusal, error_body
from sluicegate.edge.inbound.responses import CHUNKED, LAST_CHUNK, STATUS_LINES, as_chunk
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.phases.settle import estimated_usage, settle
from sluicegate.edge.wire.chat_stream import ChatStreamScan, is_preamble
from sluicegate.edge.wire.usage import TokenUsage

if TYPE_CHECKING:
    from sluicegate.edge.phases.relay import Relay

_LINGER_S: Final = 0.5
_DONE_EVENT: Final = b"data: [DONE]\n\n"
_HEAD: Final = STATUS_LINES[200] + b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"


class StreamAnswer:
    """One streamed answer."""

    __slots__ = ("_connection", "_exchange", "_held", "_is_lingering", "_relay", "_scan")

    def __init__(self, relay: "Relay", connection: ProviderConnection, *, drops_usage_chunk: bool) -> None:
        self._relay = relay
        self._exchange = relay.exchange
        self._connection = connection
        self._scan = ChatStreamScan(drops_usage_chunk=drops_usage_chunk)
        self._held = b""
        self._is_lingering = False

    def take(self, data: bytes, *, is_end: bool) -> None:
        """Pass what one read brought."""
        scan = self._scan
        out = scan.feed(data)
        if self._is_lingering:
            if scan.state != "open" or scan.usage is not None or is_end:
                self._settle_cancelled()
        elif scan.state == "open":
            if is_end:
                self._end(out + scan.close())
            elif out:
                self._pass(out)
        elif scan.state == "done":
            self._complete(out)
        else:
            self._break(out, "sent an event that is too large")

    def lose(self, reason: str) -> None:
        """Complete all the same where nothing is missing but the end's own marks."""
        scan = self._scan
        rest = scan.close()
        if self._is_lingering:
            self._settle_cancelled()
        elif scan.state == "done":
            self._complete(rest)
        elif scan.usage is not None and scan.has_finish_reason() and not scan.has_error:
            self._complete(rest + _DONE_EVENT)
        else:
            # What is left of a broken connection may be half an event: it does not leave.
            self._break(b"", reason)

    def expire(self) -> None:
        if self._is_lingering:
            self._settle_cancelled()
        else:
            self._break(b"", "sent nothing for too long", code="provider_timeout")

    def cancel(self) -> None:
        scan = self._scan
        if scan.usage is None and scan.has_finish_reason():
            self._is_lingering = True
            self._relay.wait_at_most(_LINGER_S)
            self._connection.resume()
        else:
            self._settle_cancelled()

    def stop(self) -> None:
        if self._is_lingering:
            self._settle_cancelled()
        elif self._exchange.has_answer_begun:
            self.break_off("was still answering when the gateway had to stop")
        else:
            usage, source = self._usage(is_complete=False)
            self._relay.end_stopped(usage, source)

    def break_off(self, reason: str) -> None:
        self._break(b"", reason)

    # On the way

    def _pass(self, out: bytes) -> None:
        exchange = self._exchange
        if exchange.has_answer_begun:
            exchange.client.write(out if exchange.is_http10 else as_chunk(out))
            return
        if self._relay.has_another_target:
            if self._scan.has_error:
                self._relay.fail_attempt(Refusal("provider_error", f"{self._relay.name} sent an error."), 200)
                return
            out = self._held + out
            if is_preamble(out):
                self._held = out
                return
        exchange.first_token_ns = time.monotonic_ns()
        exchange.client.write(self._head() + (out if exchange.is_http10 else as_chunk(out)))
        self._relay.commit()

    def _head(self) -> bytes:
        exchange = self._exchange
        exchange.has_answer_begun = True
        framing = b"" if exchange.is_http10 else CHUNKED
        return b"".join((_HEAD, framing, self._relay.common_headers(), b"\r\n"))

    # Ends

    def _end(self, out: bytes) -> None:
        """The body has ended well without `[DONE]`: complete if the answer said that it was finished."""
        scan = self._scan
        if scan.state == "done":
            self._complete(out)
        elif scan.has_finish_reason() and not scan.has_error:
            self._complete(out + _DONE_EVENT)
        else:
            self._break(out, "ended the stream in its middle")

    def _complete(self, out: bytes) -> None:
        exchange, scan = self._exchange, self._scan
        if not exchange.has_answer_begun:
            if scan.has_error and self._relay.has_another_target:
                self._relay.fail_attempt(Refusal("provider_error", f"{self._relay.name} sent an error."), 200)
                return
            exchange.first_token_ns = time.monotonic_ns()
        self._relay.note_attempt(200)
        usage, source = self._usage(is_complete=True)
        if scan.has_error:
            self._settle_interrupted(usage, "partial" if source == "estimated" else source)
        else:
            settle(exchange, outcome="success", status=200, usage=usage, usage_source=source)
        self._finish(out)
        self._relay.release()

    def _break(self, out: bytes, reason: str, code: str = "provider_error") -> None:
        exchange, relay = self._exchange, self._relay
        if not exchange.has_answer_begun and is_preamble(self._held + out):
            relay.fail_attempt(Refusal(code, f"{relay.name} {reason}."), 200)
            return
        relay.note_attempt(200)
        self._settle_interrupted(*self._usage(is_complete=False))
        if not self._scan.has_error:
            error = error_body(
                exchange.endpoint.dialect,
                exchange.request_id,
                code="stream_interrupted",
                type_="upstream_stream_error",
                message=f"The answer broke off: {relay.name} {reason}.",
            )
            out += b"data: " + error + b"\n\n"
        relay.close()
        self._finish(out + _DONE_EVENT)

    def _finish(self, out: bytes) -> None:
        exchange = self._exchange
        out = self._held + out
        last = out if exchange.is_http10 else as_chunk(out) + LAST_CHUNK
        exchange.client.finish(exchange, last if exchange.has_answer_begun else self._head() + last)

    def _settle_interrupted(self, usage: TokenUsage, source: UsageSource) -> None:
        settle(
            self._exchange,
            outcome="stream_interrupted",
            status=200,
            error_code="stream_interrupted",
            usage=usage,
            usage_source=source,
        )

    def _settle_cancelled(self) -> None:
        is_complete = self._is_lingering and self._scan.usage is not None
        self._relay.end_cancelled(200, *self._usage(is_complete=is_complete))

    def _usage(self, *, is_complete: bool) -> tuple[TokenUsage, UsageSource]:
        """Return what the provider reported, or an estimate from the text that passed."""
        scan = self._scan
        if scan.usage is None:
            usage = estimated_usage(self._exchange, scan.estimated_output_tokens())
            return usage, "estimated" if is_complete else "partial"
        if is_complete:
            return scan.usage, "provider"
        if not scan.usage.output:
            # Reported at the start, before there was any output to report.
            scan.usage.output = scan.estimated_output_tokens()
        return scan.usage, "partial"
