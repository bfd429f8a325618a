"""What one request costs the edge outside the kernel: µs of CPU from the client's bytes to its whole answer.

Run: `python benchmarks/micro/request.py [--profile]`. Both sides are transports that throw bytes away and a
provider that answers at once, so neither sockets nor the loop are in it; the journal keeps nothing. Everything
is on: limits and a budget on key, team and tenant (12 meters), whose leases are large.
"""

import argparse
import asyncio
import cProfile
import pstats
import statistics
import time
from typing import Any, cast

from sluicegate.contracts.catalogue import Budget, Limits, Scope, Team, Tenant
from sluicegate.devstack.edge_process import EdgeUnderTest
from sluicegate.devstack.fake_provider.knobs import DEFAULT
from sluicegate.edge.edge import UsageJournal
from sluicegate.edge.inbound.protocol import EdgeProtocol
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.outbound.pool import Origin

REQUESTS = 2_000
ROUNDS = 15
_JSON = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"fake-gpt","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Water finds its own level, says the sluice keeper","refusal":null},'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":10,"total_tokens":21,'
    b'"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}'
)
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"fake-gpt","choices":'
    b'[{"index":0,"delta":{"content":" sluice"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"fake-gpt","choices":'
    b'[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"fake-gpt","choices":[],'
    b'"usage":{"prompt_tokens":11,"completion_tokens":12,"total_tokens":23}}\n\n'
)


def _chunks(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


ANSWERS = {
    "json": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_1\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_JSON), _JSON),
    "stream": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_1\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
    + _chunks(*[_EVENT] * (DEFAULT.events - 1), _LAST, _USAGE, b"data: [DONE]\n\n"),
}


class _Silent(asyncio.Transport):
    """Throws away what is written."""

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else default


class _Provider(_Silent):
    """Answers each request at once."""

    def __init__(self, connection: ProviderConnection, answer: bytes) -> None:
        super().__init__()
        self._connection = connection
        self._answer = answer

    def write(self, data: Any) -> None:  # noqa: ARG002 - whatever is asked gets the same answer
        self._connection.data_received(self._answer)


class _NoJournal:
    """Keeps nothing."""

    is_full = False

    def admitted(self, request_id: str, body: bytes) -> None:
        pass

    def finished(self, request_id: str, tenant: str, body: bytes) -> None:
        pass


def _bind(edge: EdgeUnderTest) -> None:
    """Put limits on all that the key falls under, and large leases on their meters."""
    limits = Limits(requests_per_minute=10**9, tokens_per_minute=10**12, open_requests=10**9)
    edge.put(Tenant(id="ten_1", name="tenant", limits=limits))
    edge.put(Team(id="tea_1", name="team", tenant="ten_1", limits=limits))
    edge.put_key(edge.key, limits=limits)
    scopes: tuple[tuple[Scope, str], ...] = (("tenant", "ten_1"), ("team", "tea_1"), ("key", "key_1"))
    for scope, scope_id in scopes:
        edge.put(
            Budget(id=f"bud_{scope}", name=scope, scope=scope, scope_id=scope_id, limit_nano_usd=10**15, period="year")
        )
    bounds = edge.view.bounds(edge.view.principal(edge.key.encode()), None, time.time_ns() // 1000)
    assert len(bounds.meters.all) == 12
    for meter in bounds.meters.all:
        meter.is_joined = meter.is_ok = True
        meter.held = meter.spare = meter.left = 10**14
        meter.pump.valid_until = float("inf")


async def _measure(kind: str, *, profiles: bool) -> None:
    edge = EdgeUnderTest("http://127.0.0.1:9")
    state: dict[str, Any] = {}
    await edge.start_parts(state)
    edge.edge.journal = cast(UsageJournal, _NoJournal())
    # Nothing is leased, given back or asked for while this runs.
    await edge.ledger.close()
    _bind(edge)
    pool = edge.edge.pools.pool_of(Origin("127.0.0.1", 9, is_tls=False), 1024)
    connection = ProviderConnection(pool, asyncio.get_running_loop())
    connection.connection_made(_Provider(connection, ANSWERS[kind]))
    pool.give_back(connection)
    edge.config.load()
    client = EdgeProtocol(edge.config, edge.server.server_state, state, asyncio.get_running_loop())
    client.connection_made(_Silent())
    stream = b', "stream": true' if kind == "stream" else b""
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "How does water flow?"}]%b}' % stream
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (edge.key.encode(), len(body), body)
    )
    rounds = []
    profile = cProfile.Profile()
    for _ in range(ROUNDS):
        if profiles:
            profile.enable()
        started = time.process_time()
        for _ in range(REQUESTS):
            client.data_received(request)
        rounds.append((time.process_time() - started) / REQUESTS * 1e6)
        profile.disable()
    assert edge.edge.metrics.snapshot().counters["requests_total"][0][1] == REQUESTS * ROUNDS
    print(f"{kind}: median {statistics.median(rounds):.1f} µs, fastest round {min(rounds):.1f} µs")
    if profiles:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    await edge.stop_parts()


def main() -> None:
    """Measure both kinds of answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    for kind in ANSWERS:
        asyncio.run(_measure(kind, profiles=options.profile))


if __name__ == "__main__":
    main()
