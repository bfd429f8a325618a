"""200 calls at once on a budget for ten, by 1, 2 and 4 edge workers: nothing above it, nothing left of it."""

from concurrent.futures import Future

import pytest

from sluicegate.devstack.limits.bursts import Burst
from sluicegate.devstack.limits.calls import codes, served

USD = 1_000_000_000
REFUSALS = {"budget_exceeded", "dependency_unavailable"}
Bursts = dict[tuple[int, str], "Future[Burst]"]

pytestmark = [pytest.mark.timeout(200), pytest.mark.parametrize("workers", [1, 2, 4])]


@pytest.fixture
def bursts(outcomes: "Outcomes") -> Bursts:  # type: ignore[name-defined]  # noqa: F821 - conftest's
    found: Bursts = outcomes.bursts
    return found


def beyond(burst: Burst, workers: int) -> int:
    """What may be taken beyond the limit: with the default policy, what passed while Valkey's answers were late."""
    if workers != 2:
        assert burst.policy_served == 0
    return burst.policy_served * USD


def test_ten_calls_pass_and_never_more_is_taken_when_calls_use_what_they_reserve(bursts: Bursts, workers: int) -> None:
    burst = bursts[workers, "as reserved"].result()
    assert burst.samples > 10
    assert burst.most_taken <= burst.limit + beyond(burst, workers)
    assert 10 <= burst.served <= 10 + burst.policy_served
    assert burst.meter.spent == burst.recorded.cost_nano_usd == burst.served * USD
    assert "budget_exceeded" in codes(burst.at_once + burst.afterwards) <= REFUSALS


def test_as_many_more_pass_as_the_money_left_allows_when_calls_use_less(bursts: Bursts, workers: int) -> None:
    burst = bursts[workers, "less than reserved"].result()
    assert burst.most_taken <= burst.limit + beyond(burst, workers)
    # A dollar must be left for each, and each takes 40 cents of it.
    assert 23 <= burst.served <= 23 + burst.policy_served
    assert burst.meter.spent == burst.recorded.cost_nano_usd == burst.served * USD * 2 // 5
    assert burst.afterwards[-1].is_final


def test_overshoot_is_what_open_calls_use_beyond_their_reservation(bursts: Bursts, workers: int) -> None:
    burst = bursts[workers, "more than reserved"].result()
    together = served(burst.at_once)
    assert together <= 10 + burst.policy_served
    assert burst.meter.spent == burst.recorded.cost_nano_usd == burst.served * USD * 3 // 2
    # Those of the burst were open together; of those that came one by one afterwards, the last.
    assert burst.meter.spent <= burst.limit + max(together, 1) * USD // 2 + beyond(burst, workers)


def test_a_large_limit_is_used_up_by_clients_that_come_again(bursts: Bursts, workers: int) -> None:
    burst = bursts[workers, "a large limit"].result()
    assert burst.most_taken <= burst.limit + beyond(burst, workers)
    assert burst.meter.spent == burst.recorded.cost_nano_usd
    assert burst.recorded.cost_nano_usd * 100 >= burst.limit * 99
