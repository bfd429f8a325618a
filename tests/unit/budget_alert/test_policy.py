"""When a delivery is tried again, what an answer means, what can be stored."""

import pytest

from sluicegate.budget_alert import policy
from sluicegate.budget_alert.policy import Answer, outcome, retry_delay_s
from sluicegate.contracts.facts import BudgetThresholdReached

USD = 1_000_000_000


def event(**changes: object) -> BudgetThresholdReached:
    values: dict[str, object] = {
        "event_id": "bud_1:tea_1:1800000000:80",
        "at_us": 1_800_000_100_000_000,
        "tenant": "ten_1",
        "budget": "bud_1",
        "budget_name": "research",
        "scope": "team",
        "scope_id": "tea_1",
        "period_start_us": 1_800_000_000_000_000,
        "period_end_us": 1_800_003_600_000_000,
        "threshold_percent": 80,
        "limit_nano_usd": 10 * USD,
        "spent_nano_usd": 8 * USD,
    }
    return BudgetThresholdReached(**(values | changes))  # type: ignore[arg-type]


def test_six_attempts_span_about_an_hour() -> None:
    assert len(policy.RETRY_DELAYS_S) + 1 == policy.ATTEMPTS
    for jitter in (-1.0, 0.0, 1.0):
        whole = sum(retry_delay_s(attempt, jitter=jitter) for attempt in range(1, policy.ATTEMPTS))
        assert 45 * 60 <= whole <= 75 * 60


def test_waits_grow_whatever_the_jitter() -> None:
    for attempt in range(1, policy.ATTEMPTS - 1):
        assert retry_delay_s(attempt, jitter=1.0) < retry_delay_s(attempt + 1, jitter=-1.0)


@pytest.mark.parametrize(("asked_s", "expected_s"), [(None, 30.0), (5.0, 30.0), (600.0, 600.0), (1_000_000.0, 3_600.0)])
def test_retry_after_is_honoured_when_it_is_longer_up_to_an_hour(asked_s: float | None, expected_s: float) -> None:
    assert retry_delay_s(1, retry_after_s=asked_s) == expected_s


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_answer_delivers_when_it_is_2xx(status: int) -> None:
    assert outcome(Answer(status=status), attempts_left=0) == policy.Outcome(state="delivered", endpoint="well")


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 429, 500, 503])
def test_answer_is_tried_again_when_it_is_anything_else(status: int) -> None:
    found = outcome(Answer(status=status), attempts_left=5)
    assert (found.state, found.endpoint, found.retry_in_s) == ("pending", "failed", 30.0)
    assert str(status) in (found.error or "")


def test_delivery_is_dead_when_the_last_attempt_failed() -> None:
    found = outcome(Answer(error="no answer"), attempts_left=0)
    assert (found.state, found.endpoint, found.error) == ("dead", "failed", "no answer")


def test_delivery_and_endpoint_are_done_with_when_the_answer_is_410() -> None:
    found = outcome(Answer(status=410), attempts_left=5)
    assert (found.state, found.endpoint) == ("dead", "gone")


def test_delivery_is_dead_at_once_when_trying_again_is_pointless() -> None:
    found = outcome(Answer(error="private", is_final=True), attempts_left=5)
    assert (found.state, found.endpoint) == ("dead", "unknown")


def test_event_can_be_stored() -> None:
    assert policy.refusal(event()) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold_percent": 0},
        {"threshold_percent": 2**31},
        {"limit_nano_usd": -1},
        {"spent_nano_usd": 2**63},
        {"at_us": 2**62},
        {"period_end_us": 2**62},
        {"period_start_us": 1_800_003_600_000_001},
        {"budget_name": "a\0b"},
        {"event_id": "x" * 1_001},
    ],
)
def test_event_is_refused_when_it_cannot_be_stored(changes: dict[str, object]) -> None:
    assert policy.refusal(event(**changes)) is not None
