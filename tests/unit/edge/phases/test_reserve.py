"""The sums behind a reservation, and how a short limit is put into words."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts.money import Price
from sluicegate.devstack.ledger_stand_in import StandInStore
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.limits import Bounds
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.phases import reserve
from sluicegate.edge.phases.classify import ChatRequest
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.wire.usage import TokenUsage
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import NO_LIMIT, Meter, Resource, Short

CHEAP = Price(version=1, valid_from_us=0, input=1_000_000, output=2_000_000)
DEAR = Price(version=1, valid_from_us=0, input=5_000_000, output=1_000_000)
amounts = st.integers(1, 10**9)


class Told:
    """Thresholds that only note."""

    def __init__(self) -> None:
        self.exhausted: list[Meter] = []

    def on_exhausted(self, meter: Meter) -> None:
        self.exhausted.append(meter)


async def _nothing(_: Meter) -> int | None:
    return 0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(StandInStore(), spent_so_far=_nothing)


def exchange(chat: ChatRequest | None = None, *, estimate: int = 100, at_us: int = 1, **settings: Any) -> Exchange:
    defaults = {"cached_tokens_weight_percent": 100, "unpriced_under_budget": "refuse"}
    edge = SimpleNamespace(settings=SimpleNamespace(**{**defaults, **settings}), thresholds=Told())
    fields = {"edge": edge, "chat": chat, "input_estimate": estimate, "started_at_us": at_us}
    return cast(Exchange, SimpleNamespace(**fields))


def target(*prices: Price, most: int | None = None) -> Target:
    fields = {"provider_name": "p", "model_name": "m", "prices": prices, "max_output_tokens": most}
    return cast(Target, SimpleNamespace(**fields))


def money(ledger: Ledger, limit: int = 1_000, *, is_soft: bool = False) -> Meter:
    return ledger.sum_meter(
        "bud_1", "key_1", scope="key", start_us=0, end_us=86_400_000_000, limit=limit, zero_from_us=0, is_soft=is_soft
    )


def bounds(*meters: Meter) -> Bounds:
    return Bounds(dict.fromkeys(meters, "the budget 'purse' of this key"), None)


# How much


@given(st.none() | amounts, st.none() | amounts, st.none() | st.integers(1, 200), st.none() | st.integers(0, 10**9))
def test_output_at_most_is_what_the_provider_is_asked_for(
    max_tokens: int | None, max_completion_tokens: int | None, n: int | None, model_limit: int | None
) -> None:
    chat = ChatRequest(max_tokens=max_tokens, max_completion_tokens=max_completion_tokens, n=n)
    asked = [limit for limit in (max_tokens, max_completion_tokens) if limit is not None]
    limit = max(asked, default=reserve.DEFAULT_OUTPUT_TOKENS)
    each = limit if model_limit is None else min(limit, model_limit)
    assert reserve._output_at_most(chat, model_limit) == min(100_000_000, each * (n or 1))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 100))
def test_cached_tokens_count_by_their_weight_and_never_below_nothing(
    read: int, cached: int, written: int, weight: int
) -> None:
    usage = TokenUsage()
    usage.input, usage.cached_input, usage.output = read, cached, written
    tokens = reserve._weighed_tokens(exchange(cached_tokens_weight_percent=weight), usage)
    true_cached = min(cached, read)
    assert abs(tokens - (read - true_cached + true_cached * weight / 100 + written)) < 1
    assert written <= tokens <= read + written


def test_needs_are_those_of_the_dearest_target_for_this_request(ledger: Ledger) -> None:
    """Which one is dear depends on how much of it is input."""
    of = bounds(money(ledger))
    chat = ChatRequest(max_tokens=10)
    both = (target(CHEAP), target(DEAR))
    assert reserve._needs(exchange(chat, estimate=100), of, both) == (110, 100 * 5 + 10 * 1)
    assert reserve._needs(exchange(chat, estimate=1), of, both) == (11, 1 + 10 * 2)
    assert reserve._needs(exchange(chat, estimate=1), of, (target(CHEAP, most=2), target(DEAR))) == (11, 5 + 10)


def test_needs_follow_the_price_at_the_requests_start(ledger: Ledger) -> None:
    later = Price(version=2, valid_from_us=1_000, input=9_000_000, output=0)
    of, chat = bounds(money(ledger)), ChatRequest(max_tokens=10)
    assert reserve._needs(exchange(chat, at_us=999), of, (target(CHEAP, later),)) == (110, 120)
    assert reserve._needs(exchange(chat, at_us=1_000), of, (target(CHEAP, later),)) == (110, 900)


@pytest.mark.parametrize(("reasoning", "output_cost"), [(None, 20), (1_000_000, 20), (3_000_000, 30)])
def test_output_is_reserved_as_thought_where_thought_is_dearer(
    ledger: Ledger, reasoning: int | None, output_cost: int
) -> None:
    price = Price(version=1, valid_from_us=0, input=0, output=2_000_000, reasoning=reasoning)
    needs = reserve._needs(exchange(ChatRequest(max_tokens=10)), bounds(money(ledger)), (target(price),))
    assert needs == (110, output_cost)


def test_needs_stay_below_what_the_store_can_count(ledger: Ledger) -> None:
    absurd = Price(version=1, valid_from_us=0, input=10**18, output=10**18)
    _, cost = reserve._needs(exchange(ChatRequest(max_tokens=10**8)), bounds(money(ledger)), (target(absurd),))
    assert cost == NO_LIMIT


def test_unpriced_target_is_refused_only_under_a_hard_budget(ledger: Ledger) -> None:
    chat = ChatRequest(max_tokens=10)
    hard, tokens_only = bounds(money(ledger)), bounds(ledger.cap_meter("tokens", "key", "key_1", limit=5))
    with pytest.raises(Refusal) as caught:
        reserve._needs(exchange(chat), hard, (target(CHEAP), target()))
    assert (caught.value.code, caught.value.param) == ("model_not_allowed", "model")
    assert reserve._needs(exchange(chat, unpriced_under_budget="serve"), hard, (target(),)) == (110, 0)
    assert reserve._needs(exchange(chat), tokens_only, (target(),)) == (110, 0)


# How it is said


def refusal(short: Short, *meters: Meter, tokens: int = 0) -> tuple[Refusal, Told]:
    of = exchange()
    result = reserve._refusal_of(of, short, bounds(*meters), tokens)
    return result, cast(Told, of.edge.thresholds)


@pytest.mark.parametrize(
    ("resource", "code", "text"),
    [
        ("requests", "rate_limit_exceeded", "may send 5 requests a minute."),
        ("tokens", "rate_limit_exceeded", "may use 5 tokens a minute, and this request can take 3."),
        ("open", "concurrency_limit_exceeded", "may have 5 requests open at once. Wait for one to end."),
    ],
)
def test_short_capacity_is_429_with_the_time_to_wait(ledger: Ledger, resource: Resource, code: str, text: str) -> None:
    meter = ledger.cap_meter(resource, "key", "key_1", limit=5)
    result, _ = refusal(Short(meter, retry_after_s=17), meter, tokens=3)
    assert (result.status, result.code) == (429, code)
    assert result.message == f"The budget 'purse' of this key {text}"
    assert result.headers() == [(b"retry-after", b"17")]


@pytest.mark.parametrize("scope", ["provider", "model"])
def test_provider_is_said_to_take_requests_not_to_send_them(ledger: Ledger, scope: str) -> None:
    meter = ledger.cap_meter("requests", scope, "id_1", limit=5)
    assert refusal(Short(meter, retry_after_s=17), meter)[0].message.endswith(" takes 5 requests a minute.")


def test_spent_budget_is_a_final_402_and_its_threshold_is_looked_at(ledger: Ledger) -> None:
    meter = money(ledger)
    meter.spent = 1_000
    result, told = refusal(Short(meter, retry_after_s=1, is_final=True), meter)
    assert (result.status, result.code) == (402, "budget_exceeded")
    assert result.message == "The budget 'purse' of this key is used up until 1970-01-02T00:00Z."
    assert result.headers() == [(b"x-should-retry", b"false")]
    assert told.exhausted == [meter]


def test_budget_with_too_little_left_says_so(ledger: Ledger) -> None:
    meter = money(ledger)
    meter.spent = 999
    result, _ = refusal(Short(meter, retry_after_s=1, is_final=True), meter)
    assert "has less left until 1970-01-02T00:00Z than this request can cost" in result.message


def test_held_budget_is_a_402_to_come_back_from(ledger: Ledger) -> None:
    meter = money(ledger)
    result, told = refusal(Short(meter, retry_after_s=1), meter)
    assert (result.status, result.headers()) == (402, [(b"retry-after", b"1"), (b"x-should-retry", b"true")])
    assert told.exhausted == []


@pytest.mark.parametrize("kind", ["budget", "requests"])
def test_store_that_is_away_is_503_and_nobodys_limit(ledger: Ledger, kind: str) -> None:
    meter = money(ledger) if kind == "budget" else ledger.cap_meter("requests", "key", "key_1", limit=5)
    result, told = refusal(Short(meter, retry_after_s=1, reason="store_away"), meter)
    assert (result.status, result.code, result.retry_after_s) == (503, "dependency_unavailable", 1)
    assert told.exhausted == []


def test_request_larger_than_its_limit_is_told_not_to_come_back(ledger: Ledger) -> None:
    meter = ledger.cap_meter("tokens", "key", "key_1", limit=5)
    result, _ = refusal(Short(meter, retry_after_s=17), meter, tokens=6)
    assert result.message.endswith("Lower `max_tokens` or shorten it.")
    assert result.headers() == [(b"retry-after", b"17"), (b"x-should-retry", b"false")]
