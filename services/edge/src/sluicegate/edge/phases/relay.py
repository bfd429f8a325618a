"""Carry the request to a provider and its answer back, and see to it that the exchange ends once.

Rule: until the first byte of an answer has left, another target may be tried; after it, never. A
completed answer is settled before its last bytes are written, in the same loop turn.

Mechanics: the relay is the reader of a provider connection, one after another. The first read decides
what the answer is, and from there on `phases.answers` has it: a stream, a document or an error. The
relay keeps what is the same for all: attempts, deadlines, the client going away, back-pressure.

The client going away closes the provider's connection at once. A client that reads slowly pauses the
provider's socket; the provider's idle time then does not count.

Deadlines are a number that a sweep compares four times a second (`inbound.deadlines`): no timer per request.
"""

import contextlib
import time
from asyncio import Task
from collections.abc import Mapping
from typing import Final

from sluicegate.contracts.usage import UsageSource
from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.responses import CLOSE
from sluicegate.edge.mirrors.limits import UNBOUND, Bounds
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.outbound.pool import PoolError
from sluicegate.edge.outbound.request import changes_to_chat, request_head
from sluicegate.edge.phases.answers import Answer
from sluicegate.edge.phases.answers.document import DocumentAnswer
from sluicegate.edge.phases.answers.error import ErrorAnswer
from sluicegate.edge.phases.answers.stream import StreamAnswer
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.records import clean_text
from sluicegate.edge.phases.refuse import answer_refusal, fail, refuse
from sluicegate.edge.phases.reserve import release, take, take_later
from sluicegate.edge.phases.settle import estimated_usage, settle
from sluicegate.edge.wire.json_splice import replace, replace_in_parts
from sluicegate.edge.wire.usage import TokenUsage
from sluicegate.runtime.logs import get_logger

_log = get_logger(__name__)
_LARGE_BODY_BYTES: Final = 64 * 1024
_PASSED_ANSWER_HEADERS: Final = (b"openai-processing-ms", b"openai-version")
_NO_HEADERS: Final[Mapping[bytes, bytes]] = {}
# Of targets that may be well, but have no room now.
_LIMIT_CODES: Final = frozenset(
    {"provider_rate_limited", "rate_limit_exceeded", "concurrency_limit_exceeded", "budget_exceeded"}
)


class Relay:
    """The relay of one exchange. `deadline` is in loop time; 0: nothing is due."""

    __slots__ = (
        "_answer",
        "_attempt_ns",
        "_connection",
        "_failure",
        "_has_retried_idle",
        "_is_deadline_fixed",
        "_is_over",
        "_is_paused",
        "_loop_time",
        "_may_ask_for_usage",
        "_opening",
        "_place",
        "_target",
        "_total_deadline",
        "asks_for_usage",
        "deadline",
        "exchange",
        "first_byte_ns",
    )

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._loop_time = exchange.edge.loop.time
        self._place = 0
        self._target: Target = exchange.targets[0]
        self._connection: ProviderConnection | None = None
        self._answer: Answer | None = None
        self._opening: Task[None] | None = None
        self._has_retried_idle = False
        self._may_ask_for_usage = True
        self._failure: Refusal | None = None
        self._is_over = False
        self._is_paused = False
        self._is_deadline_fixed = False
        self._attempt_ns = 0
        self._total_deadline = 0.0
        self.asks_for_usage = False
        self.first_byte_ns = 0
        self.deadline = 0.0

    @property
    def name(self) -> str:
        """The target whose turn it is, for messages."""
        return f"{self._target.provider_name}/{self._target.model_name}"

    @property
    def has_another_target(self) -> bool:
        """Whether a target is left behind the one whose turn it is."""
        return self._place + 1 < len(self.exchange.targets)

    # Attempts

    def start(self) -> None:
        """Try the target whose turn it is."""
        exchange = self.exchange
        self._target = exchange.target = exchange.targets[self._place]
        self._answer = None
        self._attempt_ns = 0
        self.first_byte_ns = 0
        if self._target.is_limited and exchange.target_reservation is None and not self._reserve():
            return
        self._attempt_ns = time.monotonic_ns()
        connection = self._target.pool.take_idle()
        if connection is not None:
            self._send(connection)
        else:
            self._open()

    def _reserve(self) -> bool:
        """Take from the limits of the target's provider and model. False: that takes a moment, or is refused."""
        exchange, edge = self.exchange, self.exchange.edge
        bounds = exchange.target_bounds = edge.view.target_bounds(self._target, exchange.started_at_us)
        try:
            outcome = take(exchange, bounds, (self._target,))
        except Refusal as refusal:
            self._try_next(refusal)
            return False
        if outcome is None:
            self.deadline = 0.0
            self._opening = edge.loop.create_task(self._reserve_later(bounds))
            return False
        exchange.target_reservation = outcome
        return True

    async def _reserve_later(self, bounds: Bounds) -> None:
        exchange = self.exchange
        try:
            exchange.target_reservation = await take_later(exchange, bounds, (self._target,))
            self._opening = None
            if exchange.is_settled:
                release(exchange)
            else:
                self.start()
        except Refusal as refusal:
            self._opening = None
            if not exchange.is_settled:
                self._try_next(refusal)
        except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
            self._opening = None
            self._fail()

    def _open(self) -> None:
        self.deadline = self._loop_time() + self._target.connect_timeout_s + 1
        self._opening = self.exchange.edge.loop.create_task(self._open_and_send())

    async def _open_and_send(self) -> None:
        try:
            connection = await self._target.pool.open(self._target.connect_timeout_s)
            self._opening = None
            self._send(connection)
        except PoolError as error:
            self._opening = None
            code = "provider_timeout" if error.is_timeout else "provider_error"
            self.fail_attempt(Refusal(code, f"{self.name} cannot be reached: {error}."))
        except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
            self._opening = None
            self._fail()

    def _send(self, connection: ProviderConnection) -> None:
        # First: whatever fails from here on, it is closed.
        self._connection = connection
        exchange, target, chat = self.exchange, self._target, self.exchange.chat
        if chat is None:
            raise RuntimeError("relay comes after classify")
        self.asks_for_usage = (
            chat.stream is True
            and target.supports_stream_options
            and self._may_ask_for_usage
            and not chat.asks_for_usage
        )
        changes = changes_to_chat(exchange, chat, target, asks_for_usage=self.asks_for_usage)
        now = self._loop_time()
        self.deadline = now + target.first_byte_timeout_s
        self._total_deadline = now + target.total_timeout_s
        if exchange.scan is None:
            body = replace(exchange.body, changes)
            connection.send(self, request_head(target, exchange, len(body)) + body)
        else:
            parts = replace_in_parts(exchange.parts, changes)
            connection.send_parts(self, [request_head(target, exchange, sum(map(len, parts))), *parts])

    def fail_attempt(self, refusal: Refusal, status: int | None = None) -> None:
        """This target has failed before anything was sent to the client: try the next, or answer."""
        self.note_attempt(status)
        self._drop_connection()
        if self.exchange.target_reservation is not None:
            self.exchange.edge.ledger.settle(self.exchange.target_reservation, 0, 0)
            self.exchange.target_reservation = None
        self._try_next(refusal)

    def _try_next(self, refusal: Refusal) -> None:
        # A failure says more than a limit, and a limit that comes back soon more than a budget.
        failure = self._failure
        if failure is None or refusal.code not in _LIMIT_CODES or failure.code == "budget_exceeded":
            failure = self._failure = refusal
        if self.has_another_target and not self.exchange.edge.is_stopping:
            self._place += 1
            self.exchange.target_bounds = UNBOUND
            self._may_ask_for_usage = True
            self._has_retried_idle = False
            self.start()
            return
        if self.exchange.attempts and len(self.exchange.targets) > 1 and failure.code not in _LIMIT_CODES:
            failure = Refusal("all_providers_failed", f"Every target failed. The last one: {failure.message}")
        self._is_over = True
        self._answer = None
        refuse(self.exchange, failure)

    def ask_without_usage(self, status: int) -> None:
        """Ask the same target once more, without the field that it did not take."""
        self.note_attempt(status)
        self.release()
        self._is_over = False
        self._may_ask_for_usage = False
        self.start()

    def note_attempt(self, status: int | None) -> None:
        """Note that the call to the target has ended, with this status if it came to one."""
        if not self._attempt_ns:
            return  # it still waited for a limit of the target
        exchange, now_ns = self.exchange, time.monotonic_ns()
        exchange.provider_ns += now_ns - self._attempt_ns
        exchange.attempts.append((self._target.provider_id, status, self._attempt_ns, self.first_byte_ns, now_ns))
        exchange.edge.metrics.count_attempt(self._target.provider_id, status)

    # The provider's side

    def on_read(self, connection: ProviderConnection, data: bytes, *, is_end: bool) -> None:
        """Take what one read brought."""
        try:
            answer = self._answer
            if answer is None:
                answer = self._answer = self._begin_answer(connection)
            if not self._is_deadline_fixed:
                self.deadline = min(self._loop_time() + self._target.idle_timeout_s, self._total_deadline)
            answer.take(data, is_end=is_end)
        except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
            self._fail()

    def on_lost(self, connection: ProviderConnection, reason: str) -> None:
        """The provider's connection broke before the answer's end."""
        self._connection = None
        try:
            if self._answer is not None:
                self._answer.lose(reason)
            elif connection.uses > 1 and not connection.has_bytes and not self._has_retried_idle:
                # It died while it was idle, and the request never reached anybody.
                self._has_retried_idle = True
                self._open()
            else:
                self.fail_attempt(Refusal("provider_error", f"{self.name} {reason}."))
        except Exception:  # noqa: BLE001 - a fault ends its own request, and is logged there
            self._fail()

    def _fail(self) -> None:
        """Hide a fault of our own from the client as far as that can be done; called from an except block."""
        answer, exchange = self._answer, self.exchange
        if answer is not None and exchange.has_answer_begun and not exchange.is_settled:
            _log.exception("an answer failed on a fault of the gateway", request_id=exchange.request_id)
            with contextlib.suppress(Exception):  # what is left is to cut the connection, below
                answer.break_off("sent what the gateway could not handle")
                return
        self.close()
        fail(exchange)

    def _begin_answer(self, connection: ProviderConnection) -> Answer:
        self.first_byte_ns = time.monotonic_ns()
        headers = connection.headers
        upstream_id = headers.get(b"x-request-id")
        if upstream_id is not None:
            self.exchange.upstream_request_id = clean_text(upstream_id.decode("latin-1"))
        if not 200 <= connection.status < 300:
            return ErrorAnswer(self, connection)
        if headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            return StreamAnswer(self, connection, drops_usage_chunk=self.asks_for_usage)
        return DocumentAnswer(self, connection)

    # The client's side

    def pause(self) -> None:
        """The client takes no more for now."""
        if not self._is_paused and self._connection is not None and self._answer is not None:
            self._is_paused = True
            self.wait_at_most(self.exchange.edge.settings.write_timeout_s)
            self._connection.pause()

    def resume(self) -> None:
        """The client takes bytes again."""
        if self._is_paused:
            self._is_paused = self._is_deadline_fixed = False
            self.deadline = min(self._loop_time() + self._target.idle_timeout_s, self._total_deadline)
            if self._connection is not None:
                self._connection.resume()

    def cancel(self) -> None:
        """The client has gone."""
        self._is_paused = False
        if self._is_over:
            return
        connection, exchange = self._connection, self.exchange
        if not exchange.has_answer_begun and not exchange.edge.settings.charge_cancelled_prompt:
            status = connection.status if connection is not None and self._answer is not None else None
            self.end_cancelled(status, None, "none")
        elif self._answer is not None:
            self._answer.cancel()
        elif connection is not None:
            self.end_cancelled(None, estimated_usage(exchange, 0), "partial")
        else:
            self.end_cancelled(None, None, "none")

    def expire(self) -> None:
        """A deadline has passed."""
        if self._is_over:
            return
        if self._is_paused:
            self.cancel()
            self.exchange.client.abort()
        elif self._answer is not None:
            self._answer.expire()
        else:
            self.fail_attempt(Refusal("provider_timeout", f"{self.name} did not answer in time."))

    def stop(self) -> None:
        """The process ends now."""
        if self._is_over:
            return
        if self._answer is not None:
            self._answer.stop()
        elif self._connection is not None:
            self.end_stopped(estimated_usage(self.exchange, 0), "partial")
        else:
            self.end_stopped(None, "none")

    # For answers

    def common_headers(self, provider_headers: Mapping[bytes, bytes] = _NO_HEADERS) -> bytes:
        """Return the headers that every answer has, and the useful ones of the provider's."""
        exchange = self.exchange
        lines = b"x-request-id: %b\r\n%b%b" % (exchange.request_id.encode(), self._target.labels, exchange.edge.date)
        if exchange.bounds.is_bound or exchange.target_bounds.is_bound:
            lines += exchange.bounds.header_lines(exchange.target_bounds)
        if self._place:
            lines += b"x-sluicegate-fallbacks: %d\r\n" % self._place
        for name in _PASSED_ANSWER_HEADERS:
            if name in provider_headers:
                lines += b"%b: %b\r\n" % (name, provider_headers[name])
        if exchange.edge.is_draining:
            exchange.keeps_alive = False
        if not exchange.keeps_alive:
            lines += CLOSE
        return lines

    def commit(self) -> None:
        """The answer has begun to leave: no other target needs the request's body any more."""
        if self.exchange.held_bytes > _LARGE_BODY_BYTES:
            self.exchange.edge.release_body(self.exchange)

    def wait_at_most(self, seconds: float) -> None:
        """Fix the deadline: what the provider sends does not move it."""
        self._is_deadline_fixed = True
        self.deadline = self._loop_time() + seconds

    def release(self) -> None:
        """The answer is whole: its connection can be used again."""
        self._is_over = True
        # The two refer to each other, and what refers in circles waits for the collector.
        self._answer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach()

    def close(self) -> None:
        """The relay ends, whatever the provider still sends."""
        self._is_over = True
        self._answer = None
        self._drop_connection()

    def end_cancelled(self, status: int | None, usage: TokenUsage | None, source: UsageSource) -> None:
        """Settle on what was seen before the client went away."""
        self.note_attempt(status)
        self.close()
        settle(
            self.exchange,
            outcome="client_cancelled",
            status=499,
            error_code="client_closed",
            usage=usage,
            usage_source=source,
        )

    def end_stopped(self, usage: TokenUsage | None, source: UsageSource) -> None:
        """Settle an answer that had not begun when the process had to end."""
        refusal = Refusal("gateway_overloaded", "The gateway is stopping. Try again.", closes=True)
        self.note_attempt(None)
        self.close()
        settle(
            self.exchange,
            outcome="interrupted",
            status=refusal.status,
            error_code=refusal.code,
            usage=usage,
            usage_source=source,
        )
        answer_refusal(self.exchange, refusal)

    def _drop_connection(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
