"""An edge is killed, Valkey stops, Valkey forgets: requests go on, and meters come to equal PostgreSQL."""

import pytest

from sluicegate.devstack.limits.calls import served

pytestmark = pytest.mark.timeout(200)


def test_meters_come_to_equal_the_records_when_an_edge_is_killed(
    outcomes: "Outcomes",  # type: ignore[name-defined]  # noqa: F821 - conftest's
) -> None:
    killed = outcomes.killed.result()
    broken = sum(answer.status == 0 for answer in killed.answers)
    assert 0 < broken < len(killed.answers) / 4, "the kill was not felt, or by more than its own requests"
    assert [one.scope for one in killed.compared] == ["key", "team", "department"]
    assert all(one.meter.spent == one.recorded for one in killed.compared)


def test_requests_go_on_by_the_policy_and_the_meters_are_repaired_when_valkey_was_away(
    outcomes: "Outcomes",  # type: ignore[name-defined]  # noqa: F821 - conftest's
) -> None:
    away = outcomes.away.result()
    assert served(away.answers) == len(away.answers)
    assert away.policy_served > 0
    assert "local-share" in away.detail
    assert away.limits_up_again
    assert all(one.meter.spent == one.recorded for one in away.compared)


def test_budgets_are_seeded_right_and_once_when_valkey_forgets_everything_under_load(
    outcomes: "Outcomes",  # type: ignore[name-defined]  # noqa: F821 - conftest's
) -> None:
    flushed = outcomes.flushed.result()
    far = flushed.far
    assert served(far.answers) == len(far.answers)
    assert far.most_above_the_truth <= 0
    assert all(one.meter.spent == one.recorded for one in far.compared)
    assert all(one.meter.base > 0 for one in far.compared)
    # Of the budget that was half spent, exactly the other half.
    assert flushed.spent_before == flushed.limit // 2
    assert flushed.limit <= flushed.spent <= flushed.limit + flushed.policy_served * flushed.limit // 10
