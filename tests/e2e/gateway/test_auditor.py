"""What a killed edge had leased and not reported is put right: the budget's meter comes to equal PostgreSQL."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.devstack.load.job import Job, Result, chat_body
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.stack_client import Stack
from sluicegate.devstack.waiting import until

ALIVE = "sg:{all}:alive"
# A process says that it lives every five seconds, and counts as dead a minute after it last did.
SILENT_MS = 8_000
DEAD_MS = 60_000


class Meter:
    """The meter of the demo's budget, and what PostgreSQL says about it."""

    def __init__(self, redis: Any, database: Any) -> None:
        self._redis = redis
        self._database = database

    async def records(self) -> dict[str, tuple[int, int]]:
        """What each process has settled and holds."""
        names = [name async for name in self._redis.scan_iter("sg:{all}:sum:*")]
        assert len(names) <= 1
        fields = await self._redis.hgetall(names[0]) if names else {}
        self.base = int(fields.pop("b", 0))
        fields.pop("t", None)
        records = {}
        for process, text in fields.items():
            settled, held = map(int, text.split())
            records[process] = settled, held
        return records

    async def are_both_edges_at_work(self) -> bool:
        return sum(settled > 0 and held > 0 for settled, held in (await self.records()).values()) == 2

    async def spent(self) -> int:
        records = await self.records()
        return self.base + sum(settled for settled, _ in records.values())

    async def recorded(self) -> int:
        """Truly spent; the demo's team is the only one."""
        return int(await self._database.fetchval("SELECT coalesce(sum(cost_nano_usd), 0) FROM usage"))

    async def lives(self) -> dict[str, list[int]]:
        """Number of the last call, when it came, and the watermark of each process."""
        return {name: list(map(int, text.split())) for name, text in (await self._redis.hgetall(ALIVE)).items()}

    async def now_ms(self) -> int:
        seconds, us = await self._redis.time()
        return int(seconds) * 1000 + int(us) // 1000

    async def silent_holder(self) -> str | None:
        """A process that says nothing any more and holds some of the budget."""
        lives, now_ms = await self.lives(), await self.now_ms()
        for process, (_settled, held) in (await self.records()).items():
            if held and lives[process][1] + SILENT_MS < now_ms:
                return process
        return None

    async def let_die(self, process: str) -> None:
        """Let the minute pass for one process."""
        number, seen_ms, watermark_ms = (await self.lives())[process]
        await self._redis.hset(ALIVE, process, f"{number} {seen_ms - DEAD_MS} {watermark_ms}")


@pytest.fixture
async def stack(own_stack: Callable[..., OwnStack]) -> Stack:
    return own_stack("--edge-workers", "2", "--restart", env={"SLUICEGATE_BUDGET_ALERT_AUDIT_EVERY_S": "0.05"}).start()


@pytest.fixture
async def meter(stack: Stack) -> AsyncIterator[Meter]:
    redis = Redis.from_url(stack.redis_url, decode_responses=True)
    database = await asyncpg.connect(stack.postgres_dsn)
    yield Meter(redis, database)
    await database.close()
    await redis.aclose()


async def test_meter_equals_postgres_when_an_edge_with_leases_was_killed(stack: Stack, meter: Meter) -> None:
    job = Job(
        url=f"{stack.openai_base_url}/chat/completions",
        body=chat_body(stack.model, is_streamed=False),
        headers={"authorization": f"Bearer {stack.key}"},
        expects="json",
        connections=16,
        seconds=8,
        wants_request_ids=False,
    )
    load = subprocess.Popen(
        [sys.executable, "-m", "sluicegate.devstack.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert load.stdin is not None
    load.stdin.write(msgspec.json.encode(job) + b"\n")
    load.stdin.close()
    await until(meter.are_both_edges_at_work, "leases out")
    os.kill(stack.reload().processes["edge"][0], signal.SIGKILL)
    assert load.stdout is not None
    result = msgspec.json.decode(load.stdout.read(), type=Result)
    load.stdout.close()
    load.wait()
    assert result.answered > 100
    assert result.errors, "the kill was not felt, so it proved nothing"

    killed = await until(meter.silent_holder, "a lease without its process")
    await meter.let_die(killed)

    async def is_repaired() -> bool:
        return killed not in await meter.records() and await meter.spent() == await meter.recorded()

    await until(is_repaired, "meter = PostgreSQL", deadline_s=100)
    assert await meter.recorded() > 0
