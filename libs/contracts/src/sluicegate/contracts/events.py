"""How events travel: a message body is a JSON array of events of one type."""

from collections.abc import Sequence

import msgspec

_ENCODER = msgspec.json.Encoder()


def encode_event(event: msgspec.Struct) -> bytes:
    """Return one event as JSON, ready to be joined into a message."""
    return _ENCODER.encode(event)


def join_events(events: Sequence[bytes]) -> bytes:
    """Return the message body that holds these encoded events, in order."""
    return b"[" + b",".join(events) + b"]"
