"""Rates and open requests over four edge workers: never more than the limit, and all of it again afterwards."""

import pytest

from sluicegate.devstack.limits.minutes import Minutes

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(params=["requests", "tokens"])
def minutes(outcomes: "Outcomes", request: pytest.FixtureRequest) -> Minutes:  # type: ignore[name-defined]  # noqa: F821 - conftest's
    found: Minutes = getattr(outcomes, request.param).result()
    return found


def test_no_sliding_minute_holds_more_than_the_limit(minutes: Minutes) -> None:
    assert minutes.most_in_a_minute <= minutes.limit
    assert "rate_limit_exceeded" in minutes.codes <= {"rate_limit_exceeded", "dependency_unavailable"}
    assert all(1 <= seconds <= 61 for seconds in minutes.retry_after_s)


def test_all_of_the_limit_is_usable_and_comes_back_after_a_minute(minutes: Minutes) -> None:
    # Of tokens a bit less than one more request needs is left over.
    usable = minutes.limit - minutes.limit % 1_000 if minutes.limit > 1_000 else minutes.limit
    assert minutes.first_minute == usable
    assert minutes.second_minute == usable


def test_never_more_requests_are_open_than_allowed_and_all_slots_come_back(
    outcomes: "Outcomes",  # type: ignore[name-defined]  # noqa: F821 - conftest's
) -> None:
    found = outcomes.open_requests.result()
    assert found.refused > 0, "the limit was not felt, so this proves nothing"
    assert found.codes == {"concurrency_limit_exceeded"}
    assert found.most_at_provider <= found.limit
    assert found.open_again == found.limit
