"""Which thresholds the auditor finds reached, and under which id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.budget_alert.auditor import Finding, _thresholds
from sluicegate.budget_alert.meters import BudgetMeter
from sluicegate.contracts.catalogue import Budget

USD = 1_000_000_000
START_US = 1_793_491_200_000_000


def finding(
    recorded: int | None,
    total: int | None,
    *,
    limit: int = 10 * USD,
    wanted: tuple[int, ...] = (80, 50),
    soft: bool = False,
) -> Finding:
    budget = Budget(
        id="bud_1",
        name="research",
        scope="team",
        scope_id="tea_1",
        limit_nano_usd=limit,
        period="day",
        thresholds_percent=wanted,
        is_soft=soft,
    )
    return Finding(
        BudgetMeter(budget=budget, tenant=None, name="m", start_us=START_US, end_us=START_US + 1), recorded, total
    )


def percents(found: Finding) -> list[int]:
    return [event.threshold_percent for event in _thresholds(found)]


@pytest.mark.parametrize(
    ("spent", "soft", "expected"),
    [
        (0, False, []),
        (5 * USD - 1, False, []),
        (5 * USD, False, [50]),
        (8 * USD, False, [50, 80]),
        (30 * USD, False, [50, 80]),
        (10 * USD - 1, True, [50, 80]),
        (10 * USD, True, [50, 80, 100]),
    ],
)
def test_thresholds_are_those_that_the_spend_has_reached(spent: int, soft: bool, expected: list[int]) -> None:
    assert percents(finding(spent, None, soft=soft)) == expected


def test_the_larger_of_both_sums_counts() -> None:
    assert percents(finding(8 * USD, 5 * USD)) == percents(finding(5 * USD, 8 * USD)) == [50, 80]


def test_nothing_is_reached_when_nothing_is_known_or_spent() -> None:
    assert percents(finding(None, None)) == []
    assert percents(finding(0, 0, limit=0)) == []


@given(st.integers(1, 9 * 10**15), st.integers(0, 10**16), st.lists(st.integers(1, 200), max_size=5))
def test_threshold_is_reached_exactly_when_its_share_is_spent(limit: int, spent: int, wanted: list[int]) -> None:
    expected = sorted({percent for percent in wanted if spent and spent * 100 >= limit * percent})
    assert percents(finding(spent, None, limit=limit, wanted=tuple(wanted))) == expected


def test_event_has_the_id_that_every_finder_gives_it() -> None:
    (event,) = _thresholds(finding(5 * USD, None))
    assert event.event_id == f"bud_1:tea_1:{START_US // 1_000_000}:50"
