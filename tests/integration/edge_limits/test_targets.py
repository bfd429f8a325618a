"""Limits of providers and models: the next target is tried, and with none left the client hears of the limit."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate.contracts.catalogue import Limits, Model
from sluicegate.contracts.money import Price
from sluicegate.devstack.edge_process import PRICE, EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider, running
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, ANSWER_TOKENS, LimitedEdge

SMALL: dict[str, Any] = {"max_tokens": 10}


@pytest.fixture
async def second() -> AsyncIterator[FakeProvider]:
    async with running() as provider:
        yield provider


@pytest.fixture
def two(limited: LimitedEdge, second: FakeProvider) -> LimitedEdge:
    """A route to two providers, the fixture's own first."""
    limited.edge.put_provider("prv_2", name="second", base_url=second.url + "/v1")
    limited.edge.put_model("demo", providers=("prv_1", "prv_2"))
    return limited


def limit_second(two: LimitedEdge, second: FakeProvider, **limits: int) -> None:
    two.edge.put_provider("prv_2", name="second", base_url=second.url + "/v1", limits=Limits(**limits))


def target_meters(edge: EdgeUnderTest) -> dict[tuple[str, str], int]:
    """What is taken of each target's meters, by resource and id."""
    view = edge.view
    targets = view.targets(view.principal(edge.key.encode()), "demo")
    now_us = edge.records[-1].started_at_us
    meters = [meter for target in targets for meter in view.target_bounds(target, now_us).meters.all]
    return {(meter.resource, meter.scope_id): meter.taken for meter in meters}


@pytest.mark.parametrize("scope", ["provider", "model"])
@pytest.mark.parametrize("limits", [{"requests_per_minute": 1}, {"tokens_per_minute": 50}, {"open_requests": 0}])
async def test_next_target_is_tried_when_one_is_full(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider, scope: Any, limits: dict[str, int]
) -> None:
    two.limit(scope, **limits)
    first_serves = limits.get("open_requests") != 0
    responses = [await two.ask(**SMALL) for _ in range(3)]
    assert [response.status for response in responses] == [200] * 3
    assert (provider.calls.total, second.calls.total) == ((1, 2) if first_serves else (0, 3))
    assert [response.header("x-sluicegate-provider") for response in responses[1:]] == ["second"] * 2
    assert responses[2].header("x-sluicegate-fallbacks") == "1"
    record = two.edge.records[-1]
    # Nobody called the first one: that is a fallback, and no attempt.
    assert (record.outcome, record.provider, record.fallbacks, record.attempts) == ("success", "prv_2", 1, ())


@pytest.mark.parametrize("scope", ["provider", "model"])
async def test_next_target_is_tried_when_ones_budget_is_spent(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider, scope: Any
) -> None:
    two.budget(scope, 110_000)
    assert await two.statuses(4, **SMALL) == [200] * 4
    assert (provider.calls.total, second.calls.total) == (2, 2)


async def test_client_hears_of_the_limit_when_no_target_is_left(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider
) -> None:
    two.limit("provider", requests_per_minute=1)
    limit_second(two, second, requests_per_minute=1)
    two.limit("key", requests_per_minute=10)
    assert await two.statuses(2, **SMALL) == [200, 200]
    refused = await two.ask(**SMALL)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert int(refused.header("retry-after") or 0) > 0
    record = two.edge.records[-1]
    assert (record.outcome, record.error_code, record.attempts) == ("rate_limited", "rate_limit_exceeded", ())
    assert (provider.calls.total, second.calls.total) == (1, 1)
    # It went nowhere, so it has used none of the caller's requests either.
    assert two.taken()["requests", "key"] == 2


async def test_client_hears_of_the_budget_when_no_target_is_left(limited: LimitedEdge) -> None:
    for scope in ("provider", "model"):
        budget = limited.budget(scope, 110_000)
        assert await limited.statuses(3, **SMALL) == [200, 200, 402]
        record = limited.edge.records[-1]
        assert (record.outcome, record.error_code) == ("budget_exceeded", "budget_exceeded")
        limited.edge.remove(f"budget.{budget.id}")


async def test_what_the_client_hears_when_targets_fail_for_different_reasons(
    two: LimitedEdge, second: FakeProvider
) -> None:
    full = {"requests_per_minute": 0}
    for first, fake, limits, expected in (
        # Whose limit comes back soon is told before a budget that does not.
        ("budget", "", full, (429, "rate_limit_exceeded")),
        ("rate", "", full, (429, "rate_limit_exceeded")),
        # A provider's own 429 and our limit are the same to the client.
        ("none", "status=429", full, (429, "provider_rate_limited")),
        ("budget", "status=429", {}, (429, "provider_rate_limited")),
        ("rate", "status=429", {}, (429, "rate_limit_exceeded")),
        # A failure says more than a limit, whichever came first.
        ("none", "status=500", full, (502, "all_providers_failed")),
        ("rate", "status=500", {}, (502, "all_providers_failed")),
        ("budget", "status=500", {}, (502, "all_providers_failed")),
    ):
        two.limit("provider", requests_per_minute=0 if first == "rate" else None)
        two.budget("provider", 0, id="bud_one", enabled=first == "budget")
        limit_second(two, second, **limits)
        before = len(two.edge.records)
        response = await two.ask(fake, **SMALL)
        assert (response.status, response.code) == expected, (first, fake, limits)
        assert len(two.edge.records) == before + 1


async def test_only_the_target_that_answered_is_charged(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider
) -> None:
    """A failed attempt used one of the provider's requests, and nothing else of it."""
    two.limit("provider", requests_per_minute=10, tokens_per_minute=10_000, open_requests=5)
    two.budget("provider", 1_000_000_000)
    limit_second(two, second, requests_per_minute=10, tokens_per_minute=10_000, open_requests=5)
    two.budget("provider", 1_000_000_000, scope_id="prv_2")
    # The second provider, too, would refuse its first call with these knobs: so it has had that already.
    assert (await two.ask("fail_first=1&status=500", **SMALL)).status == 502
    assert (await two.ask("fail_first=1&status=500", **SMALL)).status == 200
    provider.calls.reset()
    response = await two.ask("fail_first=1&status=500", **SMALL)
    assert (response.status, response.header("x-sluicegate-fallbacks")) == (200, "1")
    assert target_meters(two.edge) == {
        ("requests", "prv_1"): 3,
        ("tokens", "prv_1"): ANSWER_TOKENS,
        ("open", "prv_1"): 0,
        ("budget", "prv_1"): 0,
        ("requests", "prv_2"): 2,
        ("tokens", "prv_2"): ANSWER_TOKENS,
        ("open", "prv_2"): 0,
        ("budget", "prv_2"): 0,
    }
    stored = await two.stored_after_giving_back()
    spent = {name.rpartition(":")[2]: amount.settled for name, amount in stored.items() if name.startswith("sum:")}
    assert spent == {"prv_1": ANSWER_NANO_USD, "prv_2": ANSWER_NANO_USD}


async def test_requests_that_arrive_together_share_targets_exactly(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider
) -> None:
    two.limit("provider", requests_per_minute=4)
    limit_second(two, second, requests_per_minute=3)
    two.limit("key", requests_per_minute=100)
    responses = await asyncio.gather(*(two.ask(**SMALL) for _ in range(12)))
    assert sorted(response.status for response in responses) == [200] * 7 + [429] * 5
    assert (provider.calls.total, second.calls.total) == (4, 3)
    assert two.taken()["requests", "key"] == 7


async def test_place_at_a_target_is_free_for_who_falls_back_to_it(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider
) -> None:
    two.limit("provider", open_requests=1)
    held = asyncio.create_task(two.ask("gate_at=2&write=each", stream=True))
    await until(lambda: provider.calls.open == 1)
    assert (await two.ask(**SMALL)).header("x-sluicegate-provider") == "second"
    provider.release()
    await held
    assert (await two.ask(**SMALL)).header("x-sluicegate-provider") == "fake"


async def test_reservation_stays_when_the_same_target_is_asked_once_more(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    """Without the field that it did not take: two calls, one request of the minute."""
    limited.limit("provider", requests_per_minute=10, open_requests=1)
    assert (await limited.ask("reject_stream_options=1", stream=True, **SMALL)).status == 200
    assert provider.calls.total == 2
    assert limited.taken() == {("requests", "provider"): 1, ("open", "provider"): 0}


async def test_unpriced_target_under_a_budget_of_its_own_is_passed_over(
    two: LimitedEdge, provider: FakeProvider, second: FakeProvider
) -> None:
    two.model(prices=())
    two.budget("model", 1_000_000_000)
    assert (await two.ask(**SMALL)).header("x-sluicegate-provider") == "second"
    assert provider.calls.total == 0


async def test_target_meters_follow_the_price_of_the_target(two: LimitedEdge) -> None:
    dear = Price(version=1, valid_from_us=0, input=7_000_000_000, output=9_000_000_000)
    two.edge.put(Model(id="mod_demo_prv_2", name="fake-gpt", provider="prv_2", prices=(dear,)))
    two.limit("provider", requests_per_minute=0)
    two.budget("provider", 1_000_000_000, scope_id="prv_2", id="bud_two")
    two.budget("team", 1_000_000_000, id="bud_team")
    assert (await two.ask(**SMALL)).status == 200
    cost = 11 * 7_000 + 10 * 9_000
    assert cost != 11 * PRICE.input // 1_000_000 + 10 * PRICE.output // 1_000_000
    stored = await two.stored_after_giving_back()
    assert stored["sum:bud_two:prv_2"].settled == stored["sum:bud_team:tea_1"].settled == cost
