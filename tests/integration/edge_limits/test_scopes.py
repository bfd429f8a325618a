"""Each limit binds on each scope: key, team, department, tenant, provider, model, end user; and all of them at once."""

import asyncio
from typing import Any, get_args

import pytest

from sluicegate.contracts.catalogue import Period, Scope
from sluicegate.contracts.keys import new_key
from sluicegate.contracts.money import Price
from sluicegate.devstack.edge_process import PRICE, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.limited_edge import BUDGET_SCOPES, SCOPES, LimitedEdge, LimitedScope
from sluicegate.devstack.raw_http import chat

TOKENS: dict[str, Any] = {"max_tokens": 10}
FREE = Price(version=1, valid_from_us=0, input=0, output=0)
PERIODS = get_args(Period)


async def test_requests_a_minute_hold_on_every_scope(limited: LimitedEdge) -> None:
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=2)
        assert await limited.statuses(3, user="ann") == [200, 200, 429], scope
        refused = await limited.ask(user="ann")
        assert refused.code == "rate_limit_exceeded"
        assert "2 requests a minute" in refused.json["error"]["message"]
        limited.limit(scope, requests_per_minute=None)


async def test_tokens_a_minute_hold_on_every_scope(limited: LimitedEdge) -> None:
    """An answer uses 21 tokens; the third request can take more than is left of 80."""
    for scope in SCOPES:
        limited.limit(scope, tokens_per_minute=80)
        assert await limited.statuses(3, user="ann", **TOKENS) == [200, 200, 429], scope
        refused = await limited.ask(user="ann", **TOKENS)
        assert refused.code == "rate_limit_exceeded"
        assert "80 tokens a minute" in refused.json["error"]["message"]
        limited.limit(scope, tokens_per_minute=None)


async def test_open_requests_hold_on_every_scope(limited: LimitedEdge, provider: FakeProvider) -> None:
    for scope in SCOPES:
        limited.limit(scope, open_requests=2)
        held = [asyncio.create_task(limited.ask("gate_at=2&write=each", user="ann", stream=True)) for _ in range(2)]
        await until(lambda: provider.calls.open == 2)
        refused = await limited.ask(user="ann")
        assert (refused.status, refused.code) == (429, "concurrency_limit_exceeded"), scope
        provider.release()
        assert [response.status for response in await asyncio.gather(*held)] == [200, 200]
        assert (await limited.ask(user="ann")).status == 200
        limited.limit(scope, open_requests=None)


@pytest.mark.parametrize("scope", BUDGET_SCOPES)
async def test_budget_holds_on_every_scope_and_period(limited: LimitedEdge, scope: Scope) -> None:
    """A request reserves some 60 000 nano-USD and costs 41 000: two fit into 110 000, a third does not."""
    for period in PERIODS:
        budget = limited.budget(scope, 110_000, period=period, time_zone="Asia/Kathmandu", first_weekday=6)
        assert await limited.statuses(3, **TOKENS) == [200, 200, 402], period
        refused = await limited.ask(**TOKENS)
        assert (refused.code, refused.json["error"]["type"]) == ("budget_exceeded", "insufficient_quota")
        limited.edge.remove(f"budget.{budget.id}")


async def test_several_budgets_of_one_scope_all_hold(limited: LimitedEdge) -> None:
    limited.budget("key", 100_000_000, period="day", name="large")
    limited.budget("key", 110_000, period="month", name="small")
    assert await limited.statuses(3, **TOKENS) == [200, 200, 402]
    assert "'small'" in (await limited.ask(**TOKENS)).json["error"]["message"]


async def test_budget_that_is_off_does_not_bind(limited: LimitedEdge) -> None:
    limited.budget("key", 0, enabled=False)
    assert await limited.statuses(2) == [200, 200]
    assert limited.meters() == {}


async def test_nothing_is_limited_or_counted_when_no_limit_is_set(limited: LimitedEdge) -> None:
    """Null is no limit: no meter is made, and nothing is said about one."""
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=None, tokens_per_minute=None, open_requests=None)
    response = await limited.ask(user="ann")
    assert response.status == 200
    assert not [name for name, _ in response.headers if name.startswith("x-ratelimit")]
    assert limited.meters("ann") == {}
    assert await limited.stored_after_giving_back() == {}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("requests_per_minute", "rate_limit_exceeded"),
        ("tokens_per_minute", "rate_limit_exceeded"),
        ("open_requests", "concurrency_limit_exceeded"),
    ],
)
async def test_nothing_passes_when_a_limit_is_zero(
    limited: LimitedEdge, provider: FakeProvider, resource: str, code: str
) -> None:
    for scope in SCOPES:
        limited.limit(scope, **{resource: 0})
        refused = await limited.ask(user="ann")
        assert (refused.status, refused.code, refused.header("x-should-retry")) == (429, code, "false"), scope
        assert refused.header("retry-after") is not None
        limited.limit(scope, **{resource: None})
    assert provider.calls.total == 0


async def test_nothing_passes_when_a_budget_is_zero_even_if_it_costs_nothing(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    for scope in BUDGET_SCOPES:
        budget = limited.budget(scope, 0)
        for price in (PRICE, FREE):
            limited.model(prices=(price,))
            refused = await limited.ask()
            assert (refused.status, refused.code) == (402, "budget_exceeded"), scope
            assert refused.header("x-should-retry") == "false"
        limited.edge.remove(f"budget.{budget.id}")
    assert provider.calls.total == 0


async def test_every_parent_is_checked_on_every_call(limited: LimitedEdge) -> None:
    """Each scope in turn is the tightest: whichever it is, it refuses, and it is named."""
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1_000, tokens_per_minute=1_000_000, open_requests=100)
    for scope in BUDGET_SCOPES:
        limited.budget(scope, 1_000_000_000_000)
    assert (await limited.ask(user="ann")).status == 200
    assert len(limited.meters("ann")) == 3 * len(SCOPES) + len(BUDGET_SCOPES)
    assert all(
        limited.taken("ann")[resource, scope] == (0 if resource == "open" else 1 if resource == "requests" else 21)
        for resource in ("requests", "tokens", "open")
        for scope in SCOPES
    )
    names = {"key": "This key", "end_user": "This end user", "provider": "The provider 'fake'", "model": "The model"}
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1)
        refused = await limited.ask(user="ann")
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert refused.json["error"]["message"].startswith(names.get(scope, f"The {scope} '"))
        limited.limit(scope, requests_per_minute=1_000)
        assert (await limited.ask(user="ann")).status == 200


async def test_a_parents_limit_is_shared_by_all_below_it(limited: LimitedEdge) -> None:
    other = new_key()
    limited.edge.put_key(other, id="key_2", department="dep_1")
    parents: tuple[LimitedScope, ...] = ("team", "department", "tenant", "provider", "model")
    for scope in parents:
        limited.limit(scope, requests_per_minute=2)
        assert [(await limited.ask(key=key)).status for key in (limited.edge.key, other, other)] == [200, 200, 429]
        limited.limit(scope, requests_per_minute=None)


async def test_a_keys_limit_does_not_bind_its_siblings(limited: LimitedEdge) -> None:
    limited.limit("key", requests_per_minute=1)
    other = new_key()
    limited.edge.put_key(other, id="key_2", department="dep_1")
    assert await limited.statuses(2) == [200, 429]
    assert await limited.statuses(2, key=other) == [200, 200]


async def test_the_first_request_of_an_unknown_end_user_is_limited(limited: LimitedEdge) -> None:
    limited.limit("end_user", tokens_per_minute=50)
    refused = await limited.ask(user="never seen before", max_tokens=1_000)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.json["error"]["message"].startswith("This end user may use 50 tokens a minute")


async def test_each_end_user_is_limited_by_itself(limited: LimitedEdge) -> None:
    limited.limit("end_user", requests_per_minute=1)
    assert await limited.statuses(2, user="ann") == [200, 429]
    assert await limited.statuses(2, user="bob") == [200, 429]
    assert await limited.statuses(2) == [200, 200]
    stored = await limited.stored_after_giving_back()
    assert set(stored) == {f"cap:requests:end_user:{limited.id_of('end_user', user)}" for user in ("ann", "bob")}


async def test_end_users_share_their_limit_over_all_keys_of_a_tenant(limited: LimitedEdge) -> None:
    limited.limit("end_user", requests_per_minute=1)
    other = new_key()
    limited.edge.put_key(other, id="key_2", department="dep_1")
    assert (await limited.ask(user="ann")).status == 200
    assert (await limited.ask(user="ann", key=other)).status == 429


async def test_requests_that_arrive_together_are_limited_exactly(limited: LimitedEdge, provider: FakeProvider) -> None:
    limited.limit("key", requests_per_minute=7)
    limited.limit("team", requests_per_minute=9)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(limited.ask()) for _ in range(20)]
    statuses = sorted(task.result().status for task in asked)
    assert statuses == [200] * 7 + [429] * 13
    assert provider.calls.total == 7
    assert limited.taken()["requests", "team"] == 7


async def test_pipelined_requests_are_limited_exactly(limited: LimitedEdge) -> None:
    limited.limit("key", requests_per_minute=2)
    async with limited.edge.client() as client:
        client.send(chat(key=limited.edge.key) * 4)
        assert [(await client.read_response()).status for _ in range(4)] == [200, 200, 429, 429]
