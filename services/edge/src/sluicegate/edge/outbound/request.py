"""The request to a provider, as bytes: a fixed head per target, the client's useful headers, the spliced body."""

from typing import Final

import msgspec

from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.phases.classify import ChatRequest
from sluicegate.edge.wire import json_splice

# What a client may say to the provider beside its body. Never its key, cookies or encodings.
PASSED_HEADERS: Final = (
    b"idempotency-key",
    b"openai-beta",
    b"openai-organization",
    b"openai-project",
    b"x-client-request-id",
)
_ASK: Final = b',"stream_options":{"include_usage":true}'


def request_head(target: Target, path: bytes, query: bytes, head: dict[bytes, bytes], body_bytes: int) -> bytes:
    """Return the request head for a target; `head` are the client's headers."""
    parts = [b"POST ", target.path_prefix, path]
    if query:
        parts += [b"?", query]
    parts += [b" HTTP/1.1\r\n", target.fixed_headers]
    for name in PASSED_HEADERS:
        value = head.get(name)
        if value is not None:
            parts += [name, b": ", value, b"\r\n"]
    parts.append(b"content-length: %d\r\n\r\n" % body_bytes)
    return b"".join(parts)


def chat_body(
    body: bytes, chat: ChatRequest, model_span: tuple[int, int], target: Target, *, asks_for_usage: bool
) -> bytes:
    """Return the client's body with the provider's model name, and a request for usage if we add one."""
    if chat.model == target.model_name and not asks_for_usage:
        return body
    value = target.model_json
    changes = []
    if asks_for_usage:
        if chat.stream_options is None and b'"stream_options"' not in body and not json_splice.may_hide_names(body):
            value += _ASK
        else:
            changes.append(_ask_in_place(body))
    return json_splice.replace(body, [(*model_span, value), *changes])


def _ask_in_place(body: bytes) -> tuple[int, int, bytes]:
    """Return the change that sets `include_usage` in the `stream_options` the client sent."""
    for member in reversed(json_splice.members(body)):
        if member.name == "stream_options":
            options = msgspec.json.decode(body[member.start : member.end])
            options = {**(options or {}), "include_usage": True}
            return member.start, member.end, msgspec.json.encode(options)
    # The name only occurs deeper down: add a member behind the last one.
    end = body.rstrip().rfind(b"}")
    return end, end, _ASK
