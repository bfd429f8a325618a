"""What a request reserves, and what it gives back: at once, and by what was really seen."""

import asyncio
from typing import Any

import pytest

from sluicegate.contracts.catalogue import Model
from sluicegate.contracts.money import Price
from sluicegate.devstack.edge_process import until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.limited_edge import ANSWER_NANO_USD, ANSWER_TOKENS, BUDGET_SCOPES, LimitedEdge
from sluicegate.devstack.raw_http import Response, chat

SILENT = "silence=request"
PLENTY = 10_000_000


@pytest.fixture
def counted(limited: LimitedEdge) -> LimitedEdge:
    """Tokens and money are counted, far from any limit."""
    limited.limit("key", tokens_per_minute=PLENTY, open_requests=100)
    limited.limit("model", tokens_per_minute=PLENTY)
    limited.budget("key", 1_000_000_000_000)
    limited.budget("model", 1_000_000_000_000)
    return limited


async def reserved(limited: LimitedEdge, **fields: Any) -> tuple[int, int, int]:
    """Return a running request's input estimate, and what it holds in tokens and nano-USD, the same on both sides."""
    before = limited.taken()
    settled = len(limited.edge.records)
    async with limited.edge.client() as client:
        client.send(chat(SILENT, key=limited.edge.key, **fields))
        await until(lambda: limited.taken()["open", "key"] == 1 and limited.edge.edge.open_exchanges != set())
        exchange = next(iter(limited.edge.edge.open_exchanges))
        await until(lambda: exchange.relay is not None and exchange.target_reservation is not None)
        held = {name: taken - before[name] for name, taken in limited.taken().items()}
    await limited.edge.record(settled)
    assert held["tokens", "key"] == held["tokens", "model"]
    assert held["budget", "key"] == held["budget", "model"]
    return exchange.input_estimate, held["tokens", "key"], held["budget", "key"]


async def test_reservation_is_input_and_output_at_most(counted: LimitedEdge) -> None:
    """The output limit that applies, times `n`; 1 024 where there is none; never more than the model can."""
    for model, fields, output in (
        ({}, {}, 1_024),
        ({}, {"n": 3}, 3 * 1_024),
        ({}, {"max_tokens": 50}, 50),
        ({}, {"max_completion_tokens": 60}, 60),
        ({}, {"max_completion_tokens": 60, "n": 2}, 120),
        ({}, {"max_tokens": 70, "max_completion_tokens": 60}, 70),
        ({}, {"max_tokens": 5_000}, 5_000),
        ({"max_output_tokens": 500}, {"max_tokens": 5_000}, 500),
        ({"max_output_tokens": 500}, {}, 500),
        ({"max_output_tokens": 500}, {"n": 4}, 2_000),
        ({"max_output_tokens": 500}, {"max_tokens": 400, "n": 4}, 1_600),
        ({"max_output_tokens": 5_000}, {}, 1_024),
        ({"max_output_tokens": None}, {"max_tokens": 9}, 9),
    ):
        counted.model(**{"max_output_tokens": None, **model})
        estimate, tokens, cost = await reserved(counted, **fields)
        assert tokens == estimate + output, (model, fields)
        assert cost == estimate * 1_000 + output * 3_000, (model, fields)


async def test_input_is_estimated_by_bytes_and_images(counted: LimitedEdge) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "x" * 4_000}, image]}]
    estimate, tokens, _ = await reserved(counted, messages=messages, max_tokens=10)
    assert tokens == estimate + 10
    # 4 000 bytes of text are 1 000 tokens, an image is 1 600; the rest of the body some dozens.
    assert 2_600 < estimate < 2_700


async def test_caller_reserves_at_the_dearest_target_and_pays_for_the_one_that_answered(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    """The first target is cheap, the second dear and able to say more."""
    dear = Price(version=1, valid_from_us=0, input=5_000_000_000, output=20_000_000_000)
    limited.edge.put_provider("prv_2")
    limited.edge.put_model("demo", providers=("prv_1", "prv_2"))
    limited.model(max_output_tokens=100)
    limited.edge.put(Model(id="mod_demo_prv_2", name="fake-gpt", provider="prv_2", prices=(dear,)))
    limited.limit("key", tokens_per_minute=PLENTY)
    limited.budget("key", 1_000_000_000_000)
    async with limited.edge.client() as client:
        client.send(chat(SILENT, key=limited.edge.key, max_tokens=1_000))
        await until(lambda: provider.calls.open == 1)
        estimate = limited.edge.journal.admissions[0].input_tokens
        assert limited.taken()["tokens", "key"] == estimate + 1_000
        assert limited.taken()["budget", "key"] == estimate * 5_000 + 1_000 * 20_000
    await limited.edge.record()
    spent = estimate * 1_000
    assert limited.edge.records[0].cost_nano_usd == spent
    for fake, cost in (("", ANSWER_NANO_USD), ("fail_first=1&status=500", 11 * 5_000 + 10 * 20_000)):
        response = await limited.ask(fake, max_tokens=1_000)
        spent += cost
        assert response.header("x-sluicegate-cost-usd") == f"0.{cost:09}"
        assert limited.meters()["budget", "key"].settled == spent
    assert limited.taken()["budget", "key"] == 0
    assert limited.taken()["tokens", "key"] == estimate + 2 * ANSWER_TOKENS


async def test_answer_that_costs_more_than_reserved_is_counted_whole(counted: LimitedEdge) -> None:
    counted.budget("key", 150_000, id="bud_small")
    response = await counted.ask("prompt_tokens=100&completion_tokens=200", max_tokens=5)
    assert response.status == 200
    true_cost = 100 * 1_000 + 200 * 3_000
    assert counted.edge.records[0].cost_nano_usd == true_cost
    assert counted.taken()["tokens", "key"] == 300
    # The debt stands in the meter: nothing more passes.
    refused = await counted.ask(max_tokens=5)
    assert (refused.status, refused.header("x-should-retry")) == (402, "false")
    assert "is used up until" in refused.json["error"]["message"]
    stored = await counted.stored_after_giving_back()
    assert stored["sum:bud_small:key_1"].settled == true_cost


@pytest.mark.parametrize(
    ("edge_settings", "counted_tokens"),
    [
        ({}, 1_000 + 10),
        ({"cached_tokens_weight_percent": 100}, 1_000 + 10),
        ({"cached_tokens_weight_percent": 25}, 1_000 - 800 + 200 + 10),
        ({"cached_tokens_weight_percent": 0}, 1_000 - 800 + 10),
    ],
)
async def test_cached_tokens_count_by_their_weight(limited: LimitedEdge, counted_tokens: int) -> None:
    limited.limit("key", tokens_per_minute=PLENTY)
    limited.budget("key", 1_000_000_000_000)
    for stream in (False, True):
        assert (await limited.ask("prompt_tokens=1000&cached_tokens=800", max_tokens=20, stream=stream)).status == 200
    assert limited.taken()["tokens", "key"] == 2 * counted_tokens
    # Money is what the price says of cached tokens, whatever their weight.
    assert limited.meters()["budget", "key"].settled == 2 * (1_000 * 1_000 + 10 * 3_000)


# Settling


async def test_what_was_not_used_is_free_at_once(limited: LimitedEdge) -> None:
    """Twenty requests in a row, each reserving nearly all of the limit."""
    limited.limit("key", tokens_per_minute=1_500)
    limited.budget("team", 4_000_000)
    assert await limited.statuses(20) == [200] * 20
    assert limited.taken() == {("tokens", "key"): 20 * ANSWER_TOKENS, ("budget", "team"): 0}


async def stop_by_user(limited: LimitedEdge, provider: FakeProvider, fake: str, *, reset: bool) -> None:
    async with limited.edge.client() as client:
        client.send(chat(fake, key=limited.edge.key, stream=True, max_tokens=1_000))
        await client.until(b"fourfour")
        await until(lambda: provider.calls.recent[-1].events_sent == 4)
        (client.reset if reset else client.close)()
        await until(lambda: provider.calls.open == 0, 2)


@pytest.mark.parametrize("reset", [False, True])
async def test_stream_stopped_by_its_user_leaves_no_phantom_spend(
    counted: LimitedEdge, provider: FakeProvider, reset: bool
) -> None:
    """BL-36, BL-52: what was seen is paid, and not the hold."""
    await stop_by_user(counted, provider, "events=100&gate_at=4&words=fourfour", reset=reset)
    record = await counted.edge.record()
    assert (record.outcome, record.usage_source, record.output_tokens) == ("client_cancelled", "partial", 3 * 8 // 4)
    cost = record.input_tokens * 1_000 + record.output_tokens * 3_000
    tokens = record.input_tokens + record.output_tokens
    assert record.cost_nano_usd == cost
    for scope in ("key", "model"):
        assert counted.taken()["tokens", scope] == tokens
        assert counted.taken()["budget", scope] == 0
        assert counted.meters()["budget", scope].settled == cost
    assert counted.taken()["open", "key"] == 0


async def test_meters_count_what_the_record_says(counted: LimitedEdge) -> None:
    """A failed attempt costs its target nothing; the caller's meters and the target's say the same."""
    tokens = cost = 0
    for fake, stream, outcome in (
        ("cut_at=4&words=fourfour&events=90", True, "stream_interrupted"),
        ("error_at=4&words=fourfour&events=90", True, "stream_interrupted"),
        ("usage=none&words=fourfour", True, "success"),
        ("usage=none&words=fourfour", False, "success"),
        ("", True, "success"),
        ("", False, "success"),
        ("status=500", False, "provider_error"),
        ("cut_head=1", True, "provider_error"),
        ("status=422", False, "rejected"),
    ):
        await counted.ask(fake, stream=stream)
        record = counted.edge.records[-1]
        assert record.outcome == outcome, fake
        assert (record.cost_nano_usd == 0) == (outcome in {"provider_error", "rejected"}), fake
        tokens += record.input_tokens + record.output_tokens
        cost += record.cost_nano_usd or 0
        for scope in ("key", "model"):
            assert counted.taken()["tokens", scope] == tokens, fake
            assert counted.taken()["budget", scope] == 0, fake
            assert counted.meters()["budget", scope].settled == cost, fake


@pytest.mark.parametrize("edge_settings", [{"charge_cancelled_prompt": False}])
async def test_nothing_is_kept_when_the_client_leaves_before_the_answer_and_prompts_are_free_then(
    counted: LimitedEdge, provider: FakeProvider
) -> None:
    async with counted.edge.client() as client:
        client.send(chat(SILENT, key=counted.edge.key))
        await until(lambda: provider.calls.open == 1)
        client.close()
        await counted.edge.record()
    assert set(counted.taken().values()) == {0}
    assert counted.meters()["budget", "key"].settled == 0


async def test_valkey_holds_what_the_records_say_after_a_mixed_run(
    counted: LimitedEdge, provider: FakeProvider
) -> None:
    fakes = ["", "status=500", "cut_at=3&events=9", "usage=none", "status=422", "prompt_tokens=9000", "garbage=json"]
    jobs = [counted.ask(fake, stream=stream) for fake in fakes for stream in (False, True)]
    responses: list[Response] = await asyncio.gather(*jobs)
    assert len(responses) == len(counted.edge.records) == len(fakes) * 2
    spent = sum(record.cost_nano_usd or 0 for record in counted.edge.records)
    tokens = sum(record.input_tokens + record.output_tokens for record in counted.edge.records)
    stored = await counted.stored_after_giving_back()
    assert {amount.settled for name, amount in stored.items() if name.startswith("sum:")} == {spent}
    assert {amount.held for name, amount in stored.items() if name.startswith("cap:tokens:")} == {tokens}
    assert not [name for name in stored if name.startswith("cap:open:")]


# Models without a price


async def test_unpriced_model_is_refused_under_a_hard_budget_on_any_scope(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    limited.model(prices=())
    assert (await limited.ask()).status == 200
    for scope in BUDGET_SCOPES:
        budget = limited.budget(scope, 1_000_000_000)
        refused = await limited.ask()
        assert (refused.status, refused.code) == (403, "model_not_allowed"), scope
        assert "has no price" in refused.json["error"]["message"]
        limited.edge.remove(f"budget.{budget.id}")
        limited.budget(scope, 1_000_000_000, is_soft=True)
        assert (await limited.ask()).status == 200, scope
    assert provider.calls.total == 1 + len(BUDGET_SCOPES)
    assert {record.cost_source for record in limited.edge.records if record.status == 200} == {"unpriced"}


@pytest.mark.parametrize("edge_settings", [{"unpriced_under_budget": "serve"}])
async def test_unpriced_model_is_served_under_a_hard_budget_if_the_setting_says_so(limited: LimitedEdge) -> None:
    limited.model(prices=())
    limited.budget("key", 1_000)
    limited.budget("model", 1_000)
    assert await limited.statuses(3) == [200] * 3
    assert limited.meters()["budget", "key"].settled == 0
    assert limited.edge.records[0].cost_nano_usd is None


async def test_price_that_is_not_yet_valid_is_no_price(limited: LimitedEdge) -> None:
    limited.model(prices=(Price(version=1, valid_from_us=2**60, input=1, output=1),))
    limited.budget("key", 1_000_000_000)
    assert (await limited.ask()).code == "model_not_allowed"


async def test_free_model_needs_nothing_of_a_spent_budget(limited: LimitedEdge) -> None:
    """Only a limit of 0 stops what costs nothing."""
    limited.budget("key", 110_000)
    assert await limited.statuses(3, max_tokens=10) == [200, 200, 402]
    limited.model(prices=(Price(version=2, valid_from_us=0, input=0, output=0),))
    assert await limited.statuses(2, max_tokens=10) == [200, 200]


async def test_max_tokens_is_not_asked_for_where_only_requests_are_limited(limited: LimitedEdge) -> None:
    """BL-74."""
    limited.limit("key", requests_per_minute=5, open_requests=5)
    assert (await limited.ask()).status == 200
    assert "tokens" not in {resource for resource, _ in limited.meters()}
