"""No query comes from the edge, whatever is asked: counted by PostgreSQL's own statement log.

A query of the edge would carry its application name; and any query that a request causes, whoever sends it,
would make the counts of the others grow with the requests. So both are looked at.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import asyncpg
import httpx
import msgspec
import pytest

from sluicegate.contracts.keys import new_key
from sluicegate.devstack.load.driver import Driver
from sluicegate.devstack.load.job import Job, Result, chat_body
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.servers.statement_log import StatementLog
from sluicegate.devstack.stack_client import Stack

REQUESTS = 10_000


@pytest.fixture
async def log(own_stack: Callable[..., OwnStack]) -> tuple[Stack, StatementLog]:
    stack = own_stack("--edge-workers", "2").start()
    connection = await asyncpg.connect(stack.postgres_dsn)
    await connection.execute("ALTER SYSTEM SET log_statement = 'all'")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    return stack, StatementLog(stack.log("postgres"))


def _job(stack: Stack, key: str) -> Job:
    return Job(
        url=f"{stack.openai_base_url}/chat/completions",
        body=chat_body(stack.model, is_streamed=False),
        headers={"authorization": f"Bearer {key}"},
        connections=16,
        requests=REQUESTS,
        seconds=120,
    )


def _send(job: Job) -> Result:
    result = Driver(job).run()
    assert result.answered + sum(result.errors.values()) == REQUESTS
    return result


def _check(log: StatementLog) -> None:
    counts: Counter[str] = log.count_by_application()
    assert sum(counts.values()) > 0, "the statement log is silent, so it proves nothing"
    assert [name for name in counts if "edge" in name] == []
    # Only rooms that are known to use the database are there, and none of them asks once per request.
    assert set(counts) <= {
        "sluicegate-admin",
        "sluicegate-usage-writer",
        "sluicegate-retention",
        "sluicegate-budget-alert",
        "",
    }
    reads = [statement for statement in log.statements() if _looks_up_configuration(statement.text)]
    assert len(reads) < REQUESTS / 10


def _looks_up_configuration(text: str) -> bool:
    lowered = text.lower()
    return lowered.startswith("select") and any(f"from {table}" in lowered for table in ("keys", "teams", "tenants"))


async def test_no_query_when_requests_are_warm(log: tuple[Stack, StatementLog]) -> None:
    stack, statements = log
    result = await asyncio.to_thread(_send, _job(stack, stack.key))

    assert result.answered == REQUESTS
    await _one_change(stack)
    _check(statements)


async def test_no_query_when_the_key_is_unknown(log: tuple[Stack, StatementLog]) -> None:
    stack, statements = log
    calls = httpx.get(f"{stack.provider_url}/_fake/stats").json()["calls"]

    result = await asyncio.to_thread(_send, _job(stack, new_key()))

    assert result.answered == 0
    assert httpx.get(f"{stack.provider_url}/_fake/stats").json()["calls"] == calls
    await _one_change(stack)
    _check(statements)


async def test_no_query_when_the_key_is_new(log: tuple[Stack, StatementLog]) -> None:
    stack, statements = log
    key = await _one_change(stack)

    result = await asyncio.to_thread(_send, _job(stack, key))

    assert result.answered == REQUESTS
    _check(statements)


async def test_no_query_when_the_catalogue_changes_a_hundred_times_a_second(log: tuple[Stack, StatementLog]) -> None:
    stack, statements = log
    changed = 0

    async def change_for_ever() -> None:
        nonlocal changed
        async with httpx.AsyncClient(base_url=stack.admin_url, headers=stack.admin_headers, timeout=30) as client:
            team = (await client.get("/api/teams")).json()["data"][0]["id"]
            loop = asyncio.get_running_loop()
            started = loop.time()
            while True:
                answers = await asyncio.gather(
                    *(client.patch(f"/api/teams/{team}", json={"name": f"demo {i}"}) for i in range(10))
                )
                changed += sum(answer.is_success for answer in answers)
                await asyncio.sleep(max(0.0, started + changed / 100 - loop.time()))

    changing = asyncio.create_task(change_for_ever())
    try:
        result = await asyncio.to_thread(_send, _job(stack, stack.key))
    finally:
        changing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await changing

    assert result.answered == REQUESTS
    assert changed > 0
    assert [name for name in statements.count_by_application() if "edge" in name] == []


async def _one_change(stack: Stack) -> str:
    """Make a key: something that PostgreSQL must have logged."""
    async with httpx.AsyncClient(base_url=stack.admin_url, headers=stack.admin_headers, timeout=30) as client:
        team = (await client.get("/api/teams")).json()["data"][0]["id"]
        answer = await client.post("/api/keys", json={"team": team, "name": "one change"})
    return str(msgspec.json.decode(answer.content)["key"])
