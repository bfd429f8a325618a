"""Meters as Valkey holds them: b and a process's `S H` each, as LEDGER's script writes them."""

import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple, cast

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

_SAMPLE_EVERY_S: Final = 0.005


class Reading(NamedTuple):
    """One meter at one moment. `holders`: processes with a record there."""

    base: int
    settled: int
    held: int
    holders: int

    @property
    def spent(self) -> int:
        """b + ΣS."""
        return self.base + self.settled

    @property
    def taken(self) -> int:
        """Everything that nobody else can have: b + ΣS + ΣH."""
        return self.spent + self.held


class Peaks:
    """What was seen of meters while they were watched."""

    def __init__(self, names: Sequence[str]) -> None:
        self.samples = 0
        self.most_taken = dict.fromkeys(names, 0)
        self.most_spent = dict.fromkeys(names, 0)

    def note(self, name: str, reading: Reading) -> None:
        self.most_taken[name] = max(self.most_taken[name], reading.taken)
        self.most_spent[name] = max(self.most_spent[name], reading.spent)


class MeterReadings:
    """Reads meters; changes nothing."""

    def __init__(self, client: "Redis") -> None:
        self.client = client

    async def read(self, *names: str) -> list[Reading]:
        """Return the meters as they are now; all of them at one moment."""
        async with self.client.pipeline() as pipeline:
            for name in names:
                pipeline.hgetall(name)
            return [_reading(fields) for fields in await pipeline.execute()]

    async def script_calls(self) -> int:
        """Return how many scripts the server has run since its start, whoever sent them."""
        stats = await cast("Awaitable[dict[str, dict[str, int]]]", self.client.info("commandstats"))
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


@contextmanager
def watched(redis_url: str, *names: str) -> Iterator[Peaks]:
    """Sample meters all the while, in a thread of its own: the loop has many clients to play meanwhile."""
    peaks = Peaks(names)
    is_over = threading.Event()

    def sample() -> None:
        with BlockingRedis.from_url(redis_url, decode_responses=True) as client:
            while not is_over.wait(_SAMPLE_EVERY_S):
                pipeline = client.pipeline()
                for name in names:
                    pipeline.hgetall(name)
                for name, fields in zip(names, pipeline.execute(), strict=True):
                    peaks.note(name, _reading(fields))
                peaks.samples += 1

    sampling = threading.Thread(target=sample, name="watches meters")
    sampling.start()
    try:
        yield peaks
    finally:
        is_over.set()
        sampling.join()


@asynccontextmanager
async def meter_readings(redis_url: str) -> AsyncIterator[MeterReadings]:
    """Reads the meters of this server."""
    client = Redis.from_url(redis_url, decode_responses=True)
    try:
        yield MeterReadings(client)
    finally:
        await client.aclose()


def _reading(fields: dict[str, str]) -> Reading:
    records = [tuple(map(int, value.split())) for name, value in fields.items() if name not in {"b", "t"}]
    return Reading(
        base=int(fields.get("b", "0")),
        settled=sum(settled for settled, _ in records),
        held=sum(held for _, held in records),
        holders=len(records),
    )
