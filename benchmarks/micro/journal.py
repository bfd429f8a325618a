"""What `admitted` and `finished` cost the hot path, both `write(2)` calls included: µs per request.

Run: `python benchmarks/micro/journal.py`. NATS is not needed: the time to publish is not measured here.
"""

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.contracts.events import encode_event
from sluicegate.contracts.ids import new_id, uuid7_text
from sluicegate.contracts.usage import PriceOfInput, RequestAdmitted, UsageRecorded
from sluicegate.edge.journal.journal import Journal

REQUESTS = 2_000
ROUNDS = 15


def bodies() -> tuple[bytes, bytes]:
    """Return an admission and an event of ordinary size."""
    tenant, team, key = new_id("ten"), new_id("tea"), new_id("key")
    admitted = RequestAdmitted(
        request_id=uuid7_text(),
        started_at_us=time.time_ns() // 1000,
        tenant=tenant,
        team=team,
        key=key,
        endpoint="/v1/chat/completions",
        requested_model="gpt-4o",
        provider=new_id("prv"),
        upstream_model=new_id("mod"),
        streamed=True,
        input_tokens=1200,
        price=PriceOfInput(version=1, input=150_000_000),
        edge=str(uuid.uuid4()),
    )
    event = UsageRecorded(
        request_id=admitted.request_id,
        started_at_us=admitted.started_at_us,
        tenant=tenant,
        team=team,
        key=key,
        endpoint=admitted.endpoint,
        status=200,
        outcome="success",
        requested_model=admitted.requested_model,
        provider=admitted.provider,
        upstream_model=admitted.upstream_model,
        upstream_request_id="chatcmpl-0123456789",
        streamed=True,
        input_tokens=1234,
        output_tokens=321,
        usage_source="provider",
        cost_nano_usd=377_700,
        cost_source="priced",
        price_version=1,
        duration_us=1_234_567,
        first_token_us=234_567,
        provider_us=1_234_000,
        overhead_us=98,
        edge=admitted.edge,
    )
    return encode_event(admitted), encode_event(event)


async def main() -> None:
    """Print the median and the fastest round, beside the bare system calls."""
    admitted, finished = bodies()
    request_ids = [uuid7_text() for _ in range(REQUESTS)]
    tenant = new_id("ten")
    with tempfile.TemporaryDirectory() as root:
        journal = Journal(Path(root), str(uuid.uuid4()), AckedPublisher(Connection("benchmark")))
        await journal.start()
        rounds = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for request_id in request_ids:
                journal.admitted(request_id, admitted)
                journal.finished(request_id, tenant, finished)
            rounds.append((time.perf_counter() - begin) / REQUESTS * 1e6)
            await asyncio.sleep(0.06)
        fd = os.open(Path(root) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        bare = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for _ in request_ids:
                os.write(fd, admitted)
                os.write(fd, finished)
            bare.append((time.perf_counter() - begin) / REQUESTS * 1e6)
        os.close(fd)
        await journal.close(0)
    print(f"bodies: {len(admitted)} + {len(finished)} bytes, {ROUNDS} rounds of {REQUESTS} requests")
    print(f"admitted + finished: median {statistics.median(rounds):.2f} µs, fastest {min(rounds):.2f} µs")
    print(f"two bare writes:     median {statistics.median(bare):.2f} µs, fastest {min(bare):.2f} µs")


asyncio.run(main())
