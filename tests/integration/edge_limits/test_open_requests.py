"""Places for open requests come back whatever ends a request: here, in Valkey, and for the next requests."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, running_edge, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.faults import FaultyLink, faulty_link
from sluicegate.devstack.limited_edge import SCOPES, LimitedEdge, stored_meters
from sluicegate.devstack.raw_http import RawClient, chat
from sluicegate.devstack.servers import ValkeyServer

PLACES = 3


@pytest.fixture
async def link(valkey_server: ValkeyServer) -> AsyncIterator[FaultyLink]:
    async with faulty_link(valkey_server.url) as link:
        yield link


@pytest.fixture
def store_url(valkey_server: ValkeyServer, link: FaultyLink) -> str:
    valkey_server.flush()
    return link.url(valkey_server.url)


def bind_places(limited: LimitedEdge, places: int = PLACES) -> None:
    for scope in SCOPES:
        limited.limit(scope, open_requests=places)
    limited.budget("key", 1_000_000_000_000, id="bud_key")


def request(limited: LimitedEdge, fake: str = "", **fields: Any) -> bytes:
    return chat(fake, key=limited.edge.key, **{"user": "ann", "max_tokens": 10, **fields})


async def all_places_are_free(limited: LimitedEdge, provider: FakeProvider) -> None:
    """Nothing is taken, and exactly so many requests can be open as the limit says."""
    edge = limited.edge
    await until(lambda: not edge.edge.open_exchanges and not edge.edge.waiting)
    assert {taken for (resource, _), taken in limited.taken("ann").items() if resource == "open"} == {0}
    assert limited.taken("ann")["budget", "key"] == 0
    assert (edge.edge.buffered_bytes, edge.edge.metrics.in_flight) == (0, 0)
    before = provider.calls.open
    held = [asyncio.create_task(limited.ask("gate_at=2&write=each", user="ann", stream=True)) for _ in range(PLACES)]
    await until(lambda: provider.calls.open == before + PLACES)
    assert (await limited.ask(user="ann")).code == "concurrency_limit_exceeded"
    provider.release()
    assert [response.status for response in await asyncio.gather(*held)] == [200] * PLACES
    spent = sum(record.cost_nano_usd or 0 for record in edge.records)
    stored = await limited.stored_after_giving_back()
    assert not [name for name in stored if name.startswith("cap:open:")]
    assert stored["sum:bud_key:key_1"] == (spent, 0, 0)


# How requests end; each leaves a record. `expected`: the outcome.


async def _whole(limited: LimitedEdge, fake: str, **fields: Any) -> None:
    async with limited.edge.client() as client:
        await client.ask(request(limited, fake, **fields))


async def _left(limited: LimitedEdge, fake: str, until_bytes: bytes, *, reset: bool, **fields: Any) -> None:
    edge = limited.edge.edge
    before = edge.metrics.in_flight, len(limited.edge.records)
    async with limited.edge.client() as client:
        client.send(request(limited, fake, **fields))
        if until_bytes:
            await _seen(client, until_bytes)
        else:
            await until(lambda: (edge.metrics.in_flight, len(limited.edge.records)) != before)
        (client.reset if reset else client.close)()


async def _seen(client: RawClient, expected: bytes) -> None:
    """Read until that is there, or a refusal."""
    seen = b""
    while expected not in seen and b'"error"' not in seen:
        piece = await client.reader.read(1 << 16)
        assert piece
        seen += piece


Ending = Callable[[LimitedEdge], Awaitable[None]]
ENDINGS: dict[str, tuple[Ending, str]] = {
    "json": (lambda edge: _whole(edge, ""), "success"),
    "stream": (lambda edge: _whole(edge, "write=each", stream=True), "success"),
    "no usage": (lambda edge: _whole(edge, "usage=none", stream=True), "success"),
    "422": (lambda edge: _whole(edge, "status=422"), "rejected"),
    "500": (lambda edge: _whole(edge, "status=500"), "provider_error"),
    "429": (lambda edge: _whole(edge, "status=429"), "provider_error"),
    "reset": (lambda edge: _whole(edge, "cut_head=1&cut=rst"), "provider_error"),
    "timeout": (lambda edge: _whole(edge, "silence=request"), "provider_error"),
    "silent head": (lambda edge: _whole(edge, "silence=head", stream=True), "provider_error"),
    "silent stream": (lambda edge: _whole(edge, "silence_at=3&write=each", stream=True), "stream_interrupted"),
    "cut": (lambda edge: _whole(edge, "cut_at=4&events=9", stream=True), "stream_interrupted"),
    "reset in the middle": (lambda edge: _whole(edge, "cut_at=4&cut=rst&cut_mid=1", stream=True), "stream_interrupted"),
    "error frame": (lambda edge: _whole(edge, "error_at=4", stream=True), "stream_interrupted"),
    "garbage": (lambda edge: _whole(edge, "garbage=http"), "provider_error"),
    "stream options": (lambda edge: _whole(edge, "reject_stream_options=1", stream=True), "success"),
    "left before": (lambda edge: _left(edge, "silence=request", b"", reset=False), "client_cancelled"),
    "gone before": (lambda edge: _left(edge, "silence=request", b"", reset=True), "client_cancelled"),
    "left in the middle": (
        lambda edge: _left(edge, "gate_at=4&write=each", b"finds", reset=False, stream=True),
        "client_cancelled",
    ),
    "gone in the middle": (
        lambda edge: _left(edge, "gate_at=4&write=each", b"finds", reset=True, stream=True),
        "client_cancelled",
    ),
}


@pytest.fixture
def impatient(limited: LimitedEdge) -> LimitedEdge:
    """A provider that is given up soon."""
    bind_places(limited)
    put = limited.edge.put_provider
    limited.edge.put_provider = lambda provider_id="prv_1", **fields: put(  # type: ignore[method-assign]
        provider_id, **{"first_byte_timeout_ms": 600, "idle_timeout_ms": 600, **fields}
    )
    limited.limit("provider", open_requests=PLACES)
    return limited


def be_patient(limited: LimitedEdge) -> None:
    del limited.edge.put_provider
    limited.limit("provider", open_requests=PLACES)


async def test_places_come_back_after_each_way_to_end(impatient: LimitedEdge, provider: FakeProvider) -> None:
    for number, (name, (ending, outcome)) in enumerate(ENDINGS.items()):
        await ending(impatient)
        record = await impatient.edge.record(number)
        assert record.outcome == outcome, name
        taken = impatient.taken("ann")
        assert {taken["open", scope] for scope in SCOPES} == {0}, name
    await until(lambda: provider.calls.open == 0)
    be_patient(impatient)
    await all_places_are_free(impatient, provider)
    assert len(impatient.edge.records) == len(ENDINGS) + PLACES + 1


async def test_places_come_back_after_any_mix_at_once(impatient: LimitedEdge, provider: FakeProvider) -> None:
    """More requests than places: those that find none are refused, which takes nothing either."""
    chosen = random.Random(3).choices(list(ENDINGS), k=42)
    waves = [chosen[at : at + 6] for at in range(0, len(chosen), 6)]
    for wave in waves:
        await asyncio.gather(*(ENDINGS[name][0](impatient) for name in wave))
    await until(lambda: len(impatient.edge.records) == len(chosen))
    assert {record.outcome for record in impatient.edge.records} >= {"rate_limited", "success", "client_cancelled"}
    await until(lambda: provider.calls.open == 0)
    be_patient(impatient)
    await all_places_are_free(impatient, provider)


async def test_places_come_back_after_fallbacks(limited: LimitedEdge, provider: FakeProvider) -> None:
    """The first provider fails or is full, the second answers: both have all their places again."""
    bind_places(limited)
    limited.edge.put_provider("prv_2", limits={"open_requests": PLACES})
    limited.edge.put_model("demo", providers=("prv_1", "prv_2"))
    limited.limit("provider", open_requests=1)
    assert await limited.statuses(3, "fail_first=1&status=500", user="ann") == [200] * 3
    held = [asyncio.create_task(limited.ask("gate_at=2&write=each", user="ann", stream=True)) for _ in range(3)]
    await until(lambda: provider.calls.open == 3)
    places = {meter.scope_id: meter.taken for meter in _target_meters(limited) if meter.resource == "open"}
    assert (places["prv_1"], places["prv_2"]) == (1, 2)
    provider.release()
    assert [response.status for response in await asyncio.gather(*held)] == [200] * 3
    assert {meter.taken for meter in _target_meters(limited) if meter.resource == "open"} == {0}
    stored = await limited.stored_after_giving_back()
    assert not [name for name in stored if name.startswith("cap:open:")]


def _target_meters(limited: LimitedEdge) -> list[Any]:
    view = limited.edge.view
    targets = view.targets(view.principal(limited.edge.key.encode()), "demo")
    return [meter for target in targets for meter in view.target_bounds(target, 0).meters.all]


# Waiting for a meter: Valkey holds its answer back.


@pytest.mark.parametrize("reset", [False, True])
async def test_places_come_back_when_a_client_leaves_while_its_own_meters_are_asked_for(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink, reset: bool
) -> None:
    bind_places(limited)
    link.hold()
    async with limited.edge.client() as client:
        client.send(request(limited))
        await until(lambda: len(limited.edge.edge.waiting) == 1)
        (client.reset if reset else client.close)()
        record = await limited.edge.record()
    assert (record.outcome, record.cost_nano_usd, record.attempts) == ("client_cancelled", 0, ())
    assert provider.calls.total == 0
    link.release()
    await all_places_are_free(limited, provider)


async def test_places_come_back_when_a_client_leaves_while_a_targets_meters_are_asked_for(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    """No attempt was made: none is counted, and the caller gets its request of the minute back."""
    limited.limit("key", requests_per_minute=100, open_requests=PLACES)
    limited.budget("key", 1_000_000_000_000, id="bud_key")
    assert (await limited.ask(user="ann")).status == 200
    link.hold()
    bind_provider_only(limited)
    async with limited.edge.client() as client:
        client.send(request(limited))
        await until(lambda: len(limited.edge.edge.open_exchanges) == 1)
        assert limited.taken()["requests", "key"] == 2
        client.close()
        record = await limited.edge.record(1)
    assert (record.outcome, record.cost_nano_usd, record.usage_source) == ("client_cancelled", 0, "none")
    assert (limited.taken()["requests", "key"], limited.taken()["open", "key"]) == (1, 0)
    assert provider.calls.total == 1
    link.release()
    bind_places(limited)
    await all_places_are_free(limited, provider)


def bind_provider_only(limited: LimitedEdge) -> None:
    limited.limit("provider", open_requests=PLACES)
    limited.limit("model", open_requests=PLACES)


async def test_places_come_back_when_the_edge_stops_while_meters_are_asked_for(
    provider: FakeProvider, link: FaultyLink, store_url: str, valkey_server: ValkeyServer
) -> None:
    async with running_edge(provider.url, redis_url=store_url) as edge:
        limited = LimitedEdge(edge)
        limited.limit("key", requests_per_minute=100, open_requests=PLACES)
        assert (await limited.ask(user="ann")).status == 200
        link.hold()
        async with edge.client() as for_target, edge.client() as for_own:
            bind_provider_only(limited)
            for_target.send(request(limited))
            await until(lambda: len(edge.edge.open_exchanges) == 1)
            limited.limit("tenant", open_requests=PLACES)
            for_own.send(request(limited))
            await until(lambda: len(edge.edge.waiting) == 1)
            edge.server.should_exit = True
            await until(lambda: edge.edge.is_stopping)
            link.release()
            for client in (for_target, for_own):
                response = await client.read_response()
                assert (response.status, response.code) == (503, "gateway_overloaded")
            await until(edge._sweep.done)
    outcomes = sorted((record.outcome, record.cost_nano_usd) for record in edge.records)
    assert outcomes == [("interrupted", 0), ("rejected", 0), ("success", outcomes[-1][1])]
    assert provider.calls.total == 1
    stored = await stored_meters(valkey_server.url)
    assert stored == {"cap:requests:key:key_1": (0, 1, 1)}


@pytest.mark.parametrize("stops", ["drains", "cuts"])
async def test_places_come_back_when_the_edge_stops_with_open_requests(
    provider: FakeProvider, store_url: str, valkey_server: ValkeyServer, stops: str
) -> None:
    """Open answers run on and end by themselves, or are cut when the time is over."""
    async with running_edge(
        provider.url, redis_url=store_url, shutdown_timeout_s=20 if stops == "drains" else 1
    ) as edge:
        limited = LimitedEdge(edge)
        bind_places(limited)
        async with edge.client() as stream, edge.client() as other:
            stream.send(request(limited, "gate_at=2&write=each", stream=True))
            await stream.until(b"Water")
            other.send(request(limited, "silence=request" if stops == "cuts" else "gate_at=2&write=each", stream=True))
            await until(lambda: provider.calls.open == 2)
            edge.server.should_exit = True
            await until(lambda: edge.edge.is_draining)
            if stops == "drains":
                provider.release()
            await stream.until(b"0\r\n\r\n")
            await other.read_response()
            await until(edge._sweep.done)
    _check_stopped(edge, await stored_meters(valkey_server.url))


def _check_stopped(edge: EdgeUnderTest, stored: dict[str, Any]) -> None:
    spent = sum(record.cost_nano_usd or 0 for record in edge.records)
    assert len(edge.records) == 2
    assert spent > 0
    assert stored == {"sum:bud_key:key_1": (spent, 0, 0)}
