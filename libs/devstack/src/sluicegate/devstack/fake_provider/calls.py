"""What the provider saw: one record for each call, and counts. Tests read it through `/_fake/…`."""

import base64
import hashlib
import time
from collections import Counter, deque
from typing import Any, Final

from sluicegate.devstack.fake_provider.knobs import DEFAULT, Knobs

_KEPT_CALLS: Final = 1_000
_KEPT_BODY_BYTES: Final = 64 * 1024

Headers = list[tuple[bytes, bytes]]


class Call:
    """One request and what became of it: open, done, cancelled (the caller went away), or cut (by the knobs)."""

    __slots__ = (
        "body", "connection", "digest", "ended_s", "events_sent", "headers", "knobs", "length", "method", "number",
        "started_s", "state", "status", "target",
    )  # fmt: skip

    def __init__(
        self, number: int, connection: int, method: bytes, target: bytes, headers: Headers, body: bytes
    ) -> None:
        self.number = number
        self.connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.length = len(body)
        self.digest: str | None = None
        if self.length > _KEPT_BODY_BYTES:
            self.digest = hashlib.sha256(body).hexdigest()
            body = body[:_KEPT_BODY_BYTES]
        self.body = body
        self.knobs: Knobs = DEFAULT
        self.status = 0
        self.state = "open"
        self.events_sent = 0
        self.started_s = time.monotonic()
        self.ended_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The record, as `/_fake/requests` shows it. The body is whole up to 64 KiB, its digest always."""
        return {
            "number": self.number,
            "connection": self.connection,
            "method": self.method.decode("latin-1"),
            "target": self.target.decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "body": self.body.decode(errors="replace"),
            "body_base64": base64.b64encode(self.body).decode(),
            "body_bytes": self.length,
            "body_sha256": self.digest or hashlib.sha256(self.body).hexdigest(),
            "status": self.status,
            "state": self.state,
            "events_sent": self.events_sent,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
        }


class Calls:
    """All calls since the start or the last reset; the newest are kept whole."""

    def __init__(self) -> None:
        self.connections_open = 0
        self.connections_total = 0
        self._next_number = 1
        self.reset()

    def reset(self) -> None:
        """Forget everything but the connections and calls that are still open."""
        self.total = 0
        self.open = 0
        self.ended: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.failed_first: Counter[Knobs] = Counter()
        self.recent: deque[Call] = deque(maxlen=_KEPT_CALLS)

    def begin(self, connection: int, method: bytes, target: bytes, headers: Headers, body: bytes) -> Call:
        """Record that a whole request has arrived."""
        call = Call(self._next_number, connection, method, target, headers, body)
        self._next_number += 1
        self.total += 1
        self.open += 1
        self.recent.append(call)
        return call

    def end(self, call: Call, state: str) -> None:
        """Record how a call ended. A call from before a reset leaves no trace."""
        if call.state != "open":
            return
        call.state = state
        call.ended_s = time.monotonic()
        if call.number < self._next_number - self.total:
            return
        self.open -= 1
        self.ended[state] += 1
        self.statuses[call.status] += 1

    def as_json(self) -> dict[str, Any]:
        """Counts, as `/_fake/stats` shows them."""
        return {
            "calls": self.total,
            "open": self.open,
            "done": self.ended["done"],
            "cancelled": self.ended["cancelled"],
            "cut": self.ended["cut"],
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "connections_open": self.connections_open,
            "connections_total": self.connections_total,
        }
