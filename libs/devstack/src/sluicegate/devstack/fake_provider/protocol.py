"""One connection to the provider: parses requests, picks a plan, plays it, keeps the order of a pipeline."""

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools
import msgspec

from sluicegate.devstack.fake_provider import answers, payloads
from sluicegate.devstack.fake_provider.answers import Chat, Ending, Plan
from sluicegate.devstack.fake_provider.calls import Call, Headers
from sluicegate.devstack.fake_provider.knobs import DEFAULT, Knobs, UnknownKnobError, parse, split_model
from sluicegate.devstack.fake_provider.playback import Playback

if TYPE_CHECKING:
    from sluicegate.devstack.fake_provider.server import FakeProvider

_WRITE_BUFFER_BYTES: Final = 64 * 1024
_REMEMBERED_BODIES: Final = 512
_REMEMBERED_BODY_BYTES: Final = 4 * 1024
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)

Request = tuple[bytes, bytes, Headers, bytes, bool]
_CHAT = msgspec.json.Decoder(Chat)
_plans: dict[bytes, Plan] = {}
"""Plans of small chat bodies that came without `x-fake-*` headers, by the whole body."""


class ProviderProtocol(asyncio.Protocol):
    """The server side of one kept connection."""

    def __init__(self, provider: "FakeProvider", loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self._calls = provider.calls
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._number = 0
        # One answer at a time; what arrives meanwhile waits.
        self._waiting: deque[Request] = deque()
        self._playback: Playback | None = None
        self._open_call: Call | None = None
        self._keeps_alive = True
        self._drops_next = False
        # The request being parsed.
        self._target = b""
        self._headers: Headers = []
        self._has_knobs = False
        self._body: list[bytes] = []

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES, _WRITE_BUFFER_BYTES // 4)
        self._calls.connections_total += 1
        self._calls.connections_open += 1
        self._number = self._calls.connections_total
        self._provider.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._drops_next:
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._transport.close()
        except httptools.HttpParserError as error:
            self._refuse_malformed(error)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 — the name is asyncio's
        self._calls.connections_open -= 1
        self._provider.connections.discard(self)
        if self._playback:
            self._playback.stop()
            self._playback = None
        if self._open_call:
            self._calls.end(self._open_call, "cancelled")
            self._open_call = None
        self._waiting.clear()

    def pause_writing(self) -> None:
        if self._playback:
            self._playback.pause()

    def resume_writing(self) -> None:
        if self._playback:
            self._playback.resume()

    # httptools

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        self._has_knobs = False
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name.startswith(b"x-fake-"):
            self._has_knobs = True
        elif name == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        keeps = self._parser.should_keep_alive()
        request = (self._parser.get_method(), self._target, self._headers, body, keeps)
        if self._open_call or self._waiting:
            self._waiting.append(request)
        else:
            self._answer(request)

    # Answers

    def release(self) -> None:
        """Opens the gate this connection's answer may wait at."""
        if self._playback:
            self._playback.release()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def _answer(self, request: Request) -> None:
        method, target, headers, body, self._keeps_alive = request
        if target.startswith(b"/_fake/"):
            self._write_document(self._provider.control(method, target))
            self._after_answer(Ending.KEEP)
            return
        call = self._calls.begin(self._number, method, target, headers, body)
        plan = self._plan(method, target, headers, body)
        if plan.knobs.fail_first:
            plan = self._plan_failing_first(plan, body)
        call.knobs = plan.knobs
        call.status = plan.status
        if plan.whole is None:
            self._open_call = call
            self._playback = Playback(self._loop, self._transport, plan, call, self._finished)
            self._playback.start()
            return
        before, after = plan.head
        self._transport.write(b"%b%d%b%b" % (before, call.number, after, plan.whole))
        call.events_sent = plan.events
        self._finished(plan, call)

    def _plan(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> Plan:
        path = target.partition(b"?")[0]
        if path.endswith(b"/chat/completions") and method == b"POST":
            if self._has_knobs:
                return chat_plan(headers, body)
            plan = _plans.get(body)
            if plan is None:
                plan = chat_plan((), body)
                if len(body) <= _REMEMBERED_BODY_BYTES and len(_plans) < _REMEMBERED_BODIES:
                    _plans[body] = plan
            return plan
        if path.endswith(b"/models") and method == b"GET":
            return answers.document(200, payloads.models(), parse(headers=headers))
        return answers.refusal(
            404, f"No such path: {method.decode()} {path.decode('latin-1')}", DEFAULT, code="not_found"
        )

    def _plan_failing_first(self, plan: Plan, body: bytes) -> Plan:
        failed = self._calls.failed_first
        failed[plan.knobs] += 1
        if failed[plan.knobs] <= plan.knobs.fail_first:
            return plan
        healthy = msgspec.structs.replace(plan.knobs, fail_first=0, status=200)
        return healthy_plan(body, healthy)

    def _finished(self, plan: Plan, call: Call) -> None:
        self._open_call = None
        self._playback = None
        is_cut = plan.ending is Ending.RESET or (plan.ending is Ending.CLOSE and plan.knobs.cut_at >= 0)
        self._calls.end(call, "cut" if is_cut or plan.knobs.cut_head else "done")
        self._drops_next = plan.knobs.drop_next
        self._after_answer(plan.ending)

    def _after_answer(self, ending: Ending) -> None:
        if ending is Ending.RESET:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._loop.call_soon(self._transport.abort)
        elif ending is Ending.CLOSE or not self._keeps_alive:
            self._transport.close()
        elif self._waiting and not self._transport.is_closing():
            self._loop.call_soon(self._answer_waiting)

    def _answer_waiting(self) -> None:
        if self._waiting and not self._open_call and not self._transport.is_closing():
            self._answer(self._waiting.popleft())

    def _write_document(self, content: object) -> None:
        body = msgspec.json.encode(content)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _refuse_malformed(self, error: Exception) -> None:
        if self._transport.is_closing():
            return
        plan = answers.refusal(400, f"Malformed request: {error}", DEFAULT)
        call = self._calls.begin(self._number, b"", self._target, self._headers, b"".join(self._body))
        call.status = 400
        self._transport.write(b"%b%d%b%b" % (plan.head[0], call.number, plan.head[1], plan.whole or b""))
        self._calls.end(call, "done")
        self._transport.close()


def chat_plan(headers: Headers | tuple[()], body: bytes) -> Plan:
    """The answer to one chat request."""
    try:
        chat = _CHAT.decode(body)
        knobs = parse(split_model(chat.model)[1], chat.fake, headers=list(headers))
    except (msgspec.MsgspecError, RecursionError, UnknownKnobError) as error:
        return answers.refusal(400, str(error), DEFAULT, code="invalid_request")
    return _plan_of(chat, knobs)


def healthy_plan(body: bytes, knobs: Knobs) -> Plan:
    """The answer that follows the failing ones of `fail_first`."""
    return _plan_of(_CHAT.decode(body), knobs)


def _plan_of(chat: Chat, knobs: Knobs) -> Plan:
    if knobs.silence == "request" or knobs.cut_head:
        return answers.nothing(knobs)
    if knobs.garbage == "http":
        return answers.garbage(knobs)
    if chat.stream_options is not None and (knobs.reject_stream_options or not chat.stream):
        message = "Unrecognized request argument supplied: stream_options"
        return answers.refusal(400, message, knobs, code="unsupported_parameter", param="stream_options")
    is_refused = knobs.status >= 300 or knobs.fail_first
    if is_refused and knobs.error_at < 0:
        status = knobs.status if knobs.status >= 300 else 500
        return answers.refusal(status, "The fake provider refuses on request.", knobs, code=knobs.code or None)
    name = split_model(chat.model)[0] or "fake-gpt"
    if chat.stream and knobs.garbage not in {"json", "truncated"}:
        return answers.stream(chat, name, knobs)
    return answers.document(200, payloads.completion(knobs, name), knobs)
