"""When failures to store count as a state, and when they are past."""

import pytest

from sluicegate.usage_writer.storing import FAILURES_THAT_COUNT, FORGET_AFTER_S, Storing


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storing(clock: Clock) -> Storing:
    return Storing(clock)


def fail(storing: Storing, times: int) -> None:
    for number in range(times):
        storing.fail(f"reason {number}")


def test_state_is_ready_when_nothing_has_happened(storing: Storing) -> None:
    assert storing.state() == (True, "")


def test_state_is_ready_and_names_the_failure_when_there_were_few(storing: Storing) -> None:
    fail(storing, FAILURES_THAT_COUNT - 1)
    is_ready, detail = storing.state()
    assert is_ready
    assert f"reason {FAILURES_THAT_COUNT - 2}" in detail


def test_state_is_unready_with_the_last_reason_when_nothing_is_stored_any_more(storing: Storing) -> None:
    fail(storing, FAILURES_THAT_COUNT)
    is_ready, detail = storing.state()
    assert not is_ready
    assert f"reason {FAILURES_THAT_COUNT - 1}" in detail


def test_state_is_ready_again_when_a_batch_is_stored(storing: Storing) -> None:
    fail(storing, 50)
    storing.succeed()
    assert storing.state()[0]
    fail(storing, FAILURES_THAT_COUNT - 1)
    assert storing.state()[0]


def test_state_is_past_when_no_failure_has_come_for_long(storing: Storing, clock: Clock) -> None:
    fail(storing, 50)
    clock.now += FORGET_AFTER_S
    assert not storing.state()[0]
    clock.now += 1
    assert storing.state() == (True, "")
    fail(storing, FAILURES_THAT_COUNT - 1)
    assert storing.state()[0]
