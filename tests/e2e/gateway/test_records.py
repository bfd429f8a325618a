"""One request, one record: counted in Postgres after the processes in between were killed."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable

import asyncpg
import httpx
import msgspec

from sluicegate.devstack.load.job import Job, Result, chat_body
from sluicegate.devstack.own_stack import OwnStack
from sluicegate.devstack.stack_client import Stack

DEADLINE_S = 60.0


class Load:
    """A load driver as a process of its own, so that it survives what the test does to the stack."""

    def __init__(self, stack: Stack, *, seconds: float, is_streamed: bool) -> None:
        job = Job(
            url=f"{stack.openai_base_url}/chat/completions",
            body=chat_body(stack.model, is_streamed=is_streamed),
            headers={"authorization": f"Bearer {stack.key}"},
            expects="stream" if is_streamed else "json",
            connections=32,
            seconds=seconds,
            wants_request_ids=True,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sluicegate.devstack.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.close()

    def result(self) -> Result:
        assert self._process.stdout is not None
        with self._process, self._process.stdout as output:
            return msgspec.json.decode(output.read(), type=Result)


async def _rows(stack: Stack, request_ids: list[str]) -> Counter[str]:
    """How many rows each of these requests has."""
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        records = await connection.fetch(
            "SELECT request_id FROM usage WHERE request_id = ANY($1::uuid[])", [uuid.UUID(text) for text in request_ids]
        )
    finally:
        await connection.close()
    return Counter(str(record["request_id"]) for record in records)


async def _outcomes(stack: Stack) -> Counter[str]:
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        records = await connection.fetch("SELECT outcome, count(*) AS count FROM usage_record GROUP BY outcome")
    finally:
        await connection.close()
    return Counter({record["outcome"]: record["count"] for record in records})


async def _until_all_have_rows(stack: Stack, request_ids: list[str]) -> Counter[str]:
    deadline = time.monotonic() + DEADLINE_S
    rows = await _rows(stack, request_ids)
    while len(rows) < len(request_ids) and time.monotonic() < deadline:
        time.sleep(0.25)
        rows = await _rows(stack, request_ids)
    return rows


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def _check(stack: Stack, result: Result) -> None:
    assert result.answered > 100, result.errors
    assert result.request_ids is not None
    assert len(set(result.request_ids)) == result.answered
    rows = await _until_all_have_rows(stack, result.request_ids)
    missing = [request_id for request_id in result.request_ids if request_id not in rows]
    assert missing == []
    assert [request_id for request_id, count in rows.items() if count > 1] == []


async def test_every_completed_answer_has_one_row_when_edges_are_killed_under_load(
    own_stack: Callable[..., OwnStack],
) -> None:
    stack = own_stack("--edge-workers", "2", "--restart").start()
    load = Load(stack, seconds=8, is_streamed=True)
    killed: set[int] = set()
    for _ in range(3):
        time.sleep(1.5)
        worker = next(pid for pid in stack.reload().processes["edge"] if pid not in killed)
        os.kill(worker, signal.SIGKILL)
        killed.add(worker)
        _wait_until(lambda: _is_ready(stack))
    result = load.result()

    await _check(stack, result)
    assert result.errors, "the kills were not felt, so they proved nothing"
    assert (await _outcomes(stack))["interrupted"] >= 1


async def test_every_completed_answer_has_one_row_when_the_usage_writer_is_killed_under_load(
    own_stack: Callable[..., OwnStack],
) -> None:
    stack = own_stack("--restart").start()
    load = Load(stack, seconds=6, is_streamed=False)
    for _ in range(3):
        time.sleep(1)
        os.kill(stack.reload().processes["usage-writer"][0], signal.SIGKILL)
        before = stack.reload().processes["usage-writer"]
        _wait_until(lambda before=before: stack.reload().processes["usage-writer"] != before)  # type: ignore[misc]
    result = load.result()

    assert result.errors == {}
    await _check(stack, result)


async def test_no_request_fails_and_no_record_is_lost_when_nats_and_postgres_die_under_load(
    own_stack: Callable[..., OwnStack],
) -> None:
    stack = own_stack("--restart").start()
    load = Load(stack, seconds=8, is_streamed=False)
    for server in ("nats", "postgres"):
        time.sleep(1.5)
        os.kill(stack.reload().processes[server][0], signal.SIGKILL)
    result = load.result()

    assert result.errors == {}
    await _check(stack.reload(), result)


def _is_ready(stack: Stack) -> bool:
    try:
        return httpx.get(f"{stack.edge_internal_url}/readyz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
