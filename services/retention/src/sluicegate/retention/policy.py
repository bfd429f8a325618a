"""Pure decisions: which days must have partitions. No await, no SQL."""

from typing import Final

from sluicegate.store.partitions import day_number

# Clocks differ and requests end late: yesterday's partition is still written to.
DAYS_BEHIND: Final = 1


def wanted_days(now_us: int, days_ahead: int) -> range:
    """Return the day numbers that must have partitions: yesterday, today and `days_ahead` more."""
    today = day_number(now_us)
    return range(today - DAYS_BEHIND, today + days_ahead + 1)
