"""Valkey away or slow: leases go on, then the policy decides, and nobody waits for it or is blamed for it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.faults import FaultyLink, faulty_link
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, SCOPES, LimitedEdge, stored_meters
from sluicegate.devstack.raw_http import Response
from sluicegate.devstack.servers import ValkeyServer
from sluicegate.ledger.ledger import WAIT_S

SMALL: dict[str, Any] = {"max_tokens": 10, "user": "ann"}
SLOW_S = 0.2
under = pytest.mark.parametrize(
    "edge_settings", [{"limits_when_store_away": policy} for policy in ("local-share", "closed", "open")]
)


def policy(name: str, **more: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("edge_settings", [{"limits_when_store_away": name, **more}])


@pytest.fixture
def store_wait_s() -> float:
    """As in production: 50 ms."""
    return WAIT_S


@pytest.fixture
async def link(valkey_server: ValkeyServer) -> AsyncIterator[FaultyLink]:
    async with faulty_link(valkey_server.url) as link:
        yield link


@pytest.fixture
def store_url(valkey_server: ValkeyServer, link: FaultyLink) -> str:
    valkey_server.flush()
    return link.url(valkey_server.url)


def is_infrastructure_fault(response: Response) -> bool:
    """503, told to come back: never 401, 402 or 429."""
    return (response.status, response.code, response.header("retry-after")) == (503, "dependency_unavailable", "1")


async def is_away(limited: LimitedEdge) -> None:
    await until(lambda: limited.edge.ledger.state == "degraded")


async def is_back(limited: LimitedEdge) -> None:
    await until(lambda: limited.edge.ledger.state == "ok")


# Away from the start


@policy("local-share", limits_expected_workers=2)
async def test_share_of_each_limit_is_served_when_valkey_never_answered(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    """Two workers are expected: half of the limit is this one's, on every scope."""
    link.refuse()
    for scope in SCOPES:
        served = provider.calls.total
        limited.limit(scope, requests_per_minute=4)
        responses = [await limited.ask(**SMALL) for _ in range(4)]
        assert [response.status for response in responses] == [200, 200, 503, 503], scope
        assert all(map(is_infrastructure_fault, responses[2:]))
        assert provider.calls.total == served + 2
        limited.limit(scope, requests_per_minute=None)


@policy("local-share", limits_expected_workers=2)
async def test_share_of_budgets_tokens_and_places_is_served_when_valkey_never_answered(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    link.refuse()
    for scope in ("key", "provider"):
        # Half of it is 110 000: two answers of 41 000, and some 60 000 to reserve for each.
        budget = limited.budget(scope, 220_000)
        assert await limited.statuses(3, **SMALL) == [200, 200, 503], scope
        limited.edge.remove(f"budget.{budget.id}")
        limited.limit(scope, tokens_per_minute=160)
        assert await limited.statuses(3, **SMALL) == [200, 200, 503], scope
        limited.limit(scope, tokens_per_minute=None, open_requests=2)
        held = asyncio.create_task(limited.ask("gate_at=2&write=each", stream=True))
        await until(lambda: provider.calls.open == 1)
        assert is_infrastructure_fault(await limited.ask(**SMALL))
        provider.release()
        assert (await held).status == 200
        limited.limit(scope, open_requests=None)


@policy("closed")
async def test_limited_requests_are_refused_as_our_fault_when_the_policy_is_closed(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    link.refuse()
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1_000)
        assert is_infrastructure_fault(await limited.ask(**SMALL)), scope
        limited.limit(scope, requests_per_minute=None)
        assert (await limited.ask(**SMALL)).status == 200
    limited.budget("key", 1_000_000_000)
    assert is_infrastructure_fault(await limited.ask(**SMALL))
    record = limited.edge.records[-1]
    assert (record.outcome, record.error_code, record.status) == ("rejected", "dependency_unavailable", 503)
    assert provider.calls.total == len(SCOPES)


@policy("open")
async def test_everything_is_served_when_the_policy_is_open(limited: LimitedEdge, link: FaultyLink) -> None:
    link.refuse()
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=1, tokens_per_minute=1, open_requests=1)
    limited.budget("key", 1)
    assert await limited.statuses(4, **SMALL) == [200] * 4
    assert limited.edge.ledger.counts.policy_served >= 4


@under
async def test_zero_still_blocks_and_no_limit_or_a_soft_one_still_passes_whatever_the_policy(
    limited: LimitedEdge, link: FaultyLink
) -> None:
    link.refuse()
    assert (await limited.ask(**SMALL)).status == 200
    limited.budget("key", 1, is_soft=True)
    assert (await limited.ask(**SMALL)).status == 200
    limited.limit("team", requests_per_minute=0)
    assert (await limited.ask(**SMALL)).status == 429
    limited.limit("team", requests_per_minute=None)
    limited.budget("team", 0)
    assert (await limited.ask(**SMALL)).status == 402


# Away later


@under
async def test_leases_go_on_when_valkey_goes_away(limited: LimitedEdge, link: FaultyLink) -> None:
    """Far from the limit nobody notices, whatever the policy says."""
    limited.limit("key", requests_per_minute=1_000, open_requests=50, tokens_per_minute=1_000_000)
    limited.budget("team", 1_000_000_000)
    assert await limited.statuses(3, **SMALL) == [200] * 3
    link.refuse()
    assert await limited.statuses(1, **SMALL) == [200]
    counts = limited.edge.ledger.counts
    assert (counts.policy_served, counts.policy_refused) == (0, 0)


@policy("local-share")
async def test_spent_budget_stays_spent_while_valkey_is_away(limited: LimitedEdge, link: FaultyLink) -> None:
    """What is known to be spent refuses as ever: that is no fault of ours."""
    limited.budget("key", 110_000)
    assert await limited.statuses(3, **SMALL) == [200, 200, 402]
    link.refuse()
    limited.limit("key", requests_per_minute=50)  # a meter that has no lease yet
    await limited.ask(**SMALL)
    await is_away(limited)
    refused = await limited.ask(**SMALL)
    assert (refused.status, refused.header("x-should-retry")) == (402, "false")


@policy("open")
async def test_what_the_policy_let_through_counts_once_valkey_is_back(
    limited: LimitedEdge, link: FaultyLink, valkey_server: ValkeyServer
) -> None:
    limited.limit("key", requests_per_minute=4)
    link.refuse()
    assert await limited.statuses(6, **SMALL) == [200] * 6
    await is_away(limited)
    link.accept()
    await is_back(limited)
    await until(lambda: limited.meters()["requests", "key"].is_joined)
    refused = await limited.ask(**SMALL)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert (await stored_meters(valkey_server.url))["cap:requests:key:key_1"].held == 6


@policy("local-share")
async def test_everything_is_exact_again_once_valkey_is_back(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    link.refuse()
    limited.limit("key", requests_per_minute=5)
    limited.budget("team", 1_000_000_000, id="bud_team")
    assert await limited.statuses(2, **SMALL) == [200, 200]
    await is_away(limited)
    link.accept()
    await is_back(limited)
    assert await limited.statuses(4, **SMALL) == [200, 200, 200, 429]
    assert provider.calls.total == 5
    assert limited.edge.ledger.counts.policy_refused == 0


@under
async def test_provider_limits_lead_to_the_next_target_or_503_while_valkey_is_away(
    limited: LimitedEdge, link: FaultyLink, edge_settings: dict[str, Any]
) -> None:
    limited.edge.put_provider("prv_2")
    limited.edge.put_model("demo", providers=("prv_1", "prv_2"))
    limited.limit("provider", requests_per_minute=1)
    link.refuse()
    responses = [await limited.ask(**SMALL) for _ in range(2)]
    assert [response.status for response in responses] == [200, 200]
    served_by = [response.header("x-sluicegate-fallbacks") for response in responses]
    expected = {"local-share": [None, "1"], "closed": ["1", "1"], "open": [None, None]}
    assert served_by == expected[edge_settings["limits_when_store_away"]]


# Slow


async def test_request_is_served_by_the_policy_while_valkey_holds_its_answer_back(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink, valkey_server: ValkeyServer
) -> None:
    """The answer comes only after the request has been served: nobody can have waited for it."""
    limited.limit("key", requests_per_minute=100)
    limited.limit("provider", requests_per_minute=100)
    link.hold()
    assert await limited.statuses(2, **SMALL) == [200, 200]
    assert provider.calls.total == 2
    counts = limited.edge.ledger.counts
    assert counts.policy_served == 4  # for each request once for its caller and once for its target
    assert limited.meters()["requests", "key"].left is None
    link.release()
    await until(lambda: limited.meters()["requests", "key"].left is not None)
    await until(lambda: limited.meters()["requests", "provider"].left is not None)
    assert limited.taken()["requests", "key"] == limited.taken()["requests", "provider"] == 2
    served = counts.policy_served
    await until(lambda: limited.edge.ledger.state == "ok")
    assert (await limited.ask(**SMALL)).status == 200
    assert counts.policy_served == served
    stored = await limited.stored_after_giving_back()
    assert stored["cap:requests:key:key_1"].held == 3


async def test_requests_do_not_wait_for_a_valkey_that_takes_200_ms(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink
) -> None:
    """Its first answer takes far longer than a request may wait: by then the policy has let it through."""
    limited.limit("key", requests_per_minute=1_000)
    limited.budget("key", 1_000_000_000)
    link.delay_s = SLOW_S / 2  # in each direction
    first = await limited.ask(**SMALL)
    assert first.status == 200
    assert limited.meters()["requests", "key"].left is None
    assert limited.edge.ledger.counts.policy_served == 1
    # Slow is not away: its answers count, and with leases nobody waits at all.
    async with asyncio.timeout(10):
        while not all(meter.is_ok for meter in limited.meters().values()):
            assert (await limited.ask(**SMALL)).status == 200
            await asyncio.sleep(SLOW_S)
    assert limited.edge.ledger.state == "ok"
    waits = limited.edge.ledger.counts.waits
    served = limited.edge.ledger.counts.policy_served
    assert await limited.statuses(2, **SMALL) == [200] * 2
    assert (limited.edge.ledger.counts.waits, limited.edge.ledger.counts.policy_served) == (waits, served)
    assert provider.calls.total == len(limited.edge.records)
    link.delay_s = 0.0


@policy("closed")
async def test_limit_near_its_end_is_our_fault_when_valkey_is_slow_and_the_policy_is_closed(
    limited: LimitedEdge, link: FaultyLink
) -> None:
    limited.limit("key", requests_per_minute=1)
    assert (await limited.ask(**SMALL)).status == 200
    link.delay_s = SLOW_S / 2
    assert is_infrastructure_fault(await limited.ask(**SMALL))
    link.delay_s = 0.0


async def test_calls_without_an_answer_open_the_breaker_and_requests_go_on(
    limited: LimitedEdge, provider: FakeProvider, link: FaultyLink, edge: EdgeUnderTest
) -> None:
    limited.limit("key", requests_per_minute=100)
    link.refuse()
    assert (await limited.ask(**SMALL)).status == 200
    await is_away(limited)
    waits = edge.ledger.counts.waits
    assert await limited.statuses(5, **SMALL) == [200] * 5
    assert edge.ledger.counts.waits == waits  # the breaker is open: not even 50 ms
    link.accept()
    await is_back(limited)


async def test_budget_is_right_after_an_outage_with_spend_in_it(limited: LimitedEdge, link: FaultyLink) -> None:
    """What leases covered is settled late and whole."""
    limited.budget("key", 1_000_000_000, id="bud_key")
    assert await limited.statuses(3, **SMALL) == [200] * 3
    link.refuse()
    assert await limited.statuses(2, **SMALL) == [200] * 2
    link.accept()
    stored = await limited.stored_after_giving_back()
    assert stored["sum:bud_key:key_1"] == (5 * ANSWER_NANO_USD, 0, 0)
