"""Budgets in bodies: exact money, real zones, thresholds in order."""

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from sluicegate.admin.budgets.schemas import BudgetPatch, NewBudget, columns
from sluicegate.admin.budgets.zones import zone_names

BODY: dict[str, Any] = {"name": "b", "scope": "team", "scope_id": "tea_1", "limit_usd": "12.50", "period": "month"}


def test_columns_are_what_the_contract_holds() -> None:
    body = NewBudget.model_validate(BODY | {"first_weekday": "sunday", "soft": True})
    assert columns(body) == {
        "name": "b",
        "scope": "team",
        "scope_id": "tea_1",
        "limit_nano_usd": 12_500_000_000,
        "period": "month",
        "first_weekday": 6,
        "time_zone": "UTC",
        "thresholds_percent": (50, 80, 100),
        "is_soft": True,
        "enabled": True,
    }


def test_columns_of_a_patch_are_only_those_it_names() -> None:
    assert columns(BudgetPatch.model_validate({})) == {}
    assert columns(BudgetPatch.model_validate({"soft": False, "first_weekday": "monday"})) == {
        "is_soft": False,
        "first_weekday": 0,
    }


@pytest.mark.parametrize(
    ("text", "nano_usd"),
    [
        ("0", 0),
        ("0.000000001", 1),
        ("0.1", 100_000_000),
        ("8999999.999999999", 8_999_999_999_999_999),
        ("9000000", 9_000_000_000_000_000),
        ("9000000.0", 9_000_000_000_000_000),
    ],
)
def test_limit_is_exact(text: str, nano_usd: int) -> None:
    assert columns(BudgetPatch.model_validate({"limit_usd": text})) == {"limit_nano_usd": nano_usd}


@pytest.mark.parametrize("text", ["-1", "1e3", "", "12345678", "0.0000000001"])
def test_wrong_limit_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValidationError, match=r"must be decimal USD such as 0\.15"):
        NewBudget.model_validate({**BODY, "limit_usd": text})


@pytest.mark.parametrize("kind", [NewBudget, BudgetPatch])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limit_usd", "9000000.000000001"),
        ("limit_usd", "9000001"),
        ("limit_usd", "-1"),
        ("limit_usd", "1e3"),
        ("limit_usd", "0.0000000001"),
        ("limit_usd", "NaN"),
        ("limit_usd", ""),
        ("limit_usd", "1\n"),
        ("limit_usd", 10),
        ("limit_usd", 12.5),
        ("limit_usd", None),
        ("scope", "organisation"),
        ("scope", "end_user"),
        ("scope", None),
        ("period", "minute"),
        ("first_weekday", 0),
        ("first_weekday", "Monday"),
        ("time_zone", "Europe/Atlantis"),
        ("time_zone", "europe/berlin"),
        ("time_zone", "../etc/localtime"),
        ("time_zone", "+01:00"),
        ("time_zone", "Factory"),
        ("time_zone", ""),
        ("time_zone", None),
        ("thresholds_percent", [80, 50]),
        ("thresholds_percent", [50, 50]),
        ("thresholds_percent", [0]),
        ("thresholds_percent", [-5]),
        ("thresholds_percent", [1001]),
        ("thresholds_percent", [50, 80.0]),
        ("thresholds_percent", ["50"]),
        ("thresholds_percent", list(range(1, 22))),
        ("thresholds_percent", 80),
        ("thresholds_percent", None),
        ("soft", "yes"),
        ("soft", None),
    ],
)
def test_budget_is_refused_when_a_field_makes_no_sense(
    kind: type[NewBudget | BudgetPatch], field: str, value: object
) -> None:
    body = BODY if kind is NewBudget else {}
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate(body | {field: value})
    assert {error["loc"][0] for error in refusal.value.errors()} == {field}


@pytest.mark.parametrize("thresholds", [[], [100], [1, 2, 1000], [50, 80, 100, 120]])
def test_thresholds_are_taken(thresholds: list[int]) -> None:
    assert NewBudget.model_validate(BODY | {"thresholds_percent": thresholds}).thresholds_percent == thresholds


def test_every_zone_that_is_taken_can_be_loaded() -> None:
    assert len(zone_names()) > 500
    for name in ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"):
        assert NewBudget.model_validate(BODY | {"time_zone": name}).time_zone == name
    for name in zone_names():
        ZoneInfo(name)
