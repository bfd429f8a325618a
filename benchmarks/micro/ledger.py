"""What `take` and `settle` cost the hot path: CPU µs per request with 12 meters and with 9, leases far from short.

Run: `python benchmarks/micro/ledger.py`. The store is a stand-in that grants whatever is wanted: what a call costs is
not measured here, nor how often one is made.
"""

import asyncio
import statistics
import time

from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet, Reservation, Resource
from sluicegate.ledger.store import Answer, Audit, Call, Reply

REQUESTS = 5_000
ROUNDS = 25
SCOPES = ("key", "team", "department")
CAPS: tuple[Resource, ...] = ("requests", "tokens", "open")
TOKENS, COST = 1_500, 40_000
MANY = 2**45


class GenerousStore:
    """Grants what is wanted, and a lot more."""

    async def sync(self, tag: str, call: Call) -> Reply:
        del tag
        return Reply(
            "OK", time.time_ns() // 1_000_000, [Answer("OK", MANY, line.settled, MANY, 1) for line in call.lines]
        )

    async def seed(self, tag: str, seeds: object) -> None:
        del tag, seeds

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        raise NotImplementedError("nothing but calls is measured")

    async def now_ms(self, tag: str) -> int:
        raise NotImplementedError("nothing but calls is measured")

    async def close(self) -> None:
        pass


async def nothing_spent(meter: Meter) -> int:
    """Say what was spent before."""
    del meter
    return 0


def meter_set(ledger: Ledger, caps: tuple[Resource, ...]) -> MeterSet:
    """Return budgets and capacities of a key, its team and its department."""
    end_us = time.time_ns() // 1000 + 86_400_000_000
    budgets = [
        ledger.sum_meter(f"bud_{scope}", scope, scope=scope, start_us=0, end_us=end_us, limit=MANY, zero_from_us=None)
        for scope in SCOPES
    ]
    return MeterSet([*budgets, *(ledger.cap_meter(cap, scope, scope, limit=MANY) for cap in caps for scope in SCOPES)])


def measure(ledger: Ledger, meters: MeterSet) -> tuple[float, float]:
    """Return CPU µs of one take and of one settle, 50 requests being open at a time."""
    takes = settles = 0
    for _ in range(REQUESTS // 50):
        start = time.thread_time_ns()
        reservations = [ledger.take(meters, TOKENS, COST) for _ in range(50)]
        middle = time.thread_time_ns()
        for reservation in reservations:
            assert isinstance(reservation, Reservation)
            ledger.settle(reservation, TOKENS - 700, COST - 9_000)
        settles += time.thread_time_ns() - middle
        takes += middle - start
    return takes / REQUESTS / 1000, settles / REQUESTS / 1000


async def main() -> None:
    """Print the median and the fastest round."""
    for caps in (CAPS, CAPS[:2]):
        ledger = Ledger(GenerousStore(), spent_so_far=nothing_spent)
        await ledger.start()
        meters = meter_set(ledger, caps)
        first = await ledger.wait(meters, TOKENS, COST)
        assert isinstance(first, Reservation)
        assert first.is_covered
        ledger.settle(first, TOKENS, COST)
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(measure(ledger, meters))
            await asyncio.sleep(0.02)  # lets the pump send, as it would
        await ledger.close()
        takes, settles = zip(*rounds, strict=True)
        pairs = [take + settle for take, settle in rounds]
        print(
            f"{len(meters.all):>2} meters: take {statistics.median(takes):.2f} µs, "
            f"settle {statistics.median(settles):.2f} µs, "
            f"together {statistics.median(pairs):.2f} µs (fastest round {min(pairs):.2f})"
        )


if __name__ == "__main__":
    asyncio.run(main())
