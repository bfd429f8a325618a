"""When a budget's spend is worth telling, and under which id: the same for every finder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts.budgets import threshold_event, thresholds_of, thresholds_reached
from sluicegate.contracts.catalogue import Budget

USD = 1_000_000_000


def budget(limit: int = 10 * USD, wanted: tuple[int, ...] = (80, 50, 100), *, soft: bool = False) -> Budget:
    return Budget(
        id="bud_1",
        name="purse",
        scope="team",
        scope_id="tea_1",
        limit_nano_usd=limit,
        period="day",
        thresholds_percent=wanted,
        is_soft=soft,
    )


@pytest.mark.parametrize(
    ("wanted", "soft", "expected"),
    [
        ((80, 50, 100), False, [50, 80, 100]),
        ((50,), False, [50]),
        ((), False, []),
        ((50,), True, [50, 100]),
        ((), True, [100]),
        ((100, 50), True, [50, 100]),
    ],
)
def test_soft_budget_always_has_the_last_threshold(wanted: tuple[int, ...], soft: bool, expected: list[int]) -> None:
    assert thresholds_of(budget(wanted=wanted, soft=soft)) == expected


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        (-1, []),
        (0, []),
        (5 * USD - 1, []),
        (5 * USD, [50]),
        (8 * USD - 1, [50]),
        (8 * USD, [50, 80]),
        (10 * USD - 1, [50, 80]),
        (10 * USD, [50, 80, 100]),
        (99 * USD, [50, 80, 100]),
    ],
)
def test_threshold_is_reached_to_the_nano_dollar(spent: int, expected: list[int]) -> None:
    assert thresholds_reached(budget(), spent) == expected


def test_limit_of_zero_is_reached_by_the_first_spend_and_not_by_none() -> None:
    assert thresholds_reached(budget(0, soft=True), 0) == []
    assert thresholds_reached(budget(0, soft=True), 1) == [50, 80, 100]


@given(st.integers(1, 9 * 10**15), st.integers(0, 2 * 10**16), st.integers(0, 2 * 10**16), st.booleans())
def test_more_spend_reaches_no_fewer_thresholds(limit: int, one: int, other: int, soft: bool) -> None:
    less, more = sorted((one, other))
    of = budget(limit, soft=soft)
    assert thresholds_reached(of, more)[: len(thresholds_reached(of, less))] == thresholds_reached(of, less)


def test_event_says_who_spent_what_of_which_period() -> None:
    event = threshold_event(budget(soft=True), "ten_1", (5_000_000, 9_000_000), 80, spent_nano_usd=7, at_us=6_000_000)
    assert event.event_id == "bud_1:tea_1:5:80"
    assert (event.tenant, event.budget, event.budget_name) == ("ten_1", "bud_1", "purse")
    assert (event.scope, event.scope_id, event.is_soft) == ("team", "tea_1", True)
    assert (event.period_start_us, event.period_end_us, event.at_us) == (5_000_000, 9_000_000, 6_000_000)
    assert (event.threshold_percent, event.limit_nano_usd, event.spent_nano_usd) == (80, 10 * USD, 7)


def test_event_has_one_id_whatever_was_spent_and_whenever_it_was_found() -> None:
    one = threshold_event(budget(), None, (5_000_000, 9), 50, spent_nano_usd=1, at_us=1)
    other = threshold_event(budget(9), "ten_1", (5_000_000, 9), 50, spent_nano_usd=2, at_us=2)
    next_period = threshold_event(budget(), None, (6_000_000, 9), 50, spent_nano_usd=1, at_us=1)
    assert one.event_id == other.event_id != next_period.event_id
