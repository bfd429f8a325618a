"""Which meters are audited, and which thresholds are told."""

from sluicegate.budget_alert.meters import audited_meters
from sluicegate.budget_alert.repository import EnabledBudget
from sluicegate.contracts.catalogue import Budget, Period
from sluicegate.contracts.facts import SpentQuestion

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
MIDNIGHT_US = 20_758 * DAY_US


def budget(period: Period = "day", time_zone: str = "UTC") -> EnabledBudget:
    return EnabledBudget(
        budget=Budget(
            id="bud_1",
            name="research",
            scope="team",
            scope_id="tea_1",
            limit_nano_usd=1,
            period=period,
            time_zone=time_zone,
        ),
        tenant="ten_1",
    )


def starts(period: Period, at_us: int, time_zone: str = "UTC") -> list[int]:
    return [meter.start_us for meter in audited_meters([budget(period, time_zone)], at_us)]


def test_present_period_is_audited() -> None:
    assert starts("day", MIDNIGHT_US + 12 * HOUR_US) == [MIDNIGHT_US]


def test_period_is_audited_for_an_hour_after_its_end() -> None:
    assert starts("day", MIDNIGHT_US) == [MIDNIGHT_US - DAY_US, MIDNIGHT_US]
    assert starts("day", MIDNIGHT_US + HOUR_US - 1) == [MIDNIGHT_US - DAY_US, MIDNIGHT_US]
    assert starts("day", MIDNIGHT_US + HOUR_US) == [MIDNIGHT_US]


def test_both_hours_are_always_audited_when_the_period_is_an_hour() -> None:
    assert starts("hour", MIDNIGHT_US + 1) == [MIDNIGHT_US - HOUR_US, MIDNIGHT_US]


def test_days_begin_in_the_budgets_own_zone() -> None:
    half_past_five_us = 5 * HOUR_US + HOUR_US // 2
    assert starts("day", MIDNIGHT_US + 12 * HOUR_US, "Asia/Kolkata") == [MIDNIGHT_US - half_past_five_us]


def test_meter_has_the_name_that_edges_give_it_and_asks_for_its_period() -> None:
    (meter,) = audited_meters([budget()], MIDNIGHT_US + 12 * HOUR_US)
    assert meter.name == f"sg:{{all}}:sum:bud_1:tea_1:{MIDNIGHT_US // 1_000_000}"
    assert meter.question == SpentQuestion(scope="team", id="tea_1", start_us=MIDNIGHT_US, end_us=MIDNIGHT_US + DAY_US)
