"""Prices: exact integers, one rounding, no part beyond its whole."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts.money import Price, cost_nano_usd, price_at

MINI = Price(version=1, valid_from_us=0, input=150_000_000, output=600_000_000, cached_input=75_000_000)


def test_cost_is_exact_when_prices_are_whole() -> None:
    """One million tokens of input at 0.15 USD, two of output at 0.60."""
    assert cost_nano_usd(MINI, input_tokens=1_000_000, output_tokens=2_000_000) == 1_350_000_000


@pytest.mark.parametrize(("price", "expected"), [(499_999, 0), (500_000, 1), (1_499_999, 1), (1_500_000, 2)])
def test_cost_rounds_half_up(price: int, expected: int) -> None:
    assert (
        cost_nano_usd(Price(version=1, valid_from_us=0, input=price, output=0), input_tokens=1, output_tokens=0)
        == expected
    )


def test_cost_rounds_once_over_all_parts() -> None:
    """Each part alone would round to 0."""
    price = Price(version=1, valid_from_us=0, input=300_000, output=300_000)
    assert cost_nano_usd(price, input_tokens=1, output_tokens=1) == 1


def test_cached_input_is_part_of_input() -> None:
    assert cost_nano_usd(MINI, input_tokens=1_000_000, output_tokens=0, cached_input_tokens=400_000) == 120_000_000


def test_cache_writes_and_reasoning_have_prices_of_their_own() -> None:
    price = Price(
        version=1,
        valid_from_us=0,
        input=1_000_000,
        output=2_000_000,
        cache_write_5m=1_250_000,
        cache_write_1h=2_000_000,
        reasoning=3_000_000,
    )
    cost = cost_nano_usd(
        price,
        input_tokens=100,
        output_tokens=50,
        cache_write_5m_tokens=20,
        cache_write_1h_tokens=10,
        reasoning_tokens=30,
    )
    assert cost == 70 * 1 + 20 * 1.25 + 10 * 2 + 20 * 2 + 30 * 3


def test_missing_prices_fall_back_to_their_whole() -> None:
    price = Price(version=1, valid_from_us=0, input=1_000_000, output=2_000_000)
    cost = cost_nano_usd(
        price,
        input_tokens=10,
        output_tokens=5,
        cached_input_tokens=4,
        cache_write_5m_tokens=3,
        cache_write_1h_tokens=2,
        reasoning_tokens=5,
    )
    assert cost == 20


TOKENS = st.integers(min_value=0, max_value=10_000_000)
RATE = st.integers(min_value=0, max_value=10**12)


@given(TOKENS, TOKENS, TOKENS, TOKENS, RATE, RATE, RATE, RATE)
def test_parts_count_as_far_as_the_whole_goes(
    tokens: int,
    output: int,
    cached: int,
    reasoning: int,
    rate: int,
    output_rate: int,
    cached_rate: int,
    reasoning_rate: int,
) -> None:
    """Providers report more cached than input tokens at times: the cost stays exact and is never negative."""
    price = Price(
        version=1, valid_from_us=0, input=rate, output=output_rate, cached_input=cached_rate, reasoning=reasoning_rate
    )
    cached_part, reasoning_part = min(cached, tokens), min(reasoning, output)
    exact = Fraction(
        (tokens - cached_part) * rate
        + cached_part * cached_rate
        + (output - reasoning_part) * output_rate
        + reasoning_part * reasoning_rate,
        1_000_000,
    )
    cost = cost_nano_usd(
        price, input_tokens=tokens, output_tokens=output, cached_input_tokens=cached, reasoning_tokens=reasoning
    )
    assert cost == floor(exact + Fraction(1, 2))


@pytest.mark.parametrize(("at_us", "version"), [(-1, None), (0, 1), (99, 1), (100, 2), (10**18, 2)])
def test_price_in_force_is_the_last_that_began(at_us: int, version: int | None) -> None:
    prices = (MINI, Price(version=2, valid_from_us=100, input=1, output=1))
    price = price_at(prices, at_us)
    assert (price.version if price else None) == version


def test_price_is_none_when_a_model_has_none() -> None:
    assert price_at((), 0) is None
