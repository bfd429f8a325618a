"""The request to a provider, as bytes: a fixed head per target, the client's useful headers, the spliced body."""

from typing import Final

import msgspec

from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.phases.classify import ChatRequest
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.wire import json_splice
from sluicegate.edge.wire.json_splice import Change

_ASK: Final = b',"stream_options":{"include_usage":true}'


def request_head(target: Target, exchange: Exchange, body_bytes: int) -> bytes:
    """Return the request head for a target."""
    head = exchange.head
    return b"POST %b%b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
        target.path_prefix,
        head.endpoint.provider_path,
        b"?" + head.query if head.query else b"",
        target.fixed_headers,
        head.passed,
        body_bytes,
    )


def changes_to_chat(exchange: Exchange, chat: ChatRequest, target: Target, *, asks_for_usage: bool) -> list[Change]:
    """Return what changes in the client's body: the provider's name of the model, and that we ask for usage."""
    value = target.model_json
    changes: list[Change] = []
    if asks_for_usage:
        in_place = _ask_in_place(exchange, chat)
        if in_place is None:
            value += _ASK
        else:
            changes.append(in_place)
    elif chat.model == target.model_name and exchange.head.deployment is None:
        return changes
    if exchange.model_span is None:
        start = (exchange.body or exchange.parts[0]).index(b"{") + 1
        changes.append((start, start, b'"model":%b,' % value))
    else:
        changes.append((*exchange.model_span, value))
    return changes


def _ask_in_place(exchange: Exchange, chat: ChatRequest) -> Change | None:
    """Return the change that sets `include_usage` in the `stream_options` the client sent; None: it sent none."""
    body = exchange.body
    if exchange.scan is not None:
        for member in reversed(exchange.scan.members):
            if member.name == "stream_options":
                return member.start, member.end, _with_usage(member.value or b"null")
    elif chat.stream_options is not None or b'"stream_options"' in body or json_splice.may_hide_names(body):
        for place in reversed(json_splice.members(body)):
            if place.name == "stream_options":
                return place.start, place.end, _with_usage(body[place.start : place.end])
    return None


def _with_usage(options: bytes) -> bytes:
    return msgspec.json.encode({**(msgspec.json.decode(options) or {}), "include_usage": True})
