"""Limits that change while the edge runs: the next request is bound by what is so now, and by nothing else."""

import asyncio
from typing import Any

from sluicegate.devstack.edge_process import until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, BUDGET_SCOPES, SCOPES, LimitedEdge
from sluicegate.devstack.raw_http import chat

SMALL: dict[str, Any] = {"max_tokens": 10, "user": "ann"}


async def test_changed_limit_binds_the_next_request(limited: LimitedEdge) -> None:
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1_000)
        assert await limited.statuses(2, **SMALL) == [200, 200], scope
        limited.limit(scope, requests_per_minute=2)
        assert await limited.statuses(2, **SMALL) == [429, 429], scope
        limited.limit(scope, requests_per_minute=4)
        assert await limited.statuses(3, **SMALL) == [200, 200, 429], scope
        limited.limit(scope, requests_per_minute=None)


async def test_changed_budget_binds_the_next_request(limited: LimitedEdge) -> None:
    for scope in BUDGET_SCOPES:
        budget = limited.budget(scope, 1_000_000_000)
        assert await limited.statuses(2, **SMALL) == [200, 200], scope
        limited.budget(scope, 100_000, id=budget.id)
        assert await limited.statuses(2, **SMALL) == [402, 402], scope
        limited.budget(scope, 2 * ANSWER_NANO_USD + 110_000, id=budget.id)
        assert await limited.statuses(3, **SMALL) == [200, 200, 402], scope
        limited.edge.remove(f"budget.{budget.id}")


async def test_removed_limits_bind_no_longer(limited: LimitedEdge) -> None:
    """BL-62."""
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1, tokens_per_minute=80, open_requests=1)
        assert await limited.statuses(2, **SMALL) == [200, 429], scope
        limited.limit(scope, requests_per_minute=None, tokens_per_minute=None, open_requests=None)
        assert await limited.statuses(3, **SMALL) == [200] * 3, scope
    for scope in BUDGET_SCOPES:
        budget = limited.budget(scope, 10)
        assert (await limited.ask(**SMALL)).status == 402, scope
        limited.edge.remove(f"budget.{budget.id}")
        assert (await limited.ask(**SMALL)).status == 200, scope
    assert limited.meters("ann") == {}


async def test_budget_that_is_switched_off_binds_no_longer(limited: LimitedEdge) -> None:
    budget = limited.budget("team", 10)
    assert (await limited.ask(**SMALL)).status == 402
    limited.budget("team", 10, id=budget.id, enabled=False)
    assert (await limited.ask(**SMALL)).status == 200
    limited.budget("team", 10, id=budget.id)
    assert (await limited.ask(**SMALL)).status == 402


async def test_budget_that_becomes_soft_serves_and_hard_again_refuses(limited: LimitedEdge) -> None:
    budget = limited.budget("team", 100_000)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    limited.budget("team", 100_000, id=budget.id, is_soft=True)
    assert await limited.statuses(2, **SMALL) == [200, 200]
    limited.budget("team", 100_000, id=budget.id)
    assert (await limited.ask(**SMALL)).status == 402


async def test_budget_that_moves_to_another_scope_leaves_the_first(limited: LimitedEdge) -> None:
    budget = limited.budget("key", 10)
    assert (await limited.ask(**SMALL)).status == 402
    limited.budget("key", 10, id=budget.id, scope_id="key_2")
    assert (await limited.ask(**SMALL)).status == 200


async def test_limit_that_is_lowered_below_what_is_open_lets_nobody_in_until_enough_have_ended(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    limited.limit("key", open_requests=5)
    held = [asyncio.create_task(limited.ask("gate_at=2&write=each", stream=True)) for _ in range(3)]
    await until(lambda: provider.calls.open == 3)
    limited.limit("key", open_requests=1)
    assert (await limited.ask(**SMALL)).code == "concurrency_limit_exceeded"
    provider.release()
    assert [response.status for response in await asyncio.gather(*held)] == [200] * 3
    assert await limited.statuses(3, **SMALL) == [200] * 3


async def test_running_request_is_settled_on_meters_that_bind_no_longer(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    limited.limit("key", open_requests=5, tokens_per_minute=100_000)
    limited.budget("key", 1_000_000_000, id="bud_key")
    meters = limited.meters()
    held = asyncio.create_task(limited.ask("gate_at=2&write=each", stream=True))
    await until(lambda: provider.calls.open == 1)
    limited.limit("key", open_requests=None, tokens_per_minute=None)
    limited.edge.remove("budget.bud_key")
    assert meters["open", "key"].taken == 1
    provider.release()
    assert (await held).status == 200
    assert meters["open", "key"].taken == 0
    cost = limited.edge.records[0].cost_nano_usd
    stored = await limited.stored_after_giving_back()
    assert stored["sum:bud_key:key_1"] == (cost, 0, 0)


# A request whose head came before the change, and its body after it.


async def test_change_between_head_and_body_binds(limited: LimitedEdge, provider: FakeProvider) -> None:
    limited.limit("key", requests_per_minute=100)
    whole = chat(key=limited.edge.key, **SMALL)
    async with limited.edge.client() as client:
        client.send(whole[:-20])
        await until(lambda: len(limited.edge.edge.open_exchanges) == 1)
        limited.limit("key", requests_per_minute=0)
        client.send(whole[-20:])
        assert (await client.read_response()).status == 429
    assert provider.calls.total == 0


async def test_slow_request_from_before_a_change_does_not_bring_the_old_limit_back(limited: LimitedEdge) -> None:
    """It was authenticated under the old limit, and finds its meter when the new one is in force."""
    whole = chat(key=limited.edge.key, **SMALL)
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1_000)
        async with limited.edge.client() as client:
            client.send(whole[:-20])
            await until(lambda: len(limited.edge.edge.open_exchanges) == 1)
            limited.limit(scope, requests_per_minute=2)
            assert (await limited.ask(**SMALL)).status == 200
            client.send(whole[-20:])
            assert (await client.read_response()).status == 200
        assert limited.meters("ann")["requests", scope].limit == 2, scope
        assert await limited.statuses(2, **SMALL) == [429, 429], scope
        limited.limit(scope, requests_per_minute=None)


async def test_key_revoked_between_head_and_body_is_refused_with_one_record(limited: LimitedEdge) -> None:
    whole = chat(key=limited.edge.key, **SMALL)
    async with limited.edge.client() as client:
        client.send(whole[:-20])
        await until(lambda: len(limited.edge.edge.open_exchanges) == 1)
        limited.edge.put_key(limited.edge.key, department="dep_1", revoked_at_us=1)
        client.send(whole[-20:])
        response = await client.read_response()
    assert (response.status, response.code) == (401, "key_revoked")
    assert [(record.outcome, record.error_code) for record in limited.edge.records] == [("rejected", "key_revoked")]


async def test_keys_are_bound_by_a_department_that_their_team_joins(limited: LimitedEdge) -> None:
    limited.edge.put_key(limited.edge.key)
    limited.limit("department", requests_per_minute=1)
    assert await limited.statuses(2, **SMALL) == [200, 200]
    limited.edge.put_key(limited.edge.key, department="dep_1")
    assert await limited.statuses(2, **SMALL) == [200, 429]


async def test_unrelated_changes_leave_meters_alone(limited: LimitedEdge) -> None:
    limited.limit("key", requests_per_minute=3)
    assert await limited.statuses(2, **SMALL) == [200, 200]
    meter = limited.meters()["requests", "key"]
    for number in range(20):
        limited.edge.put_key(f"sgk_{number}", id=f"key_other_{number}")
        limited.edge.put_model(f"other-{number}")
    assert limited.meters()["requests", "key"] is meter
    assert await limited.statuses(2, **SMALL) == [200, 429]
