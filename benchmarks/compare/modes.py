"""The traffic that is compared, and the bars each kind must stay under."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mode:
    """One kind of traffic. `bar` is the highest allowed ratio of CPU per request, edge to nginx."""

    name: str
    title: str
    expects: Literal["json", "stream"]
    events: int
    fake: str
    connections: int
    seconds: float
    requests: int | None = None
    is_kept: bool = True
    bar: float | None = None


ONE_WRITE = "events=12"
OWN_WRITES = "events=12&write=each&pace_ms=1"
PACED = "events=200&write=each&pace_ms=20&jitter_ms=10"

CPU_MODES = (
    Mode("json", "JSON", "json", 12, ONE_WRITE, 64, 1.2, bar=4.5),
    Mode("stream_once", "12 events in one write", "stream", 12, ONE_WRITE, 64, 1.2, bar=5.0),
    Mode("stream_each", "12 events in writes of their own, 1 ms apart", "stream", 12, OWN_WRITES, 32, 1.5, bar=3.0),
    Mode("stream_paced", "200 events, 20 ms apart", "stream", 200, PACED, 64, 1.0, requests=64, bar=3.0),
    Mode("json_own", "JSON, a connection for each request", "json", 12, ONE_WRITE, 16, 1.0, is_kept=False),
    Mode(
        "stream_own",
        "12 events in one write, a connection for each request",
        "stream",
        12,
        ONE_WRITE,
        16,
        1.0,
        is_kept=False,
    ),
)
"""jitter_ms sets the 64 paced streams apart; without it they would all tick together and share system calls."""

LATENCY_MODES = (
    Mode("json", "JSON", "json", 12, ONE_WRITE, 1, 0.7),
    Mode("stream_once", "12 events in one write", "stream", 12, ONE_WRITE, 1, 0.7),
    Mode(
        "stream_turns", "12 events in writes of their own, back to back", "stream", 12, "events=12&write=each", 1, 0.7
    ),
    Mode("stream_own", "12 events in one write, own connection", "stream", 12, ONE_WRITE, 1, 0.7, is_kept=False),
)

ADDED_P50_BAR_US = 150
ADDED_P99_BAR_US = 500
ADDED_TAIL_P50_BAR_US = 100
