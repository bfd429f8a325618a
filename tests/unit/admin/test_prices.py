"""Prices: decimal strings to integers and back, exactly; lists that retire and add."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sluicegate.admin.models.prices import MAX_USD_PER_MILLION, PriceRow, plan_prices, price_nano_usd
from sluicegate.admin.models.schemas import ALWAYS, NewModel, NewPrice, Price
from sluicegate.admin.money import usd

JANUARY = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("0.15", 150_000_000),
        ("3", 3_000_000_000),
        ("3.0", 3_000_000_000),
        ("0.000000001", 1),
        ("0.1", 100_000_000),
        ("0.3", 300_000_000),
        ("1000000", 10**15),
        ("0000001.5", 1_500_000_000),
    ],
)
def test_nano_usd_is_exact(text: str, expected: int) -> None:
    assert price_nano_usd(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".5",
        "5.",
        "-1",
        "+1",
        "1e3",
        "1,5",
        "0.0000000001",
        "1000000.000000001",
        "NaN",
        "inf",
        " 1",
        "1 ",
        "1\n",
        "١",
        "0x1",
        "1_0",
    ],
)
def test_nano_usd_refuses_what_is_not_exact_decimal_usd(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        price_nano_usd(text)


@given(st.integers(min_value=0, max_value=MAX_USD_PER_MILLION * 10**9))
def test_usd_comes_back_as_the_same_amount(amount: int) -> None:
    text = usd(amount)
    assert price_nano_usd(text) == amount
    assert Decimal(text) * 10**9 == amount


def test_price_keeps_null_apart_from_zero() -> None:
    row = NewPrice(input_usd_per_million="1", output_usd_per_million="2", cached_input_usd_per_million="0").row()
    assert (row.cached_input, row.cache_write_5m, row.valid_from) == (0, None, ALWAYS)


def test_price_is_shown_as_it_was_given() -> None:
    given_price = NewPrice(
        input_usd_per_million="0.15",
        output_usd_per_million="0.6",
        cached_input_usd_per_million="0.075",
        cache_write_5m_usd_per_million="0.1875",
        cache_write_1h_usd_per_million="0.3",
        reasoning_usd_per_million="0.61",
        valid_from=JANUARY,
    )
    shown = Price.model_validate(replace(given_price.row(), version=7))
    assert shown.model_dump(mode="json", exclude={"version"}) == given_price.model_dump(mode="json")
    assert shown.version == 7


@pytest.mark.parametrize("number", [0.15, 1, True, None])
def test_price_refuses_numbers_because_json_numbers_are_floats(number: object) -> None:
    with pytest.raises(ValidationError):
        NewPrice.model_validate({"input_usd_per_million": number, "output_usd_per_million": "1"})


def test_prices_refuse_two_that_begin_at_once() -> None:
    price = {"input_usd_per_million": "1", "output_usd_per_million": "1"}
    with pytest.raises(ValidationError, match="same time"):
        NewModel.model_validate({"provider": "prv_1", "name": "m", "prices": [price, price]})


def row(valid_from: datetime, amount: int, version: int = 0) -> PriceRow:
    return PriceRow(version=version, valid_from=valid_from, input=amount, output=amount)


def test_plan_keeps_equal_prices_and_numbers_new_ones() -> None:
    plan = plan_prices([row(ALWAYS, 1, 1)], [row(JANUARY, 2), row(ALWAYS, 1)], last_version=4)
    assert plan.retired == ()
    assert plan.added == (row(JANUARY, 2, 5),)


def test_plan_retires_what_is_replaced() -> None:
    plan = plan_prices([row(ALWAYS, 1, 1), row(JANUARY, 2, 2)], [row(ALWAYS, 9)], last_version=2)
    assert plan.retired == (1, 2)
    assert plan.added == (row(ALWAYS, 9, 3),)


def test_plan_is_empty_when_nothing_changes() -> None:
    assert plan_prices([row(ALWAYS, 1, 1)], [row(ALWAYS, 1)], last_version=1).is_empty
