"""The edge with everything real: thresholds become events, budgets are seeded by asking, and its state is told."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg
from pydantic import SecretStr
from redis.asyncio import Redis

from sluicegate.bus.connection import Connection, connect
from sluicegate.contracts.catalogue import Budget, Key, Limits, Model, Provider, Route, Target, Team, Tenant
from sluicegate.contracts.facts import BudgetThresholdReached, SpentAnswer, SpentQuestion
from sluicegate.contracts.keys import new_key
from sluicegate.contracts.subjects import BUDGET_THRESHOLD, RPC_BUDGET_SPENT
from sluicegate.devstack.edge_process import PRICE, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.faults import FaultyLink, faulty_link
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, stored_meters
from sluicegate.devstack.raw_http import Response, chat
from sluicegate.devstack.servers import ValkeyServer
from sluicegate.devstack.wired_edge import Configuration, WiredEdge, wired_edge
from sluicegate.edge.config import EdgeSettings
from sluicegate.ledger.periods import period_of
from sluicegate.runtime.key_ring import KeyRing

_numbers = itertools.count(1)
StartEdge = Callable[..., AbstractAsyncContextManager[WiredEdge]]


class World:
    """One tenant, team, key, provider and model of this test's own, and what the bus heard."""

    def __init__(self, connection: Connection, provider: FakeProvider) -> None:
        self.number = next(_numbers)
        self.key = new_key()
        self.configuration = Configuration(connection)
        self.provider = provider
        self.heard: list[tuple[str, BudgetThresholdReached]] = []
        self.questions: list[SpentQuestion] = []
        self.spent: int | None = 0
        self._connection = connection

    async def begin(self) -> None:
        number = self.number
        configuration = self.configuration
        await configuration.declare()
        await configuration.put(
            Tenant(id=f"ten_{number}", name="tenant"),
            Team(id=f"tea_{number}", name="team", tenant=f"ten_{number}"),
            Provider(id=f"prv_{number}", name="fake", base_url=f"{self.provider.url}/v1"),
            Model(id=f"mod_{number}", name="fake-gpt", provider=f"prv_{number}", prices=(PRICE,)),
            Route(id=f"rte_{number}", name="demo", alias=f"demo-{number}", targets=(Target(model=f"mod_{number}"),)),
        )
        await self.put_key()
        await self._connection.subscribe(f"{BUDGET_THRESHOLD}.*", cb=self._hear)
        await self._connection.subscribe(RPC_BUDGET_SPENT, cb=self._answer)
        await self._connection.flush()

    async def put_key(self, **limits: int) -> None:
        number = self.number
        record = Key(
            id=f"key_{number}",
            name="k",
            tenant=f"ten_{number}",
            team=f"tea_{number}",
            prefix="sgk_",
            limits=Limits(**limits),
        )
        await self.configuration.put_key(self.key, record)

    async def budget(self, limit_nano_usd: int, **fields: Any) -> Budget:
        defaults = {"scope": "key", "scope_id": f"key_{self.number}", "period": "month", "name": "purse"}
        record = Budget(id=f"bud_{self.number}", limit_nano_usd=limit_nano_usd, **{**defaults, **fields})
        await self.configuration.put(record)
        return record

    def request(self, **fields: Any) -> bytes:
        return chat(key=self.key, **{"model": f"demo-{self.number}", "max_tokens": 10, **fields})

    def percents(self, budget: str) -> list[int]:
        """The thresholds that were told of a budget, in the order in which they came."""
        return [event.threshold_percent for _, event in self.heard if event.budget == budget]

    async def stored_messages(self) -> int:
        info = await self._connection.jetstream().stream_info("ALERTS")
        return info.state.messages

    async def _hear(self, message: Msg) -> None:
        for event in msgspec.json.decode(message.data, type=list[BudgetThresholdReached]):
            self.heard.append((message.subject, event))

    async def _answer(self, message: Msg) -> None:
        question = msgspec.json.decode(message.data, type=SpentQuestion)
        self.questions.append(question)
        answer = (
            SpentAnswer(state="behind") if self.spent is None else SpentAnswer(state="known", spent_nano_usd=self.spent)
        )
        await message.respond(msgspec.json.encode(answer))


@pytest.fixture
async def world(nats_url: str, provider: FakeProvider) -> AsyncIterator[World]:
    connection = await connect(nats_url, name="test")
    world = World(connection, provider)
    await world.begin()
    yield world
    await connection.close()


@pytest.fixture
async def link(valkey_server: ValkeyServer) -> AsyncIterator[FaultyLink]:
    async with faulty_link(valkey_server.url) as link:
        yield link


@pytest.fixture
def start_edge(nats_url: str, valkey_server: ValkeyServer, link: FaultyLink, tmp_path: Path) -> StartEdge:
    """Starts an edge process; several may run at once."""
    valkey_server.flush()
    key_ring = SecretStr(KeyRing.generate())

    def start(**settings: Any) -> AbstractAsyncContextManager[WiredEdge]:
        return wired_edge(
            EdgeSettings(
                nats_url=SecretStr(nats_url),
                redis_url=SecretStr(link.url(valkey_server.url)),
                key_ring=key_ring,
                state_dir=tmp_path,
                **settings,
            )
        )

    return start


async def ask_until(edge: WiredEdge, request: bytes, is_done: Callable[[Response], bool]) -> list[Response]:
    """Ask one after another until an answer is as it should be; return all answers."""
    responses: list[Response] = []
    async with asyncio.timeout(10):
        while not responses or not is_done(responses[-1]):
            responses.append(await edge.ask(request))
            await asyncio.sleep(0.005)
    return responses


# Thresholds


async def test_thresholds_are_told_once_each_and_the_last_one_at_the_first_final_refusal(
    world: World, start_edge: StartEdge
) -> None:
    """Ten answers of 41 000 fit into 410 000; the last reservation does not, so 100 % is never reached to the coin."""
    budget = await world.budget(420_000)
    async with start_edge() as edge:
        responses = await ask_until(edge, world.request(), lambda response: response.status != 200)
        assert (responses[-1].status, responses[-1].header("x-should-retry")) == (402, "false")
        await until(lambda: len(world.heard) == 3)
        for _ in range(5):
            assert (await edge.ask(world.request())).status == 402
        assert len(edge.edge.thresholds._publishing) == 0
    assert world.percents(budget.id) == [50, 80, 100]
    start_us, end_us = period_of("month", "UTC", 0, time.time_ns() // 1000)
    for (subject, event), percent in zip(world.heard, (50, 80, 100), strict=True):
        assert subject == f"{BUDGET_THRESHOLD}.ten_{world.number}"
        assert event.event_id == f"{budget.id}:key_{world.number}:{start_us // 1_000_000}:{percent}"
        assert (event.tenant, event.scope, event.scope_id) == (f"ten_{world.number}", "key", f"key_{world.number}")
        assert (event.period_start_us, event.period_end_us) == (start_us, end_us)
        assert (event.limit_nano_usd, event.is_soft, event.budget_name) == (420_000, False, "purse")
    served = len(responses) - 1
    spent = [event.spent_nano_usd for _, event in world.heard]
    assert spent == sorted(spent)
    assert spent[0] >= 210_000
    assert 336_000 <= spent[1] <= spent[2] == served * ANSWER_NANO_USD
    assert await world.stored_messages() >= 3


async def test_soft_budget_is_told_once_when_exceeded_whatever_its_thresholds_are(
    world: World, start_edge: StartEdge
) -> None:
    budget = await world.budget(100_000, is_soft=True, thresholds_percent=())
    async with start_edge() as edge:
        await ask_until(edge, world.request(), lambda response: response.header("x-sluicegate-warning") is not None)
        # The store hears of what was settled within a heartbeat, or when the next lease is asked for.
        await until(lambda: bool(world.heard))
        for _ in range(10):
            assert (await edge.ask(world.request())).status == 200
    assert world.percents(budget.id) == [100]
    event = world.heard[0][1]
    assert event.is_soft
    assert event.spent_nano_usd >= 100_000


async def test_budget_of_a_provider_that_belongs_to_nobody_is_told_under_no_tenant(
    world: World, start_edge: StartEdge
) -> None:
    budget = await world.budget(100_000, scope="provider", scope_id=f"prv_{world.number}", thresholds_percent=(100,))
    async with start_edge() as edge:
        await ask_until(edge, world.request(), lambda response: response.status == 402)
        await until(lambda: bool(world.heard))
    assert world.percents(budget.id) == [100]
    assert world.heard[0][0] == f"{BUDGET_THRESHOLD}._"
    assert world.heard[0][1].tenant is None


async def test_threshold_found_by_two_edges_is_one_message(world: World, start_edge: StartEdge) -> None:
    budget = await world.budget(300_000, thresholds_percent=(100,))
    before = await world.stored_messages()
    async with start_edge() as one, start_edge() as two:
        for edge in (one, two):
            await ask_until(edge, world.request(), lambda response: response.header("x-should-retry") == "false")
        await until(lambda: len(world.heard) == 2)
    assert world.percents(budget.id) == [100, 100]
    assert len({event.event_id for _, event in world.heard}) == 1
    assert await world.stored_messages() == before + 1


async def test_threshold_that_was_not_chosen_is_not_told(world: World, start_edge: StartEdge) -> None:
    budget = await world.budget(200_000, thresholds_percent=(50,))
    async with start_edge() as edge:
        await ask_until(edge, world.request(), lambda response: response.status == 402)
        await until(lambda: bool(world.heard))
    assert world.percents(budget.id) == [50]


# Seeding


async def test_budget_made_inside_its_period_counts_what_was_spent_in_it(world: World, start_edge: StartEdge) -> None:
    """BL-57: asked for with the period's bounds, and once."""
    now_us = time.time_ns() // 1000
    start_us, end_us = period_of("month", "Asia/Tokyo", 0, now_us)
    await world.budget(500_000, counts_since_us=now_us, time_zone="Asia/Tokyo")
    world.spent = 500_000 - 110_000
    async with start_edge() as edge:
        responses = await ask_until(edge, world.request(), lambda response: response.status != 200)
        assert [response.status for response in responses] == [200, 200, 402]
        assert edge.number("limits_seeded_budgets_total") == 1
    question = SpentQuestion(scope="key", id=f"key_{world.number}", start_us=start_us, end_us=end_us)
    assert world.questions == [question]


@pytest.mark.parametrize("store_wait_s", [0.05])
async def test_policy_decides_until_the_spend_is_known(world: World, start_edge: StartEdge) -> None:
    """The usage-writer is behind: a share is served, then nothing; once it has caught up, all is as it says."""
    await world.budget(110_000, counts_since_us=time.time_ns() // 1000)
    world.spent = None
    async with start_edge() as edge:
        responses = await ask_until(edge, world.request(), lambda response: response.status != 200)
        assert [response.status for response in responses] == [200, 200, 503]
        assert responses[-1].code == "dependency_unavailable"
        assert world.questions
        world.spent = 2 * ANSWER_NANO_USD
        refused = await ask_until(edge, world.request(), lambda response: response.status == 402)
        assert {response.status for response in refused[:-1]} <= {503}
        assert refused[-1].code == "budget_exceeded"


async def test_period_that_begins_while_the_store_runs_asks_nobody(
    world: World, start_edge: StartEdge, valkey_server: ValkeyServer, set_born: Callable[[int], Awaitable[None]]
) -> None:
    await world.budget(1_000_000_000, period="hour")
    start_us, _ = period_of("hour", "UTC", 0, time.time_ns() // 1000)
    await set_born(start_us // 1000 - 120_000)
    world.spent = None
    async with start_edge() as edge:
        assert (await edge.ask(world.request())).status == 200
        assert edge.number("limits_policy_served_total") == 0
    assert world.questions == []


@pytest.fixture
def set_born(valkey_server: ValkeyServer) -> Callable[[int], Awaitable[None]]:
    """Says since when Valkey has kept meters."""

    async def put(at_ms: int) -> None:
        async with Redis.from_url(valkey_server.url) as redis:
            await redis.set("sg:{all}:born", at_ms)

    return put


# What the edge says of itself


async def test_readiness_and_metrics_tell_that_valkey_is_away_and_back(
    world: World, start_edge: StartEdge, link: FaultyLink
) -> None:
    await world.put_key(requests_per_minute=1_000)
    async with start_edge(limits_when_store_away="open") as edge:
        assert (await edge.ask(world.request())).status == 200
        assert (edge.process.readiness().is_ready, edge.process.readiness().detail) == (True, "")
        assert edge.number("limits_store_up") == 1
        link.refuse()
        await world.put_key(requests_per_minute=1_000, tokens_per_minute=1_000_000)  # no lease of this one yet
        await ask_until(edge, world.request(), lambda _: edge.number("limits_store_up") == 0)
        assert edge.process.readiness().is_ready
        assert edge.process.readiness().detail == "limits: Valkey does not answer, open"
        assert edge.number("limits_store_failures_total") >= 3
        assert (await edge.ask(world.request())).status == 200
        assert edge.number("limits_policy_served_total") >= 1
        link.accept()
        await until(lambda: edge.number("limits_store_up") == 1)
        assert edge.process.readiness().detail == ""
    assert edge.number("limits_store_calls_total") >= 3


async def test_limits_in_the_bucket_bind_and_stop_binding(world: World, start_edge: StartEdge) -> None:
    async with start_edge() as edge:
        assert (await edge.ask(world.request())).status == 200
        await world.put_key(requests_per_minute=1)
        await ask_until(edge, world.request(), lambda response: response.status == 429)
        await world.put_key()
        await ask_until(edge, world.request(), lambda response: response.status == 200)
        await world.budget(10)
        await ask_until(edge, world.request(), lambda response: response.status == 402)
        await world.budget(10, enabled=False)
        await ask_until(edge, world.request(), lambda response: response.status == 200)


async def test_leases_are_given_back_when_the_process_ends(
    world: World, start_edge: StartEdge, valkey_server: ValkeyServer
) -> None:
    await world.put_key(requests_per_minute=1_000, open_requests=10)
    budget = await world.budget(1_000_000_000)
    async with start_edge() as edge:
        assert (await edge.ask(world.request())).status == 200
    stored = await stored_meters(valkey_server.url)
    assert stored == {
        f"cap:requests:key:key_{world.number}": (0, 1, 1),
        f"sum:{budget.id}:key_{world.number}": (ANSWER_NANO_USD, 0, 0),
    }
