"""A refused request takes nothing, says why and when to come back, and leaves exactly one record."""

import asyncio
from typing import Any

import pytest

from sluicegate.devstack.edge_process import until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.limited_edge import (
    ANSWER_NANO_USD,
    ANSWER_TOKENS,
    BUDGET_SCOPES,
    SCOPES,
    LimitedEdge,
    LimitedScope,
    Stored,
)
from sluicegate.devstack.raw_http import chat

SMALL: dict[str, Any] = {"max_tokens": 10, "user": "ann"}
HELD = "gate_at=2&write=each"


def bind_all(limited: LimitedEdge) -> None:
    """Limits of each kind on each scope, and budgets; far away all of them."""
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1_000, tokens_per_minute=1_000_000, open_requests=100)
    for scope in BUDGET_SCOPES:
        limited.budget(scope, 1_000_000_000, id=f"bud_{scope}")


def expected_taken(limited: LimitedEdge, served: int) -> dict[tuple[str, str], int]:
    """What meters hold once `served` requests have been answered."""
    used = {"requests": served, "tokens": served * ANSWER_TOKENS, "open": 0, "budget": 0}
    return {(resource, scope): used[resource] for resource, scope in limited.meters("ann")}


def expected_stored(limited: LimitedEdge, served: int) -> dict[str, Stored]:
    """What Valkey holds when the edge has given back its leases: what is in the sliding minute, and what was spent."""
    held = {"requests": served, "tokens": served * ANSWER_TOKENS}
    caps = {
        f"cap:{resource}:{scope}:{limited.id_of(scope, 'ann')}": Stored(0, amount, 1)
        for resource, amount in held.items()
        for scope in SCOPES
    }
    sums = {
        f"sum:bud_{scope}:{limited.id_of(scope)}": Stored(served * ANSWER_NANO_USD, 0, 0) for scope in BUDGET_SCOPES
    }
    return caps | sums


async def ends_as(limited: LimitedEdge, served: int) -> None:
    """The meters are as if only what was served had ever been asked for: here, and in Valkey."""
    assert limited.taken("ann") == expected_taken(limited, served)
    stored = await limited.stored_after_giving_back()
    assert {name: stored.get(name) for name in expected_stored(limited, served)} == expected_stored(limited, served)
    assert not [name for name in stored if name.startswith("cap:open:")]


@pytest.mark.parametrize("scope", ["key", "department", "end_user", "provider"])
async def test_refused_by_requests_takes_nothing_else(limited: LimitedEdge, scope: LimitedScope) -> None:
    bind_all(limited)
    limited.limit(scope, requests_per_minute=2)
    assert await limited.statuses(6, **SMALL) == [200, 200, 429, 429, 429, 429]
    await ends_as(limited, 2)


@pytest.mark.parametrize("scope", ["team", "provider"])
async def test_refused_by_tokens_takes_nothing_else(limited: LimitedEdge, scope: LimitedScope) -> None:
    bind_all(limited)
    limited.limit(scope, tokens_per_minute=80)
    assert await limited.statuses(5, **SMALL) == [200, 200, 429, 429, 429]
    refused = await limited.ask(**SMALL)
    assert refused.header("x-ratelimit-remaining-tokens") == str(80 - 2 * ANSWER_TOKENS)
    await ends_as(limited, 2)


@pytest.mark.parametrize("scope", ["key", "end_user", "model"])
async def test_refused_by_concurrency_takes_no_request_of_the_minute(
    limited: LimitedEdge, provider: FakeProvider, scope: LimitedScope
) -> None:
    """BL-67, on the caller's side and on the provider's."""
    bind_all(limited)
    limited.limit(scope, open_requests=1)
    limited.limit("key", requests_per_minute=3)
    held = asyncio.create_task(limited.ask(HELD, stream=True, **SMALL))
    await until(lambda: provider.calls.open == 1)
    assert await limited.statuses(6, **SMALL) == [429] * 6
    assert {record.error_code for record in limited.edge.records} == {"concurrency_limit_exceeded"}
    provider.release()
    assert (await held).status == 200
    # Of three requests a minute the refused ones have used none.
    assert await limited.statuses(3, **SMALL) == [200, 200, 429]
    await ends_as(limited, 3)


@pytest.mark.parametrize("scope", ["tenant", "provider"])
async def test_refused_by_a_budget_takes_nothing_else(limited: LimitedEdge, scope: Any) -> None:
    bind_all(limited)
    limited.budget(scope, 110_000, id="bud_small")
    assert await limited.statuses(5, **SMALL) == [200, 200, 402, 402, 402]
    await ends_as(limited, 2)


async def test_refused_for_a_limit_of_zero_takes_nothing_else(limited: LimitedEdge) -> None:
    bind_all(limited)
    assert (await limited.ask(**SMALL)).status == 200
    for scope in SCOPES:
        limited.limit(scope, open_requests=0)
        assert (await limited.ask(**SMALL)).status == 429
        limited.limit(scope, open_requests=100)
    await ends_as(limited, 1)


async def test_refused_for_what_is_no_matter_of_limits_takes_nothing(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    """Unknown models, broken bodies, a full journal: none of them goes to a provider."""
    bind_all(limited)
    assert (await limited.ask(**SMALL)).status == 200
    assert (await limited.ask(**{**SMALL, "model": "unheard of"})).status == 404
    assert (await limited.ask(**{**SMALL, "max_tokens": 0})).status == 400
    limited.edge.journal.is_full = True
    assert (await limited.ask(**SMALL)).status == 503
    limited.edge.journal.is_full = False
    limited.edge.journal.fails = True
    assert (await limited.ask(**SMALL)).status == 503
    limited.edge.journal.fails = False
    assert provider.calls.total == 1
    await ends_as(limited, 1)


async def test_refusals_name_the_time_to_come_back(limited: LimitedEdge, provider: FakeProvider) -> None:
    limited.limit("key", requests_per_minute=1)
    assert await limited.statuses(2, **SMALL) == [200, 429]
    refused = await limited.ask(**SMALL)
    # The one request comes back a minute after it was admitted, to the half second.
    assert 55 <= int(refused.header("retry-after") or 0) <= 61
    assert refused.header("x-should-retry") is None
    limited.limit("key", requests_per_minute=None, open_requests=1)
    held = asyncio.create_task(limited.ask(HELD, stream=True, **SMALL))
    await until(lambda: provider.calls.open == 1)
    refused = await limited.ask(**SMALL)
    assert (refused.header("retry-after"), refused.header("x-should-retry")) == ("1", None)
    provider.release()
    await held


async def test_request_that_never_fits_is_told_not_to_come_back(limited: LimitedEdge) -> None:
    limited.limit("key", tokens_per_minute=100)
    refused = await limited.ask(max_tokens=500)
    assert (refused.status, refused.header("x-should-retry")) == (429, "false")
    assert "Lower `max_tokens`" in refused.json["error"]["message"]
    assert (await limited.ask(**SMALL)).status == 200


async def test_budget_held_by_open_requests_may_be_asked_again_and_a_spent_one_not(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    limited.budget("key", 110_000)
    held = asyncio.create_task(limited.ask(HELD, stream=True, **SMALL))
    await until(lambda: provider.calls.open == 1)
    refused = await limited.ask(**SMALL)
    assert (refused.status, refused.code) == (402, "budget_exceeded")
    assert (refused.header("x-should-retry"), refused.header("retry-after")) == ("true", "1")
    assert "held by requests that still run" in refused.json["error"]["message"]
    provider.release()
    await held
    # What the stream did not use is free at once, and the memory of the refusal gone.
    assert await limited.statuses(2, **SMALL) == [200, 402]
    refused = await limited.ask(**SMALL)
    assert (refused.header("x-should-retry"), refused.header("retry-after")) == ("false", None)
    assert "has less left until" in refused.json["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_every_refusal_leaves_one_record_that_says_what_refused(
    limited: LimitedEdge, provider: FakeProvider, stream: bool
) -> None:
    cases: list[tuple[dict[str, int], str, str, int]] = [
        ({"requests_per_minute": 0}, "rate_limited", "rate_limit_exceeded", 429),
        ({"tokens_per_minute": 10}, "rate_limited", "rate_limit_exceeded", 429),
        ({"open_requests": 0}, "rate_limited", "concurrency_limit_exceeded", 429),
    ]
    refusals = []
    for scope in SCOPES:
        for limits, outcome, code, status in cases:
            limited.limit(scope, **limits)
            refusals.append(await limited.ask(stream=stream, **SMALL))
            limited.limit(scope, **dict.fromkeys(limits))
            record = limited.edge.records[-1]
            assert (record.outcome, record.error_code, record.status) == (outcome, code, status)
    for budget_scope in BUDGET_SCOPES:
        budget = limited.budget(budget_scope, 10)
        refusals.append(await limited.ask(stream=stream, **SMALL))
        limited.edge.remove(f"budget.{budget.id}")
        record = limited.edge.records[-1]
        assert (record.outcome, record.error_code, record.status) == ("budget_exceeded", "budget_exceeded", 402)
    records = limited.edge.records
    assert len(records) == len(refusals) == 3 * len(SCOPES) + len(BUDGET_SCOPES)
    assert [record.request_id for record in records] == [refused.header("x-request-id") for refused in refusals]
    assert {(record.cost_nano_usd, record.input_tokens, record.output_tokens, record.count) for record in records} == {
        (0, 0, 0, 1)
    }
    assert {record.end_user for record in records} == {limited.id_of("end_user", "ann").partition(":")[2]}
    assert provider.calls.total == 0


async def test_refusals_are_counted_in_metrics(limited: LimitedEdge) -> None:
    limited.limit("key", requests_per_minute=1)
    assert await limited.statuses(4, **SMALL) == [200, 429, 429, 429]
    counts = limited.edge.ledger.counts
    assert counts.refused + counts.remembered == 3
    assert counts.policy_served == counts.policy_refused == 0


async def test_connection_goes_on_after_a_refusal(limited: LimitedEdge) -> None:
    limited.limit("key", open_requests=1)
    limited.limit("tenant", requests_per_minute=1)
    async with limited.edge.client() as client:
        for expected in (200, 429, 429):
            response = await client.ask(chat(key=limited.edge.key))
            assert (response.status, response.header("connection")) == (expected, None)
        limited.limit("tenant", requests_per_minute=None)
        assert (await client.ask(chat(key=limited.edge.key))).status == 200
