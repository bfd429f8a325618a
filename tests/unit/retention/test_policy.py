"""Which days must have partitions."""

from sluicegate.retention.policy import wanted_days
from sluicegate.store.partitions import US_PER_DAY


def test_days_reach_from_yesterday_to_the_last_one_ahead() -> None:
    assert list(wanted_days(100 * US_PER_DAY, 3)) == [99, 100, 101, 102, 103]


def test_days_move_on_at_midnight_utc() -> None:
    assert wanted_days(100 * US_PER_DAY - 1, 1) == range(98, 101)
    assert wanted_days(100 * US_PER_DAY, 1) == range(99, 102)
