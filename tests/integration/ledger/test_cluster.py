"""On Redis Cluster each tag is a hash slot of its own, with a pump of its own."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotConnectedError

from sluicegate.devstack.servers import binaries
from sluicegate.devstack.servers.ports import LOOPBACK, free_port
from sluicegate.devstack.servers.process import spawn
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Short
from sluicegate.ledger.store import RedisMeterStore

DEADLINE_S = 30


def is_ready(port: int) -> bool:
    try:
        with Redis(LOOPBACK, port) as client:
            return "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")) or (
                client.cluster("INFO")["cluster_state"] == "ok"
            )
    except NotConnectedError:
        return False


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """A cluster of one node that has all slots."""
    port = free_port()
    process = spawn(
        [
            binaries.valkey_server(),
            *("--port", str(port), "--cluster-port", str(free_port()), "--bind", LOOPBACK),
            *("--cluster-enabled", "yes", "--save", "", "--dir", str(tmp_path)),
        ],
        log_path=tmp_path / "cluster.log",
        cwd=tmp_path,
        death_signal=SIGTERM,
    )
    deadline = time.monotonic() + DEADLINE_S
    is_owner = False
    while not (is_owner and is_ready(port)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        if not is_owner:
            try:
                with Redis(LOOPBACK, port) as client:
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                    is_owner = True
            except NotConnectedError:
                continue
    yield f"redis://{LOOPBACK}:{port}/0"
    process.kill()


async def test_meters_of_a_tenant_and_of_a_provider_are_served_from_their_own_slots(cluster_url: str) -> None:
    async def spent(meter: Meter) -> int:
        return 60

    store = RedisMeterStore(cluster_url, is_cluster=True)
    assert [problem.partition(":")[0] for problem in await store.problems()] == ["appendonly is off"]
    ledger = Ledger(store, spent_so_far=spent)
    await ledger.start()
    slots = ledger.cap_meter("open", "key", "k", limit=5, tag="ten_1")
    money = ledger.sum_meter(
        "b", "k", scope="key", start_us=0, end_us=4 * 10**15, limit=100, zero_from_us=None, tag="ten_1"
    )
    theirs = ledger.cap_meter("open", "provider", "p", limit=3, tag="p:prv_1")
    meters = MeterSet([slots, money, theirs])
    outcomes: list[Reservation | Short] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(outcomes) < 4:
            outcome = ledger.take(meters, 0, 10) or await ledger.wait(meters, 0, 10)
            if isinstance(outcome, Reservation) and not outcome.is_covered:
                ledger.release(outcome)  # too slow this time
                continue
            outcomes.append(outcome)
    assert [isinstance(outcome, Reservation) for outcome in outcomes] == [True, True, True, False]
    short = outcomes[3]
    assert isinstance(short, Short)
    assert short.meter is theirs
    assert money.spent == 60
    assert ledger.counts.failures == 0
    await ledger.close()
    await store.close()
