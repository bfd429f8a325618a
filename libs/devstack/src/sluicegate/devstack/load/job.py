"""What a load run is asked for, and what it found. Data only."""

from typing import Literal

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run against one URL. Closed loop unless `rate_per_s` is set."""

    url: str
    body: str
    headers: dict[str, str] = {}
    expects: Literal["json", "stream"] = "json"
    events: int = 12
    """Events with choices that each stream must have."""
    connections: int = 1
    is_kept: bool = True
    """False: a connection of its own for each request, which the server closes."""
    seconds: float = 1.0
    requests: int | None = None
    """Ends the run earlier, after this many requests were started."""
    rate_per_s: float | None = None
    """Open loop: a request starts when it is due, whether earlier ones have been answered or not."""
    timeout_s: float = 30.0
    watch: dict[str, list[int]] = {}
    """Processes whose CPU clocks are read around the run, by a name."""
    wants_request_ids: bool = False


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution, in microseconds."""

    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the run found. `answered` counts right answers only; each other request is in `errors` once."""

    answered: int
    errors: dict[str, int]
    wall_s: float
    driver_cpu_s: float
    watched_cpu_s: dict[str, float]
    latency: Spread | None
    """Request sent (or due, in an open loop) to last byte."""
    first_byte: Spread | None
    tail: Spread | None
    """First byte to last byte; to the close, where the connection is not kept."""
    lateness: Spread | None
    """Open loop: due to sent."""
    body_digests: list[str]
    """SHA-256 of each distinct body that passed the check."""
    connections_opened: int
    request_ids: list[str] | None = None


def spread(nanoseconds: list[int]) -> Spread | None:
    """Percentiles of durations; None of nothing."""
    if not nanoseconds:
        return None
    ordered = sorted(nanoseconds)

    def at(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1000

    return Spread(p50_us=at(0.5), p90_us=at(0.9), p99_us=at(0.99), max_us=ordered[-1] / 1000)


def chat_body(model: str, *, is_streamed: bool, fake: str = "") -> str:
    """A small chat request; `fake` sets the fake provider's knobs through any proxy that keeps unknown fields."""
    content: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "How does water flow?"}]}
    if is_streamed:
        content["stream"] = True
    if fake:
        content["fake"] = fake
    return msgspec.json.encode(content).decode()
