"""What is asked for: the few top-level fields that the gateway needs, and the body's good form.

Everything else in the body is the provider's business and passes as bytes.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.records import pseudonym
from sluicegate.edge.wire.body_scan import BodyScan, BodyScanError, ScannedMember
from sluicegate.edge.wire.json_splice import Member, members, string_span
from sluicegate.edge.wire.usage import BYTES_PER_TOKEN

MAX_MODEL_LENGTH: Final = 256
# Above it one step over the whole body would hold the loop for too long: 2.5 ms so far.
LARGE_BODY_BYTES: Final = 256 * 1024
TOKENS_PER_IMAGE: Final = 1_600
_NO_MESSAGES: Final = msgspec.Raw(b"")
_PLACE: Final = re.compile(r" - at `\$\.?([^`]*)`$")
_BASE64: Final = re.compile(rb";base64,[A-Za-z0-9+/=\\]*")
# Escapes in order, a pair of surrogates as one of them; the group is half a pair that stands alone.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The top level of a chat request, as far as the gateway reads it."""

    model: str = ""
    messages: msgspec.Raw = _NO_MESSAGES
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    user: str | None = None

    @property
    def asks_for_usage(self) -> bool:
        """Whether the client itself asked for the usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True


_decode: Final = msgspec.json.Decoder(ChatRequest).decode


def scan_ahead(exchange: Exchange, piece: bytes) -> None:
    """Take a piece of a body that has become large, before it is whole. Refusal: it is no JSON object."""
    try:
        if exchange.scan is None:
            exchange.scan = BodyScan()
            for earlier in exchange.parts:
                exchange.scan.feed(earlier)
        else:
            exchange.scan.feed(piece)
    except BodyScanError as error:
        raise Refusal("invalid_json", f"The body is not a JSON object: {error}.") from error


def classify(exchange: Exchange) -> None:
    """Decode the top level of the body and check what the gateway relies on."""
    head = exchange.head
    if head.is_compressed:
        raise Refusal("unsupported_media_type", "The body is compressed. Send it as it is.")
    if not head.is_json:
        raise Refusal("unsupported_media_type", "The body must be JSON: send `content-type: application/json`.")
    chat = exchange.chat = _decode_body(exchange) if exchange.scan is None else _decode_scanned(exchange, exchange.scan)
    if head.deployment is not None:
        chat.model = head.deployment
    elif not chat.model:
        raise Refusal("invalid_request", "`model` is missing: name one of GET /v1/models.", param="model")
    if len(chat.model) > MAX_MODEL_LENGTH:
        raise Refusal("invalid_request", f"`model` is longer than {MAX_MODEL_LENGTH} characters.", param="model")
    if chat.user and exchange.principal is not None:
        exchange.end_user = pseudonym(chat.user, exchange.principal.tenant)
    if memoryview(chat.messages)[:1].tobytes() != b"[":
        raise Refusal("invalid_request", "`messages` must be an array.", param="messages")
    for name, value in (
        ("max_tokens", chat.max_tokens),
        ("max_completion_tokens", chat.max_completion_tokens),
        ("n", chat.n),
    ):
        if value is not None and value < 1:
            raise Refusal("invalid_request", f"`{name}` must be at least 1.", param=name)


def _decode_body(exchange: Exchange) -> ChatRequest:
    parts = exchange.parts
    body = exchange.body = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    chat = decode_chat(body)
    exchange.input_estimate = estimate_input_tokens(body)
    exchange.model_span = string_span(body, b"model") if chat.model else None
    if exchange.model_span is None:
        exchange.model_span = _only_place(members(body))
    return chat


def _decode_scanned(exchange: Exchange, scan: BodyScan) -> ChatRequest:
    try:
        scan.finish()
    except BodyScanError as error:
        raise Refusal("invalid_json", f"The body is not a JSON object: {error}.") from error
    chat = decode_chat(scan.skeleton())
    exchange.input_estimate = -(-(scan.size - scan.base64_bytes) // BYTES_PER_TOKEN) + TOKENS_PER_IMAGE * scan.images
    exchange.model_span = _only_place(scan.members)
    return chat


def _only_place(found: Sequence[Member | ScannedMember]) -> tuple[int, int] | None:
    """Return where `model` stands. Refusal: twice, for two readers of one body may take different ones."""
    places = [(member.start, member.end) for member in found if member.name == "model"]
    if len(places) > 1:
        raise Refusal("invalid_request", "`model` stands there more than once.", param="model")
    return places[0] if places else None


def decode_chat(body: bytes) -> ChatRequest:
    """Decode a chat request's top level. Refusal: not a JSON object in UTF-8, or a field of a wrong type."""
    try:
        # msgspec does not check the UTF-8 of what it skips.
        if not body.isascii():
            body.decode()
        return _decode(body)
    except UnicodeDecodeError as error:
        raise Refusal("invalid_json", f"The body is not UTF-8: {error.reason} at byte {error.start}.") from error
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except msgspec.DecodeError as error:
        raise Refusal("invalid_json", f"The body is not JSON: {_why_malformed(body, error)}.") from error
    except RecursionError as error:
        raise Refusal("invalid_json", "The body is nested too deeply.") from error


def _why_malformed(body: bytes, error: msgspec.DecodeError) -> str:
    """Return what is wrong with a body that did not decode; half a surrogate pair is often called a truncation."""
    for escape in _ESCAPE.finditer(body):
        if escape[1] is not None:
            return f"the escape `\\{escape[1].decode()}` is half of a surrogate pair, and its partner is missing"
    return str(error)


def _wrong_type(text: str) -> Refusal:
    place = _PLACE.search(text)
    if place is None:
        return Refusal("invalid_json", f"The body is not a JSON object: {text}.")
    field = place.group(1)
    return Refusal("invalid_request", f"`{field}` has a wrong type: {text[: place.start()]}.", param=field)


def estimate_input_tokens(body: bytes) -> int:
    """Estimate input: bytes ÷ 4; what stands behind `;base64,` counts as 1 600 tokens each time."""
    if b";base64," not in body:
        return -(-len(body) // BYTES_PER_TOKEN)
    spans = [match.end() - match.start() for match in _BASE64.finditer(body)]
    return -(-(len(body) - sum(spans)) // BYTES_PER_TOKEN) + TOKENS_PER_IMAGE * len(spans)
